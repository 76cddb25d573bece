//! Drafting while the target verifies (`specrs::outcome`).

use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods, ndarray::Array2,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use specrs::TokenId;
use specrs::outcome::{self, Continuation, Fallback, MissLaw, Outcome};

use crate::enter::{enter, invalid};

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    let logits = logits.as_slice().map_err(|_| invalid(py, "logits must be contiguous"))?;
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
        let dict = PyDict::new(py);
        dict.set_item("hits", counts.hits)?;
        dict.set_item("misses", counts.misses)?;
        dict.set_item("stale", counts.stale)?;
        dict.set_item("refused", counts.refused)?;
        Ok(dict)
    }

    fn __len__(&self) -> usize {
        open(&self.cache).len()
    }
}

fn fallback_of(py: Python<'_>, name: &str) -> PyResult<Fallback> {
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

#[pyfunction]
fn expected_tokens(acceptance: f64, lookahead: usize) -> f64 {
    outcome::expected_tokens(acceptance, lookahead)
}

#[pyfunction]
#[pyo3(signature = (hit_rate, hit_tokens, draft_time, miss_tokens, miss_time, requests = 1.0))]
fn ssd_speedup(
    py: Python<'_>,
    hit_rate: f64,
    hit_tokens: f64,
    draft_time: f64,
    miss_tokens: f64,
    miss_time: f64,
    requests: f64,
) -> PyResult<f64> {
    let batch = outcome::Batch { hit_rate, hit_tokens, draft_time, requests };
    let backup = outcome::Backup { tokens: miss_tokens, time: miss_time };
    enter(py, || outcome::ssd_speedup(batch, backup))
}

#[pyfunction]
fn sd_speedup(tokens: f64, draft_time: f64) -> f64 {
    outcome::sd_speedup(tokens, draft_time)
}

#[pyfunction]
fn ssd_bounds(hit_rate: f64, draft_time: f64, hit_tokens: f64, sd_tokens: f64) -> (f64, f64) {
    outcome::ssd_bounds(hit_rate, draft_time, hit_tokens, sd_tokens)
}

#[pyfunction]
fn critical_batch(
    py: Python<'_>,
    hit_rate: f64,
    hit_tokens: f64,
    draft_time: f64,
    slow: (f64, f64),
    fast: (f64, f64),
) -> PyResult<Option<f64>> {
    let batch = outcome::Batch { hit_rate, hit_tokens, draft_time, requests: 1.0 };
    let backup = |(tokens, time)| outcome::Backup { tokens, time };
    enter(py, || outcome::critical_batch(batch, backup(slow), backup(fast)))
}

#[pyfunction]
fn stationary_hits(after_hit: f64, after_miss: f64) -> f64 {
    outcome::stationary_hits(after_hit, after_miss)
}

type Costs = (f64, f64, f64, f64, f64);

fn costs_of((plain, verify_row, draft, draft_row, overhead): Costs) -> outcome::StageCosts {
    outcome::StageCosts { plain, verify_row, draft, draft_row, overhead }
}

#[pyfunction]
#[pyo3(signature = (costs, acceptance, miss_law, devices = (1.0, 1.0)))]
fn advise_overlap(
    py: Python<'_>,
    costs: Costs,
    acceptance: f64,
    miss_law: (f64, f64),
    devices: (f64, f64),
) -> PyResult<Bound<'_, PyDict>> {
    let devices = outcome::Devices { target: devices.0, draft: devices.1 };
    let misses = MissLaw { scale: miss_law.0, rho: miss_law.1 };
    let advice = enter(py, || outcome::advise(costs_of(costs), devices, acceptance, misses))?;
    let dict = PyDict::new(py);
    let verdict = match advice.verdict {
        outcome::Verdict::Plain => "plain",
        outcome::Verdict::Synchronous => "synchronous",
        outcome::Verdict::Overlapped => "overlapped",
    };
    dict.set_item("verdict", verdict)?;
    dict.set_item("lookahead", advice.lookahead)?;
    dict.set_item("fan_out", advice.fan_out)?;
    dict.set_item("hit_rate", advice.hit_rate)?;
    dict.set_item("plain", advice.plain)?;
    dict.set_item("synchronous", advice.synchronous)?;
    dict.set_item("synchronous_lookahead", advice.synchronous_lookahead)?;
    dict.set_item("overlapped", advice.overlapped)?;
    dict.set_item("gain_at_lookahead", advice.gain_at_lookahead)?;
    dict.set_item("draft_share", advice.draft_share)?;
    dict.set_item("needed_share", advice.needed_share)?;
    dict.set_item("needed_share_at_hit_rate", advice.needed_share_at_hit_rate)?;
    dict.set_item("fits", advice.fits)?;
    Ok(dict)
}

#[pyfunction]
#[pyo3(signature = (
    costs, *, lookahead, acceptance, miss_law, budget, synchronous_lookahead = None, fallback = "slow",
    fallback_acceptance = 0.0, batch = 1, rounds = 10_000, seed = 0
))]
#[allow(clippy::too_many_arguments, reason = "a scene")]
fn simulate_overlap<'py>(
    py: Python<'py>,
    costs: Costs,
    lookahead: usize,
    acceptance: f64,
    miss_law: (f64, f64),
    budget: usize,
    synchronous_lookahead: Option<usize>,
    fallback: &str,
    fallback_acceptance: f64,
    batch: usize,
    rounds: u32,
    seed: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let scene = outcome::Scene {
        costs: costs_of(costs),
        lookahead,
        synchronous_lookahead: synchronous_lookahead.unwrap_or(lookahead),
        budget,
        acceptance,
        fallback_acceptance,
        misses: MissLaw { scale: miss_law.0, rho: miss_law.1 },
        fallback: fallback_of(py, fallback)?,
        batch,
        rounds,
        seed,
    };
    let run = enter(py, || outcome::simulate(scene))?;
    let dict = PyDict::new(py);
    dict.set_item("plain", run.plain)?;
    dict.set_item("synchronous", run.synchronous)?;
    dict.set_item("overlapped", run.overlapped)?;
    dict.set_item("hit_rate", run.hit_rate)?;
    dict.set_item("tokens_per_round", run.tokens_per_round)?;
    dict.set_item("round_seconds", run.round_seconds)?;
    Ok(dict)
}

#[pyfunction]
#[pyo3(signature = (temperature, *, favoured = 0, weight = 1.0, most = 8, vocabulary = 500, spread = 4.0, noise = 0.25,
    contexts = 200, seed = 0))]
#[allow(clippy::too_many_arguments, reason = "a made-up pair of models")]
fn synthetic_rates(
    py: Python<'_>,
    temperature: f64,
    favoured: usize,
    weight: f32,
    most: usize,
    vocabulary: usize,
    spread: f64,
    noise: f64,
    contexts: u32,
    seed: u64,
) -> PyResult<(f64, Vec<f64>)> {
    let language = outcome::Language { vocabulary, spread, noise, contexts, seed };
    let rates = enter(py, || language.rates(temperature, favoured, weight, most))?;
    Ok((rates.acceptance, rates.misses))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<RankMisses>()?;
    m.add_class::<SpeculationCache>()?;
    m.add_class::<FallbackChooser>()?;
    m.add_function(wrap_pyfunction!(outcome_probs, m)?)?;
    m.add_function(wrap_pyfunction!(geometric_fan_out, m)?)?;
    m.add_function(wrap_pyfunction!(allocate_fan_out, m)?)?;
    m.add_function(wrap_pyfunction!(fit_power_law, m)?)?;
    m.add_function(wrap_pyfunction!(fork_ids, m)?)?;
    m.add_function(wrap_pyfunction!(saguaro, m)?)?;
    m.add_function(wrap_pyfunction!(expected_tokens, m)?)?;
    m.add_function(wrap_pyfunction!(sd_speedup, m)?)?;
    m.add_function(wrap_pyfunction!(ssd_speedup, m)?)?;
    m.add_function(wrap_pyfunction!(ssd_bounds, m)?)?;
    m.add_function(wrap_pyfunction!(critical_batch, m)?)?;
    m.add_function(wrap_pyfunction!(stationary_hits, m)?)?;
    m.add_function(wrap_pyfunction!(advise_overlap, m)?)?;
    m.add_function(wrap_pyfunction!(simulate_overlap, m)?)?;
    m.add_function(wrap_pyfunction!(synthetic_rates, m)?)
}
