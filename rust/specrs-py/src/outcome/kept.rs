//! What is kept from round to round: miss counts, drafts by outcome, how misses were answered.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specrs::TokenId;
use specrs::outcome::{self, Continuation, Fallback, MissLaw, Outcome};

use crate::enter::{dict_of, enter, invalid};

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Miss counts by fan-out.
#[pyclass(frozen, module = "specrs._core")]
struct RankMisses {
    counts: Mutex<outcome::RankMisses>,
}

#[pymethods]
impl RankMisses {
    #[new]
    #[pyo3(signature = (scale = 1.0, rho = 1.0))]
    fn new(py: Python<'_>, scale: f64, rho: f64) -> PyResult<Self> {
        if !(scale > 0.0 && scale <= 1.0 && rho > 0.0 && rho.is_finite()) {
            return Err(invalid(py, &format!("expected scale in (0, 1] and a positive rho, got {scale} and {rho}")));
        }
        Ok(Self { counts: Mutex::new(outcome::RankMisses::new(MissLaw { scale, rho })) })
    }

    #[pyo3(signature = (rank, fan_out))]
    fn observe(&self, rank: Option<u32>, fan_out: u32) {
        open(&self.counts).observe(rank, fan_out);
    }

    fn rate(&self, fan_out: u32) -> (f64, f64) {
        open(&self.counts).rate(fan_out)
    }

    fn law(&self, py: Python<'_>) -> PyResult<(f64, f64)> {
        let law = enter(py, || open(&self.counts).law())?;
        Ok((law.scale, law.rho))
    }
}

type Drafted<'py> = (Bound<'py, PyArray1<u32>>, Option<Bound<'py, PyArray2<f32>>>, Bound<'py, PyArray1<f32>>);

/// Drafts by outcome.
#[pyclass(frozen, module = "specrs._core")]
struct SpeculationCache {
    cache: Mutex<outcome::SpeculationCache>,
}

#[pymethods]
impl SpeculationCache {
    #[new]
    #[pyo3(signature = (max_bytes = 1 << 30))]
    fn new(max_bytes: usize) -> Self {
        Self { cache: Mutex::new(outcome::SpeculationCache::new(max_bytes)) }
    }

    #[pyo3(signature = (generation, request, accepted, bonus, tokens, confidence, draft_probs = None))]
    #[allow(clippy::too_many_arguments, reason = "a key of four, a value of three")]
    fn insert(
        &self,
        py: Python<'_>,
        generation: u64,
        request: u64,
        accepted: u32,
        bonus: u32,
        tokens: PyReadonlyArray1<'_, u32>,
        confidence: PyReadonlyArray1<'_, f32>,
        draft_probs: Option<PyReadonlyArray2<'_, f32>>,
    ) -> PyResult<bool> {
        let tokens: Vec<u32> = tokens.as_array().iter().copied().collect();
        let confidence = confidence.as_array().iter().copied().collect();
        let draft_probs: Vec<f32> = match &draft_probs {
            Some(rows) if rows.shape()[0] != tokens.len() => {
                let found = rows.shape()[0];
                return Err(invalid(py, &format!("draft_probs has {found} rows, expected {}", tokens.len())));
            }
            Some(rows) => rows.as_array().iter().copied().collect(),
            None => Vec::new(),
        };
        let key = Outcome { request, accepted, bonus: TokenId(bonus) };
        let value = Continuation { tokens, draft_probs, confidence };
        enter(py, || open(&self.cache).insert(generation, key, value))
    }

    fn take<'py>(
        &self,
        py: Python<'py>,
        generation: u64,
        request: u64,
        accepted: u32,
        bonus: u32,
    ) -> PyResult<Option<Drafted<'py>>> {
        let key = Outcome { request, accepted, bonus: TokenId(bonus) };
        let Some(found) = enter(py, || Ok(open(&self.cache).take(generation, key)))? else { return Ok(None) };
        let rows = found.tokens.len();
        let probs = if found.draft_probs.is_empty() {
            None
        } else {
            let shape = (rows, found.draft_probs.len() / rows);
            let rows = Array2::from_shape_vec(shape, found.draft_probs).map_err(|e| invalid(py, &e.to_string()))?;
            Some(rows.into_pyarray(py))
        };
        Ok(Some((found.tokens.into_pyarray(py), probs, found.confidence.into_pyarray(py))))
    }

    fn forget(&self, request: u64) -> usize {
        open(&self.cache).forget(request)
    }

    fn clear(&self) {
        open(&self.cache).clear();
    }

    fn memory_bytes(&self) -> usize {
        open(&self.cache).memory_bytes()
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = open(&self.cache).counts();
        dict_of!(py, counts, hits, misses, stale, refused)
    }

    fn __len__(&self) -> usize {
        open(&self.cache).len()
    }
}

pub fn fallback_of(py: Python<'_>, name: &str) -> PyResult<Fallback> {
    match name {
        "slow" => Ok(Fallback::Slow),
        "fast" => Ok(Fallback::Fast),
        "zero" => Ok(Fallback::Zero),
        _ => Err(invalid(py, &format!("a fallback is 'slow', 'fast' or 'zero', got '{name}'"))),
    }
}

fn fallback_name(fallback: Fallback) -> &'static str {
    match fallback {
        Fallback::Slow => "slow",
        Fallback::Fast => "fast",
        Fallback::Zero => "zero",
    }
}

/// Chooses how to answer misses.
#[pyclass(frozen, module = "specrs._core")]
struct FallbackChooser {
    chooser: Mutex<outcome::FallbackChooser>,
}

#[pymethods]
impl FallbackChooser {
    #[new]
    fn new(py: Python<'_>, offered: Vec<String>) -> PyResult<Self> {
        let offered = offered.iter().map(|name| fallback_of(py, name)).collect::<PyResult<Vec<_>>>()?;
        Ok(Self { chooser: Mutex::new(enter(py, || outcome::FallbackChooser::new(&offered))?) })
    }

    fn choose(&self, batch: usize) -> &'static str {
        fallback_name(open(&self.chooser).choose(batch))
    }

    fn best(&self, batch: usize) -> &'static str {
        fallback_name(open(&self.chooser).best(batch))
    }

    fn speed(&self, py: Python<'_>, name: &str, batch: usize) -> PyResult<Option<f64>> {
        Ok(open(&self.chooser).speed(fallback_of(py, name)?, batch))
    }

    fn note_round(&self, tokens: f64, seconds: f64) {
        open(&self.chooser).note_round(tokens, seconds);
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<RankMisses>()?;
    m.add_class::<SpeculationCache>()?;
    m.add_class::<FallbackChooser>()
}
