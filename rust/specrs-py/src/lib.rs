//! Module `specrs._core`: convert, check, release the GIL, call, convert. No algorithm lives here.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

mod arrays;
mod attention;
mod build;
mod draft;
mod enter;
mod gpu;
mod linear;
#[cfg(unix)]
mod link;
mod memory;
mod outcome;
mod payoff;
mod policy;
mod serving;
mod store;
mod tree;
mod uniforms;
mod verify;

use pyo3::prelude::*;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    attention::register(m)?;
    build::register(m)?;
    draft::register(m)?;
    gpu::register(m)?;
    uniforms::register(m)?;
    verify::register(m)?;
    linear::register(m)?;
    #[cfg(unix)]
    link::register(m)?;
    outcome::register(m)?;
    payoff::register(m)?;
    policy::register(m)?;
    serving::register(m)?;
    store::register(m)?;
    tree::register(m)
}
