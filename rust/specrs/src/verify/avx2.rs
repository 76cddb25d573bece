//! The hot loops of a row law in AVX2 and FMA: to the bit what the lane-wise Rust in [`super::simd`] computes.
//!
//! Every function here, and every closure in one, is compiled for both features: a load that is called instead of
//! inlined costs as much as the arithmetic between two of them.

#![allow(clippy::cast_ptr_alignment, reason = "the loads and stores through these pointers are the unaligned ones")]

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_EQ_OQ, _CMP_GE_OQ, _CMP_GT_OQ, _MM_HINT_T0, _mm_add_pd, _mm_cvtsd_f64,
    _mm_cvtsi128_si32, _mm_loadu_si128, _mm_max_epi16, _mm_minpos_epu16, _mm_prefetch, _mm_set1_epi16, _mm_unpackhi_pd,
    _mm_xor_si128, _mm256_add_epi32, _mm256_add_pd, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256,
    _mm256_castpd256_pd128, _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_cmpgt_epi16, _mm256_cmpgt_epi32, _mm256_cvtepu16_epi32, _mm256_cvtps_pd,
    _mm256_extractf128_pd, _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_max_epi16, _mm256_max_epi32, _mm256_max_epu32, _mm256_max_ps, _mm256_min_epi16,
    _mm256_min_epi32, _mm256_movemask_epi8, _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_or_si256,
    _mm256_packs_epi16, _mm256_permute2f128_ps, _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32,
    _mm256_permutevar8x32_ps, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srai_epi16, _mm256_srai_epi32, _mm256_srli_epi16,
    _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_ps, _mm256_unpackhi_epi16,
    _mm256_unpacklo_epi16, _mm256_xor_si256,
};

use super::blocks::BLOCK;
use super::element::Element;
use super::kept::Cut;
use super::scale::{EXP2, FLUSH, INTEGERS, SHIFT, STEP_OF_ONE, STEPS, Scale};

/// How far ahead of the arithmetic a row is asked from memory, in bytes. The processor's own prefetching stops at every
/// page.
const AHEAD: usize = 8192;

/// Asks for the cache line [`AHEAD`] of `place`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn prefetch<T>(place: *const T) {
    _mm_prefetch::<_MM_HINT_T0>(place.cast::<i8>().wrapping_add(AHEAD));
}

/// Eight float32 values.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn load_f32(values: &[f32; 8]) -> __m256 {
    // SAFETY: the array is 32 readable bytes.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Sixteen float32 values in the order 0–3, 8–11 and 4–7, 12–15.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn halves_f32(values: &[f32; 16]) -> [__m256; 2] {
    let eights = values.as_chunks::<8>().0;
    let (first, second) = (load_f32(&eights[0]), load_f32(&eights[1]));
    [_mm256_permute2f128_ps::<0x20>(first, second), _mm256_permute2f128_ps::<0x31>(first, second)]
}

/// Eight numbers of 16 bits, each in the upper half of a lane.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn upper_halves(bits: &[u16; 8]) -> __m256i {
    // SAFETY: the array is 16 readable bytes.
    let narrow = unsafe { _mm_loadu_si128(bits.as_ptr().cast::<__m128i>()) };
    _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(narrow))
}

/// Sixteen numbers of 16 bits, each in the upper half of a lane, in the order 0–3, 8–11 and 4–7, 12–15.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn unpacked(bits: &[u16; 16]) -> [__m256i; 2] {
    // SAFETY: the array is 32 readable bytes.
    let narrow = unsafe { _mm256_loadu_si256(bits.as_ptr().cast::<__m256i>()) };
    let zero = _mm256_setzero_si256();
    [_mm256_unpacklo_epi16(zero, narrow), _mm256_unpackhi_epi16(zero, narrow)]
}

/// Eight float16 values, whose bits are the upper halves of the lanes, by the integer steps of the portable conversion.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn half_values(upper: __m256i) -> __m256 {
    // Exponent and mantissa go below the sign's place; the product moves the exponent's bias. What was infinite or NaN
    // comes out at 65536 or more, where no finite half is, and gets the exponent of all ones.
    let sign = _mm256_and_si256(upper, _mm256_set1_epi32(i32::MIN));
    let magnitude = _mm256_srli_epi32::<4>(_mm256_slli_epi32::<1>(upper));
    let scaled = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(f32::from_bits((127 + 112) << 23)));
    let special = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GE_OQ>(scaled, _mm256_set1_ps(65_536.0)));
    let special = _mm256_slli_epi32::<23>(_mm256_srli_epi32::<24>(special));
    _mm256_castsi256_ps(_mm256_or_si256(_mm256_or_si256(_mm256_castps_si256(scaled), special), sign))
}

/// The keys of sixteen 16-bit numbers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn keys_16(bits: &[u16; 16]) -> __m256i {
    // SAFETY: the array is 32 readable bytes.
    let bits = unsafe { _mm256_loadu_si256(bits.as_ptr().cast::<__m256i>()) };
    _mm256_xor_si256(bits, _mm256_srli_epi16::<1>(_mm256_srai_epi16::<15>(bits)))
}

/// The keys of eight float32.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn keys_32(values: &[f32; 8]) -> __m256i {
    let bits = _mm256_castps_si256(load_f32(values));
    _mm256_xor_si256(bits, _mm256_srli_epi32::<1>(_mm256_srai_epi32::<31>(bits)))
}

/// The largest key of a block of 16-bit formats; `low` takes in the lane-wise smallest.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn extremes_16(block: &[u16; BLOCK], low: &mut [i16; 16]) -> i16 {
    // SAFETY: the load and the store below are those of the whole of `low`.
    let mut lows = unsafe { _mm256_loadu_si256(low.as_ptr().cast::<__m256i>()) };
    let mut highs = _mm256_set1_epi16(i16::MIN);
    for sixteen in block.as_chunks::<16>().0 {
        let keys = keys_16(sixteen);
        lows = _mm256_min_epi16(lows, keys);
        highs = _mm256_max_epi16(highs, keys);
    }
    // SAFETY: as above.
    unsafe { _mm256_storeu_si256(low.as_mut_ptr().cast::<__m256i>(), lows) };
    let half = _mm_max_epi16(_mm256_castsi256_si128(highs), _mm256_extracti128_si256::<1>(highs));
    // The instruction finds an unsigned minimum: all bits but the sign are turned over, and back.
    let turned = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(i16::MAX)));
    (_mm_cvtsi128_si32(turned) as i16) ^ i16::MAX
}

/// The largest key of a block of float32; `low` takes in the lane-wise smallest.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn extremes_32(block: &[f32; BLOCK], low: &mut [i32; 8]) -> i32 {
    // SAFETY: the load and the store below are those of the whole of `low`.
    let mut lows = unsafe { _mm256_loadu_si256(low.as_ptr().cast::<__m256i>()) };
    let mut highs = [_mm256_set1_epi32(i32::MIN); 2];
    for [first, second] in block.as_chunks::<8>().0.as_chunks::<2>().0 {
        let keys = [keys_32(first), keys_32(second)];
        lows = _mm256_min_epi32(lows, _mm256_min_epi32(keys[0], keys[1]));
        highs = [_mm256_max_epi32(highs[0], keys[0]), _mm256_max_epi32(highs[1], keys[1])];
    }
    // SAFETY: as above.
    unsafe { _mm256_storeu_si256(low.as_mut_ptr().cast::<__m256i>(), lows) };
    let mut lanes = [0i32; 8];
    // SAFETY: the array is 32 writable bytes.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast::<__m256i>(), _mm256_max_epi32(highs[0], highs[1])) };
    lanes.into_iter().fold(i32::MIN, Ord::max)
}

/// The keys of a block of 16-bit formats that are at least `least`, a bit each.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn reaching_16(block: &[u16; BLOCK], least: i16) -> [u64; BLOCK / 64] {
    // No key but NaN's is the smallest number.
    let below = _mm256_set1_epi16(least - 1);
    let mut sets = [0; BLOCK / 64];
    for (set, [a, b, c, d]) in sets.iter_mut().zip(block.as_chunks::<16>().0.as_chunks::<4>().0) {
        for (half, [first, second]) in [[a, b], [c, d]].into_iter().enumerate() {
            let reach = [first, second].map(|bits| _mm256_cmpgt_epi16(keys_16(bits), below));
            // The instruction packs each half of the registers by itself.
            let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(reach[0], reach[1]));
            *set |= u64::from(_mm256_movemask_epi8(bytes) as u32) << (32 * half);
        }
    }
    sets
}

/// The keys of a block of float32 that are at least `least`, a bit each.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn reaching_32(block: &[f32; BLOCK], least: i32) -> [u64; BLOCK / 64] {
    let below = _mm256_set1_epi32(least - 1);
    let mut sets = [0; BLOCK / 64];
    for (index, eight) in block.as_chunks::<8>().0.iter().enumerate() {
        let reach = _mm256_castsi256_ps(_mm256_cmpgt_epi32(keys_32(eight), below));
        sets[index / 8] |= u64::from(_mm256_movemask_ps(reach) as u32) << (8 * (index % 8));
    }
    sets
}

/// Largest value of each of `blocks` into `maxima`; `low` and `high` take in the smallest and largest key.
#[target_feature(enable = "avx2,fma")]
pub(super) fn extremes<E: Element>(
    blocks: &[[E::Bits; BLOCK]],
    low: &mut E::Key,
    high: &mut E::Key,
    maxima: &mut [f32],
) {
    let mut lows = E::lanes(*low);
    for (block, max) in blocks.iter().zip(maxima) {
        for line in block.chunks(64 / size_of::<E::Bits>()) {
            prefetch(line.as_ptr());
        }
        // SAFETY: this function has both features.
        let largest = unsafe { E::extremes_wide(block, &mut lows) };
        *high = largest.max(*high);
        *max = E::key_value(largest);
    }
    *low = E::lowest(&lows);
}

/// What [`weight`] needs of a [`Scale`], in every lane.
#[derive(Clone, Copy)]
struct Lanes {
    max: __m256,
    rate: __m256,
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn new(scale: Scale) -> Self {
        Self { max: _mm256_set1_ps(scale.max), rate: _mm256_set1_ps(scale.rate) }
    }
}

/// [`Scale::weight`] of eight logits. Without `FLUSHES` none of them may be below the smallest weight.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn weight<const FLUSHES: bool>(logits: __m256, scale: Lanes) -> __m256 {
    let constant = |index: usize| _mm256_set1_ps(EXP2[index]);
    let shift = _mm256_set1_ps(SHIFT);
    let below = _mm256_sub_ps(logits, scale.max);
    let shifted = _mm256_fmadd_ps(below, scale.rate, shift);
    let fraction = _mm256_fmadd_ps(below, scale.rate, _mm256_sub_ps(shift, shifted));
    let square = _mm256_mul_ps(fraction, fraction);
    let first = _mm256_fmadd_ps(constant(1), fraction, constant(0));
    let low = _mm256_fmadd_ps(_mm256_fmadd_ps(constant(3), fraction, constant(2)), square, first);
    let high = _mm256_fmadd_ps(constant(6), square, _mm256_fmadd_ps(constant(5), fraction, constant(4)));
    let sum = _mm256_fmadd_ps(high, _mm256_mul_ps(square, square), low);
    let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
    let weight = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum), exponent));
    if FLUSHES {
        _mm256_and_ps(weight, _mm256_cmp_ps::<_CMP_GE_OQ>(shifted, _mm256_set1_ps(SHIFT - FLUSH)))
    } else {
        weight
    }
}

/// [`Scale::bound`] of eight logits.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn bound(logits: __m256, max: __m256, rate: __m256) -> __m256 {
    let step = _mm256_fmadd_ps(_mm256_sub_ps(logits, max), rate, _mm256_set1_ps(STEP_OF_ONE));
    // Of a NaN and a number this takes the second.
    let step = _mm256_max_ps(step, _mm256_set1_ps(INTEGERS));
    _mm256_castsi256_ps(_mm256_slli_epi32::<8>(_mm256_castps_si256(step)))
}

/// The weights of a block.
#[target_feature(enable = "avx2,fma")]
pub(super) fn weights<E: Element>(block: &[E::Bits; BLOCK], scale: Scale, out: &mut [f32; BLOCK]) {
    let scale = Lanes::new(scale);
    for (eight, out) in block.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
        // SAFETY: this function has both features; the store is that of the whole array.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), weight::<true>(E::load(eight), scale)) };
    }
}

/// Adds up, lane by lane, what `value` makes of a block's logits; as [`super::simd::lanes`].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn lanes_of<E: Element>(block: &[E::Bits; BLOCK], value: impl Fn(__m256) -> __m256) -> __m256 {
    let mut lanes = _mm256_setzero_ps();
    for sixteen in block.as_chunks::<16>().0 {
        // SAFETY: this function has both features.
        let [low, high] = unsafe { E::load_halves(sixteen) };
        lanes = _mm256_add_ps(lanes, _mm256_add_ps(value(low), value(high)));
    }
    lanes
}

/// As [`super::simd::sum_of_lanes`].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_of_lanes(lanes: __m256) -> f64 {
    let low = _mm256_cvtps_pd(_mm256_castps256_ps128(lanes));
    let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(lanes));
    let fours = _mm256_add_pd(low, high);
    let pair = _mm_add_pd(_mm256_castpd256_pd128(fours), _mm256_extractf128_pd::<1>(fours));
    _mm_cvtsd_f64(_mm_add_pd(pair, _mm_unpackhi_pd(pair, pair)))
}

/// As [`super::simd::weight_sums`]. Without `FLUSHES` no logit may be below the smallest weight.
#[target_feature(enable = "avx2,fma")]
pub(super) fn weight_sums<E: Element, const FLUSHES: bool>(
    blocks: &[[E::Bits; BLOCK]],
    scale: Scale,
    (maxima, floor): (&[f32], f32),
    sums: &mut [f64],
) -> f64 {
    let lanes = Lanes::new(scale);
    let steps = _mm256_set1_ps(scale.rate * STEPS);
    let mut bounds = _mm256_setzero_ps();
    for ((block, &max), sum) in blocks.iter().zip(maxima).zip(sums) {
        prefetch(block.as_ptr());
        *sum = 0.0;
        if max >= floor {
            *sum = sum_of_lanes(lanes_of::<E>(block, |logits| weight::<FLUSHES>(logits, lanes)));
        } else {
            bounds = _mm256_add_ps(bounds, lanes_of::<E>(block, |logits| bound(logits, lanes.max, steps)));
        }
    }
    sum_of_lanes(bounds)
}

/// As [`super::simd::select`]. No branch depends on a single logit: it would be mispredicted.
#[target_feature(enable = "avx2,fma,bmi1,popcnt")]
pub(super) fn select<E: Element>(block: &[E::Bits; BLOCK], least: E::Key, start: u32, ids: &mut [u32; BLOCK]) -> usize {
    // SAFETY: this function has the features.
    let sets = unsafe { E::reaching_wide(block, least) };
    let mut count = 0;
    for (mut set, start) in sets.into_iter().zip((start..).step_by(64)) {
        let end = count + set.count_ones() as usize;
        // Four at a time: up to three past the last id are overwritten, or never looked at. They are inside the array,
        // which has a place for every bit of the sets.
        while let Some(four) = ids[count..].first_chunk_mut::<4>() {
            for id in four {
                *id = start + set.trailing_zeros();
                set &= set.wrapping_sub(1);
            }
            count += 4;
            if set == 0 {
                break;
            }
        }
        count = end;
    }
    count
}

/// For each set of lanes, their indices first.
static LANES_OF: [[u32; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut lane, mut count) = (0, 0);
        while lane < 8 {
            if set >> lane & 1 == 1 {
                table[set][count] = lane;
                count += 1;
            }
            lane += 1;
        }
        set += 1;
    }
    table
};

/// As [`super::simd::retain`].
#[target_feature(enable = "avx2,fma,popcnt")]
pub(super) fn retain(cut: Cut, ids: &mut [[u32; 8]], logits: &mut [[f32; 8]], weights: &mut [[f32; 8]]) -> usize {
    let (logit, from) = (_mm256_set1_ps(cut.logit), _mm256_set1_epi32(cut.from as i32));
    let eights = ids.len().min(logits.len()).min(weights.len());
    let (ids, logits, weights) =
        (ids.as_mut_ptr().cast::<u32>(), logits.as_mut_ptr().cast::<f32>(), weights.as_mut_ptr().cast::<f32>());
    let mut kept = 0;
    for at in (0..eights).map(|eight| 8 * eight) {
        // SAFETY: each array has eight times `eights` entries. At most `at` are kept of those before, so that nothing is
        // overwritten that is not read yet.
        unsafe {
            let (id, value) = (_mm256_loadu_si256(ids.add(at).cast::<__m256i>()), _mm256_loadu_ps(logits.add(at)));
            let weight = _mm256_loadu_ps(weights.add(at));
            let behind = _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(id, from), id));
            let tied = _mm256_and_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(value, logit), behind);
            let set = _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(value, logit), tied));
            let order = _mm256_loadu_si256(LANES_OF[set as usize].as_ptr().cast::<__m256i>());
            _mm256_storeu_si256(ids.add(kept).cast::<__m256i>(), _mm256_permutevar8x32_epi32(id, order));
            _mm256_storeu_ps(logits.add(kept), _mm256_permutevar8x32_ps(value, order));
            _mm256_storeu_ps(weights.add(kept), _mm256_permutevar8x32_ps(weight, order));
            kept += set.count_ones() as usize;
        }
    }
    kept
}
