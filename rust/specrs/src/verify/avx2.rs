//! The hot loops of a row law in AVX2 and FMA: to the bit what the lane-wise Rust in [`super::simd`] computes.
//!
//! `unsafe` here means one thing: the caller has detected both features.

#![allow(clippy::cast_ptr_alignment, reason = "the loads and stores through these pointers are the unaligned ones")]

use std::arch::x86_64::{
    __m128i, __m256, __m256d, __m256i, _CMP_GE_OQ, _mm_add_pd, _mm_cvtsd_f64, _mm_cvtsi128_si32, _mm_loadu_si128,
    _mm_max_epi16, _mm_minpos_epu16, _mm_set1_epi16, _mm_unpackhi_pd, _mm_xor_si128, _mm256_add_epi32, _mm256_add_pd,
    _mm256_add_ps, _mm256_and_ps, _mm256_castpd256_pd128, _mm256_castps_si256, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmp_ps, _mm256_cvtepu16_epi32, _mm256_cvtps_pd,
    _mm256_extractf128_pd, _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_max_epi16, _mm256_max_epi32, _mm256_min_epi16, _mm256_min_epi32, _mm256_mul_ps,
    _mm256_or_si256, _mm256_set1_ps, _mm256_setzero_pd, _mm256_slli_epi32, _mm256_srai_epi16, _mm256_srai_epi32,
    _mm256_srli_epi16, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_ps, _mm256_xor_si256,
};

use super::law::{BLOCK, EXP2, FLUSH, SHIFT, Scale};

/// Eight float32 values.
///
/// # Safety
/// AVX2 must be there.
#[inline(always)]
pub(super) unsafe fn load_f32(values: &[f32; 8]) -> __m256 {
    // SAFETY: the array is 32 readable bytes.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Eight bfloat16 values as float32.
///
/// # Safety
/// AVX2 must be there.
#[inline(always)]
pub(super) unsafe fn load_bf16(bits: &[u16; 8]) -> __m256 {
    // SAFETY: the array is 16 readable bytes.
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(bits.as_ptr().cast::<__m128i>()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

/// Eight float16 values as float32, by the integer steps of the portable conversion.
///
/// # Safety
/// AVX2 must be there.
#[inline(always)]
pub(super) unsafe fn load_f16(bits: &[u16; 8]) -> __m256 {
    // SAFETY: the array is 16 readable bytes.
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(bits.as_ptr().cast::<__m128i>()));
        // The sign goes to the top, exponent and mantissa below it; the product moves the exponent's bias. What was
        // infinite or NaN comes out at 65536 or more, where no finite half is, and gets the exponent of all ones.
        let sign = _mm256_slli_epi32::<31>(_mm256_srli_epi32::<15>(wide));
        let magnitude = _mm256_srli_epi32::<4>(_mm256_slli_epi32::<17>(wide));
        let scaled = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(f32::from_bits((127 + 112) << 23)));
        let special = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(scaled, _mm256_set1_ps(65_536.0)));
        let special = _mm256_slli_epi32::<23>(_mm256_srli_epi32::<24>(special));
        _mm256_castsi256_ps(_mm256_or_si256(_mm256_or_si256(_mm256_castps_si256(scaled), special), sign))
    }
}

/// Smallest and largest key of a block of 16-bit formats; `low` and the result are keys.
///
/// # Safety
/// AVX2 must be there.
#[inline(always)]
pub(super) unsafe fn extremes_16(block: &[u16; BLOCK], low: &mut [i16; 16]) -> i16 {
    // SAFETY: every load is inside `block` or `low`; the features are the caller's promise.
    unsafe {
        let pointer = block.as_ptr().cast::<__m256i>();
        let key = |index: usize| {
            let bits = _mm256_loadu_si256(pointer.add(index));
            _mm256_xor_si256(bits, _mm256_srli_epi16::<1>(_mm256_srai_epi16::<15>(bits)))
        };
        let mut lows = _mm256_loadu_si256(low.as_ptr().cast::<__m256i>());
        let first = key(0);
        lows = _mm256_min_epi16(lows, first);
        let mut highs = first;
        for index in 1..BLOCK / 16 {
            let keys = key(index);
            lows = _mm256_min_epi16(lows, keys);
            highs = _mm256_max_epi16(highs, keys);
        }
        _mm256_storeu_si256(low.as_mut_ptr().cast::<__m256i>(), lows);
        let half = _mm_max_epi16(_mm256_castsi256_si128(highs), _mm256_extracti128_si256::<1>(highs));
        // The instruction finds an unsigned minimum: all bits but the sign are turned over, and back.
        let turned = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(i16::MAX)));
        (_mm_cvtsi128_si32(turned) as i16) ^ i16::MAX
    }
}

/// Smallest and largest key of a block of float32.
///
/// # Safety
/// AVX2 must be there.
#[inline(always)]
pub(super) unsafe fn extremes_32(block: &[f32; BLOCK], low: &mut [i32; 8]) -> i32 {
    // SAFETY: every load is inside `block` or `low`; the features are the caller's promise.
    unsafe {
        let pointer = block.as_ptr().cast::<__m256i>();
        let key = |index: usize| {
            let bits = _mm256_loadu_si256(pointer.add(index));
            _mm256_xor_si256(bits, _mm256_srli_epi32::<1>(_mm256_srai_epi32::<31>(bits)))
        };
        let mut lows = _mm256_loadu_si256(low.as_ptr().cast::<__m256i>());
        let mut highs = [key(0), key(1)];
        lows = _mm256_min_epi32(lows, _mm256_min_epi32(highs[0], highs[1]));
        for index in (2..BLOCK / 8).step_by(2) {
            let keys = [key(index), key(index + 1)];
            lows = _mm256_min_epi32(lows, _mm256_min_epi32(keys[0], keys[1]));
            highs = [_mm256_max_epi32(highs[0], keys[0]), _mm256_max_epi32(highs[1], keys[1])];
        }
        _mm256_storeu_si256(low.as_mut_ptr().cast::<__m256i>(), lows);
        let mut lanes = [0i32; 8];
        _mm256_storeu_si256(lanes.as_mut_ptr().cast::<__m256i>(), _mm256_max_epi32(highs[0], highs[1]));
        lanes.into_iter().fold(i32::MIN, Ord::max)
    }
}

/// [`Scale::weight`] of four times eight logits, in lockstep: four chains of dependent steps hide each other's latency.
#[inline(always)]
unsafe fn weight(logits: [__m256; 4], max: __m256, rate: __m256) -> [__m256; 4] {
    // SAFETY: arithmetic on registers; the features are the caller's promise.
    unsafe {
        let shift = _mm256_set1_ps(SHIFT);
        let below = logits.map(
            #[inline(always)]
            |logit| _mm256_sub_ps(logit, max),
        );
        let shifted = below.map(
            #[inline(always)]
            |below| _mm256_fmadd_ps(below, rate, shift),
        );
        let mut fraction = below;
        for lane in 0..4 {
            fraction[lane] = _mm256_fmadd_ps(below[lane], rate, _mm256_sub_ps(shift, shifted[lane]));
        }
        let mut sum = [_mm256_set1_ps(EXP2[6]); 4];
        for power in (0..6).rev() {
            let coefficient = _mm256_set1_ps(EXP2[power]);
            for lane in 0..4 {
                sum[lane] = _mm256_fmadd_ps(sum[lane], fraction[lane], coefficient);
            }
        }
        for lane in 0..4 {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted[lane]));
            let bits = _mm256_add_epi32(_mm256_castps_si256(sum[lane]), exponent);
            let counts = _mm256_cmp_ps::<_CMP_GE_OQ>(shifted[lane], _mm256_set1_ps(SHIFT - FLUSH));
            sum[lane] = _mm256_and_ps(_mm256_castsi256_ps(bits), counts);
        }
        sum
    }
}

/// The weights of 32 logits.
#[inline(always)]
unsafe fn group_weights<T>(group: &[T; 32], scale: Scale, load: impl Fn(&[T; 8]) -> __m256) -> [__m256; 4] {
    let eights = group.as_chunks::<8>().0;
    let logits = [load(&eights[0]), load(&eights[1]), load(&eights[2]), load(&eights[3])];
    // SAFETY: the features are the caller's promise.
    unsafe { weight(logits, _mm256_set1_ps(scale.max), _mm256_set1_ps(scale.rate)) }
}

/// The weights of a block.
///
/// # Safety
/// AVX2 and FMA must be there.
#[inline(always)]
pub(super) unsafe fn weights<T>(
    block: &[T; BLOCK],
    scale: Scale,
    load: impl Fn(&[T; 8]) -> __m256,
    out: &mut [f32; BLOCK],
) {
    // SAFETY: stores go to the 32 entries of `out` that belong to the loaded ones.
    unsafe {
        for (group, out) in block.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0) {
            let weights = group_weights(group, scale, &load);
            for (weight, out) in weights.into_iter().zip(out.as_chunks_mut::<8>().0) {
                _mm256_storeu_ps(out.as_mut_ptr(), weight);
            }
        }
    }
}

/// The sum of a block's weights.
///
/// # Safety
/// AVX2 and FMA must be there.
#[inline(always)]
pub(super) unsafe fn weight_sum<T>(block: &[T; BLOCK], scale: Scale, load: impl Fn(&[T; 8]) -> __m256) -> f64 {
    // SAFETY: arithmetic on registers; the features are the caller's promise.
    unsafe {
        let (mut low, mut high): (__m256d, __m256d) = (_mm256_setzero_pd(), _mm256_setzero_pd());
        for group in block.as_chunks::<32>().0 {
            let [a, b, c, d] = group_weights(group, scale, &load);
            let four = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
            low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(four)));
            high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(four)));
        }
        let lanes = _mm256_add_pd(low, high);
        let pair = _mm_add_pd(_mm256_castpd256_pd128(lanes), _mm256_extractf128_pd::<1>(lanes));
        _mm_cvtsd_f64(_mm_add_pd(pair, _mm_unpackhi_pd(pair, pair)))
    }
}
