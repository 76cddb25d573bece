//! Length policies (`specrs::policy`): classes `CostTable`, `Learned` and `LengthPolicy`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specrs::policy::length::{Convention, Shrinks};
use specrs::policy::{self, Calibration, DraftFacts, Mode, Outcome, Price, Round, Rule, Step};

use crate::enter::{enter, invalid};

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Measured seconds of a target's forwards.
#[pyclass(frozen, module = "specrs._core")]
pub struct CostTable {
    table: Arc<Mutex<policy::CostTable>>,
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
    learned: Arc<Mutex<policy::Learned>>,
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

/// The requests of a round, as they cross from Python.
struct Requests {
    ids: Vec<u64>,
    modes: Vec<Mode>,
    drawn: Vec<bool>,
    context: usize,
}

impl Requests {
    fn new(py: Python<'_>, ids: Vec<u64>, temperatures: &[f32], drawn: Vec<bool>, context: usize) -> PyResult<Self> {
        if ids.len() != temperatures.len() || ids.len() != drawn.len() {
            let found = (ids.len(), temperatures.len(), drawn.len());
            return Err(invalid(py, &format!("ids, temperatures and drawn must have one length, got {found:?}")));
        }
        let modes = temperatures.iter().zip(&drawn).map(|(&t, &drawn)| Mode::of(drawn, t)).collect();
        Ok(Self { ids, modes, drawn, context })
    }

    fn round(&self) -> Round<'_> {
        Round { ids: &self.ids, modes: &self.modes, drawn: &self.drawn, context: self.context }
    }
}

struct Nodes {
    parents: Vec<i32>,
    confidence: Vec<f32>,
    node_ptr: Vec<usize>,
    sees_token: bool,
}

impl Nodes {
    fn new(
        py: Python<'_>,
        batch: usize,
        parents: &PyReadonlyArray1<'_, i32>,
        confidence: Option<&PyReadonlyArray1<'_, f32>>,
        node_ptr: &PyReadonlyArray1<'_, i64>,
        sees_token: bool,
    ) -> PyResult<Self> {
        let parents: Vec<i32> = parents.as_array().iter().copied().collect();
        let confidence: Vec<f32> = confidence.map_or_else(Vec::new, |c| c.as_array().iter().copied().collect());
        let ends = node_ptr.as_array();
        let rises = ends.iter().zip(ends.iter().skip(1)).all(|(a, b)| a <= b);
        if ends.len() != batch + 1 || ends[0] != 0 || ends[batch] != parents.len() as i64 || !rises {
            let message = format!("node_ptr must rise from 0 to {} over {batch} requests", parents.len());
            return Err(invalid(py, &message));
        }
        if !confidence.is_empty() && confidence.len() != parents.len() {
            let message = format!("confidence has {} values for {} nodes", confidence.len(), parents.len());
            return Err(invalid(py, &message));
        }
        let node_ptr: Vec<usize> = ends.iter().map(|&end| end as usize).collect();
        for pair in node_ptr.windows(2) {
            for (node, &parent) in parents[pair[0]..pair[1]].iter().enumerate() {
                if parent < -1 || parent >= node as i32 {
                    let message = format!("parent of node {node} must be -1 or an earlier node, got {parent}");
                    return Err(invalid(py, &message));
                }
            }
        }
        Ok(Self { parents, confidence, node_ptr, sees_token })
    }

    fn facts(&self) -> DraftFacts<'_> {
        DraftFacts {
            parents: &self.parents,
            confidence: &self.confidence,
            node_ptr: &self.node_ptr,
            sees_token: self.sees_token,
        }
    }
}

/// Reads the options that a policy's constructor needs; Python has checked their names and filled in defaults.
struct Options<'py> {
    py: Python<'py>,
    name: String,
    values: Bound<'py, PyDict>,
}

impl<'py> Options<'py> {
    fn get<T: for<'a> FromPyObject<'a, 'py>>(&self, option: &str) -> PyResult<T> {
        let value = self.values.get_item(option)?;
        value.as_ref().and_then(|value| value.extract().ok()).ok_or_else(|| {
            let found = value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
            invalid(self.py, &format!("option {option} of policy '{}' cannot be {found}", self.name))
        })
    }

    fn word<T: Copy>(&self, option: &str, known: &[(&str, T)]) -> PyResult<T> {
        let value: String = self.get(option)?;
        known.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<String> = known.iter().map(|(word, _)| format!("'{word}'")).collect();
            let message =
                format!("option {option} of policy '{}' must be {}, got '{value}'", self.name, words.join(" or "));
            invalid(self.py, &message)
        })
    }
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
        let options = Options { py, name: name.to_owned(), values: options };
        let table = |py| {
            cost.map(|cost| Arc::clone(&cost.table))
                .ok_or_else(|| invalid(py, &format!("policy '{name}' needs a cost table")))
        };
        let known = || match learned {
            Some(learned) => Arc::clone(&learned.learned),
            None => Arc::new(Mutex::new(policy::Learned::new(Calibration::bins()))),
        };
        let stopping = |rule: Rule, most: usize| -> PyResult<Box<dyn policy::LengthPolicy>> {
            Ok(Box::new(enter(py, || policy::Stopping::new(rule, most, stepwise))?))
        };
        let made: Box<dyn policy::LengthPolicy> = match name {
            "fixed" => Box::new(policy::Fixed { tokens: options.get("tokens")? }),
            "libra" | "libra_causal" => {
                let options = policy::LibraOptions {
                    max_tokens: options.get("max_tokens")?,
                    hysteresis: options.get("hysteresis")?,
                    probe_every: options.get("probe_every")?,
                    price: options.word("price", &[("round", Price::Round), ("run", Price::Run)])?,
                    stepwise,
                    causal: name == "libra_causal",
                };
                let (table, known) = (table(py)?, known());
                Box::new(enter(py, || policy::Libra::new(options, table, known))?)
            }
            "libra_alpha" => {
                let alpha = options.get("alpha")?;
                enter(py, || policy::length::libra_alpha(&[], alpha, Convention::Floor, Shrinks::Once).map(|_| ()))?;
                Box::new(policy::LibraAlpha {
                    max_tokens: options.get("max_tokens")?,
                    alpha,
                    convention: options
                        .word("convention", &[("strict", Convention::Strict), ("floor", Convention::Floor)])?,
                    shrinks: options.word("shrinks", &[("once", Shrinks::Once), ("fixpoint", Shrinks::Fixpoint)])?,
                })
            }
            "hf_heuristic" | "hf_heuristic_transient" => Box::new(policy::HfHeuristic::new(
                options.get("tokens")?,
                options.get("max_tokens")?,
                (name == "hf_heuristic").then(known),
            )),
            "hf_confidence" => stopping(
                Rule::HfConfidence { threshold: options.get("threshold")?, adapts: options.get("adapts")? },
                options.get("max_tokens")?,
            )?,
            "svip" => stopping(Rule::Svip { threshold: options.get("threshold")? }, options.get("max_tokens")?)?,
            "adaedl" => stopping(Rule::AdaEdl { threshold: options.get("threshold")? }, options.get("max_tokens")?)?,
            "specdecpp" => stopping(
                Rule::SpecDecPp { threshold: options.get("threshold")?, least: options.get("min_tokens")? },
                options.get("max_tokens")?,
            )?,
            "disco" => stopping(Rule::Disco { threshold: options.get("threshold")? }, options.get("max_tokens")?)?,
            "dloop" => {
                let (block, loops): (usize, usize) = (options.get("block")?, options.get("max_loops")?);
                stopping(Rule::DLoop { gate: options.get("gate")?, block }, block.saturating_mul(loops))?
            }
            "ema_tiers" => {
                let (tiers, weight) = (options.get("tiers")?, options.get("weight")?);
                let (up, down) = (options.get("up")?, options.get("down")?);
                Box::new(enter(py, || policy::EmaTiers::new(tiers, weight, up, down))?)
            }
            "goodput" => Box::new(policy::Goodput::new(options.get("max_tokens")?, table(py)?, known(), stepwise)),
            "ucb" => {
                let (arms, discount, compat) = (options.get("arms")?, options.get("discount")?, options.get("compat")?);
                Box::new(enter(py, || policy::Ucb::new(arms, discount, compat))?)
            }
            _ => return Err(invalid(py, &format!("no policy is called '{name}'"))),
        };
        let inner = if guarded { Inner::Guarded(policy::Guarded::new(made, table(py)?)) } else { Inner::Free(made) };
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
