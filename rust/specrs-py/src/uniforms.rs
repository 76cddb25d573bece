//! Counter-based coins (`specrs::uniforms`).

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use specrs::uniforms::{Key, Purpose, uniform};

use crate::enter::{enter, invalid};

fn purpose(py: Python<'_>, name: &str) -> PyResult<Purpose> {
    match name {
        "draft" => Ok(Purpose::Draft),
        "accept" => Ok(Purpose::Accept),
        "emit" => Ok(Purpose::Emit),
        "policy" => Ok(Purpose::Policy),
        _ => Err(invalid(py, &format!("purpose must be 'draft', 'accept', 'emit' or 'policy', got '{name}'"))),
    }
}

/// The coins of (seed, request, position, purpose) for each position.
#[pyfunction]
#[pyo3(signature = (seed, positions, purpose, request = 0, index = 0))]
fn coins<'py>(
    py: Python<'py>,
    seed: u64,
    positions: PyReadonlyArray1<'py, u32>,
    purpose: &str,
    request: u32,
    index: u32,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let purpose = self::purpose(py, purpose)?;
    let positions = positions.as_array().to_vec();
    let drawn = enter(py, move || {
        Ok(positions
            .into_iter()
            .map(|position| uniform(Key { seed, request, position, purpose, index }))
            .collect::<Vec<_>>())
    })?;
    Ok(drawn.into_pyarray(py))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(coins, m)?)
}
