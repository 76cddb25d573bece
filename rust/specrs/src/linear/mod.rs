//! Small-batch linear layers on the CPU: `out[m, n] = x[m, :] · weight[n, :] + bias[n]`, each row's bits its own.
//!
//! Speculative decoding pays because scoring a few rows costs about as much as scoring one: the weights are read once.
//! This module keeps that promise for a few dozen rows where a general matrix product does not, and it reads the weights
//! where they lie, in row-major order, without a repacked copy. More rows are taken in slices.
//!
//! # The order of accumulation
//!
//! Every path (portable, AVX2, AVX-512) computes the same bits, and the bits of an output depend on its row of `x` and
//! its row of `weight` alone: not on the number of rows, their neighbours, or the number of workers.
//!
//! 1. Row and weights are read in groups of 16 inputs, the last one padded with zeros.
//! 2. Eight `f32` lanes start at zero. Each group gives a lane two fused multiply-adds, in this order: elements
//!    `2·lane` and `2·lane + 1` of the group for [`Bf16`]; elements `lane` and `8 + lane` for `f32`.
//! 3. With `s[i] = lane[i] + lane[i + 4]`, the sum is `(s[0] + s[2]) + (s[1] + s[3])`.
//! 4. The bias is added in `f32`, and the result is rounded once to the element type (to nearest, ties to even).
//!
//! # Examples
//!
//! ```
//! use specrs::linear::{Shape, Workers, linear};
//!
//! let weight = [1.0, 0.0, 0.0, 0.0, 2.0, 0.0_f32]; // 2 outputs, 3 inputs
//! let mut out = [0.0; 2];
//! let shape = Shape { rows: 1, inputs: 3, outputs: 2 };
//! linear(&[5.0, 6.0, 7.0], &weight, Some(&[0.5, 0.0]), &mut out, shape, Workers::Serial)?;
//! assert_eq!(out, [5.5, 12.0]);
//! # Ok::<(), specrs::Error>(())
//! ```

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
mod driver;
mod element;
pub(crate) mod kernel;
mod portable;

pub use crate::workers::{OpenMpParallel, Workers};
pub use element::{Bf16, Element};
pub use kernel::Path;

use crate::{Error, Result};

/// Rows that share one reading of the weights: beyond these, arithmetic takes longer than memory.
const SLICE_ROWS: usize = 64;

/// The sizes of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of `x` and of the output.
    pub rows: usize,
    /// Columns of `x` and of the weight.
    pub inputs: usize,
    /// Rows of the weight, columns of the output.
    pub outputs: usize,
}

/// `out = x · weightᵀ + bias` by the fastest path of this processor.
///
/// # Shapes
///
/// `x` (rows, inputs), `weight` (outputs, inputs), `bias` (outputs), `out` (rows, outputs), all row-major and dense.
///
/// # Errors
///
/// [`crate::ErrorKind::InvalidInput`] when a slice does not have its shape's length.
pub fn linear<E: Element>(
    x: &[E],
    weight: &[E],
    bias: Option<&[E]>,
    out: &mut [E],
    shape: Shape,
    workers: Workers,
) -> Result<()> {
    linear_by(Path::best(), x, weight, bias, out, shape, workers)
}

/// [`linear`] by a named path. All paths give the same bits; this is for tests and comparisons.
///
/// # Errors
///
/// As [`linear`], and when this processor cannot run the path.
pub fn linear_by<E: Element>(
    path: Path,
    x: &[E],
    weight: &[E],
    bias: Option<&[E]>,
    out: &mut [E],
    shape: Shape,
    workers: Workers,
) -> Result<()> {
    let Shape { rows, inputs, outputs } = shape;
    if !path.is_available() {
        return Err(Error::invalid(format!("this processor cannot run the path {path:?}")));
    }
    let bias_length = bias.map_or(outputs, <[E]>::len);
    for (name, found, expected) in [
        ("x", x.len(), rows.checked_mul(inputs)),
        ("weight", weight.len(), outputs.checked_mul(inputs)),
        ("bias", bias_length, Some(outputs)),
        ("out", out.len(), rows.checked_mul(outputs)),
    ] {
        if Some(found) != expected {
            return Err(Error::invalid(format!("{name} has {found} elements, {shape:?} wants {expected:?}")));
        }
    }
    if rows == 0 || outputs == 0 {
        return Ok(());
    }
    for start in (0..rows).step_by(SLICE_ROWS) {
        let end = rows.min(start + SLICE_ROWS);
        let (x, out) = (&x[start * inputs..end * inputs], &mut out[start * outputs..end * outputs]);
        driver::run(E::kernel(path), x, weight, bias, out, Shape { rows: end - start, ..shape }, workers);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uniforms::{Key, Purpose, uniform};

    fn numbers<E: Element>(count: usize, seed: u64) -> Vec<E> {
        (0..count as u32)
            .map(|position| Key { seed, request: 0, position, purpose: Purpose::Policy, index: 0 })
            .map(|key| E::narrow(uniform(key) as f32 * 2.0 - 1.0))
            .collect()
    }

    fn product<E: Element>(path: Path, shape: Shape, workers: Workers) -> Vec<E> {
        let Shape { rows, inputs, outputs } = shape;
        let (x, weight, bias) = (numbers(rows * inputs, 1), numbers(outputs * inputs, 2), numbers(outputs, 3));
        let mut out = vec![E::default(); rows * outputs];
        linear_by(path, &x, &weight, Some(&bias), &mut out, shape, workers).expect("shapes fit");
        out
    }

    fn bits<E: Element>(values: &[E]) -> Vec<u32> {
        values.iter().map(|value| value.widen().to_bits()).collect()
    }

    fn paths_and_rows_agree<E: Element>() {
        for (inputs, outputs) in [(1, 1), (15, 5), (16, 9), (100, 61), (1200, 13), (0, 3)] {
            let alone = bits(&product::<E>(Path::Portable, Shape { rows: 1, inputs, outputs }, Workers::Serial));
            for rows in [1, 2, 3, 4, 5, 6, 7, 11, 17, SLICE_ROWS, SLICE_ROWS + 1, 2 * SLICE_ROWS + 7] {
                let shape = Shape { rows, inputs, outputs };
                let portable = bits(&product::<E>(Path::Portable, shape, Workers::Serial));
                assert_eq!(portable[..outputs], alone, "{shape:?}");
                assert_eq!(bits(&product::<E>(Path::best(), shape, Workers::Threads(3))), portable, "{shape:?}");
            }
        }
    }

    #[test]
    fn paths_and_rows_agree_in_bfloat16() {
        paths_and_rows_agree::<Bf16>();
    }

    #[test]
    fn paths_and_rows_agree_in_float32() {
        paths_and_rows_agree::<f32>();
    }

    #[test]
    fn threads_share_a_large_weight() {
        let shape = Shape { rows: 3, inputs: 256, outputs: 500 };
        let serial = bits(&product::<f32>(Path::best(), shape, Workers::Serial));
        assert_eq!(bits(&product::<f32>(Path::best(), shape, Workers::Threads(3))), serial);
    }

    #[test]
    fn narrowing_is_to_nearest_even() {
        for (value, expected) in [
            (1.0 + 1.0 / 256.0, 0x3f80),
            (1.0 + 3.0 / 256.0, 0x3f82),
            (f32::MAX, 0x7f80),
            (-0.0, 0x8000),
            (f32::NEG_INFINITY, 0xff80),
        ] {
            assert_eq!(Bf16::narrow(value), Bf16(expected), "{value}");
        }
        assert!(Bf16::narrow(f32::from_bits(0x7f80_0001)).widen().is_nan());
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let shape = Shape { rows: 1, inputs: 2, outputs: 3 };
        let call = |x: &[f32], weight: &[f32], out: &mut [f32], shape| {
            linear(x, weight, None, out, shape, Workers::Serial).map_err(|error| error.to_string())
        };
        assert!(call(&[0.0; 2], &[0.0; 6], &mut [0.0; 3], shape).is_ok());
        assert!(call(&[0.0; 1], &[0.0; 6], &mut [0.0; 3], shape).is_err_and(|text| text.starts_with("x has 1")));
        assert!(call(&[0.0; 2], &[0.0; 5], &mut [0.0; 3], shape).is_err_and(|text| text.starts_with("weight has 5")));
        assert!(call(&[0.0; 2], &[0.0; 6], &mut [0.0; 4], shape).is_err_and(|text| text.starts_with("out has 4")));
        let wide = Shape { rows: usize::MAX, ..shape };
        assert!(call(&[], &[0.0; 6], &mut [], wide).is_err_and(|text| text.starts_with("x has 0")));
    }
}
