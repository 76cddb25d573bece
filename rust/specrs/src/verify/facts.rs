//! Facts about a row's law that relaxed rules and reports ask for.

use super::blocks::BLOCK;
use super::draft_law::LawRow;
use super::element::Element;
use super::kept::Kept;
use super::law::RowLaw;
use super::scan::first_of;

impl<E: Element> RowLaw<'_, E> {
    /// Natural logarithm of the probability of a kept `logit`, for a law at temperature 1.
    pub(crate) fn log_prob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.scale.max) - self.sum.ln()) as f32
    }

    /// The `k` largest kept logits with their ids, largest first, lower id first among equals.
    pub(crate) fn largest(&self, k: usize) -> Vec<(f32, u32)> {
        let mut all = Kept::default();
        let list = if self.listed {
            &self.scratch.kept
        } else {
            let floor = Self::kth_maximum(&self.scratch.maxima, &mut Vec::new(), k);
            all.collect::<E>(self.row, &self.scratch.maxima, floor);
            &all
        };
        let mut found: Vec<(f32, u32)> = list.logits().iter().copied().zip(list.ids().iter().copied()).collect();
        found.sort_unstable_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal).then(a.1.cmp(&b.1)));
        found.truncate(k);
        found
    }

    /// Probability of the k-th most probable token; that of the last kept one if there are fewer.
    pub(crate) fn kth_prob(&self, k: usize) -> f32 {
        self.logit_prob(self.largest(k).last().map_or(self.scale.max, |last| last.0))
    }

    /// Entropy in nats.
    pub(crate) fn entropy(&self) -> f64 {
        let mut moment = 0.0;
        for block in (0..self.blocks()).filter(|&block| self.has_block(block)) {
            for (weight, id) in self.weights(block).into_iter().zip(self.block_range(block)) {
                if weight > 0.0 {
                    moment += f64::from(weight) * f64::from(E::value(self.row[id]) - self.scale.max);
                }
            }
        }
        let per_logit = f64::from(self.scale.rate) * std::f64::consts::LN_2;
        self.sum.ln() - moment * per_logit / self.sum
    }

    /// The token of the largest logit, the lowest id among equals: what greedy decoding takes.
    pub(crate) fn argmax(&self) -> u32 {
        first_of::<E>(self.row, &self.scratch.maxima, self.scale.max)
    }

    /// The most probable token of weight * target + (1 - weight) * draft.
    ///
    /// The target's own argmax, unless a token that the draft prefers to it is more probable (the lowest id of those among
    /// equals). Probabilities of near-tied logits round to one number, so the order of the rest is left to the logits.
    pub(crate) fn mixture_argmax(&self, draft: LawRow<'_>, weight: f32) -> u32 {
        let mix = |target: f32, draft: f32| {
            f64::from(weight) * f64::from(target) + (1.0 - f64::from(weight)) * f64::from(draft)
        };
        let own = self.argmax();
        let own_draft_prob = draft.prob(own);
        let (mut best, mut best_prob) = (own, mix(self.max_prob(), own_draft_prob));
        for block in 0..self.blocks() {
            let draft = draft.block(block * BLOCK).0;
            for ((target, draft), id) in self.block_probs(block).into_iter().zip(draft).zip(self.block_range(block)) {
                let mixed = mix(target, draft);
                if draft > own_draft_prob && mixed > best_prob {
                    (best, best_prob) = (id as u32, mixed);
                }
            }
        }
        best
    }
}
