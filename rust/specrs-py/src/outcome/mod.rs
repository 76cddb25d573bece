//! Drafting while the target verifies (`specrs::outcome`).

mod guess;
mod kept;
mod worth;

use pyo3::prelude::*;

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    guess::register(m)?;
    kept::register(m)?;
    worth::register(m)
}
