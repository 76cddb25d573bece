//! What policies know: classes `CostTable` and `Learned`.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use specrs::policy::{self, Calibration};

use super::lock;
use crate::enter::{enter, invalid};

/// Measured seconds of a target's forwards.
#[pyclass(frozen, module = "specrs._core")]
pub struct CostTable {
    pub table: Arc<Mutex<policy::CostTable>>,
}

#[pymethods]
impl CostTable {
    #[new]
    fn new(py: Python<'_>, rows: Vec<usize>, seconds: Vec<f64>) -> PyResult<Self> {
        let table = enter(py, || policy::CostTable::new(&rows, &seconds))?;
        Ok(Self { table: Arc::new(Mutex::new(table)) })
    }

    fn add(&self, py: Python<'_>, batch: usize, context: usize, rows: Vec<usize>, seconds: Vec<f64>) -> PyResult<()> {
        enter(py, || lock(&self.table).add(batch, context, &rows, &seconds))
    }

    #[pyo3(signature = (rows, batch = 1, context = 0))]
    fn seconds(&self, rows: usize, batch: usize, context: usize) -> f64 {
        lock(&self.table).seconds(batch, context, rows)
    }

    #[pyo3(signature = (rows, seconds, batch = 1, context = 0))]
    fn observe(&self, rows: usize, seconds: f64, batch: usize, context: usize) {
        lock(&self.table).observe(batch, context, rows, seconds);
    }

    fn cells(&self) -> Vec<(usize, usize, Vec<f64>)> {
        lock(&self.table).cells().map(|(batch, context, seconds)| (batch, context, seconds.to_vec())).collect()
    }
}

/// What is known of a drafter on a target.
#[pyclass(frozen, module = "specrs._core")]
pub struct Learned {
    pub learned: Arc<Mutex<policy::Learned>>,
}

#[pymethods]
impl Learned {
    #[new]
    #[pyo3(signature = (calibration = "bins", temperatures = None))]
    fn new(py: Python<'_>, calibration: &str, temperatures: Option<Vec<f32>>) -> PyResult<Self> {
        let calibration = match (calibration, temperatures) {
            ("identity", None) => Calibration::Identity,
            ("ratio", None) => Calibration::ratio(),
            ("bins", None) => Calibration::bins(),
            ("temperatures", Some(values))
                if !values.is_empty() && values.iter().all(|&t| t.is_finite() && t > 0.0) =>
            {
                Calibration::Temperatures(values)
            }
            (name, values) => {
                let message = format!(
                    "calibration must be 'identity', 'ratio' or 'bins', or 'temperatures' with a positive temperature \
                     per position, got '{name}' with {values:?}"
                );
                return Err(invalid(py, &message));
            }
        };
        Ok(Self { learned: Arc::new(Mutex::new(policy::Learned::new(calibration))) })
    }

    #[getter]
    fn rate(&self) -> Option<f64> {
        lock(&self.learned).rate()
    }

    fn set_step_seconds(&self, seconds: f64) {
        lock(&self.learned).set_step_seconds(seconds);
    }
}
