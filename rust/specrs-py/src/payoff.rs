//! Routing between drafters (`specrs::policy::payoff`): class `PayoffRouter`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use specrs::policy::payoff::{self, Choice, Cost, Offer, PayoffOptions, Round};

use crate::enter::{enter, invalid};

/// Tokens, parents and confidences of a cache draft, as the cache returns them.
type OfferArrays<'py> = (PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, i32>, PyReadonlyArray1<'py, f32>);

fn slice<'a, T: numpy::Element>(py: Python<'_>, name: &str, array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    let found = array.strides().to_vec();
    array.as_slice().map_err(|_| invalid(py, &format!("{name} must be contiguous, got strides {found:?} bytes")))
}

/// The products of confidences down to each node.
fn path_probs(py: Python<'_>, parents: &[i32], confidence: &[f32]) -> PyResult<Vec<f32>> {
    let mut paths: Vec<f32> = Vec::with_capacity(confidence.len());
    for (node, (&parent, &own)) in parents.iter().zip(confidence).enumerate() {
        let above = match usize::try_from(parent) {
            Ok(above) if above < node => paths[above],
            Err(_) if parent == -1 => 1.0,
            _ => {
                let expected = format!("the parent of node {node} must be -1 or an earlier node, got {parent}");
                return Err(invalid(py, &expected));
            }
        };
        paths.push(above * own);
    }
    Ok(paths)
}

/// Chooses between the cache's drafts, a model drafter's, and none.
#[pyclass(frozen, module = "specrs._core")]
pub struct PayoffRouter {
    router: Mutex<payoff::PayoffRouter>,
}

impl PayoffRouter {
    fn lock(&self) -> MutexGuard<'_, payoff::PayoffRouter> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_of(router: payoff::PayoffRouter) -> Self {
        Self { router: Mutex::new(router) }
    }
}

#[pymethods]
impl PayoffRouter {
    #[new]
    #[pyo3(signature = (*, token_cost = 0.02, model_cost = 0.25, model_acceptance = 0.7, longest_model = 8, explore = 0.01))]
    fn new(
        py: Python<'_>,
        token_cost: f64,
        model_cost: f64,
        model_acceptance: f64,
        longest_model: usize,
        explore: f64,
    ) -> PyResult<Self> {
        let options = PayoffOptions { token_cost, model_cost, model_acceptance, longest_model, explore };
        Ok(Self::new_of(enter(py, || payoff::PayoffRouter::new(options))?))
    }

    /// A router that knows what this one learned, without its requests.
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self::new_of(enter(py, || Ok(self.lock().without_requests()))?))
    }

    fn set_costs(
        &self,
        py: Python<'_>,
        forward: (Vec<f64>, Vec<f64>),
        draft: Option<(Vec<f64>, Vec<f64>)>,
    ) -> PyResult<()> {
        enter(py, || {
            let draft = draft.map(|(rows, seconds)| Cost::table(&rows, &seconds)).transpose()?;
            self.lock().set_costs(Cost::table(&forward.0, &forward.1)?, draft);
            Ok(())
        })
    }

    fn start(&self, py: Python<'_>, request_id: u64, prompt_length: usize) -> PyResult<()> {
        enter(py, || self.lock().start(request_id, prompt_length))
    }

    fn finish(&self, py: Python<'_>, request_id: u64, text: PyReadonlyArray1<'_, u32>) -> PyResult<()> {
        let text = slice(py, "text", &text)?;
        enter(py, || {
            self.lock().finish(request_id, text);
            Ok(())
        })
    }

    #[pyo3(signature = (request_id, text, chain, tree = None, *, budget, batch = 1, remaining, backlog = None, uniform, match_length = 0))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn route(
        &self,
        py: Python<'_>,
        request_id: u64,
        text: PyReadonlyArray1<'_, u32>,
        chain: OfferArrays<'_>,
        tree: Option<OfferArrays<'_>>,
        budget: usize,
        batch: usize,
        remaining: usize,
        backlog: Option<usize>,
        uniform: f64,
        match_length: u32,
    ) -> PyResult<(&'static str, usize)> {
        let text = slice(py, "text", &text)?;
        let mut paths = [Vec::new(), Vec::new()];
        let mut offers = [Offer::default(), Offer::default()];
        for (at, arrays) in [Some(&chain), tree.as_ref()].into_iter().enumerate() {
            let Some((tokens, parents, confidence)) = arrays else { continue };
            let parents = slice(py, "parents", parents)?;
            paths[at] = path_probs(py, parents, slice(py, "confidence", confidence)?)?;
            offers[at] = Offer { tokens: slice(py, "tokens", tokens)?, parents, path_probs: &[], match_length };
        }
        for (offer, paths) in offers.iter_mut().zip(&paths) {
            offer.path_probs = paths;
        }
        let [chain, tree] = offers;
        let round = Round { text, chain, tree, budget, batch, remaining, backlog, uniform };
        let choice = enter(py, || self.lock().route(request_id, &round))?;
        Ok(match choice {
            Choice::Chain { nodes } => ("chain", nodes),
            Choice::Tree { nodes } => ("tree", nodes),
            Choice::Model { nodes } => ("model", nodes),
            Choice::Plain => ("plain", 0),
        })
    }

    fn note_forward(&self, py: Python<'_>, rows: usize, seconds: f64) -> PyResult<()> {
        enter(py, || {
            self.lock().note_forward(rows, seconds);
            Ok(())
        })
    }

    fn note_model_time(&self, py: Python<'_>, nodes: usize, batch: usize, read: usize, seconds: f64) -> PyResult<()> {
        enter(py, || {
            self.lock().note_model_time(nodes, batch, read, seconds);
            Ok(())
        })
    }

    fn note_model(&self, py: Python<'_>, request_id: u64, accepted: usize, refused: bool) -> PyResult<()> {
        enter(py, || self.lock().note_model(request_id, accepted, refused))
    }

    fn save(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || Ok(self.lock().save()))
    }

    #[staticmethod]
    fn load(py: Python<'_>, text: &str) -> PyResult<Self> {
        Ok(Self::new_of(enter(py, || payoff::PayoffRouter::load(text))?))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PayoffRouter>()
}
