//! The tokens that a truncated law keeps, listed: ids ascending, logits, weights.
//!
//! A list is filled from the blocks whose maximum reaches a floor, then narrowed by [`Cut`]s. Its arrays grow and never
//! shrink; past the listed entries they are padded to a whole block with logits of −∞, whose weight is 0.

use super::blocks::BLOCK;
use super::element::{Element, F32};
use super::scale::Scale;
use super::simd;

/// What is kept: logits above `logit`, and those equal to it from id `from` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cut {
    pub(super) logit: f32,
    pub(super) from: u32,
}

impl Cut {
    pub(super) const NONE: Self = Self { logit: f32::NEG_INFINITY, from: 0 };

    #[inline(always)]
    #[allow(clippy::needless_bitwise_bool, reason = "a branch here is mispredicted for every other logit")]
    pub(super) fn keeps(self, id: usize, logit: f32) -> bool {
        (logit > self.logit) | ((logit == self.logit) & (id >= self.from as usize))
    }
}

/// Steps of weight that the search for a nucleus tells apart.
const BUCKETS: usize = 128;

/// A list of kept tokens.
#[derive(Debug, Default)]
pub(super) struct Kept {
    ids: Vec<u32>,
    logits: Vec<f32>,
    weights: Vec<f32>,
    /// Entries in use.
    len: usize,
    /// No entry's logit is below this.
    floor: f32,
    /// About how light each entry is, on a scale of [`BUCKETS`].
    buckets: Vec<u8>,
    /// The candidates for the last place of a nucleus.
    boundary: Vec<(f32, u32)>,
}

impl Kept {
    /// The listed logits.
    pub(super) fn logits(&self) -> &[f32] {
        &self.logits[..self.len]
    }

    /// The listed ids, ascending.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids[..self.len]
    }

    /// Lists the logits of `row` from `floor` on; `maxima` are those of its blocks.
    pub(super) fn collect<E: Element>(&mut self, row: &[E::Bits], maxima: &[f32], floor: f32) {
        let mut count = 0;
        let (whole, rest) = row.as_chunks::<BLOCK>();
        let last = super::blocks::padded::<E>(rest);
        for (index, (block, &max)) in whole.iter().chain(&last).zip(maxima).enumerate() {
            if max < floor {
                continue;
            }
            if self.ids.len() < count + BLOCK {
                self.ids.resize(2 * (count + BLOCK), 0);
                self.logits.resize(2 * (count + BLOCK), 0.0);
            }
            let start = (index * BLOCK) as u32;
            let (ids, logits) = (&mut self.ids[count..], &mut self.logits[count..]);
            if let (Some(ids), Some(logits)) = (ids.first_chunk_mut(), logits.first_chunk_mut()) {
                count += simd::compress::<E>(block, floor, start, ids, logits);
            }
        }
        // A floor of −∞ lets the padding of the last block in.
        while count > 0 && self.ids[count - 1] as usize >= row.len() {
            count -= 1;
        }
        self.len = count;
        self.floor = floor;
    }

    /// Weighs every entry. `sums` receives the total of each [`BLOCK`] of them; returns the total of all.
    pub(super) fn weigh(&mut self, scale: Scale, sums: &mut Vec<f64>) -> f64 {
        let end = self.len.next_multiple_of(BLOCK);
        if self.logits.len() < end {
            self.logits.resize(end, 0.0);
        }
        self.logits[self.len..end].fill(f32::NEG_INFINITY);
        if self.weights.len() < end {
            self.weights.resize(end, 0.0);
        }
        let (logits, weights) = (self.logits[..end].as_chunks::<BLOCK>().0, self.weights[..end].as_chunks_mut().0);
        for (weights, logits) in weights.iter_mut().zip(logits) {
            *weights = simd::weights::<F32>(logits, scale);
        }
        self.sum(sums)
    }

    /// Adds the weights up, per [`BLOCK`] of entries and in total.
    fn sum(&self, sums: &mut Vec<f64>) -> f64 {
        let blocks = self.weights[..self.len.next_multiple_of(BLOCK)].as_chunks::<BLOCK>().0;
        sums.clear();
        sums.extend(blocks.iter().map(simd::sum));
        sums.iter().sum()
    }

    /// The weights of one [`BLOCK`] of entries.
    pub(super) fn weights_of(&self, block: usize) -> [f32; BLOCK] {
        self.weights[..].as_chunks::<BLOCK>().0[block]
    }

    /// Drops what `cut` does not keep. The weights stay those of the entries.
    pub(super) fn retain(&mut self, cut: Cut, sums: &mut Vec<f64>) -> f64 {
        let mut kept = 0;
        for at in 0..self.len {
            let (id, logit) = (self.ids[at], self.logits[at]);
            (self.ids[kept], self.logits[kept], self.weights[kept]) = (id, logit, self.weights[at]);
            kept += usize::from(cut.keeps(id as usize, logit));
        }
        self.len = kept;
        self.weights[kept..kept.next_multiple_of(BLOCK)].fill(0.0);
        self.sum(sums)
    }

    /// The cut below which entries lie outside the smallest top set that weighs `goal`.
    ///
    /// Order is by logit, then by id, both descending: the reverse of a stable ascending sort. An entry is kept as long as
    /// what lies above it weighs less than `goal`, and the first always.
    pub(super) fn nucleus(&mut self, scale: Scale, goal: f64) -> Cut {
        let order = |a: &(f32, u32), b: &(f32, u32)| {
            b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal).then(b.1.cmp(&a.1))
        };
        let mut above = self.find_boundary(scale, goal);
        let mut rest = self.boundary.as_mut_slice();
        while rest.len() > 32 {
            let half = rest.len() / 2;
            rest.select_nth_unstable_by(half, order);
            let mass: f64 = rest[..half].iter().map(|c| f64::from(scale.weight(c.0))).sum();
            if above + mass >= goal {
                rest = &mut rest[..half];
            } else {
                above += mass;
                rest = &mut rest[half..];
            }
        }
        rest.sort_unstable_by(order);
        let mut last = rest[0];
        for &candidate in &rest[1..] {
            above += f64::from(scale.weight(last.0));
            if above >= goal {
                break;
            }
            last = candidate;
        }
        Cut { logit: last.0, from: last.1 }
    }

    /// Fills `boundary` with the entries of about the size at which the running weight reaches `goal`, and tells what
    /// lies above them.
    fn find_boundary(&mut self, scale: Scale, goal: f64) -> f64 {
        let (ids, logits) = (&self.ids[..self.len], &self.logits[..self.len]);
        let weights = &self.weights[..self.len];
        self.boundary.clear();
        if self.len <= 64 {
            self.boundary.extend(logits.iter().copied().zip(ids.iter().copied()));
            return 0.0;
        }
        let range = (scale.max - self.floor.max(scale.lightest())).max(f32::MIN_POSITIVE);
        let per_bucket = BUCKETS as f32 / range;
        self.buckets.clear();
        self.buckets.extend(logits.iter().map(|&logit| {
            let bucket = ((scale.max - logit) * per_bucket).clamp(0.0, (BUCKETS - 1) as f32);
            bucket as u8
        }));
        // Neighbours go to different tables: two additions to one place would wait for each other.
        let mut masses = [[0f64; BUCKETS]; 2];
        for (at, (&bucket, &weight)) in self.buckets.iter().zip(weights).enumerate() {
            masses[at % 2][usize::from(bucket) % BUCKETS] += f64::from(weight);
        }
        let (mut above, mut boundary) = (0.0, 0);
        while boundary + 1 < BUCKETS && above + (masses[0][boundary] + masses[1][boundary]) < goal {
            above += masses[0][boundary] + masses[1][boundary];
            boundary += 1;
        }
        let entries = logits.iter().copied().zip(ids.iter().copied());
        let here = self.buckets.iter().zip(entries.clone()).filter(|(bucket, _)| usize::from(**bucket) == boundary);
        self.boundary.extend(here.map(|(_, entry)| entry));
        if self.boundary.is_empty() {
            // Rounding at the very end: everything is needed, the lightest entry is the last.
            above = 0.0;
            self.boundary.extend(entries);
        }
        above
    }
}
