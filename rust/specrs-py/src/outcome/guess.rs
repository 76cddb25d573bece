//! Which outcomes to guess: fan-out, fork tokens, Saguaro's law.

use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use specrs::outcome::{self, MissLaw};

use crate::arrays::flat_of;
use crate::enter::{enter, invalid};

#[pyfunction]
fn outcome_probs(py: Python<'_>, acceptance: f64, lookahead: usize) -> PyResult<Vec<f64>> {
    enter(py, || outcome::outcome_probs(acceptance, lookahead))
}

#[pyfunction]
fn geometric_fan_out(py: Python<'_>, acceptance: f64, rho: f64, lookahead: usize, budget: usize) -> PyResult<Vec<f64>> {
    enter(py, || outcome::geometric(acceptance, rho, lookahead, budget))
}

#[pyfunction]
#[pyo3(signature = (weights, rho, budget, most = u32::MAX, scale = 1.0))]
fn allocate_fan_out(
    py: Python<'_>,
    weights: Vec<f64>,
    rho: f64,
    budget: usize,
    most: u32,
    scale: f64,
) -> PyResult<Vec<u32>> {
    enter(py, || outcome::allocate_by(&weights, MissLaw { scale, rho }, budget, most))
}

#[pyfunction]
#[pyo3(signature = (fan_outs, rates, weights, through_one = false))]
fn fit_power_law(
    py: Python<'_>,
    fan_outs: Vec<f64>,
    rates: Vec<f64>,
    weights: Vec<f64>,
    through_one: bool,
) -> PyResult<(f64, f64)> {
    if fan_outs.len() != rates.len() || rates.len() != weights.len() {
        let found = (fan_outs.len(), rates.len(), weights.len());
        return Err(invalid(py, &format!("fan_outs, rates and weights must have one length, got {found:?}")));
    }
    let points: Vec<_> = fan_outs.into_iter().zip(rates).zip(weights).map(|((f, r), w)| (f, r, w)).collect();
    let law = enter(py, || outcome::fit_power_law(&points, through_one))?;
    Ok((law.scale, law.rho))
}

#[pyfunction]
fn fork_ids<'py>(
    py: Python<'py>,
    logits: PyReadonlyArray2<'py, f32>,
    exclude: PyReadonlyArray1<'py, i64>,
    counts: Vec<u32>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Vec<usize>)> {
    let vocabulary = logits.shape()[1];
    let logits = flat_of(py, "logits", &logits)?;
    let exclude: Vec<_> = exclude.as_array().iter().map(|&id| u32::try_from(id).ok()).collect();
    let forks = enter(py, || outcome::fork_tokens(logits, vocabulary, &exclude, &counts))?;
    Ok((forks.ids.into_pyarray(py), forks.row_ptr))
}

#[pyfunction]
fn saguaro<'py>(
    py: Python<'py>,
    laws: PyReadonlyArray2<'py, f32>,
    favoured: usize,
    weight: f32,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let mut laws = laws.as_array().to_owned();
    let width = laws.ncols().max(1);
    let changed = enter(py, move || {
        let mut flat: Vec<f32> = laws.iter().copied().collect();
        for law in flat.chunks_mut(width) {
            outcome::saguaro(law, favoured, weight)?;
        }
        laws = Array2::from_shape_vec(laws.dim(), flat).map_err(|e| specrs::Error::invalid(e.to_string()))?;
        Ok(laws)
    })?;
    Ok(changed.into_pyarray(py))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(outcome_probs, m)?)?;
    m.add_function(wrap_pyfunction!(geometric_fan_out, m)?)?;
    m.add_function(wrap_pyfunction!(allocate_fan_out, m)?)?;
    m.add_function(wrap_pyfunction!(fit_power_law, m)?)?;
    m.add_function(wrap_pyfunction!(fork_ids, m)?)?;
    m.add_function(wrap_pyfunction!(saguaro, m)?)
}
