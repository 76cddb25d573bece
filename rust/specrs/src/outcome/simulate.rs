//! A seeded simulator of plain, synchronous and overlapped decoding, from costs and rates.

use super::advisor::StageCosts;
use super::fallback::Fallback;
use super::fan_out::allocate;
use super::miss_law::MissLaw;
use crate::error::{Error, Result};
use crate::uniforms::{Key, Purpose, uniform};

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Seconds of the stages.
    pub costs: StageCosts,
    /// K of overlapped drafting.
    pub lookahead: usize,
    /// K of synchronous drafting.
    pub synchronous_lookahead: usize,
    /// Guesses per request, in all.
    pub budget: usize,
    /// P(draft token accepted) of the primary drafter.
    pub acceptance: f64,
    /// The same of the fast fallback.
    pub fallback_acceptance: f64,
    /// P(miss) by fan-out.
    pub misses: MissLaw,
    /// How a miss is answered.
    pub fallback: Fallback,
    /// Requests that share every round.
    pub batch: usize,
    /// Rounds to run.
    pub rounds: u32,
    /// The same seed gives the same run.
    pub seed: u64,
}

/// What a simulation saw. Speeds are tokens per second, of all requests together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Plain decoding.
    pub plain: f64,
    /// Synchronous drafting.
    pub synchronous: f64,
    /// Overlapped drafting.
    pub overlapped: f64,
    /// Guessed outcomes, of all.
    pub hit_rate: f64,
    /// Tokens per round and request, overlapped.
    pub tokens_per_round: f64,
    /// Seconds per round, overlapped.
    pub round_seconds: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Primary,
    Fast,
    Nothing,
}

/// Plays `rounds` rounds of a batch.
///
/// Each draft token is accepted by a coin, the outcome is guessed by a coin at the fan-out of its number of accepted
/// drafts, and the round lasts as long as the slower of verification and pre-drafting, and a fallback if any request
/// missed. The first round of each request is a miss.
///
/// # Errors
/// If a cost is negative, a rate is no probability, or nothing is to be played.
pub fn simulate(scene: Scene) -> Result<Run> {
    scene.costs.check()?;
    if scene.rounds == 0 || scene.batch == 0 || !(0.0..=1.0).contains(&scene.fallback_acceptance) {
        return Err(Error::invalid(format!(
            "expected rounds and requests, and a fallback acceptance in [0, 1], got {}, {} and {}",
            scene.rounds, scene.batch, scene.fallback_acceptance
        )));
    }
    let fan_out = allocate(scene.acceptance, scene.misses.rho, scene.lookahead, scene.budget)?;
    let after_fast = allocate(scene.fallback_acceptance, scene.misses.rho, scene.lookahead, scene.budget)?;
    let after_nothing = [scene.budget as u32];
    let coin = |request: usize, round: u32, index: u32| {
        let key = Key { seed: scene.seed, request: request as u32, position: round, purpose: Purpose::Policy, index };
        uniform(key)
    };
    let accepted = |request: usize, round: u32, rate: f64, most: usize, first: u32| {
        (0..most).take_while(|&at| coin(request, round, first + at as u32) < rate).count()
    };
    let (costs, batch) = (scene.costs, scene.batch);
    let mut origin = vec![Origin::Nothing; batch];
    let (mut tokens, mut seconds, mut hits, mut synchronous) = (0usize, 0.0, 0usize, 0usize);
    let draft_alone = scene.lookahead as f64 * costs.draft_step(batch);
    let pre_draft = costs.pre_draft(batch, scene.lookahead, batch * scene.budget);
    let round_seconds = costs.verify(batch * (scene.lookahead + 1)).max(pre_draft) + costs.overhead;
    for round in 0..scene.rounds {
        let mut missed = false;
        for (request, origin) in origin.iter_mut().enumerate() {
            let (rate, most, fans): (f64, usize, &[u32]) = match *origin {
                Origin::Primary => (scene.acceptance, scene.lookahead, &fan_out),
                Origin::Fast => (scene.fallback_acceptance, scene.lookahead, &after_fast),
                Origin::Nothing => (0.0, 0, &after_nothing),
            };
            let kept = accepted(request, round, rate, most, 2);
            tokens += kept + 1;
            let miss = scene.misses.miss(f64::from(fans[kept]));
            let hit = coin(request, round, 0) >= miss;
            hits += usize::from(hit);
            missed |= !hit;
            *origin = match (hit, scene.fallback) {
                (true, _) | (false, Fallback::Slow) => Origin::Primary,
                (false, Fallback::Fast) => Origin::Fast,
                (false, Fallback::Zero) => Origin::Nothing,
            };
            let most = scene.synchronous_lookahead;
            synchronous += accepted(request, round, scene.acceptance, most, 1 << 16) + 1;
        }
        seconds += round_seconds;
        if missed && scene.fallback == Fallback::Slow {
            seconds += draft_alone;
        }
    }
    let rounds = f64::from(scene.rounds);
    let synchronous_round = costs.verify(batch * (scene.synchronous_lookahead + 1))
        + scene.synchronous_lookahead as f64 * costs.draft_step(batch);
    Ok(Run {
        plain: batch as f64 / costs.verify(batch),
        synchronous: synchronous as f64 / (rounds * synchronous_round),
        overlapped: tokens as f64 / seconds,
        hit_rate: hits as f64 / (rounds * batch as f64),
        tokens_per_round: tokens as f64 / (rounds * batch as f64),
        round_seconds: seconds / rounds,
    })
}
