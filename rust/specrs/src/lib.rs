//! Speculative decoding for any engine: the parts that run on the CPU, without Python, torch or CUDA.
//!
//! A cheap *drafter* proposes several next tokens, the *target* model scores them all in one forward pass, and a
//! *verifier* keeps what the target would have written anyway. This crate holds the parts of that round that are worth
//! doing well once; an engine brings its own forward pass.
//!
//! The data's way: prompt → draft → tree → verify → accept → commit.

pub mod attention;
pub mod draft;
pub mod error;
mod isotonic;
pub mod linear;
pub mod outcome;
pub mod policy;
pub mod serving;
pub mod tree;
pub mod types;
pub mod uniforms;
pub mod verify;
mod workers;

pub use error::{Error, ErrorKind, Result};
pub use types::{NodeId, TokenId};
