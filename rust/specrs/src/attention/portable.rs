//! The path in plain Rust.

use super::GROUP;
use super::leaves::{Leaves, Run};
use crate::linear::kernel::Lanes;

pub static LEAVES: Leaves =
    Leaves { scores: scores::<1>, scores_of_two: scores::<2>, mix: mix::<1>, mix_of_two: mix::<2> };

/// See [`super::leaves::Scores`].
unsafe fn scores<const R: usize>(queries: [*const f32; R], keys: Run, out: [*mut f32; R]) {
    for slot in 0..keys.count {
        for (query, out) in queries.iter().zip(&out) {
            let mut lanes = Lanes::default();
            for first in (0..keys.size).step_by(GROUP) {
                for lane in 0..GROUP {
                    // SAFETY: both have `size` elements, and the run has `count` slots.
                    let (of_query, of_key) =
                        unsafe { (*query.add(first + lane), *keys.data.add(slot * keys.stride + first + lane)) };
                    lanes.0[lane] = of_query.mul_add(of_key, lanes.0[lane]);
                }
            }
            // SAFETY: `out` has `count` elements.
            unsafe { *out.add(slot) = lanes.sum() }
        }
    }
}

/// See [`super::leaves::Mix`].
unsafe fn mix<const R: usize>(weights: [*const f32; R], values: Run, sums: [*mut f32; R]) {
    for slot in 0..values.count {
        for (weight, sums) in weights.iter().zip(&sums) {
            for element in 0..values.size {
                // SAFETY: weights have `count` elements, sums and slots `size`.
                unsafe {
                    let sum = sums.add(element);
                    *sum = (*weight.add(slot)).mul_add(*values.data.add(slot * values.stride + element), *sum);
                }
            }
        }
    }
}
