//! The number formats of logits: how their bits are read and compared.

use std::marker::PhantomData;

use super::blocks::BLOCK;

/// A number format of logits.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The bits in memory.
    type Bits: Copy + Send + Sync;
    /// An integer that orders as the numbers do: NaN with the sign bit below −∞, other NaN above +∞.
    type Key: Copy + Ord;
    /// Keys side by side in a vector register.
    type Lanes;
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
    /// The smallest key whose value is at least `value`, which is not NaN.
    fn least_key(value: f32) -> Self::Key;
    /// `key` in every lane.
    fn lanes(key: Self::Key) -> Self::Lanes;
    /// The smallest lane.
    fn lowest(lanes: &Self::Lanes) -> Self::Key;
    /// The largest key of a block; `low` takes in the lane-wise smallest.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    unsafe fn extremes_wide(block: &[Self::Bits; BLOCK], low: &mut Self::Lanes) -> Self::Key;
    /// The keys of a block that are at least `least`, which is no NaN's: a bit each, the first lowest.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    unsafe fn reaching_wide(block: &[Self::Bits; BLOCK], least: Self::Key) -> [u64; BLOCK / 64];
    /// The values of eight bits.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load(bits: &[Self::Bits; 8]) -> std::arch::x86_64::__m256;
    /// The values of sixteen bits, in the order 0–3, 8–11 and 4–7, 12–15: what 16-bit formats unpack to.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_halves(bits: &[Self::Bits; 16]) -> [std::arch::x86_64::__m256; 2];

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

impl Element for F32 {
    type Bits = f32;
    type Key = i32;
    type Lanes = [i32; 8];
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
    fn least_key(value: f32) -> i32 {
        // Both zeros are equal, and −0 has the smaller key.
        Self::key(if value == 0.0 { -0.0 } else { value })
    }
    #[inline(always)]
    fn lanes(key: i32) -> Self::Lanes {
        [key; 8]
    }
    #[inline(always)]
    fn lowest(lanes: &Self::Lanes) -> i32 {
        lanes.iter().copied().fold(i32::MAX, Ord::min)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn extremes_wide(block: &[f32; BLOCK], low: &mut Self::Lanes) -> i32 {
        super::avx2::extremes_32(block, low)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn reaching_wide(block: &[f32; BLOCK], least: i32) -> [u64; BLOCK / 64] {
        super::avx2::reaching_32(block, least)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn load(bits: &[f32; 8]) -> std::arch::x86_64::__m256 {
        super::avx2::load_f32(bits)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn load_halves(bits: &[f32; 16]) -> [std::arch::x86_64::__m256; 2] {
        super::avx2::halves_f32(bits)
    }
}

/// What tells the two 16-bit formats apart.
pub(crate) trait HalfFormat: Copy + Send + Sync + 'static {
    /// The bits of +∞.
    const INFINITY: u16;
    /// The value of `bits`, exactly.
    fn value(bits: u16) -> f32;
    /// The values of eight numbers whose bits are the upper halves of the lanes; the lower halves are 0.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    unsafe fn values(upper: std::arch::x86_64::__m256i) -> std::arch::x86_64::__m256;
}

/// A 16-bit floating-point format, as its bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half<F>(PhantomData<F>);

/// What makes a [`Half`] IEEE half precision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ieee;

/// What makes a [`Half`] bfloat16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brain;

/// IEEE half precision.
pub(crate) type F16 = Half<Ieee>;

/// bfloat16.
pub(crate) type Bf16 = Half<Brain>;

impl HalfFormat for Brain {
    const INFINITY: u16 = 0x7F80;
    #[inline(always)]
    fn value(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn values(upper: std::arch::x86_64::__m256i) -> std::arch::x86_64::__m256 {
        std::arch::x86_64::_mm256_castsi256_ps(upper)
    }
}

impl HalfFormat for Ieee {
    const INFINITY: u16 = 0x7C00;
    #[inline(always)]
    fn value(bits: u16) -> f32 {
        // Exponent and mantissa move to their float32 places; the product moves the bias from 15 to 127, subnormals
        // included. Infinity and NaN need the float32 exponent of all ones.
        let magnitude = u32::from(bits & 0x7FFF) << 13;
        let special = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
        let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        f32::from_bits(scaled.to_bits() | special | (u32::from(bits & 0x8000) << 16))
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn values(upper: std::arch::x86_64::__m256i) -> std::arch::x86_64::__m256 {
        super::avx2::half_values(upper)
    }
}

#[inline(always)]
fn key16(bits: u16) -> i16 {
    let bits = bits as i16;
    bits ^ ((bits >> 15) & i16::MAX)
}

impl<F: HalfFormat> Element for Half<F> {
    type Bits = u16;
    type Key = i16;
    type Lanes = [i16; 16];
    const MASKED: u16 = 0x8000 | F::INFINITY;
    const LOWEST: i16 = Self::MASKED as i16 ^ i16::MAX;
    const HIGHEST: i16 = F::INFINITY as i16;
    #[inline(always)]
    fn value(bits: u16) -> f32 {
        F::value(bits)
    }
    #[inline(always)]
    fn key(bits: u16) -> i16 {
        key16(bits)
    }
    #[inline(always)]
    fn key_value(key: i16) -> f32 {
        F::value(key16(key as u16) as u16)
    }
    fn least_key(value: f32) -> i16 {
        let (mut below, mut least) = (i32::from(Self::LOWEST) - 1, i32::from(Self::HIGHEST));
        while least - below > 1 {
            let middle = i32::midpoint(below, least);
            if Self::key_value(middle as i16) >= value {
                least = middle;
            } else {
                below = middle;
            }
        }
        least as i16
    }
    #[inline(always)]
    fn lanes(key: i16) -> Self::Lanes {
        [key; 16]
    }
    #[inline(always)]
    fn lowest(lanes: &Self::Lanes) -> i16 {
        lanes.iter().copied().fold(i16::MAX, Ord::min)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn extremes_wide(block: &[u16; BLOCK], low: &mut Self::Lanes) -> i16 {
        super::avx2::extremes_16(block, low)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn reaching_wide(block: &[u16; BLOCK], least: i16) -> [u64; BLOCK / 64] {
        super::avx2::reaching_16(block, least)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn load(bits: &[u16; 8]) -> std::arch::x86_64::__m256 {
        // SAFETY: this function has both features.
        unsafe { F::values(super::avx2::upper_halves(bits)) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn load_halves(bits: &[u16; 16]) -> [std::arch::x86_64::__m256; 2] {
        let [low, high] = super::avx2::unpacked(bits);
        // SAFETY: this function has both features.
        unsafe { [F::values(low), F::values(high)] }
    }
}

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
        for value in [f32::NEG_INFINITY, -1e9, -1.0, -1e-42, -0.0, 0.0, 1e-42, 0.3, 1.0, 1.0001, 1e9, f32::INFINITY] {
            let first = all.iter().find(|&&bits| E::value(bits) >= value).map(|&bits| E::key(bits));
            assert_eq!(Some(E::least_key(value)), first, "the least key of {value}");
        }
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
        assert_eq!([-0.0, 0.0, 2.0].map(F32::least_key), [-0.0, -0.0, 2.0].map(F32::key));
        assert!(F32::key(-f32::NAN) < F32::LOWEST && F32::key(f32::NAN) > F32::HIGHEST);
    }
}
