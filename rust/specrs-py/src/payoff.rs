//! Routing between drafters (`specrs::policy::payoff`): class `PayoffRouter`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use specrs::policy::payoff::{self, Choice, PayoffOptions, replayed};

use crate::draft::tokens_of;
use crate::enter::{enter, invalid};
use crate::tree::{floats_of, parents_of};

/// Chooses between the cache's draft, a model drafter's, and none.
#[pyclass(frozen, module = "specrs._core")]
pub struct PayoffRouter {
    router: Mutex<payoff::PayoffRouter>,
}

impl PayoffRouter {
    fn lock(&self) -> MutexGuard<'_, payoff::PayoffRouter> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PayoffRouter {
    #[new]
    #[pyo3(signature = (*, token_cost = 0.02, model_cost = None, model_nodes = 4, model_accepted = 1.5, explore = 0.01))]
    fn new(
        py: Python<'_>,
        token_cost: f64,
        model_cost: Option<f64>,
        model_nodes: usize,
        model_accepted: f64,
        explore: f64,
    ) -> PyResult<Self> {
        let model_cost = model_cost.unwrap_or(f64::INFINITY);
        let options = PayoffOptions { token_cost, model_cost, model_nodes, model_accepted, explore };
        Ok(Self { router: Mutex::new(enter(py, || payoff::PayoffRouter::new(options))?) })
    }

    fn choose(&self, py: Python<'_>, path_probs: &Bound<'_, PyAny>, uniform: f64) -> PyResult<(&'static str, usize)> {
        let path_probs = floats_of(py, path_probs)?;
        let choice = enter(py, || Ok(self.lock().choose(&path_probs, uniform)))?;
        Ok(match choice {
            Choice::Cache { nodes } => ("cache", nodes),
            Choice::Model => ("model", 0),
            Choice::Plain => ("plain", 0),
        })
    }

    fn expected(&self, py: Python<'_>, path_probs: &Bound<'_, PyAny>) -> PyResult<f32> {
        let path_probs = floats_of(py, path_probs)?;
        enter(py, || Ok(self.lock().expected(&path_probs)))
    }

    fn note_time(&self, py: Python<'_>, tokens: usize, seconds: f64) -> PyResult<()> {
        enter(py, || {
            self.lock().note_time(tokens, seconds);
            Ok(())
        })
    }

    fn note_model(&self, py: Python<'_>, nodes: usize, accepted: usize, seconds: f64) -> PyResult<()> {
        enter(py, || {
            self.lock().note_model(nodes, accepted, seconds);
            Ok(())
        })
    }

    fn note_cache(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        parents: &Bound<'_, PyAny>,
        path_probs: &Bound<'_, PyAny>,
        following: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (tokens, parents) = (tokens_of(py, tokens)?, parents_of(py, parents)?);
        let (path_probs, following) = (floats_of(py, path_probs)?, tokens_of(py, following)?);
        if tokens.len() != parents.len() || tokens.len() != path_probs.len() {
            let found = (tokens.len(), parents.len(), path_probs.len());
            return Err(invalid(py, &format!("tokens, parents and path_probs must have one length, got {found:?}")));
        }
        enter(py, || {
            specrs::tree::retrieve_indices(&parents)?;
            let fate = replayed(&tokens, &parents, &following);
            let known = fate.into_iter().zip(path_probs).filter_map(|(fate, prob)| Some((prob, fate?)));
            self.lock().note_cache(known);
            Ok(())
        })
    }

    fn save(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || Ok(self.lock().save()))
    }

    #[staticmethod]
    fn load(py: Python<'_>, text: &str) -> PyResult<Self> {
        Ok(Self { router: Mutex::new(enter(py, || payoff::PayoffRouter::load(text))?) })
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PayoffRouter>()
}
