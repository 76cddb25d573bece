//! The law of one target row, formed from its logits without a vector of probabilities.
//!
//! A row is read once, for its block maxima and, where the law needs it, for the weight of each block. A truncated law
//! (top-k, top-p, min-p) is a [`Cut`] and the list of what it keeps; blocks whose maximum is below the cut are never looked
//! at again. Weights are `exp((logit - max) / temperature)` in float32, sums of them float64 in one
//! fixed order, and a probability is `weight * (1 / sum)` in float32 wherever one is needed, so that drafter and verifier
//! agree to the bit.

use super::blocks::{BLOCK, padded, pick};
use super::element::Element;
use super::kept::{Cut, Kept};
use super::sampling::Sampling;
use super::scale::Scale;
use super::scan::{Unusable, scan, scan_and_sum};
use super::simd;
use super::truncate::likely_lightest;

/// What the memory of one thread's rows is reused for.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Largest logit of each block.
    pub(super) maxima: Vec<f32>,
    /// Weight of each block of the row; 0 where only a bound of it was needed.
    pub(super) sums: Vec<f64>,
    /// Total of each block's residual.
    pub(super) residual: Vec<f64>,
    /// What a truncated law keeps.
    pub(super) kept: Kept,
    /// Logits among which the k-th is looked for, or weights of a sample of the row.
    pub(super) order: Vec<f32>,
}

/// The law of one row. Borrows the row's logits and the thread's scratch memory.
pub(crate) struct RowLaw<'a, E: Element> {
    pub(super) row: &'a [E::Bits],
    pub(super) scale: Scale,
    pub(super) cut: Cut,
    pub(super) sum: f64,
    inverse: f32,
    /// Whether `scratch.kept` lists the kept tokens.
    pub(super) listed: bool,
    pub(super) scratch: &'a mut Scratch,
}

impl<'a, E: Element> RowLaw<'a, E> {
    /// Forms the law of `row` under `sampling`, whose temperature is positive.
    pub(crate) fn new(row: &'a [E::Bits], sampling: Sampling, scratch: &'a mut Scratch) -> Result<Self, Unusable> {
        let Sampling { temperature, top_k, top_p, min_p } = sampling;
        let cuts_top_k = top_k > 0 && (top_k as usize) < row.len();
        let (max, bounds) = if cuts_top_k {
            (scan::<E>(row, &mut scratch.maxima)?, 0.0)
        } else {
            // Min-p alone asks for no weight but those of what it keeps.
            let light = if top_p < 1.0 { likely_lightest(f64::from(top_p), row.len()) } else { f64::from(min_p) };
            scan_and_sum::<E>(row, temperature, light, &mut scratch.maxima, &mut scratch.sums)?
        };
        let scale = Scale::new(max, temperature);
        let mut law = Self { row, scale, cut: Cut::NONE, sum: 0.0, inverse: 0.0, listed: false, scratch };
        if cuts_top_k {
            law.cut_top_k(top_k as usize, temperature);
        } else {
            law.sum = simd::total(&law.scratch.sums);
        }
        if top_p < 1.0 {
            law.cut_top_p(f64::from(top_p), bounds);
        }
        if min_p > 0.0 {
            law.cut_min_p(min_p);
        }
        law.inverse = (1.0 / law.sum) as f32;
        Ok(law)
    }

    /// Number of tokens that the row has logits for.
    pub(crate) fn vocabulary(&self) -> usize {
        self.row.len()
    }

    /// Probability of token `id`; 0 for ids outside the row.
    pub(crate) fn prob(&self, id: u32) -> f32 {
        match self.row.get(id as usize) {
            Some(&bits) if self.cut.keeps(id as usize, E::value(bits)) => self.logit_prob(E::value(bits)),
            _ => 0.0,
        }
    }

    /// Probability of a kept logit.
    pub(super) fn logit_prob(&self, logit: f32) -> f32 {
        self.scale.weight(logit) * self.inverse
    }

    /// Whether `block` holds any kept token.
    pub(crate) fn has_block(&self, block: usize) -> bool {
        self.scratch.maxima[block] >= self.cut.logit
    }

    /// Ids of `block`.
    pub(super) fn block_range(&self, block: usize) -> std::ops::Range<usize> {
        block * BLOCK..((block + 1) * BLOCK).min(self.row.len())
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.row.len().div_ceil(BLOCK)
    }

    /// Kept weights of `block`, 0 elsewhere and past the end of the row.
    #[inline]
    pub(super) fn weights(&self, block: usize) -> [f32; BLOCK] {
        let ids = self.block_range(block);
        let copy;
        let bits: &[E::Bits; BLOCK] = if let Ok(whole) = self.row[ids.clone()].try_into() {
            whole
        } else {
            copy = padded::<E>(&self.row[ids.clone()]).unwrap_or([E::MASKED; BLOCK]);
            &copy
        };
        let mut weights = simd::weights::<E>(bits, self.scale);
        if self.cut != Cut::NONE {
            let from = (self.cut.from as usize).clamp(ids.start, ids.start + BLOCK) - ids.start;
            for (weight, &bits) in weights[..from].iter_mut().zip(&bits[..from]) {
                *weight = if E::value(bits) > self.cut.logit { *weight } else { 0.0 };
            }
            for (weight, &bits) in weights[from..].iter_mut().zip(&bits[from..]) {
                *weight = if E::value(bits) >= self.cut.logit { *weight } else { 0.0 };
            }
        }
        weights
    }

    /// Probabilities of `block`'s tokens.
    #[inline(always)]
    pub(crate) fn block_probs(&self, block: usize) -> [f32; BLOCK] {
        let mut probs = self.weights(block);
        for prob in &mut probs {
            *prob *= self.inverse;
        }
        probs
    }

    /// Weighs the blocks that are not weighed yet.
    pub(super) fn weigh_rest(&mut self) {
        let (whole, rest) = self.row.as_chunks::<BLOCK>();
        let last = padded::<E>(rest);
        for (block, sum) in whole.iter().chain(&last).zip(&mut self.scratch.sums) {
            if *sum == 0.0 {
                *sum = simd::sum_of_weights::<E>(block, self.scale);
            }
        }
        self.sum = simd::total(&self.scratch.sums);
    }

    /// The token at `coin` of the inverse cumulative law, ids ascending.
    pub(crate) fn draw(&self, coin: f64) -> u32 {
        let goal = coin * self.sum;
        if self.listed {
            let kept = &self.scratch.kept;
            kept.ids()[pick(kept.sums(), goal, |block| kept.weights_of(block)) as usize]
        } else {
            pick(&self.scratch.sums, goal, |block| self.weights(block))
        }
    }

    /// Probability of the most probable token.
    pub(crate) fn max_prob(&self) -> f32 {
        self.inverse
    }

    /// All probabilities, 0 for what is cut.
    pub(crate) fn probs(&self) -> Vec<f32> {
        let mut probs = vec![0.0; self.row.len()];
        self.write_probs(&mut probs);
        probs
    }

    /// Writes all probabilities.
    pub(crate) fn write_probs(&self, out: &mut [f32]) {
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            if self.has_block(block) {
                out.copy_from_slice(&self.block_probs(block)[..out.len()]);
            } else {
                out.fill(0.0);
            }
        }
    }

    /// Lends the thread's residual sums, to be given back by [`Self::return_residual`].
    pub(crate) fn take_residual(&mut self) -> Vec<f64> {
        let mut sums = std::mem::take(&mut self.scratch.residual);
        sums.clear();
        sums
    }

    /// Takes the residual sums back, so that the next row needs no allocation.
    pub(crate) fn return_residual(&mut self, sums: Vec<f64>) {
        self.scratch.residual = sums;
    }
}
