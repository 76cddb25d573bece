//! Turns the cache's path probabilities into acceptance rates observed so far.

use crate::isotonic::rising;

const BINS: usize = 24;
/// Observations that the identity is worth at the start.
const PRIOR: f64 = 30.0;
/// Weight of an observation after as many more: old text counts less.
const MEMORY: f64 = 20_000.0;

/// Acceptance by path probability, in bins that are finer near 0 and 1, and never falling from one bin to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    accepted: [f64; BINS],
    seen: [f64; BINS],
    /// Derived: what a probability at the bin's centre is worth.
    value: [f32; BINS],
}

impl Default for Calibration {
    fn default() -> Self {
        let mut new = Self { accepted: [0.0; BINS], seen: [0.0; BINS], value: [0.0; BINS] };
        new.refresh();
        new
    }
}

/// Logit, cut at ±6, on the bins' scale.
fn place(prob: f32) -> f32 {
    let prob = prob.clamp(0.002_5, 0.997_5);
    let logit = (prob / (1.0 - prob)).ln();
    (logit + 6.0) / 12.0 * (BINS - 1) as f32
}

fn centre(bin: usize) -> f64 {
    let logit = bin as f64 / (BINS - 1) as f64 * 12.0 - 6.0;
    1.0 / (1.0 + (-logit).exp())
}

impl Calibration {
    /// The acceptance rate that a path probability stands for.
    #[inline]
    pub fn rate(&self, path_prob: f32) -> f32 {
        let at = place(path_prob);
        let low = at as usize;
        let high = (low + 1).min(BINS - 1);
        let share = at - low as f32;
        self.value[low] + share * (self.value[high] - self.value[low])
    }

    /// Learns that the nodes of a draft were accepted, or would have been.
    pub fn observe(&mut self, nodes: impl Iterator<Item = (f32, bool)>) {
        for (path_prob, accepted) in nodes {
            let at = place(path_prob);
            let low = at as usize;
            let share = f64::from(at - low as f32);
            // Both bins that a rate is read from learn, by their shares of it.
            for (bin, weight) in [(low, 1.0 - share), ((low + 1).min(BINS - 1), share)] {
                self.accepted[bin] += weight * f64::from(u8::from(accepted));
                self.seen[bin] += weight;
                if self.seen[bin] > MEMORY {
                    self.accepted[bin] *= 0.5;
                    self.seen[bin] *= 0.5;
                }
            }
        }
        self.refresh();
    }

    fn refresh(&mut self) {
        let observed = (0..BINS).map(|bin| {
            let weight = self.seen[bin] + PRIOR;
            ((self.accepted[bin] + PRIOR * centre(bin)) / weight, weight)
        });
        for (value, rate) in self.value.iter_mut().zip(rising(observed)) {
            *value = rate as f32;
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.accepted.iter().copied().zip(self.seen.iter().copied())
    }

    pub(super) fn from_counts(counts: &[(f64, f64)]) -> Option<Self> {
        if counts.len() != BINS || counts.iter().any(|&(hits, all)| !(hits >= 0.0 && hits <= all && all.is_finite())) {
            return None;
        }
        let mut new = Self::default();
        for (bin, &(hits, all)) in counts.iter().enumerate() {
            (new.accepted[bin], new.seen[bin]) = (hits, all);
        }
        new.refresh();
        Some(new)
    }
}
