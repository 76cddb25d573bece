//! The one error type of the crate.

use std::fmt;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for callers that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument has a value or a shape that the call does not take.
    InvalidInput,
    /// A request id is not known, or is known already.
    Request,
    /// A file is not what it should be: foreign, damaged, or of another version.
    Corrupt,
    /// The operating system refused an operation on a file.
    Io,
    /// A bound set by the caller (tokens, bytes) does not allow the operation.
    Capacity,
    /// Another process did not answer in time.
    Late,
    /// Another process is gone, or speaks another version.
    Lost,
}

/// An error with its kind and a message that names the value found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// Makes an error. Messages are lower-case and name what was found and what was expected.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An argument that the call does not take.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::new(ErrorKind::Io, error.to_string())
    }
}
