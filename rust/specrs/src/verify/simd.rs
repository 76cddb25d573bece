//! The hot loops over a row's blocks, in lane-wise Rust, and the choice of the widest version this processor has.
//!
//! The order of additions is written down and a fused multiply-add is fused everywhere, so that every version computes
//! the same bits.

use super::blocks::BLOCK;
use super::element::{Element, F32};
use super::kept::Cut;
use super::scale::Scale;

/// Independent running sums inside a block.
const LANES: usize = 8;

/// Whether the processor has AVX2 and FMA, and the two bit counts that came with them.
#[inline]
fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("popcnt");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs `work`, a closure whose callees are all `#[inline(always)]`, compiled for AVX2 and FMA where there are any.
#[inline]
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        #[target_feature(enable = "avx2,fma")]
        fn wide<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        // SAFETY: the features were detected on the line above.
        return unsafe { wide(work) };
    }
    work()
}

/// Largest value of each of `blocks` into `maxima`; `low` and `high` take in the smallest and largest key.
pub(super) fn extremes<E: Element>(
    blocks: &[[E::Bits; BLOCK]],
    low: &mut E::Key,
    high: &mut E::Key,
    maxima: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        // SAFETY: the features were detected on the line above.
        return unsafe { super::avx2::extremes::<E>(blocks, low, high, maxima) };
    }
    for (block, max) in blocks.iter().zip(maxima) {
        let largest = E::extremes(block, low);
        *high = largest.max(*high);
        *max = E::key_value(largest);
    }
}

/// The weight of each of `blocks` whose largest value reaches `floor` into `sums`, 0 for the others; returns the sum of
/// the others' bounds ([`Scale::bound`]). No logit is below `lowest`, as far as that is known.
pub(super) fn weight_sums<E: Element>(
    blocks: &[[E::Bits; BLOCK]],
    scale: Scale,
    lowest: f32,
    (maxima, floor): (&[f32], f32),
    sums: &mut [f64],
) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        // SAFETY: the features were detected on the line above.
        return unsafe {
            if scale.is_surely_positive(lowest) {
                super::avx2::weight_sums::<E, false>(blocks, scale, (maxima, floor), sums)
            } else {
                super::avx2::weight_sums::<E, true>(blocks, scale, (maxima, floor), sums)
            }
        };
    }
    portable_weight_sums::<E>(blocks, scale, (maxima, floor), sums)
}

fn portable_weight_sums<E: Element>(
    blocks: &[[E::Bits; BLOCK]],
    scale: Scale,
    (maxima, floor): (&[f32], f32),
    sums: &mut [f64],
) -> f64 {
    let mut bounds = [0.0; LANES];
    for ((block, &max), total) in blocks.iter().zip(maxima).zip(sums) {
        *total = 0.0;
        if max >= floor {
            *total = sum(&portable_weights::<E>(block, scale));
        } else {
            for (bound, lane) in bounds.iter_mut().zip(lanes(&block.map(|bits| scale.bound(E::value(bits))))) {
                *bound += lane;
            }
        }
    }
    sum_of_lanes(bounds)
}

/// The weight of one block.
pub(super) fn sum_of_weights<E: Element>(block: &[E::Bits; BLOCK], scale: Scale) -> f64 {
    let mut sum = [0.0];
    weight_sums::<E>(std::slice::from_ref(block), scale, f32::NEG_INFINITY, (&[0.0], f32::NEG_INFINITY), &mut sum);
    sum[0]
}

/// The weights of one block.
#[inline]
pub(super) fn weights<E: Element>(block: &[E::Bits; BLOCK], scale: Scale) -> [f32; BLOCK] {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        let mut out = [0f32; BLOCK];
        // SAFETY: the features were detected on the line above.
        unsafe { super::avx2::weights::<E>(block, scale, &mut out) };
        return out;
    }
    portable_weights::<E>(block, scale)
}

#[inline(always)]
fn portable_weights<E: Element>(block: &[E::Bits; BLOCK], scale: Scale) -> [f32; BLOCK] {
    let mut weights = [0f32; BLOCK];
    for (weight, &bits) in weights.iter_mut().zip(block) {
        *weight = scale.weight(E::value(bits));
    }
    weights
}

/// Writes the ids of a block's keys that are at least `least` to the front of `ids`; returns their number. What lies
/// behind them is overwritten. Ids count from `start`.
#[inline]
pub(super) fn select<E: Element>(block: &[E::Bits; BLOCK], least: E::Key, start: u32, ids: &mut [u32; BLOCK]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        // SAFETY: the features were detected on the line above.
        return unsafe { super::avx2::select::<E>(block, least, start, ids) };
    }
    portable_select::<E>(block, least, start, ids)
}

fn portable_select<E: Element>(block: &[E::Bits; BLOCK], least: E::Key, start: u32, ids: &mut [u32; BLOCK]) -> usize {
    let mut count = 0;
    for (id, &bits) in (start..).zip(block) {
        ids[count] = id;
        count += usize::from(E::key(bits) >= least);
    }
    count
}

/// Adds up the weights of blocks, in an order that lets four additions go side by side.
pub(super) fn total(sums: &[f64]) -> f64 {
    let (fours, rest) = sums.as_chunks::<4>();
    let mut parts = [0.0; 4];
    for four in fours {
        for (part, sum) in parts.iter_mut().zip(four) {
            *part += sum;
        }
    }
    (parts[0] + parts[1]) + (parts[2] + parts[3]) + rest.iter().sum::<f64>()
}

/// What those of `weights` weigh that are below `limit`.
pub(super) fn sum_below(weights: &[[f32; BLOCK]], limit: f32) -> f64 {
    run(
        #[inline(always)]
        || weights.iter().map(|block| sum(&block.map(|weight| if weight < limit { weight } else { 0.0 }))).sum(),
    )
}

/// Adds up a block per lane, where a lane has what 16-bit formats unpack to it.
#[inline(always)]
fn lanes(values: &[f32; BLOCK]) -> [f32; LANES] {
    let mut lanes = [0f32; LANES];
    for sixteen in values.as_chunks::<{ 2 * LANES }>().0 {
        for lane in 0..LANES {
            let first = lane + 4 * (lane / 4);
            lanes[lane] += sixteen[first] + sixteen[first + 4];
        }
    }
    lanes
}

/// Adds lanes up in float64.
#[inline(always)]
fn sum_of_lanes(lanes: [f32; LANES]) -> f64 {
    let lanes = lanes.map(f64::from);
    let pairs = [lanes[0] + lanes[4], lanes[1] + lanes[5], lanes[2] + lanes[6], lanes[3] + lanes[7]];
    (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
}

/// Adds up a block: per lane in float32, then the lanes in float64.
#[inline(always)]
pub(super) fn sum(values: &[f32; BLOCK]) -> f64 {
    sum_of_lanes(lanes(values))
}

/// Replaces scores by exp(score - max), score −∞ giving 0, and returns the sum. A NaN gives 0 too.
pub(crate) fn exponentials(scores: &mut [[f32; BLOCK]], max: f32) -> f64 {
    let scale = Scale::new(max, 1.0);
    let mut total = 0.0;
    for block in scores {
        *block = weights::<F32>(block, scale);
        total += sum(block);
    }
    total
}

/// Moves the entries that `cut` keeps to the front; returns their number. What lies behind them is overwritten.
pub(super) fn retain(cut: Cut, ids: &mut [u32], logits: &mut [f32], weights: &mut [f32]) -> usize {
    let (mut kept, mut first) = (0, 0);
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        first = ids.len() / 8 * 8;
        let (ids, logits) = (ids.as_chunks_mut().0, logits.as_chunks_mut().0);
        // SAFETY: the features were detected on the line above.
        kept = unsafe { super::avx2::retain(cut, ids, logits, weights.as_chunks_mut().0) };
    }
    for at in first..ids.len() {
        let (id, logit) = (ids[at], logits[at]);
        (ids[kept], logits[kept], weights[kept]) = (id, logit, weights[at]);
        kept += usize::from(cut.keeps(id as usize, logit));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::super::element::{Bf16, F16, F32};
    use super::super::scale::{BOUND_EXCESS, BOUND_SHORT};
    use super::*;

    fn same_bits<E: Element>(row: &[[E::Bits; BLOCK]]) {
        let (mut low, mut high, mut maxima) = (E::HIGHEST, E::LOWEST, vec![0.0; row.len()]);
        extremes::<E>(row, &mut low, &mut high, &mut maxima);
        let (mut low_portable, mut high_portable) = (E::HIGHEST, E::LOWEST);
        for (block, &max) in row.iter().zip(&maxima) {
            let largest = E::extremes(block, &mut low_portable);
            high_portable = high_portable.max(largest);
            assert_eq!(E::key_value(largest).to_bits(), max.to_bits());
        }
        assert!(low == low_portable && high == high_portable);
        for temperature in [0.3, 1.0, 2.5] {
            let scale = Scale::new(E::key_value(high), temperature);
            let mut sums = vec![0.0; row.len()];
            let lowest = E::key_value(low);
            assert_eq!(weight_sums::<E>(row, scale, lowest, (&maxima, f32::NEG_INFINITY), &mut sums), 0.0);
            for (block, &total) in row.iter().zip(&sums) {
                let portable = portable_weights::<E>(block, scale);
                assert_eq!(weights::<E>(block, scale).map(f32::to_bits), portable.map(f32::to_bits));
                assert_eq!(total.to_bits(), sum(&portable).to_bits());
                for floor in [f32::NEG_INFINITY, -1.0, 0.0, scale.max] {
                    let (mut ids, least) = ([[0; BLOCK]; 2], E::least_key(floor));
                    let count = select::<E>(block, least, 7, &mut ids[0]);
                    assert_eq!(count, portable_select::<E>(block, least, 7, &mut ids[1]));
                    assert_eq!(ids[0][..count], ids[1][..count]);
                    let reaching = (7..).zip(block).filter(|&(_, &bits)| E::value(bits) >= floor).map(|(id, _)| id);
                    assert!(reaching.eq(ids[0][..count].iter().copied()));
                }
            }
            for floor in [0.0, 1.0, scale.max, f32::INFINITY] {
                let (mut wide, mut portable) = (vec![0.0; row.len()], vec![0.0; row.len()]);
                let bounds = weight_sums::<E>(row, scale, lowest, (&maxima, floor), &mut wide);
                assert_eq!(bounds, portable_weight_sums::<E>(row, scale, (&maxima, floor), &mut portable));
                assert_eq!(wide, portable);
                let rest: f64 = sums.iter().zip(&wide).filter(|(_, part)| **part == 0.0).map(|(sum, _)| sum).sum();
                assert!(rest <= bounds * BOUND_SHORT && bounds / BOUND_EXCESS <= rest + 1e-25);
            }
        }
    }

    #[test]
    fn what_a_cut_keeps_moves_to_the_front() {
        for length in [0, 1, 8, 9, 61, 128] {
            let ids: Vec<u32> = (0..length).map(|at| 3 * at).collect();
            let logits: Vec<f32> = ids.iter().map(|id| (id * 7 % 5) as f32).collect();
            let weights: Vec<f32> = ids.iter().map(|&id| id as f32 + 0.5).collect();
            for (logit, from) in [(2.0, 0), (2.0, 90), (2.0, u32::MAX), (-1.0, 5), (9.0, 0), (f32::NEG_INFINITY, 0)] {
                let cut = Cut { logit, from };
                let (mut moved, mut values, mut masses) = (ids.clone(), logits.clone(), weights.clone());
                let kept = retain(cut, &mut moved, &mut values, &mut masses);
                let at: Vec<usize> = (0..ids.len()).filter(|&at| cut.keeps(ids[at] as usize, logits[at])).collect();
                assert!(at.iter().map(|&at| ids[at]).eq(moved[..kept].iter().copied()));
                assert!(at.iter().map(|&at| logits[at]).eq(values[..kept].iter().copied()));
                assert!(at.iter().map(|&at| weights[at]).eq(masses[..kept].iter().copied()));
            }
        }
    }

    /// Pseudo-random finite bits of a 16-bit format, and −∞ here and there.
    fn half_row(exponent_mask: u16) -> Vec<[u16; BLOCK]> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bits = (state >> 16) as u16;
            if bits & exponent_mask == exponent_mask { 0x8000 | exponent_mask } else { bits }
        };
        (0..64).map(|_| std::array::from_fn(|_| next())).collect()
    }

    #[test]
    fn wide_and_portable_loops_agree_to_the_bit() {
        same_bits::<F16>(&half_row(0x7C00));
        same_bits::<Bf16>(&half_row(0x7F80));
        let narrow: Vec<[u16; BLOCK]> = half_row(0x7C00);
        let wide: Vec<[f32; BLOCK]> = narrow.iter().map(|block| block.map(|bits| F16::value(bits) / 7.0)).collect();
        same_bits::<F32>(&wide);
    }
}
