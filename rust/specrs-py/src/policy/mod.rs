//! Length policies (`specrs::policy`): classes `CostTable`, `Learned` and `LengthPolicy`.

mod known;
mod making;
mod rounds;

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specrs::policy::{self, Outcome, Step};

use self::known::{CostTable, Learned};
use self::making::{make, table_of};
use self::rounds::{Nodes, Requests};
use crate::enter::{enter, invalid};

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Inner {
    Free(Box<dyn policy::LengthPolicy>),
    Guarded(policy::Guarded),
}

impl Inner {
    fn policy(&mut self) -> &mut dyn policy::LengthPolicy {
        match self {
            Self::Free(policy) => policy.as_mut(),
            Self::Guarded(policy) => policy,
        }
    }
}

/// One length policy for the rounds of one engine.
#[pyclass(frozen, module = "specrs._core")]
pub struct LengthPolicy {
    inner: Mutex<Inner>,
}

#[pymethods]
impl LengthPolicy {
    /// Makes the policy called `name`; `stepwise` says that the drafter asks before each further token.
    #[new]
    #[pyo3(signature = (name, options, *, stepwise, cost = None, learned = None, guarded = false))]
    fn new(
        py: Python<'_>,
        name: &str,
        options: Bound<'_, PyDict>,
        stepwise: bool,
        cost: Option<&CostTable>,
        learned: Option<&Learned>,
        guarded: bool,
    ) -> PyResult<Self> {
        let made = make(py, name, options, stepwise, cost, learned)?;
        let inner = if guarded {
            Inner::Guarded(policy::Guarded::new(made, table_of(py, name, cost)?))
        } else {
            Inner::Free(made)
        };
        Ok(Self { inner: Mutex::new(inner) })
    }

    #[getter]
    fn sight(&self) -> &'static str {
        lock(&self.inner).policy().sight().name()
    }

    #[getter]
    fn safe_when_drawn(&self) -> bool {
        lock(&self.inner).policy().sight().safe_when_drawn()
    }

    #[getter]
    fn decides_stepwise(&self) -> bool {
        lock(&self.inner).policy().decides_stepwise()
    }

    /// (rested rounds, rounds, rests, slowdown) of the guard, if there is one.
    #[getter]
    fn guard(&self) -> Option<(u64, u64, u64, f64)> {
        match &*lock(&self.inner) {
            Inner::Guarded(policy) => {
                let facts = policy.facts();
                Some((facts.rested_rounds, facts.rounds, facts.rests, facts.slowdown))
            }
            Inner::Free(_) => None,
        }
    }

    fn budgets(
        &self,
        py: Python<'_>,
        ids: Vec<u64>,
        temperatures: Vec<f32>,
        drawn: Vec<bool>,
        context: usize,
        limits: Vec<usize>,
    ) -> PyResult<Vec<usize>> {
        let requests = Requests::new(py, ids, &temperatures, drawn, context)?;
        if limits.len() != requests.ids.len() {
            return Err(invalid(py, &format!("{} limits for {} requests", limits.len(), requests.ids.len())));
        }
        enter(py, || {
            let mut asked = vec![0; limits.len()];
            lock(&self.inner).policy().budgets(&requests.round(), &limits, &mut asked);
            Ok(asked)
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one array per fact of a step")]
    fn more(
        &self,
        py: Python<'_>,
        ids: Vec<u64>,
        temperatures: Vec<f32>,
        drawn: Vec<bool>,
        context: usize,
        which: Vec<usize>,
        lengths: Vec<usize>,
        confidence: Vec<f32>,
        entropy: Vec<f32>,
        token_probs: Vec<f32>,
        head: Vec<f32>,
    ) -> PyResult<Vec<bool>> {
        let requests = Requests::new(py, ids, &temperatures, drawn, context)?;
        let count = which.len();
        let sizes = [lengths.len(), confidence.len(), entropy.len(), token_probs.len(), head.len()];
        if sizes.iter().any(|&size| size != count) || which.iter().any(|&b| b >= requests.ids.len()) {
            return Err(invalid(
                py,
                &format!(
                    "{count} steps need as many facts and requests below {}, got {sizes:?} and {which:?}",
                    requests.ids.len()
                ),
            ));
        }
        enter(py, || {
            let steps: Vec<Step> = (0..count)
                .map(|at| Step {
                    request: which[at],
                    length: lengths[at],
                    confidence: confidence[at],
                    entropy: entropy[at],
                    token_prob: token_probs[at],
                    head: head[at],
                })
                .collect();
            let mut wanted = vec![true; count];
            lock(&self.inner).policy().more(&requests.round(), &steps, &mut wanted);
            Ok(wanted)
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one array per fact of a draft")]
    #[pyo3(signature = (ids, temperatures, drawn, context, parents, confidence, node_ptr, sees_token))]
    fn trim<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u64>,
        temperatures: Vec<f32>,
        drawn: Vec<bool>,
        context: usize,
        parents: PyReadonlyArray1<'_, i32>,
        confidence: Option<PyReadonlyArray1<'_, f32>>,
        node_ptr: PyReadonlyArray1<'_, i64>,
        sees_token: bool,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let requests = Requests::new(py, ids, &temperatures, drawn, context)?;
        let nodes = Nodes::new(py, requests.ids.len(), &parents, confidence.as_ref(), &node_ptr, sees_token)?;
        let kept = enter(py, || {
            let mut kept = vec![true; nodes.parents.len()];
            lock(&self.inner).policy().trim(&requests.round(), &nodes.facts(), &mut kept);
            Ok(kept)
        })?;
        Ok(kept.into_pyarray(py))
    }

    #[allow(clippy::too_many_arguments, reason = "one array per fact of a round")]
    #[pyo3(signature = (ids, temperatures, drawn, context, parents, confidence, node_ptr, sees_token, accepted, steps, seconds))]
    fn observe(
        &self,
        py: Python<'_>,
        ids: Vec<u64>,
        temperatures: Vec<f32>,
        drawn: Vec<bool>,
        context: usize,
        parents: PyReadonlyArray1<'_, i32>,
        confidence: Option<PyReadonlyArray1<'_, f32>>,
        node_ptr: PyReadonlyArray1<'_, i64>,
        sees_token: bool,
        accepted: PyReadonlyArray1<'_, bool>,
        steps: usize,
        seconds: (f64, f64, f64),
    ) -> PyResult<()> {
        let requests = Requests::new(py, ids, &temperatures, drawn, context)?;
        let nodes = Nodes::new(py, requests.ids.len(), &parents, confidence.as_ref(), &node_ptr, sees_token)?;
        let accepted: Vec<bool> = accepted.as_array().iter().copied().collect();
        if accepted.len() != nodes.parents.len() {
            return Err(invalid(
                py,
                &format!("accepted has {} values for {} nodes", accepted.len(), nodes.parents.len()),
            ));
        }
        enter(py, || {
            let outcome = Outcome {
                draft: nodes.facts(),
                accepted: &accepted,
                steps,
                draft_seconds: seconds.0,
                score_seconds: seconds.1,
                other_seconds: seconds.2,
            };
            lock(&self.inner).policy().observe(&requests.round(), &outcome);
            Ok(())
        })
    }

    fn forget(&self, id: u64) {
        lock(&self.inner).policy().forget(id);
    }
}

/// Fits a temperature per position to drafts of n stated confidences, shape (D·n,), and accepted counts, shape (D,).
#[pyfunction]
fn fit_temperatures(
    py: Python<'_>,
    confidence: PyReadonlyArray1<'_, f32>,
    length: usize,
    accepted: Vec<usize>,
) -> PyResult<Vec<f32>> {
    let confidence: Vec<f32> = confidence.as_array().iter().copied().collect();
    enter(py, || policy::fit_temperatures(&confidence, length, &accepted))
}

/// The threshold of `hf_confidence` for verdicts on tokens of known probability.
#[pyfunction]
fn best_threshold(probs: Vec<f32>, accepted: Vec<bool>) -> Option<f64> {
    let verdicts: Vec<(f32, bool)> = probs.into_iter().zip(accepted).collect();
    policy::best_threshold(&verdicts)
}

/// The length with the largest E(L) / cost[L] of one chain.
#[pyfunction]
#[pyo3(signature = (confidence, cost, hysteresis = 0.0))]
fn best_length(confidence: Vec<f32>, cost: Vec<f64>, hysteresis: f64) -> usize {
    policy::length::best_length(&policy::length::expected_tokens(&confidence), &cost, hysteresis)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<CostTable>()?;
    m.add_class::<Learned>()?;
    m.add_class::<LengthPolicy>()?;
    m.add_function(wrap_pyfunction!(fit_temperatures, m)?)?;
    m.add_function(wrap_pyfunction!(best_threshold, m)?)?;
    m.add_function(wrap_pyfunction!(best_length, m)?)
}
