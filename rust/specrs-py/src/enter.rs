//! The one door from Python into the library: releases the GIL, maps errors, stops panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use specrs::{Error, ErrorKind};

/// The name in `specrs.errors` of the exception for `kind`.
fn exception_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidInput => "InvalidInputError",
        ErrorKind::Request => "RequestError",
        ErrorKind::Corrupt => "CorruptFileError",
        ErrorKind::Io => "FileAccessError",
        ErrorKind::Capacity => "CapacityError",
        ErrorKind::Late => "DrafterLateError",
        ErrorKind::Lost => "DrafterLostError",
        _ => "InternalError",
    }
}

/// Raises the exception called `name` of `specrs.errors`.
pub fn raise(py: Python<'_>, name: &str, message: &str) -> PyErr {
    let made = py.import("specrs.errors").and_then(|m| m.getattr(name)).and_then(|class| class.call1((message,)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Turns an error of the library into its exception.
pub fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    raise(py, exception_name(error.kind()), &error.to_string())
}

/// An argument that the binding layer itself refuses.
pub fn invalid(py: Python<'_>, message: &str) -> PyErr {
    raise(py, "InvalidInputError", message)
}

/// Runs `work` without the GIL. A panic, which would be our bug, becomes `specrs.errors.InternalError`.
pub fn enter<T: Send>(py: Python<'_>, work: impl FnOnce() -> specrs::Result<T> + Send) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(to_py(py, &error)),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown panic");
            Err(raise(py, "InternalError", &format!("a bug in specrs, please report it: {text}")))
        }
    }
}

/// A dictionary of the named fields of a value.
macro_rules! dict_of {
    ($py:expr, $value:expr, $($field:ident),+ $(,)?) => {{
        let dict = pyo3::types::PyDict::new($py);
        $(dict.set_item(stringify!($field), $value.$field)?;)+
        Ok(dict)
    }};
}
pub(crate) use dict_of;
