//! What drafting beside the target is worth, in formulas of measured inputs.

use crate::error::{Error, Result};

/// Tokens per round, the bonus token included, when each of K drafts is accepted with probability `acceptance`.
pub fn expected_tokens(acceptance: f64, lookahead: usize) -> f64 {
    let mut reached = 1.0;
    (0..=lookahead)
        .map(|_| {
            let now = reached;
            reached *= acceptance;
            now
        })
        .sum()
}

/// A way to answer a miss: tokens of the round that follows, and its drafting time in units of one verification.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backup {
    /// Expected tokens of a round that starts from it.
    pub tokens: f64,
    /// Time before the target can start.
    pub time: f64,
}

/// A batch of requests that share every round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// P(outcome was guessed), per request.
    pub hit_rate: f64,
    /// Expected tokens of a round behind a hit.
    pub hit_tokens: f64,
    /// Time of drafting for all guesses, in units of one verification.
    pub draft_time: f64,
    /// Requests.
    pub requests: f64,
}

/// Tokens per verification time of ordinary speculative decoding: E / (1 + T).
pub fn sd_speedup(tokens: f64, draft_time: f64) -> f64 {
    tokens / (1.0 + draft_time)
}

/// Tokens per verification time of SSD (arXiv:2603.03251, theorem 7, and corollary 16 for more than one request: one
/// miss makes all wait).
///
/// # Errors
/// If the hit rate is no probability, or a time or a token count is negative or not finite.
pub fn ssd_speedup(batch: Batch, backup: Backup) -> Result<f64> {
    check(batch, backup)?;
    let hit = batch.hit_rate;
    let all_hit = hit.powf(batch.requests);
    let tokens = hit * batch.hit_tokens + (1.0 - hit) * backup.tokens;
    Ok(tokens / (all_hit * batch.draft_time.max(1.0) + (1.0 - all_hit) * (1.0 + backup.time)))
}

fn check(batch: Batch, backup: Backup) -> Result<()> {
    let amounts = [batch.hit_tokens, batch.draft_time, backup.tokens, backup.time];
    let possible = (0.0..=1.0).contains(&batch.hit_rate) && batch.requests >= 1.0 && batch.requests.is_finite();
    if !possible || amounts.iter().any(|amount| !(amount.is_finite() && *amount >= 0.0)) {
        return Err(Error::invalid(format!(
            "expected a hit rate in [0, 1], at least 1 request, and amounts from 0, got {batch:?} and {backup:?}"
        )));
    }
    Ok(())
}

/// Lower and upper bound of SSD over ordinary speculative decoding with the same drafter (corollaries 8 and 9).
pub fn ssd_bounds(hit_rate: f64, draft_time: f64, hit_tokens: f64, sd_tokens: f64) -> (f64, f64) {
    let gain = hit_tokens / sd_tokens;
    ((1.0 + draft_time) / (1.0 + draft_time * (1.0 - hit_rate)) * gain, (1.0 + draft_time) * gain)
}

/// The batch size from which the fast backup beats the slow one; none if the slow one always does.
///
/// Solves the equality of both speeds for b: with A = p·`E_hit` + (1−p)·E, D = `A_fast`(1+`T_slow`) − `A_slow`(1+`T_fast`),
/// M = max(1, `T_draft`): s = D / (D + M(`A_slow` − `A_fast`)), b = ln s / ln p. A value of at most 1 says always fast.
///
/// # Errors
/// As [`ssd_speedup`].
pub fn critical_batch(batch: Batch, slow: Backup, fast: Backup) -> Result<Option<f64>> {
    check(batch, slow)?;
    check(batch, fast)?;
    let hit = batch.hit_rate;
    let tokens = |backup: Backup| hit * batch.hit_tokens + (1.0 - hit) * backup.tokens;
    let (slow_tokens, fast_tokens) = (tokens(slow), tokens(fast));
    let lead = fast_tokens * (1.0 + slow.time) - slow_tokens * (1.0 + fast.time);
    if lead <= 0.0 {
        return Ok(None);
    }
    if hit >= 1.0 {
        return Ok(None); // nothing ever falls back
    }
    let share = lead / (lead + batch.draft_time.max(1.0) * (slow_tokens - fast_tokens));
    // With no tokens lost the fast one wins at any size; so it does when everything misses.
    if share >= 1.0 || hit <= 0.0 {
        return Ok(Some(0.0));
    }
    Ok(Some(share.ln() / hit.ln()))
}

/// Share of hits in the long run when the rate is `after_hit` behind a hit and `after_miss` behind a backup's draft.
pub fn stationary_hits(after_hit: f64, after_miss: f64) -> f64 {
    let leave = 1.0 - after_hit + after_miss;
    if leave <= 0.0 { after_hit } else { after_miss / leave }
}
