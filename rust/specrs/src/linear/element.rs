//! The element types and their exact conversions.

use super::kernel::{Kernel, Path};

/// A bfloat16 number by its bits, as tensors store it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Bf16 {}
    impl Sealed for f32 {}
}

/// A type of weights and activations: [`Bf16`] or `f32`.
pub trait Element: Copy + Default + Send + Sync + sealed::Sealed + 'static {
    /// Where in a group of 16 the two halves' lane `lane` lies.
    #[doc(hidden)]
    fn places(lane: usize) -> [usize; 2];
    /// The number itself.
    fn widen(self) -> f32;
    /// The nearest element, ties to even; NaN stays NaN.
    fn narrow(value: f32) -> Self;
    #[doc(hidden)]
    fn kernel(path: Path) -> &'static Kernel<Self>;
}

impl Element for Bf16 {
    fn places(lane: usize) -> [usize; 2] {
        [2 * lane, 2 * lane + 1]
    }

    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            return Self((bits >> 16) as u16 | 0x40);
        }
        Self((bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }

    fn kernel(path: Path) -> &'static Kernel<Self> {
        match path {
            Path::Portable => &super::portable::BF16,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => &super::avx2::BF16,
        }
    }
}

impl Element for f32 {
    fn places(lane: usize) -> [usize; 2] {
        [lane, 8 + lane]
    }

    fn widen(self) -> f32 {
        self
    }

    fn narrow(value: f32) -> Self {
        value
    }

    fn kernel(path: Path) -> &'static Kernel<Self> {
        match path {
            Path::Portable => &super::portable::F32,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => &super::avx2::F32,
        }
    }
}
