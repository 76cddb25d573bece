//! Routing between drafters (`specrs::policy::payoff`): classes `PayoffRouter` and `PayoffPredictor`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use specrs::policy::payoff::{
    self, CLASSES, Choice, Cost, FEATURES, Mlp, Offer, PayoffOptions, Round, Rule, Shape, replayed,
};

use crate::arrays::{flat_of, tokens_of};
use crate::enter::{enter, invalid};

/// Tokens, parents and confidences of a cache draft, as the cache returns them.
type OfferArrays<'py> = (PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, i32>, PyReadonlyArray1<'py, f32>);

fn slice<'a, T: numpy::Element>(py: Python<'_>, name: &str, array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    let found = array.strides().to_vec();
    array.as_slice().map_err(|_| invalid(py, &format!("{name} must be contiguous, got strides {found:?} bytes")))
}

/// Features (N, F) and labels (N,).
type Examples<'py> = (Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<i32>>);

/// A perceptron that predicts how much of a cache draft is accepted.
#[pyclass(frozen, module = "specrs._core")]
pub struct PayoffPredictor {
    mlp: Arc<Mlp>,
}

/// Weights, shape (inputs, outputs), and bias of a layer.
type LayerArrays<'py> = (PyReadonlyArray2<'py, f32>, PyReadonlyArray1<'py, f32>);

#[pymethods]
impl PayoffPredictor {
    #[new]
    #[pyo3(signature = (layers, fingerprint = ""))]
    fn new(py: Python<'_>, layers: [LayerArrays<'_>; 3], fingerprint: &str) -> PyResult<Self> {
        let mut parts: Vec<[&[f32]; 2]> = Vec::with_capacity(3);
        for (weights, bias) in &layers {
            parts.push([flat_of(py, "weights", weights)?, slice(py, "bias", bias)?]);
        }
        let mlp = enter(py, || Mlp::new(parts[0], parts[1], parts[2], fingerprint))?;
        Ok(Self { mlp: Arc::new(mlp) })
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.mlp.fingerprint()
    }

    fn predict(&self, py: Python<'_>, features: PyReadonlyArray1<'_, f32>) -> PyResult<f32> {
        let features = slice(py, "features", &features)?;
        let Ok(features) = features.try_into() else {
            return Err(invalid(py, &format!("expected {FEATURES} features, got {}", features.len())));
        };
        enter(py, || Ok(self.mlp.predict(features)))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = enter(py, || Ok(self.mlp.to_bytes()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        Ok(Self { mlp: Arc::new(enter(py, || Mlp::from_bytes(data))?) })
    }
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

    #[pyo3(signature = (rule, threshold = 0.0))]
    fn set_rule(&self, py: Python<'_>, rule: &str, threshold: f32) -> PyResult<()> {
        let rule = match rule {
            "rate" => Rule::Rate,
            "expected" => Rule::Expected(threshold),
            "match" => Rule::Match(threshold as u32),
            _ => return Err(invalid(py, &format!("rule must be 'rate', 'expected' or 'match', got '{rule}'"))),
        };
        enter(py, || {
            self.lock().set_rule(rule);
            Ok(())
        })
    }

    fn set_predictor(&self, py: Python<'_>, predictor: Option<&PayoffPredictor>) -> PyResult<()> {
        let predictor = predictor.map(|given| Arc::clone(&given.mlp));
        enter(py, || {
            self.lock().set_predictor(predictor);
            Ok(())
        })
    }

    fn set_classes(&self, py: Python<'_>, classes: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let classes = slice(py, "classes", &classes)?;
        if let Some(class) = classes.iter().find(|&&class| class >> CLASSES != 0) {
            return Err(invalid(py, &format!("a token's class has {CLASSES} bits, got {class}")));
        }
        let classes: Arc<[u8]> = classes.into();
        enter(py, || {
            self.lock().set_classes(classes);
            Ok(())
        })
    }

    fn keep_examples(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || {
            self.lock().keep_examples();
            Ok(())
        })
    }

    fn take_examples<'py>(&self, py: Python<'py>) -> PyResult<Examples<'py>> {
        let (features, labels) = enter(py, || {
            let (features, labels): (Vec<[f32; FEATURES]>, Vec<i32>) =
                self.lock().take_examples().into_iter().map(|(known, label)| (known, label as i32)).unzip();
            Ok((features, labels))
        })?;
        let rows = features.len();
        let features = features.into_flattened().into_pyarray(py).reshape([rows, FEATURES])?;
        Ok((features, labels.into_pyarray(py)))
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

    #[pyo3(signature = (request_id, text, chain, tree = None, *, budget, batch = 1, remaining, backlog = None, uniform, match_length = 0, beside = false))]
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
        beside: bool,
    ) -> PyResult<(&'static str, usize, usize)> {
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
        let round = Round { text, chain, tree, budget, batch, remaining, backlog, beside, uniform };
        let choice = enter(py, || self.lock().route(request_id, &round))?;
        Ok(match choice {
            Choice::Chain { nodes } => ("chain", nodes, 0),
            Choice::Tree { nodes } => ("tree", nodes, 0),
            Choice::Both { shape: Shape::Chain, nodes, model } => ("chain", nodes, model),
            Choice::Both { shape: Shape::Tree, nodes, model } => ("tree", nodes, model),
            Choice::Model { nodes } => ("model", 0, nodes),
            Choice::Plain => ("plain", 0, 0),
        })
    }

    fn weigh(&self, py: Python<'_>, path_probs: PyReadonlyArray1<'_, f32>) -> PyResult<usize> {
        let path_probs = slice(py, "path_probs", &path_probs)?;
        enter(py, || {
            let tokens = vec![0; path_probs.len()];
            let parents: Vec<i32> = (-1..path_probs.len() as i32 - 1).collect();
            let chain = Offer { tokens: &tokens, parents: &parents, path_probs, match_length: 0 };
            let round = Round { chain, budget: path_probs.len(), batch: 1, uniform: 1.0, ..Round::default() };
            Ok(match self.lock().weigh(&round)? {
                Choice::Chain { nodes } => nodes,
                _ => 0,
            })
        })
    }

    fn note_chain(
        &self,
        py: Python<'_>,
        tokens: PyReadonlyArray1<'_, u32>,
        path_probs: PyReadonlyArray1<'_, f32>,
        following: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (tokens, path_probs) = (slice(py, "tokens", &tokens)?, slice(py, "path_probs", &path_probs)?);
        let following = tokens_of(py, following)?;
        if tokens.len() != path_probs.len() {
            let found = (tokens.len(), path_probs.len());
            return Err(invalid(py, &format!("tokens and path_probs must have one length, got {found:?}")));
        }
        enter(py, || {
            let parents: Vec<i32> = (-1..tokens.len() as i32 - 1).collect();
            let fate = replayed(tokens, &parents, &following);
            let known: Vec<(f32, bool)> =
                fate.into_iter().zip(path_probs).filter_map(|(fate, &prob)| Some((prob, fate?))).collect();
            self.lock().note_chain(&known);
            Ok(())
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
    m.add_class::<PayoffRouter>()?;
    m.add_class::<PayoffPredictor>()
}
