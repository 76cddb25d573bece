//! What is learned of a drafter on a target: calibration, the outlook on tokens not drafted yet, times.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::base::{Outcome, Round};
use super::calibration::{Calibration, Mode};
use super::length::usable;

/// Weight of the newest round in running means of times.
const RECENT: f64 = 0.1;
/// Weight of the newest round in the rate of the run.
const RATE_RECENT: f64 = 0.05;
/// Weight of the newest verdict in the outlook.
const OUTLOOK_RECENT: f64 = 0.05;
/// Bins of the last token's confidence in the outlook.
const OUTLOOK_BINS: usize = 8;

/// Locks what threads share; a panic elsewhere leaves numbers that are still numbers.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a policy knows of a drafter on a target; shared by the engines that run the pair, and kept between runs.
#[derive(Clone, Debug)]
pub struct Learned {
    pub(super) calibration: Calibration,
    pub(super) outlook: Outlook,
    /// Seconds of one drafted token, of a whole draft, and of everything but drafting and scoring.
    pub(super) step_seconds: f64,
    pub(super) draft_seconds: f64,
    pub(super) other_seconds: f64,
    /// Running sums of committed tokens and seconds: their ratio is the rate of the run.
    pub(super) tokens: f64,
    pub(super) seconds: f64,
    /// Rounds learned from.
    pub(super) rounds: u64,
    /// The length of a rule that adapts it from call to call.
    pub(super) length: Option<usize>,
}

impl Learned {
    /// Knows nothing yet.
    pub fn new(calibration: Calibration) -> Self {
        Self {
            calibration,
            outlook: Outlook::default(),
            step_seconds: 0.0,
            draft_seconds: 0.0,
            other_seconds: 0.0,
            tokens: 0.0,
            seconds: 0.0,
            rounds: 0,
            length: None,
        }
    }

    /// Tokens per second of the run so far.
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.tokens / self.seconds)
    }

    /// Sets the seconds of one drafted token, where they were measured beforehand.
    pub fn set_step_seconds(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds >= 0.0 {
            self.step_seconds = seconds;
        }
    }

    pub(super) fn observe(&mut self, round: &Round<'_>, outcome: &Outcome<'_>) {
        let sane = [outcome.draft_seconds, outcome.score_seconds, outcome.other_seconds];
        if sane.iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0) {
            let share = |rounds: u64| RECENT.max(1.0 / (rounds + 1) as f64);
            if outcome.steps > 0 {
                let share = share(self.rounds);
                let per_step = outcome.draft_seconds / outcome.steps as f64;
                // A measured cost is not thrown away by the first, cold round.
                let share = if self.step_seconds > 0.0 { share.min(0.2) } else { share };
                self.step_seconds += share * (per_step - self.step_seconds);
                self.draft_seconds += share * (outcome.draft_seconds - self.draft_seconds);
            }
            self.other_seconds += share(self.rounds) * (outcome.other_seconds - self.other_seconds);
            let tokens: usize = (0..round.batch()).map(|b| outcome.accepted_of(b) + 1).sum();
            self.tokens += RATE_RECENT * (tokens as f64 - self.tokens);
            self.seconds += RATE_RECENT * (sane.iter().sum::<f64>() - self.seconds);
            self.rounds += 1;
        }
        let draft = &outcome.draft;
        let (calibration, outlook) = (&mut self.calibration, &mut self.outlook);
        outcome.judged(|b, node, depth| {
            let accepted = outcome.accepted[node];
            let parent = draft.parents[node];
            let before = (parent >= 0 && !draft.confidence.is_empty())
                .then(|| draft.confidence[draft.node_ptr[b] + parent as usize]);
            outlook.observe(round.modes[b], depth, before, accepted);
            if let Some(&stated) = draft.confidence.get(node) {
                calibration.observe(round.modes[b], depth, stated, accepted);
            }
        });
    }
}

/// What is expected of tokens that are not drafted yet.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// Acceptance of the first token, per kind of round.
    first: [f64; Mode::COUNT],
    /// Acceptance of a later token, by the confidence of the one before it.
    next: [[f64; OUTLOOK_BINS]; Mode::COUNT],
    /// Acceptance of a later token, whatever came before.
    later: [f64; Mode::COUNT],
}

impl Default for Outlook {
    fn default() -> Self {
        let after = |bin: usize| 0.35 + 0.5 * (bin as f64 + 0.5) / OUTLOOK_BINS as f64;
        Self { first: [0.7; Mode::COUNT], next: [std::array::from_fn(after); Mode::COUNT], later: [0.7; Mode::COUNT] }
    }
}

impl Outlook {
    fn bin(confidence: f32) -> usize {
        ((usable(confidence) * OUTLOOK_BINS as f32) as usize).min(OUTLOOK_BINS - 1)
    }

    fn observe(&mut self, mode: Mode, depth: usize, before: Option<f32>, accepted: bool) {
        let hit = f64::from(u8::from(accepted));
        let learn = |mean: &mut f64| *mean += OUTLOOK_RECENT * (hit - *mean);
        let mode = mode.index();
        if depth == 1 {
            learn(&mut self.first[mode]);
        } else {
            learn(&mut self.later[mode]);
            if let Some(confidence) = before {
                learn(&mut self.next[mode][Self::bin(confidence)]);
            }
        }
    }

    /// Acceptance expected of the `k`-th token from here (from 0); `last` is the confidence of the last one drafted.
    pub(super) fn ahead(&self, mode: Mode, last: Option<f32>, k: usize) -> f32 {
        let mode = mode.index();
        let value = match (k, last) {
            (0, None) => self.first[mode],
            (0, Some(confidence)) => self.next[mode][Self::bin(confidence)],
            _ => self.later[mode],
        };
        value as f32
    }
}
