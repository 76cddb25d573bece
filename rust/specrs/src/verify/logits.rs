//! Logit rows in float32, float16 and bfloat16, read where they lie.

use super::law::BLOCK;
use crate::{Error, Result};

/// A number format of logits: how its bits are read and compared.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The bits in memory.
    type Bits: Copy + Send + Sync;
    /// An integer that orders as the numbers do: NaN with the sign bit below −∞, other NaN above +∞.
    type Key: Copy + Ord;
    /// The bits of −∞.
    const MASKED: Self::Bits;
    /// The key of −∞.
    const LOWEST: Self::Key;
    /// The key of +∞.
    const HIGHEST: Self::Key;
    /// The value of `bits`, exactly.
    fn value(bits: Self::Bits) -> f32;
    /// The key of `bits`.
    fn key(bits: Self::Bits) -> Self::Key;
    /// The value of `key`.
    fn key_value(key: Self::Key) -> f32;
    /// Keys side by side in a vector register.
    type Lanes;
    /// `key` in every lane.
    fn lanes(key: Self::Key) -> Self::Lanes;
    /// The smallest lane.
    fn lowest(lanes: &Self::Lanes) -> Self::Key;
    /// The largest key of a block; `low` takes in the lane-wise smallest.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn extremes_wide(block: &[Self::Bits; BLOCK], low: &mut Self::Lanes) -> Self::Key;
    /// The values of eight bits.
    ///
    /// # Safety
    /// The processor must have AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load(bits: &[Self::Bits; 8]) -> std::arch::x86_64::__m256;

    /// The largest key of a block; `low` takes in the smallest.
    #[inline(always)]
    fn extremes(block: &[Self::Bits; BLOCK], low: &mut Self::Key) -> Self::Key {
        let mut high = Self::LOWEST;
        for &bits in block {
            let key = Self::key(bits);
            *low = key.min(*low);
            high = high.max(key);
        }
        high
    }
}

/// IEEE single precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F32;

/// IEEE half precision, as its 16 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16;

/// bfloat16, as its 16 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bf16;

#[inline(always)]
fn key16(bits: u16) -> i16 {
    let bits = bits as i16;
    bits ^ ((bits >> 15) & i16::MAX)
}

impl Element for F32 {
    type Bits = f32;
    type Key = i32;
    const MASKED: f32 = f32::NEG_INFINITY;
    const LOWEST: i32 = 0xFF80_0000_u32 as i32 ^ i32::MAX;
    const HIGHEST: i32 = 0x7F80_0000;
    #[inline(always)]
    fn value(bits: f32) -> f32 {
        bits
    }
    #[inline(always)]
    fn key(bits: f32) -> i32 {
        let bits = bits.to_bits() as i32;
        bits ^ ((bits >> 31) & i32::MAX)
    }
    #[inline(always)]
    fn key_value(key: i32) -> f32 {
        f32::from_bits((key ^ ((key >> 31) & i32::MAX)) as u32)
    }
    type Lanes = [i32; 8];
    #[inline(always)]
    fn lanes(key: i32) -> Self::Lanes {
        [key; 8]
    }
    #[inline(always)]
    fn lowest(lanes: &Self::Lanes) -> i32 {
        lanes.iter().copied().fold(Self::HIGHEST, Ord::min)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn extremes_wide(block: &[Self::Bits; BLOCK], low: &mut Self::Lanes) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { super::avx2::extremes_32(block, low) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(bits: &[Self::Bits; 8]) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise.
        unsafe { super::avx2::load_f32(bits) }
    }
}

impl Element for Bf16 {
    type Bits = u16;
    type Key = i16;
    const MASKED: u16 = 0xFF80;
    const LOWEST: i16 = 0xFF80_u16 as i16 ^ i16::MAX;
    const HIGHEST: i16 = 0x7F80;
    #[inline(always)]
    fn value(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
    #[inline(always)]
    fn key(bits: u16) -> i16 {
        key16(bits)
    }
    #[inline(always)]
    fn key_value(key: i16) -> f32 {
        Self::value(key16(key as u16) as u16)
    }
    type Lanes = [i16; 16];
    #[inline(always)]
    fn lanes(key: i16) -> Self::Lanes {
        [key; 16]
    }
    #[inline(always)]
    fn lowest(lanes: &Self::Lanes) -> i16 {
        lanes.iter().copied().fold(Self::HIGHEST, Ord::min)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn extremes_wide(block: &[Self::Bits; BLOCK], low: &mut Self::Lanes) -> i16 {
        // SAFETY: the caller's promise.
        unsafe { super::avx2::extremes_16(block, low) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(bits: &[Self::Bits; 8]) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise.
        unsafe { super::avx2::load_bf16(bits) }
    }
}

impl Element for F16 {
    type Bits = u16;
    type Key = i16;
    const MASKED: u16 = 0xFC00;
    const LOWEST: i16 = 0xFC00_u16 as i16 ^ i16::MAX;
    const HIGHEST: i16 = 0x7C00;
    #[inline(always)]
    fn value(bits: u16) -> f32 {
        // Exponent and mantissa move to their float32 places; the product moves the bias from 15 to 127, subnormals
        // included. Infinity and NaN need the float32 exponent of all ones.
        let magnitude = u32::from(bits & 0x7FFF) << 13;
        let special = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
        let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        f32::from_bits(scaled.to_bits() | special | (u32::from(bits & 0x8000) << 16))
    }
    #[inline(always)]
    fn key(bits: u16) -> i16 {
        key16(bits)
    }
    #[inline(always)]
    fn key_value(key: i16) -> f32 {
        Self::value(key16(key as u16) as u16)
    }
    type Lanes = [i16; 16];
    #[inline(always)]
    fn lanes(key: i16) -> Self::Lanes {
        [key; 16]
    }
    #[inline(always)]
    fn lowest(lanes: &Self::Lanes) -> i16 {
        lanes.iter().copied().fold(Self::HIGHEST, Ord::min)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn extremes_wide(block: &[Self::Bits; BLOCK], low: &mut Self::Lanes) -> i16 {
        // SAFETY: the caller's promise.
        unsafe { super::avx2::extremes_16(block, low) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(bits: &[Self::Bits; 8]) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise.
        unsafe { super::avx2::load_f16(bits) }
    }
}

/// Logit rows of one format, each a slice of the same length (the vocabulary); rows may lie anywhere in memory.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// float32 rows.
    F32(&'a [&'a [f32]]),
    /// float16 rows, as bits.
    F16(&'a [&'a [u16]]),
    /// bfloat16 rows, as bits.
    Bf16(&'a [&'a [u16]]),
}

impl Logits<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::F32(rows) => rows.len(),
            Self::F16(rows) | Self::Bf16(rows) => rows.len(),
        }
    }

    /// Length of every row; 0 without rows.
    ///
    /// # Errors
    /// Rows of different lengths, empty rows, or more tokens than ids can count.
    pub fn vocabulary(&self) -> Result<usize> {
        fn common<T>(rows: &[&[T]]) -> Result<usize> {
            let Some(first) = rows.first() else { return Ok(0) };
            if first.is_empty() || first.len() >= u32::MAX as usize {
                return Err(Error::invalid(format!(
                    "a logit row must have 1 to {} entries, got {}",
                    u32::MAX - 1,
                    first.len()
                )));
            }
            match rows.iter().find(|row| row.len() != first.len()) {
                None => Ok(first.len()),
                Some(odd) => Err(Error::invalid(format!(
                    "logit rows must have one length, got {} and {}",
                    first.len(),
                    odd.len()
                ))),
            }
        }
        match self {
            Self::F32(rows) => common(rows),
            Self::F16(rows) | Self::Bf16(rows) => common(rows),
        }
    }
}

/// Runs generic code on the rows of a [`Logits`], with its element type bound to a name.
macro_rules! with_rows {
    ($logits:expr, |$rows:ident: $element:ident| $body:expr) => {
        match $logits {
            $crate::verify::Logits::F32($rows) => {
                type $element = $crate::verify::logits::F32;
                $body
            }
            $crate::verify::Logits::F16($rows) => {
                type $element = $crate::verify::logits::F16;
                $body
            }
            $crate::verify::Logits::Bf16($rows) => {
                type $element = $crate::verify::logits::Bf16;
                $body
            }
        }
    };
}
pub(crate) use with_rows;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sign, exponent and mantissa put together in float64, a second way to the same value.
    fn half_by_parts(bits: u16) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let mantissa = f64::from(bits & 0x3FF) / 1024.0;
        match (bits >> 10) & 31 {
            0 => sign * mantissa * 2f64.powi(-14),
            31 if mantissa == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            exponent => sign * (1.0 + mantissa) * 2f64.powi(i32::from(exponent) - 15),
        }
    }

    #[test]
    fn every_half_reads_exactly() {
        for bits in 0..=u16::MAX {
            let (read, exact) = (f64::from(F16::value(bits)), half_by_parts(bits));
            assert!(read == exact || (read.is_nan() && exact.is_nan()), "{bits:#06x}: {read} != {exact}");
        }
    }

    fn order_is_that_of_the_values<E: Element<Bits = u16>>()
    where
        E::Key: std::fmt::Debug,
    {
        let mut all: Vec<u16> = (0..=u16::MAX).filter(|&bits| !E::value(bits).is_nan()).collect();
        all.sort_by_key(|&bits| E::key(bits));
        assert!(all.windows(2).all(|w| E::value(w[0]) <= E::value(w[1])));
        assert_eq!(E::value(all[0]), f32::NEG_INFINITY);
        assert_eq!(E::key(all[0]), E::LOWEST);
        assert_eq!(E::key(all[all.len() - 1]), E::HIGHEST);
        for bits in 0..=u16::MAX {
            let value = E::value(bits);
            if value.is_nan() {
                assert!(E::key(bits) < E::LOWEST || E::key(bits) > E::HIGHEST);
            } else {
                assert_eq!(E::key_value(E::key(bits)).to_bits(), value.to_bits());
            }
        }
    }

    #[test]
    fn keys_order_as_values() {
        order_is_that_of_the_values::<F16>();
        order_is_that_of_the_values::<Bf16>();
        let values = [f32::NEG_INFINITY, -1.5, -1e-40, -0.0, 0.0, 1e-40, 2.0, f32::INFINITY];
        assert!(values.windows(2).all(|w| F32::key(w[0]) < F32::key(w[1])));
        assert!(values.iter().all(|&v| F32::key_value(F32::key(v)).to_bits() == v.to_bits()));
        assert_eq!((F32::key(f32::NEG_INFINITY), F32::key(f32::INFINITY)), (F32::LOWEST, F32::HIGHEST));
        assert!(F32::key(-f32::NAN) < F32::LOWEST && F32::key(f32::NAN) > F32::HIGHEST);
    }
}
