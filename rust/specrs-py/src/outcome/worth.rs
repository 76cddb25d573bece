//! What drafting beside the target is worth: formulas, the advisor, the simulator.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use specrs::outcome::{self, MissLaw};

use super::kept::fallback_of;
use crate::enter::{dict_of, enter};

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
    let verdict = match advice.verdict {
        outcome::Verdict::Plain => "plain",
        outcome::Verdict::Synchronous => "synchronous",
        outcome::Verdict::Overlapped => "overlapped",
    };
    let dict: PyResult<Bound<'_, PyDict>> = dict_of!(
        py,
        advice,
        lookahead,
        fan_out,
        hit_rate,
        plain,
        synchronous,
        synchronous_lookahead,
        overlapped,
        gain_at_lookahead,
        draft_share,
        needed_share,
        needed_share_at_hit_rate,
        fits,
    );
    let dict = dict?;
    dict.set_item("verdict", verdict)?;
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
    dict_of!(py, run, plain, synchronous, overlapped, hit_rate, tokens_per_round, round_seconds)
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
    m.add_function(wrap_pyfunction!(expected_tokens, m)?)?;
    m.add_function(wrap_pyfunction!(ssd_speedup, m)?)?;
    m.add_function(wrap_pyfunction!(sd_speedup, m)?)?;
    m.add_function(wrap_pyfunction!(ssd_bounds, m)?)?;
    m.add_function(wrap_pyfunction!(critical_batch, m)?)?;
    m.add_function(wrap_pyfunction!(stationary_hits, m)?)?;
    m.add_function(wrap_pyfunction!(advise_overlap, m)?)?;
    m.add_function(wrap_pyfunction!(simulate_overlap, m)?)?;
    m.add_function(wrap_pyfunction!(synthetic_rates, m)?)
}
