//! The hot loops over a row's blocks, in lane-wise Rust, and the choice of the widest version this processor has.
//!
//! The order of additions is written down and a fused multiply-add is fused everywhere, so that every version computes
//! the same bits.

use super::law::{BLOCK, Scale};
use super::logits::Element;

/// Independent running sums inside a block.
const LANES: usize = 8;

/// Logits that are worked on side by side.
const GROUP: usize = 4 * LANES;

/// Whether the processor has AVX2 and FMA.
#[inline]
fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs `work`, a closure whose callees are all `#[inline(always)]`, compiled for AVX2 and FMA where there are any.
#[inline]
pub(super) fn run<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        #[target_feature(enable = "avx2,fma")]
        fn wide<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        // SAFETY: both features were detected on the line above.
        return unsafe { wide(work) };
    }
    work()
}

/// Largest value of each of `blocks`, appended to `maxima`; `low` and `high` take in the smallest and largest key.
pub(super) fn extremes<E: Element>(
    blocks: &[[E::Bits; BLOCK]],
    low: &mut E::Key,
    high: &mut E::Key,
    maxima: &mut Vec<f32>,
) {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        #[target_feature(enable = "avx2,fma")]
        fn wide<E: Element>(blocks: &[[E::Bits; BLOCK]], low: &mut E::Key, high: &mut E::Key, maxima: &mut Vec<f32>) {
            let mut lows = E::lanes(*low);
            maxima.extend(blocks.iter().map(|block| {
                // SAFETY: this function has both features.
                let largest = unsafe { E::extremes_wide(block, &mut lows) };
                *high = largest.max(*high);
                E::key_value(largest)
            }));
            *low = E::lowest(&lows);
        }
        // SAFETY: both features were detected on the line above.
        return unsafe { wide::<E>(blocks, low, high, maxima) };
    }
    maxima.extend(blocks.iter().map(|block| {
        let largest = E::extremes(block, low);
        *high = largest.max(*high);
        E::key_value(largest)
    }));
}

/// The weight of each of `blocks`, appended to `sums`.
pub(super) fn weight_sums<E: Element>(blocks: &[[E::Bits; BLOCK]], scale: Scale, sums: &mut Vec<f64>) {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        #[target_feature(enable = "avx2,fma")]
        fn wide<E: Element>(blocks: &[[E::Bits; BLOCK]], scale: Scale, sums: &mut Vec<f64>) {
            // SAFETY: this function has both features.
            sums.extend(blocks.iter().map(|block| unsafe {
                super::avx2::weight_sum(
                    block,
                    scale,
                    #[inline(always)]
                    |eight| E::load(eight),
                )
            }));
        }
        // SAFETY: both features were detected on the line above.
        return unsafe { wide::<E>(blocks, scale, sums) };
    }
    sums.extend(blocks.iter().map(|block| sum(&portable_weights::<E>(block, scale))));
}

/// The weights of one block.
#[inline]
pub(super) fn weights<E: Element>(block: &[E::Bits; BLOCK], scale: Scale) -> [f32; BLOCK] {
    #[cfg(target_arch = "x86_64")]
    if is_wide() {
        #[target_feature(enable = "avx2,fma")]
        fn wide<E: Element>(block: &[E::Bits; BLOCK], scale: Scale, out: &mut [f32; BLOCK]) {
            // SAFETY: this function has both features.
            unsafe {
                super::avx2::weights(
                    block,
                    scale,
                    #[inline(always)]
                    |eight| E::load(eight),
                    out,
                );
            }
        }
        let mut out = [0f32; BLOCK];
        // SAFETY: both features were detected on the line above.
        unsafe { wide::<E>(block, scale, &mut out) };
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

/// Adds up a block: four values at a time in float32, then [`LANES`] float64 sums.
#[inline(always)]
pub(super) fn sum(values: &[f32; BLOCK]) -> f64 {
    let mut lanes = [0f64; LANES];
    for group in values.as_chunks::<GROUP>().0 {
        for lane in 0..LANES {
            let (a, b) = (group[lane] + group[lane + LANES], group[lane + 2 * LANES] + group[lane + 3 * LANES]);
            lanes[lane] += f64::from(a + b);
        }
    }
    let pairs = [lanes[0] + lanes[4], lanes[1] + lanes[5], lanes[2] + lanes[6], lanes[3] + lanes[7]];
    (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
}

#[cfg(test)]
mod tests {
    use super::super::logits::{Bf16, F16, F32};
    use super::*;

    fn same_bits<E: Element>(row: &[[E::Bits; BLOCK]]) {
        let (mut low, mut high, mut maxima) = (E::HIGHEST, E::LOWEST, vec![]);
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
            let mut sums = vec![];
            weight_sums::<E>(row, scale, &mut sums);
            for (block, &total) in row.iter().zip(&sums) {
                let portable = portable_weights::<E>(block, scale);
                assert_eq!(weights::<E>(block, scale).map(f32::to_bits), portable.map(f32::to_bits));
                assert_eq!(total.to_bits(), sum(&portable).to_bits());
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
