//! The tokens that a truncated law keeps, listed: ids ascending, logits, weights.
//!
//! A list is filled from the blocks whose maximum reaches a floor, then narrowed by [`Cut`]s. Its arrays grow and never
//! shrink; past the listed entries they are padded to a whole block with logits of −∞, whose weight is 0.

use super::blocks::BLOCK;
use super::element::{Element, F32};
use super::scale::{INTEGERS, Scale};
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

/// Blocks from which ids are taken before their logits are read: few enough to be in the nearest cache still.
const NEAR: usize = 16;

/// A candidate for the last place of a nucleus.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    id: u32,
    weight: f32,
}

/// A list of kept tokens.
#[derive(Debug, Default)]
pub(super) struct Kept {
    ids: Vec<u32>,
    logits: Vec<f32>,
    weights: Vec<f32>,
    /// Weight of each [`BLOCK`] of entries.
    sums: Vec<f64>,
    /// Entries in use.
    len: usize,
    /// No entry's logit is below this.
    floor: f32,
    /// About how light each entry is, on a scale of [`BUCKETS`].
    buckets: Vec<u8>,
    boundary: Vec<Candidate>,
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

    /// The weights of the entries.
    pub(super) fn weights(&self) -> &[f32] {
        &self.weights[..self.len]
    }

    /// The weight of each [`BLOCK`] of entries.
    pub(super) fn sums(&self) -> &[f64] {
        &self.sums
    }

    /// Lists the logits of `row` from `floor` on; `maxima` are those of its blocks.
    pub(super) fn collect<E: Element>(&mut self, row: &[E::Bits], maxima: &[f32], floor: f32) {
        let (mut count, least) = (0, E::least_key(floor));
        self.logits.clear();
        let (whole, rest) = row.as_chunks::<BLOCK>();
        let last = super::blocks::padded::<E>(rest);
        for (index, (block, &max)) in whole.iter().chain(&last).zip(maxima).enumerate() {
            if index % NEAR == 0 {
                self.read_logits::<E>(row, count);
            }
            if max < floor {
                continue;
            }
            if self.ids.len() < count + BLOCK {
                self.ids.resize(2 * (count + BLOCK), 0);
            }
            if let Some(ids) = self.ids[count..].first_chunk_mut() {
                count += simd::select::<E>(block, least, (index * BLOCK) as u32, ids);
            }
        }
        // A floor of −∞ lets the padding of the last block in.
        while count > 0 && self.ids[count - 1] as usize >= row.len() {
            count -= 1;
        }
        self.read_logits::<E>(row, count);
        self.len = count;
        self.floor = floor;
    }

    /// Reads the logits of the first `count` ids, as far as that is not done.
    fn read_logits<E: Element>(&mut self, row: &[E::Bits], count: usize) {
        let unread = &self.ids[self.logits.len()..count];
        self.logits.extend(unread.iter().map(|&id| E::value(row[id as usize])));
    }

    /// Weighs every entry; returns the total.
    pub(super) fn weigh(&mut self, scale: Scale) -> f64 {
        let end = self.len.next_multiple_of(BLOCK);
        self.logits.resize(end, f32::NEG_INFINITY);
        if self.weights.len() < end {
            self.weights.resize(end, 0.0);
        }
        let (logits, weights) = (self.logits.as_chunks::<BLOCK>().0, self.weights[..end].as_chunks_mut().0);
        for (weights, logits) in weights.iter_mut().zip(logits) {
            *weights = simd::weights::<F32>(logits, scale);
        }
        self.sum()
    }

    /// Adds the weights up, per [`BLOCK`] of entries and in total.
    fn sum(&mut self) -> f64 {
        let blocks = self.weights[..self.len.next_multiple_of(BLOCK)].as_chunks::<BLOCK>().0;
        self.sums.clear();
        self.sums.extend(blocks.iter().map(simd::sum));
        simd::total(&self.sums)
    }

    /// The weights of one [`BLOCK`] of entries.
    pub(super) fn weights_of(&self, block: usize) -> [f32; BLOCK] {
        self.weights[..].as_chunks::<BLOCK>().0[block]
    }

    /// Drops what `cut` does not keep; returns the weight of the rest. The weights stay those of the entries.
    pub(super) fn retain(&mut self, cut: Cut) -> f64 {
        let (ids, logits) = (&mut self.ids[..self.len], &mut self.logits[..self.len]);
        let kept = simd::retain(cut, ids, logits, &mut self.weights[..self.len]);
        self.len = kept;
        self.weights[kept..kept.next_multiple_of(BLOCK)].fill(0.0);
        self.sum()
    }

    /// The cut below which entries lie outside the smallest top set that weighs `goal.0`, and whether it is the same for
    /// every goal from there to `goal.1`.
    ///
    /// Order is by logit, then by id, both descending: the reverse of a stable ascending sort. An entry is kept as long as
    /// what lies above it weighs less than the goal, and the first always.
    pub(super) fn nucleus(&mut self, scale: Scale, goal: (f64, f64)) -> (Cut, bool) {
        let order = |a: &Candidate, b: &Candidate| {
            b.logit.partial_cmp(&a.logit).unwrap_or(std::cmp::Ordering::Equal).then(b.id.cmp(&a.id))
        };
        let (mut above, mut decided) = self.find_boundary(scale, goal);
        let mut rest = self.boundary.as_mut_slice();
        while rest.len() > 32 {
            let half = rest.len() / 2;
            rest.select_nth_unstable_by(half, order);
            let through = above + rest[..half].iter().map(|one| f64::from(one.weight)).sum::<f64>();
            if through >= goal.0 {
                decided &= through >= goal.1;
                rest = &mut rest[..half];
            } else {
                above = through;
                rest = &mut rest[half..];
            }
        }
        rest.sort_unstable_by(order);
        let mut last = rest[0];
        for &candidate in &rest[1..] {
            above += f64::from(last.weight);
            if above >= goal.0 {
                decided &= above >= goal.1;
                break;
            }
            last = candidate;
        }
        (Cut { logit: last.logit, from: last.id }, decided)
    }

    /// Fills `boundary` with the entries of about the size at which the running weight reaches `goal.0`; tells what lies
    /// above them, and whether they are the same for every goal up to `goal.1`.
    fn find_boundary(&mut self, scale: Scale, goal: (f64, f64)) -> (f64, bool) {
        let (ids, logits, weights) = (&self.ids[..self.len], &self.logits[..self.len], &self.weights[..self.len]);
        let entries = logits.iter().zip(ids).zip(weights);
        let candidates = entries.map(|((&logit, &id), &weight)| Candidate { logit, id, weight });
        self.boundary.clear();
        if self.len <= 64 {
            self.boundary.extend(candidates);
            return (0.0, true);
        }
        let range = (scale.max - self.floor.max(scale.lightest())).max(f32::MIN_POSITIVE);
        let per_bucket = BUCKETS as f32 / range;
        self.buckets.resize(self.len, 0);
        simd::run(
            #[inline(always)]
            || {
                for (bucket, &logit) in self.buckets.iter_mut().zip(logits) {
                    let place = ((scale.max - logit) * per_bucket).clamp(0.0, (BUCKETS - 1) as f32);
                    // The nearest integer, in the low bits: quicker than a conversion, which has to mind what is none.
                    *bucket = (place + INTEGERS).to_bits() as u8;
                }
            },
        );
        // Neighbours go to different tables: two additions to one place would wait for each other.
        let mut masses = [[0f64; BUCKETS]; 2];
        for (at, (&bucket, &weight)) in self.buckets.iter().zip(weights).enumerate() {
            masses[at % 2][usize::from(bucket) % BUCKETS] += f64::from(weight);
        }
        let (mut above, mut boundary, mut decided) = (0.0, 0, true);
        while boundary + 1 < BUCKETS {
            let through = above + (masses[0][boundary] + masses[1][boundary]);
            if through >= goal.0 {
                decided = through >= goal.1;
                break;
            }
            above = through;
            boundary += 1;
        }
        let here = self.buckets.iter().zip(candidates.clone()).filter(|(bucket, _)| usize::from(**bucket) == boundary);
        self.boundary.extend(here.map(|(_, candidate)| candidate));
        if self.boundary.is_empty() {
            // Rounding at the very end: everything is needed, the lightest entry is the last.
            above = 0.0;
            self.boundary.extend(candidates);
        }
        (above, decided)
    }
}
