//! The path for x86-64 with AVX2 and FMA: eight sums in registers, of one row and eight slots or of two rows and four.

use std::arch::x86_64::{
    __m256, _mm_storeu_ps, _mm256_broadcast_ss, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::GROUP;
use super::leaves::{Leaves, Run};
use crate::linear::avx2::sum_of_eight;
use crate::linear::kernel::Lanes;

pub static LEAVES: Leaves = Leaves { scores, scores_of_two, mix, mix_of_two };

/// Products of `R` queries and `K` keys, summed by lane.
///
/// # Safety
///
/// Queries and keys, `stride` apart, are valid for `size` elements.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn products<const R: usize, const K: usize>(
    queries: [*const f32; R],
    keys: *const f32,
    stride: usize,
    size: usize,
) -> [[__m256; K]; R] {
    let mut sums = [[_mm256_setzero_ps(); K]; R];
    for first in (0..size).step_by(GROUP) {
        // SAFETY: `first + 8 <= size`.
        unsafe {
            let queries = queries.map(|query| _mm256_loadu_ps(query.add(first)));
            for key in 0..K {
                let of_key = _mm256_loadu_ps(keys.add(key * stride + first));
                for (query, sums) in queries.iter().zip(&mut sums) {
                    sums[key] = _mm256_fmadd_ps(*query, of_key, sums[key]);
                }
            }
        }
    }
    sums
}

/// See [`super::leaves::Scores`].
#[target_feature(enable = "avx2,fma")]
unsafe fn scores(query: [*const f32; 1], keys: Run, out: [*mut f32; 1]) {
    let whole = keys.count / 8 * 8;
    // SAFETY: slots below `count`.
    unsafe {
        for slot in (0..whole).step_by(8) {
            let [sums] = products::<1, 8>(query, keys.data.add(slot * keys.stride), keys.stride, keys.size);
            _mm256_storeu_ps(out[0].add(slot), sum_of_eight(sums));
        }
        rest(query, keys, whole, out);
    }
}

/// See [`super::leaves::Scores`].
#[target_feature(enable = "avx2,fma")]
unsafe fn scores_of_two(queries: [*const f32; 2], keys: Run, out: [*mut f32; 2]) {
    let whole = keys.count / 4 * 4;
    // SAFETY: slots below `count`.
    unsafe {
        for slot in (0..whole).step_by(4) {
            let [a, b] = products::<2, 4>(queries, keys.data.add(slot * keys.stride), keys.stride, keys.size);
            let eight = sum_of_eight([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]);
            _mm_storeu_ps(out[0].add(slot), _mm256_castps256_ps128(eight));
            _mm_storeu_ps(out[1].add(slot), _mm256_extractf128_ps::<1>(eight));
        }
        rest(queries, keys, whole, out);
    }
}

/// Scores of the slots from `first` on, one by one.
///
/// # Safety
///
/// As [`super::leaves::Scores`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn rest<const R: usize>(queries: [*const f32; R], keys: Run, first: usize, out: [*mut f32; R]) {
    for slot in first..keys.count {
        // SAFETY: slots below `count`.
        unsafe {
            let sums = products::<R, 1>(queries, keys.data.add(slot * keys.stride), keys.stride, keys.size);
            for ([sum], out) in sums.iter().zip(&out) {
                let mut lanes = Lanes::default();
                _mm256_storeu_ps(lanes.0.as_mut_ptr(), *sum);
                *out.add(slot) = lanes.sum();
            }
        }
    }
}

/// Elements `first .. first + 8 * V` of the sums.
///
/// # Safety
///
/// As [`super::leaves::Mix`], and the elements exist.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn columns<const R: usize, const V: usize>(
    weights: [*const f32; R],
    values: Run,
    first: usize,
    sums: [*mut f32; R],
) {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        let mut held =
            sums.map(|sums| std::array::from_fn::<_, V, _>(|v| _mm256_loadu_ps(sums.add(first + v * GROUP))));
        let mut value = values.data.add(first);
        for slot in 0..values.count {
            let weights = weights.map(|weights| _mm256_broadcast_ss(&*weights.add(slot)));
            for v in 0..V {
                let of_slot = _mm256_loadu_ps(value.add(v * GROUP));
                for (weight, held) in weights.iter().zip(&mut held) {
                    held[v] = _mm256_fmadd_ps(*weight, of_slot, held[v]);
                }
            }
            value = value.wrapping_add(values.stride);
        }
        for (held, sums) in held.iter().zip(&sums) {
            for (v, held) in held.iter().enumerate() {
                _mm256_storeu_ps(sums.add(first + v * GROUP), *held);
            }
        }
    }
}

/// See [`super::leaves::Mix`].
#[target_feature(enable = "avx2,fma")]
unsafe fn mix(weights: [*const f32; 1], values: Run, sums: [*mut f32; 1]) {
    let whole = values.size / 64 * 64;
    // SAFETY: elements below `size`.
    unsafe {
        for first in (0..whole).step_by(64) {
            columns::<1, 8>(weights, values, first, sums);
        }
        for first in (whole..values.size).step_by(GROUP) {
            columns::<1, 1>(weights, values, first, sums);
        }
    }
}

/// See [`super::leaves::Mix`].
#[target_feature(enable = "avx2,fma")]
unsafe fn mix_of_two(weights: [*const f32; 2], values: Run, sums: [*mut f32; 2]) {
    let whole = values.size / 32 * 32;
    // SAFETY: elements below `size`.
    unsafe {
        for first in (0..whole).step_by(32) {
            columns::<2, 4>(weights, values, first, sums);
        }
        for first in (whole..values.size).step_by(GROUP) {
            columns::<2, 1>(weights, values, first, sums);
        }
    }
}
