//! Whether a device of its own for the drafter pays, from measured costs.

use super::fan_out::{allocate_by, outcome_probs};
use super::miss_law::MissLaw;
use super::speedup::expected_tokens;
use crate::error::{Error, Result};

/// Seconds that the stages take on their own devices. Forwards are linear in their rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCosts {
    /// A target forward over one row: a plain step.
    pub plain: f64,
    /// Each further row of a target forward.
    pub verify_row: f64,
    /// A drafter forward over one row.
    pub draft: f64,
    /// Each further row of a drafter forward.
    pub draft_row: f64,
    /// Messages and bookkeeping of one round.
    pub overhead: f64,
}

impl StageCosts {
    pub(super) fn check(self) -> Result<()> {
        let all = [self.plain, self.verify_row, self.draft, self.draft_row, self.overhead];
        if all.iter().any(|cost| !(cost.is_finite() && *cost >= 0.0)) || self.plain <= 0.0 {
            return Err(Error::invalid(format!("costs must be finite and at least 0, plain positive, got {self:?}")));
        }
        Ok(())
    }

    /// Scoring `rows` rows.
    pub fn verify(self, rows: usize) -> f64 {
        self.plain + self.verify_row * (rows.max(1) - 1) as f64
    }

    /// One drafter forward over `rows` rows.
    pub fn draft_step(self, rows: usize) -> f64 {
        self.draft + self.draft_row * (rows.max(1) - 1) as f64
    }

    /// Drafting K tokens behind each of `branches` guesses of a batch: the glue forward and K steps.
    pub fn pre_draft(self, batch: usize, lookahead: usize, branches: usize) -> f64 {
        self.draft_step(batch * (lookahead + 1)) + lookahead as f64 * self.draft_step(branches)
    }
}

/// Devices that the two models run on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Devices {
    /// Of the target; a synchronous drafter shares them.
    pub target: f64,
    /// Of the drafter alone.
    pub draft: f64,
}

/// What is fastest per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No drafting.
    Plain,
    /// Draft, then verify, on the target's devices.
    Synchronous,
    /// Draft while the target verifies, on devices of the drafter's own.
    Overlapped,
}

/// The advisor's reasoning. Speeds are tokens per second of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advice {
    /// What is fastest per device.
    pub verdict: Verdict,
    /// K of the fastest overlapped setting.
    pub lookahead: usize,
    /// Mean guesses per number of accepted drafts, in that setting.
    pub fan_out: usize,
    /// Its expected hit rate.
    pub hit_rate: f64,
    /// Speed of plain decoding.
    pub plain: f64,
    /// Speed of the fastest synchronous setting.
    pub synchronous: f64,
    /// K of that setting.
    pub synchronous_lookahead: usize,
    /// Speed of the fastest overlapped setting.
    pub overlapped: f64,
    /// Speed of the overlapped setting over synchronous drafting with the same K.
    pub gain_at_lookahead: f64,
    /// Drafting over drafting and verifying, in that setting.
    pub draft_share: f64,
    /// The share that would pay for the drafter's devices if every outcome were guessed.
    pub needed_share: f64,
    /// The share that pays at the expected hit rate.
    pub needed_share_at_hit_rate: f64,
    /// Whether drafting for all guesses fits beside the verification.
    pub fits: bool,
}

/// Longest draft and widest fan-out that are considered.
const MOST: (usize, usize) = (16, 8);

/// Finds the fastest settings with and without overlap, and says whether the overlap pays for its devices.
///
/// The screen: with h = (target + draft devices) / target devices, the overlapped setting must be h times as fast as the
/// best synchronous one. At a hit rate p that needs a draft share of at least (h − 1) / (h·p).
///
/// # Errors
/// If a cost is negative, there is no target device, or `acceptance` is no probability.
pub fn advise(costs: StageCosts, devices: Devices, acceptance: f64, misses: MissLaw) -> Result<Advice> {
    costs.check()?;
    if !(devices.target > 0.0 && devices.draft >= 0.0 && devices.target.is_finite() && devices.draft.is_finite()) {
        return Err(Error::invalid(format!("expected a target device at least, got {devices:?}")));
    }
    let mut synchronous = (0.0, 0);
    let mut best = (f64::NEG_INFINITY, 1, 1, 0.0);
    for lookahead in 1..=MOST.0 {
        let tokens = expected_tokens(acceptance, lookahead);
        let verify = costs.verify(lookahead + 1);
        let draft = lookahead as f64 * costs.draft;
        let speed = tokens / (verify + draft);
        if speed > synchronous.0 {
            synchronous = (speed, lookahead);
        }
        for fan_out in 1..=MOST.1 {
            let branches = fan_out * (lookahead + 1);
            let hit_rate = hit_rate(acceptance, misses, lookahead, branches)?;
            let round = verify.max(costs.pre_draft(1, lookahead, branches)) + costs.overhead;
            let speed = tokens / (round + (1.0 - hit_rate) * draft);
            if speed > best.0 {
                best = (speed, lookahead, fan_out, hit_rate);
            }
        }
    }
    let (overlapped, lookahead, fan_out, hit_rate) = best;
    let (verify, draft) = (costs.verify(lookahead + 1), lookahead as f64 * costs.draft);
    let tokens = expected_tokens(acceptance, lookahead);
    let more_devices = (devices.target + devices.draft) / devices.target;
    let plain = 1.0 / costs.plain;
    let best_on_target = synchronous.0.max(plain);
    let verdict = if overlapped >= more_devices * best_on_target && overlapped > best_on_target {
        Verdict::Overlapped
    } else if synchronous.0 > plain {
        Verdict::Synchronous
    } else {
        Verdict::Plain
    };
    let needed = (more_devices - 1.0) / more_devices;
    Ok(Advice {
        verdict,
        lookahead,
        fan_out,
        hit_rate,
        plain,
        synchronous: synchronous.0,
        synchronous_lookahead: synchronous.1,
        overlapped,
        gain_at_lookahead: overlapped * (verify + draft) / tokens,
        draft_share: draft / (draft + verify),
        needed_share: needed,
        needed_share_at_hit_rate: if hit_rate > 0.0 { needed / hit_rate } else { f64::INFINITY },
        fits: costs.pre_draft(1, lookahead, fan_out * (lookahead + 1)) <= verify,
    })
}

/// P(outcome guessed) with the best fan-out of `budget` guesses.
pub(super) fn hit_rate(acceptance: f64, misses: MissLaw, lookahead: usize, budget: usize) -> Result<f64> {
    let probs = outcome_probs(acceptance, lookahead)?;
    let fan_out = allocate_by(&probs, misses, budget, u32::MAX)?;
    Ok(probs.iter().zip(fan_out).map(|(prob, fan)| prob * (1.0 - misses.miss(f64::from(fan)))).sum())
}
