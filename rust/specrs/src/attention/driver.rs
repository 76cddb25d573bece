//! Cuts a call into tiles of (row, query head) pairs that share a key head, for the workers.
//!
//! Nothing here touches the order of operations inside a pair, so the cuts are free to follow the caches.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::leaves::{Leaves, Run};
use super::visible::Seen;
use super::{Memory, Query, Shape};
use crate::verify::blocks::BLOCK;
use crate::verify::simd::{exponentials, run as run_wide};
use crate::workers::Workers;

/// The most pairs of a tile.
const TILE: usize = 16;
/// Tiles per worker to aim for, so that the workers finish together.
const TILES: usize = 4;
/// Slots whose keys or values stay in the first-level cache while the pairs of a tile pass by.
const NEAR: usize = 32;
/// Products below which waking the other workers costs more than it saves.
const ALONE: usize = 200_000;

thread_local! {
    /// Queries, sums and scores of a tile, kept from call to call.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// What all workers share. The pointers outlive the call, and tiles write disjoint heads of `out`.
struct Job<'a> {
    leaves: &'a Leaves,
    query: Query<'a>,
    memory: Memory<'a>,
    seen: &'a [Seen],
    shape: Shape,
    scale: f32,
    out: *mut f32,
    /// Room for the weights of a pair, in whole blocks.
    longest: usize,
}

// SAFETY: shared inputs are only read, and each head of a row of `out` is written by the one worker that took its tile.
unsafe impl Sync for Job<'_> {}

/// Runs a checked call with at least one row.
#[allow(clippy::too_many_arguments, reason = "the parts of one call")]
pub fn run(
    leaves: &Leaves,
    query: Query<'_>,
    memory: Memory<'_>,
    seen: &[Seen],
    shape: Shape,
    scale: f32,
    out: &mut [f32],
    workers: Workers,
) {
    let Shape { rows, query_heads, key_heads, size } = shape;
    let most_seen = seen.iter().map(Seen::count).max().unwrap_or(0);
    let out = out.as_mut_ptr();
    let longest = most_seen.next_multiple_of(BLOCK);
    let job = Job { leaves, query, memory, seen, shape, scale, out, longest };
    let workers = if rows * query_heads * size * most_seen < ALONE { Workers::Serial } else { workers };
    let pairs = rows * (query_heads / key_heads);
    // An even number, for pairs go two by two.
    let tile = (pairs * key_heads / (2 * TILES * workers.count())).clamp(1, TILE / 2) * 2;
    let tiles = pairs.div_ceil(tile);
    let next = AtomicUsize::new(0);
    workers.run(&|| {
        SCRATCH.with_borrow_mut(|scratch| {
            let needed = tile * (2 * size + longest);
            if scratch.len() < needed {
                scratch.resize(needed, 0.0);
            }
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= tiles * key_heads {
                    break;
                }
                let first = index % tiles * tile;
                // SAFETY: the call was checked, and no other worker has this tile.
                unsafe { job.tile(index / tiles, first, tile.min(pairs - first), scratch) }
            }
        });
    });
}

/// A (row, query head) pair at work.
struct Pair<'a> {
    seen: &'a Seen,
    query: *const f32,
    /// Scores, then weights, in the order of the sequence.
    weights: *mut f32,
    sums: *mut f32,
}

impl Pair<'_> {
    /// Where the weight of a slot of the run lies, or that of the run's end.
    ///
    /// # Safety
    ///
    /// The slot is one of the run's, or its end.
    unsafe fn weight_of(&self, slot: usize) -> *mut f32 {
        // SAFETY: weights have room for everything seen.
        unsafe { self.weights.add(slot - self.seen.from) }
    }

    /// The parts of the run before and behind `from .. to`, each as first slot and end.
    fn beside(&self, from: usize, to: usize) -> [(usize, usize); 2] {
        let Seen { from: first, to: end, .. } = *self.seen;
        [(first, from.min(end)), (to.max(first).min(end), end)]
    }

    /// Turns scores into weights; returns the inverse of their sum, NaN where a score is.
    ///
    /// # Safety
    ///
    /// The weights are valid for all that is seen, in whole blocks.
    unsafe fn weigh(&self) -> f32 {
        let count = self.seen.count();
        // SAFETY: the caller vouches for the room.
        let scores = unsafe { std::slice::from_raw_parts_mut(self.weights, count.next_multiple_of(BLOCK)) };
        scores[count..].fill(f32::NEG_INFINITY);
        let (largest, is_nan) = run_wide(
            #[inline(always)]
            || largest(scores),
        );
        let sum = exponentials(scores.as_chunks_mut().0, largest);
        if is_nan { f32::NAN } else { (1.0 / sum) as f32 }
    }
}

/// The largest score, and whether there is a NaN.
#[inline(always)]
fn largest(scores: &[f32]) -> (f32, bool) {
    let (mut largest, mut nan) = ([f32::NEG_INFINITY; 8], [0_u32; 8]);
    for eight in scores.as_chunks::<8>().0 {
        for lane in 0..8 {
            let score = eight[lane];
            largest[lane] = if score > largest[lane] { score } else { largest[lane] };
            nan[lane] |= u32::from(score.is_nan());
        }
    }
    (largest.into_iter().fold(f32::NEG_INFINITY, f32::max), nan != [0; 8])
}

impl Job<'_> {
    /// Pairs `first .. first + count` of a key head.
    ///
    /// # Safety
    ///
    /// The pairs exist, and `scratch` has `count * (2 * size + longest)` elements.
    unsafe fn tile(&self, head: usize, first: usize, count: usize, scratch: &mut [f32]) {
        let Shape { query_heads, key_heads, size, .. } = self.shape;
        let heads = query_heads / key_heads;
        let (queries, rest) = scratch.split_at_mut(count * size);
        let (sums, scores) = rest.split_at_mut(count * size);
        sums.fill(0.0);
        let mut pairs = Vec::with_capacity(count);
        for index in 0..count {
            let (row, head) = ((first + index) / heads, head * heads + (first + index) % heads);
            let query = &self.query.data[row * self.query.row_stride + head * self.query.head_stride..][..size];
            for (to, &from) in queries[index * size..].iter_mut().zip(query) {
                *to = from * self.scale;
            }
            pairs.push(Pair {
                seen: &self.seen[row],
                query: queries[index * size..].as_ptr(),
                weights: scores[index * self.longest..][..self.longest].as_mut_ptr(),
                sums: sums[index * size..][..size].as_mut_ptr(),
            });
        }
        let of_head = |data: &[f32]| Run {
            data: data[head * self.memory.head_stride..].as_ptr(),
            stride: self.memory.slot_stride,
            count: 0,
            size,
        };
        let (keys, values) = (of_head(self.memory.keys), of_head(self.memory.values));
        // Slots of every pair's run: keys and values that two pairs take in at once.
        let from = pairs.iter().map(|pair| pair.seen.from).max().unwrap_or(0);
        let to = pairs.iter().map(|pair| pair.seen.to).min().unwrap_or(0).max(from);
        // SAFETY: every slot seen is one of the memory's, and pairs have room for what they see.
        unsafe {
            self.score(&pairs, keys, from, to);
            let inverses: Vec<f32> = pairs.iter().map(|pair| pair.weigh()).collect();
            self.mix(&pairs, values, from, to);
            for (index, (pair, inverse)) in pairs.iter().zip(inverses).enumerate() {
                let (row, head) = ((first + index) / heads, head * heads + (first + index) % heads);
                let out = self.out.add((row * query_heads + head) * size);
                for element in 0..size {
                    *out.add(element) = *pair.sums.add(element) * inverse;
                }
            }
        }
    }

    /// Scores of everything that the pairs see, `from .. to` being in every run.
    ///
    /// # Safety
    ///
    /// As [`Job::tile`].
    unsafe fn score(&self, pairs: &[Pair<'_>], keys: Run, from: usize, to: usize) {
        let (couples, odd) = pairs.as_chunks::<2>();
        // SAFETY: the slots are ones that the pairs see.
        unsafe {
            for slot in (from..to).step_by(NEAR) {
                let near = keys.part(slot, NEAR.min(to - slot));
                for [a, b] in couples {
                    (self.leaves.scores_of_two)([a.query, b.query], near, [a.weight_of(slot), b.weight_of(slot)]);
                }
                for pair in odd {
                    (self.leaves.scores)([pair.query], near, [pair.weight_of(slot)]);
                }
            }
            for pair in pairs {
                for (first, end) in pair.beside(from, to) {
                    (self.leaves.scores)([pair.query], keys.part(first, end - first), [pair.weight_of(first)]);
                }
                for (slot, at) in pair.seen.single.iter().zip(pair.seen.to - pair.seen.from..) {
                    (self.leaves.scores)([pair.query], keys.part(*slot, 1), [pair.weights.add(at)]);
                }
            }
        }
    }

    /// Sums of weight times value over everything that the pairs see, each in the order of its sequence.
    ///
    /// # Safety
    ///
    /// As [`Job::tile`].
    unsafe fn mix(&self, pairs: &[Pair<'_>], values: Run, from: usize, to: usize) {
        let (couples, odd) = pairs.as_chunks::<2>();
        let alone = |pair: &Pair<'_>, first: usize, end: usize| {
            // SAFETY: the slots are ones of the pair's run.
            unsafe { (self.leaves.mix)([pair.weight_of(first)], values.part(first, end - first), [pair.sums]) }
        };
        // SAFETY: the slots are ones that the pairs see.
        unsafe {
            for pair in pairs {
                let [(first, end), _] = pair.beside(from, to);
                alone(pair, first, end);
            }
            for slot in (from..to).step_by(NEAR) {
                let near = values.part(slot, NEAR.min(to - slot));
                for [a, b] in couples {
                    (self.leaves.mix_of_two)([a.weight_of(slot), b.weight_of(slot)], near, [a.sums, b.sums]);
                }
                for pair in odd {
                    (self.leaves.mix)([pair.weight_of(slot)], near, [pair.sums]);
                }
            }
            for pair in pairs {
                let [_, (first, end)] = pair.beside(from, to);
                alone(pair, first, end);
                for (slot, at) in pair.seen.single.iter().zip(pair.seen.to - pair.seen.from..) {
                    (self.leaves.mix)([pair.weights.add(at)], values.part(*slot, 1), [pair.sums]);
                }
            }
        }
    }
}
