//! Top-k, top-p and min-p: which tokens of a row are kept.
//!
//! Nothing is sorted. A floor below which no kept token can lie is known beforehand; what reaches it is listed, and only
//! the few entries about the cut are put in order. Where a nucleus ends depends on what the whole row weighs, but seldom
//! on the last digits of it: blocks of light tokens are bounded at a third of the cost, and weighed where that leaves the
//! cut open, so that the cut is always that of the exact sum.

use super::blocks::BLOCK;
use super::element::Element;
use super::kept::Cut;
use super::law::RowLaw;
use super::scale::{BOUND_EXCESS, BOUND_SHORT};
use super::simd;

/// One block in so many is looked at where the floor of a nucleus is estimated.
const SAMPLED: usize = 32;

/// The weight of the lightest token that a nucleus is likely to have, in a row of `length` whose tokens weigh 1 or little
/// more together: 32 times what a token can weigh of which a whole row is too light. 0 where nothing is cut.
pub(super) fn likely_lightest(top_p: f64, length: usize) -> f64 {
    (32.0 * (1.0 - top_p) / length as f64).min(1.0)
}

impl<E: Element> RowLaw<'_, E> {
    /// Lists the tokens whose logit is at least `floor`, weighed.
    fn list(&mut self, floor: f32) -> f64 {
        self.scratch.kept.collect::<E>(self.row, &self.scratch.maxima, floor);
        self.listed = true;
        self.scratch.kept.weigh(self.scale)
    }

    /// Cuts the list.
    fn cut(&mut self, cut: Cut) {
        self.cut = cut;
        self.sum = self.scratch.kept.retain(cut);
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
            self.scratch.sums.clear();
            self.scratch.sums.resize(self.blocks(), 0.0);
            return self.weigh_rest();
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
        self.scratch.kept.weigh(self.scale);
        self.cut(Cut { logit: kth, from: 0 });
    }

    /// Drops the low tail; needs the sum of what is kept so far, and `bounds` of what else the row holds.
    ///
    /// Light blocks are weighed only where the cut depends on it: mostly it is the same for all that they can weigh.
    pub(super) fn cut_top_p(&mut self, top_p: f64, bounds: f64) {
        // What weighing the rest would add to the sum, give or take what the order of additions changes.
        let order = if bounds > 0.0 { 1e-11 * (self.sum + bounds) } else { 0.0 };
        let (least, most) = (self.sum + bounds / BOUND_EXCESS - order, self.sum + bounds * BOUND_SHORT + order);
        if !self.listed {
            self.list_nucleus(top_p, least, most);
        }
        let (mut cut, decided) = self.scratch.kept.nucleus(self.scale, (top_p * least, top_p * most));
        if !decided {
            self.weigh_rest();
            let goal = top_p * self.sum;
            cut = self.scratch.kept.nucleus(self.scale, (goal, goal)).0;
        }
        self.cut(cut);
    }

    /// Lists the nucleus, and not much more, of a row that weighs between `least` and `most`.
    fn list_nucleus(&mut self, top_p: f64, least: f64, most: f64) {
        let tail = (1.0 - top_p) * least;
        // Tokens lighter than this cannot be in the nucleus: all of them together weigh less than the tail.
        let light = self.scale.logit_of(tail / self.row.len() as f64);
        let reaching = self.scratch.maxima.iter().filter(|&&max| max >= light).count();
        let floor = if 2 * reaching < self.blocks() {
            self.scale.logit_of((least * likely_lightest(top_p, self.row.len())).min(1.0))
        } else if self.blocks() < 8 * SAMPLED {
            light
        } else {
            self.sampled_floor(light, tail)
        };
        if self.list(floor) < top_p * most && floor > light {
            self.list(light);
        }
    }

    /// A logit that is likely to be below the nucleus, and at least `light`, which certainly is.
    ///
    /// Where most blocks reach `light`, listing from there would list a large part of the row. The weight of the tail
    /// below a logit is estimated from every [`SAMPLED`]-th block: light tokens are many, so that a few thousand of them
    /// tell it well.
    fn sampled_floor(&mut self, light: f32, tail: f64) -> f32 {
        let sample = &mut self.scratch.order;
        sample.clear();
        for block in self.row.as_chunks::<BLOCK>().0.iter().step_by(SAMPLED) {
            sample.extend_from_slice(&simd::weights::<E>(block, self.scale));
        }
        // Two thirds of what may be dropped, so that chance seldom puts the floor inside the nucleus.
        let allowed = tail * sample.len() as f64 / self.row.len() as f64 / 1.5;
        let (mut below, mut above) = (self.scale.weight(light).max(f32::MIN_POSITIVE), 1.0);
        for _ in 0..6 {
            let middle = (below * above).sqrt();
            if simd::sum_below(sample.as_chunks().0, middle) <= allowed {
                below = middle;
            } else {
                above = middle;
            }
        }
        self.scale.logit_of(f64::from(below)).max(light)
    }

    /// Drops what weighs less than `min_p` times the heaviest.
    pub(super) fn cut_min_p(&mut self, min_p: f32) {
        if !self.listed {
            self.list(self.scale.logit_of(f64::from(min_p)));
        }
        let kept = &self.scratch.kept;
        let heavy = kept.logits().iter().zip(kept.weights()).filter(|(_, weight)| **weight >= min_p);
        let smallest = heavy.fold(self.scale.max, |smallest, (&logit, _)| smallest.min(logit));
        if smallest > self.cut.logit {
            self.cut(Cut { logit: smallest, from: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::F32;
    use super::super::law::Scratch;
    use super::super::sampling::Sampling;
    use super::super::scale::Scale;
    use super::super::scan::scan_and_sum;
    use super::*;

    /// Which tokens the nucleus has by a full sort of all weights, and how close the decision about its last one is.
    fn sorted_nucleus(row: &[f32], sampling: Sampling) -> (Vec<bool>, f64) {
        let scale = Scale::new(row.iter().copied().fold(f32::NEG_INFINITY, f32::max), sampling.temperature);
        let weights: Vec<f64> = row.iter().map(|&logit| f64::from(scale.weight(logit))).collect();
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_unstable_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("no NaN").then(b.cmp(&a)));
        let total: f64 = weights.iter().sum();
        let (mut kept, mut above, mut margin) = (vec![false; row.len()], 0.0, 1.0f64);
        for id in order {
            if above > 0.0 {
                margin = margin.min((above / total - f64::from(sampling.top_p)).abs());
                if above >= f64::from(sampling.top_p) * total {
                    break;
                }
            }
            kept[id] = true;
            above += weights[id];
        }
        (kept, margin)
    }

    /// A row of normal noise with `peaks` logits of up to `height` above it.
    fn row(state: &mut u64, length: usize, spread: f32, peaks: usize, height: f32) -> Vec<f32> {
        let mut uniform = || {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 40) as f32 / (1u64 << 24) as f32
        };
        let mut row: Vec<f32> =
            (0..length).map(|_| ((0..8).map(|_| uniform()).sum::<f32>() - 4.0) * 1.22 * spread).collect();
        for _ in 0..peaks {
            row[(uniform() * length as f32) as usize % length] = uniform() * height;
        }
        row
    }

    #[test]
    fn nuclei_are_those_of_a_full_sort() {
        let (mut state, mut scratch) = (1, Scratch::default());
        let (mut compared, mut bounded, mut weighed) = (0, 0, 0);
        for (length, spread, peaks, height) in [
            (33_011, 2.5, 100, 20.0),
            (33_000, 2.5, 300, 12.0),
            (33_000, 3.0, 0, 0.0),
            (9_000, 2.0, 900, 9.0),
            (9_000, 0.0, 7, 9.0),
            (1_000, 2.0, 20, 15.0),
            (90, 2.0, 3, 9.0),
        ] {
            let mut row = row(&mut state, length, spread, peaks, height);
            for variant in 0..3 {
                match variant {
                    1 => row.iter_mut().for_each(|logit| *logit = (*logit * 4.0).round() / 4.0),
                    2 => row.iter_mut().step_by(3).for_each(|logit| *logit = f32::NEG_INFINITY),
                    _ => {}
                }
                for top_p in [0.0, 0.8, 0.95, 0.999] {
                    for temperature in [0.4, 0.8, 1.5] {
                        let sampling = Sampling { temperature, top_p, ..Sampling::GREEDY };
                        let (kept, margin) = sorted_nucleus(&row, sampling);
                        let Ok(law) = RowLaw::<F32>::new(&row, sampling, &mut scratch) else {
                            panic!("the row has a law")
                        };
                        if margin > 1e-6 {
                            let found: Vec<bool> = law.probs().iter().map(|&prob| prob > 0.0).collect();
                            assert!(found == kept, "{length} {spread} {peaks} {height} {variant} {sampling:?}");
                            compared += 1;
                        }
                        let light = likely_lightest(f64::from(top_p), length);
                        let (mut maxima, mut sums) = (vec![], vec![]);
                        let scanned = scan_and_sum::<F32>(&row, temperature, light, &mut maxima, &mut sums);
                        if scanned.is_ok_and(|(_, bounds)| bounds > 0.0) {
                            bounded += 1;
                            weighed += usize::from(sums != scratch.sums);
                        }
                    }
                }
            }
        }
        assert!(compared > 200 && weighed > 5 && bounded > 2 * weighed, "{compared} {bounded} {weighed}");
    }
}
