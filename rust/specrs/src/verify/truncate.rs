//! Top-k, top-p and min-p: which tokens of a row are kept.
//!
//! Nothing is sorted. A floor below which no kept token can lie is known beforehand; what reaches it is listed, and only
//! the few entries about the cut are put in order.

use super::blocks::BLOCK;
use super::element::Element;
use super::kept::Cut;
use super::law::RowLaw;
use super::simd;

/// One block in so many is looked at where the floor of a nucleus is estimated.
const SAMPLED: usize = 32;

impl<E: Element> RowLaw<'_, E> {
    /// Lists the tokens whose logit is at least `floor`, weighed.
    fn list(&mut self, floor: f32) -> f64 {
        self.scratch.kept.collect::<E>(self.row, &self.scratch.maxima, floor);
        self.listed = true;
        self.scratch.kept.weigh(self.scale, &mut self.scratch.sums)
    }

    /// Cuts the list.
    fn cut(&mut self, cut: Cut) {
        self.cut = cut;
        self.sum = self.scratch.kept.retain(cut, &mut self.scratch.sums);
    }

    /// The k-th largest block maximum, which is at most the k-th largest logit: what is below it needs no look.
    pub(super) fn kth_maximum(maxima: &[f32], order: &mut Vec<f32>, k: usize) -> f32 {
        if maxima.len() < k {
            return f32::NEG_INFINITY;
        }
        order.clear();
        order.extend_from_slice(maxima);
        *order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    }

    /// Keeps the `k` largest scaled logits and what ties with the last.
    pub(super) fn cut_top_k(&mut self, k: usize, temperature: f32) {
        let floor = Self::kth_maximum(&self.scratch.maxima, &mut self.scratch.order, k);
        self.scratch.kept.collect::<E>(self.row, &self.scratch.maxima, floor);
        let order = &mut self.scratch.order;
        order.clear();
        order.extend_from_slice(self.scratch.kept.logits());
        let mut kth = *order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        if kth == f32::NEG_INFINITY {
            return self.sum_all();
        }
        // Ties are judged after the division by the temperature, which can make equals of neighbours.
        let scaled = kth / temperature;
        while scaled.is_normal() && kth.next_down() / temperature == scaled {
            kth = kth.next_down();
        }
        if kth < floor {
            self.scratch.kept.collect::<E>(self.row, &self.scratch.maxima, kth);
        }
        self.listed = true;
        self.scratch.kept.weigh(self.scale, &mut self.scratch.sums);
        self.cut(Cut { logit: kth, from: 0 });
    }

    /// Drops the low tail; needs the sum of what is kept so far.
    pub(super) fn cut_top_p(&mut self, top_p: f64) {
        let goal = top_p * self.sum;
        if !self.listed {
            let tail = (1.0 - top_p) * self.sum;
            // Tokens lighter than this cannot be in the nucleus: all of them together weigh less than the tail.
            let light = self.scale.logit_of(tail / self.row.len() as f64);
            let floor = self.nucleus_floor(light, tail);
            let listed = self.list(floor);
            if listed < goal && floor > light {
                self.list(light);
            }
        }
        let cut = self.scratch.kept.nucleus(self.scale, goal);
        self.cut(cut);
    }

    /// A logit that is likely to be below the nucleus, and at least `light`, which certainly is.
    ///
    /// Where most blocks reach `light`, listing from there would list a large part of the row. Then the weight of the
    /// tail below a logit is estimated from every [`SAMPLED`]-th block: light tokens are many, so that a few
    /// thousand of them tell it well.
    fn nucleus_floor(&self, light: f32, tail: f64) -> f32 {
        const STEPS: usize = 64;
        let blocks = self.row.as_chunks::<BLOCK>().0;
        let reaching = self.scratch.maxima.iter().filter(|&&max| max >= light).count();
        if blocks.len() < 8 * SAMPLED || 2 * reaching < blocks.len() {
            return light;
        }
        let per_step = STEPS as f32 / (self.scale.max - light).max(f32::MIN_POSITIVE);
        let mut masses = [0f64; STEPS];
        let (mut ids, mut logits) = ([0; BLOCK], [0.0; BLOCK]);
        let mut below = 0.0;
        let sampled = blocks.iter().step_by(SAMPLED);
        let share = sampled.len() as f64 / blocks.len() as f64;
        for block in sampled {
            let weights = simd::weights::<E>(block, self.scale);
            below += simd::sum(&weights);
            let count = simd::compress::<E>(block, light, 0, &mut ids, &mut logits);
            for (&at, &logit) in ids[..count].iter().zip(&logits[..count]) {
                let weight = f64::from(weights[at as usize]);
                masses[(((logit - light) * per_step) as usize).min(STEPS - 1)] += weight;
                below -= weight;
            }
        }
        // Two thirds of what may be dropped, so that chance seldom puts the floor inside the nucleus.
        let allowed = tail * share / 1.5;
        let mut step = 0;
        while step + 1 < STEPS && below + masses[step] <= allowed {
            below += masses[step];
            step += 1;
        }
        (light + step as f32 / per_step).next_down().max(light)
    }

    /// Drops what weighs less than `min_p` times the heaviest.
    pub(super) fn cut_min_p(&mut self, min_p: f32) {
        if !self.listed {
            self.list(self.scale.logit_of(f64::from(min_p)));
        }
        let scale = self.scale;
        let heavy = self.scratch.kept.logits().iter().copied().filter(|&logit| scale.weight(logit) >= min_p);
        let smallest = heavy.fold(scale.max, f32::min);
        if smallest > self.cut.logit {
            self.cut(Cut { logit: smallest, from: 0 });
        }
    }
}
