//! What to do when the outcome was not guessed, by measured speed.

use crate::error::{Error, Result};

/// How to answer a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// Draft now with the primary drafter; the batch waits for it.
    Slow,
    /// Answer at once with a cheap drafter.
    Fast,
    /// Answer at once without a draft: one plain step.
    Zero,
}

impl Fallback {
    const ALL: [Self; 3] = [Self::Slow, Self::Fast, Self::Zero];
}

/// Misses that an option is tried for before it is judged.
const TRIALS: u32 = 3;
/// Every so many misses another option is tried again.
const PROBE_EVERY: u32 = 48;
/// Weight of what came before, per cycle.
const KEEP: f64 = 0.95;
/// Batch sizes are told apart by powers of two up to 2^(BUCKETS − 1).
const BUCKETS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Arm {
    tokens: f64,
    seconds: f64,
    cycles: u32,
}

/// Chooses by batch size the fallback of the highest measured speed.
///
/// A choice pays for more than its own round: a poor draft makes the next outcome harder to guess. So a choice is
/// credited with everything from its miss to the next miss (a renewal cycle), and the best choice is the one with the
/// largest tokens − λ·seconds per cycle, λ the speed so far.
#[derive(Clone, Debug)]
pub struct FallbackChooser {
    offered: Vec<Fallback>,
    arms: [[Arm; 3]; BUCKETS],
    misses: [u32; BUCKETS],
    open: Option<(usize, usize, f64, f64)>,
}

fn bucket(batch: usize) -> usize {
    (usize::BITS - batch.max(1).leading_zeros() - 1).min(BUCKETS as u32 - 1) as usize
}

impl FallbackChooser {
    /// Chooses among `offered`.
    ///
    /// # Errors
    /// If nothing is offered.
    pub fn new(offered: &[Fallback]) -> Result<Self> {
        if offered.is_empty() {
            return Err(Error::invalid("expected at least one fallback, got none"));
        }
        let offered = Fallback::ALL.into_iter().filter(|option| offered.contains(option)).collect();
        Ok(Self { offered, arms: [[Arm::default(); 3]; BUCKETS], misses: [0; BUCKETS], open: None })
    }

    /// Answers a miss in a batch of `batch` requests. The cycle of the miss before ends here.
    pub fn choose(&mut self, batch: usize) -> Fallback {
        self.close();
        let at = bucket(batch);
        self.misses[at] = self.misses[at].saturating_add(1);
        let arms = &self.arms[at];
        let untried = self.offered.iter().copied().find(|&option| arms[option as usize].cycles < TRIALS);
        let turn = self.misses[at] / PROBE_EVERY;
        let probe =
            self.misses[at].is_multiple_of(PROBE_EVERY).then(|| self.offered[turn as usize % self.offered.len()]);
        let choice = untried.or(probe).unwrap_or_else(|| self.best(batch));
        self.open = Some((at, choice as usize, 0.0, 0.0));
        choice
    }

    /// The best option at a batch size by what was measured; the first offered before anything was.
    pub fn best(&self, batch: usize) -> Fallback {
        let arms = &self.arms[bucket(batch)];
        let all = arms.iter().fold((0.0, 0.0), |sum, arm| (sum.0 + arm.tokens, sum.1 + arm.seconds));
        let speed = if all.1 > 0.0 { all.0 / all.1 } else { 0.0 };
        let mut best = (f64::NEG_INFINITY, self.offered[0]);
        for &option in &self.offered {
            let arm = arms[option as usize];
            let weight = (0..arm.cycles.min(200)).fold(0.0, |sum, _| sum * KEEP + 1.0);
            let worth = if weight > 0.0 { (arm.tokens - speed * arm.seconds) / weight } else { f64::NEG_INFINITY };
            if worth > best.0 {
                best = (worth, option);
            }
        }
        best.1
    }

    /// The measured speed of an option at a batch size, tokens per second over its cycles; none before it was tried.
    pub fn speed(&self, option: Fallback, batch: usize) -> Option<f64> {
        let arm = self.arms[bucket(batch)][option as usize];
        (arm.seconds > 0.0).then(|| arm.tokens / arm.seconds)
    }

    /// Takes a finished round. Seconds that no clock gives (negative, not finite) are ignored with their tokens.
    pub fn note_round(&mut self, tokens: f64, seconds: f64) {
        if let Some(open) = &mut self.open
            && seconds.is_finite()
            && seconds > 0.0
            && tokens.is_finite()
            && tokens >= 0.0
        {
            open.2 += tokens;
            open.3 += seconds;
        }
    }

    fn close(&mut self) {
        let Some((at, option, tokens, seconds)) = self.open.take() else { return };
        if seconds > 0.0 {
            let arm = &mut self.arms[at][option];
            arm.tokens = arm.tokens * KEEP + tokens;
            arm.seconds = arm.seconds * KEEP + seconds;
            arm.cycles = arm.cycles.saturating_add(1);
        }
    }
}
