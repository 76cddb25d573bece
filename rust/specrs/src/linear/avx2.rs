//! The path for x86-64 with AVX2 and FMA.
//!
//! Two bfloat16 weights lie in each 32-bit word. Shifted left they give the even one as `f32`, masked the odd one, so a
//! group needs no shuffle once the rows of `x` are packed by even and odd places.

#![allow(clippy::cast_ptr_alignment, reason = "the loads are the unaligned ones")]

use std::arch::asm;
use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T1, _mm_prefetch, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_permute2f128_ps, _mm256_set1_epi32, _mm256_setzero_ps,
    _mm256_slli_epi32, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::element::{Bf16, Element};
use super::kernel::{GROUP, Kernel, Lanes, TileCall, tile_table};
use super::portable;

/// The two halves of the group of weights at `$p`.
macro_rules! half {
    (bf16 even $p:expr) => {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256($p.cast::<__m256i>())))
    };
    (bf16 odd $p:expr) => {
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256($p.cast::<__m256i>()), _mm256_set1_epi32(-65536)))
    };
    (f32 even $p:expr) => {
        _mm256_loadu_ps($p)
    };
    (f32 odd $p:expr) => {
        _mm256_loadu_ps($p.add(8))
    };
}

/// The same pointer, which the compiler takes for another: it would rather keep what it loaded, for which there is no
/// register, than load it again.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block, reason = "no pointer is followed, and `readonly` brings the spills back")]
fn reloaded<E>(mut pointer: *const E) -> *const E {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {0} */", inout(reg) pointer, options(pure, nomem, nostack, preserves_flags)) }
    pointer
}

/// Half a group: the smaller side of the block in registers, the larger one passing by.
macro_rules! step {
    ($name:ident $half:ident $weight:ident, $stride:ident, $x:ident, $sum:ident) => {
        if B > C {
            let mut value = [_mm256_setzero_ps(); C];
            for row in 0..C {
                value[row] = _mm256_loadu_ps($x.add(row * GROUP));
            }
            for block in 0..B {
                let wide = half!($name $half $weight.add(block * $stride));
                for row in 0..C {
                    $sum[block][row] = _mm256_fmadd_ps(wide, value[row], $sum[block][row]);
                }
            }
        } else {
            let mut wide = [_mm256_setzero_ps(); B];
            for block in 0..B {
                wide[block] = half!($name $half $weight.add(block * $stride));
            }
            for row in 0..C {
                let value = _mm256_loadu_ps($x.add(row * GROUP));
                for block in 0..B {
                    $sum[block][row] = _mm256_fmadd_ps(wide[block], value, $sum[block][row]);
                }
            }
        }
    };
}

macro_rules! tile {
    ($name:ident, $element:ty) => {
        /// See [`super::kernel::Tile`].
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $name<const B: usize, const C: usize>(call: &TileCall<$element>) {
            let TileCall { mut weight, stride, mut x, groups, sums, first, ahead } = *call;
            let mut sum = [[_mm256_setzero_ps(); C]; B];
            // SAFETY: every access is within the sizes that the caller vouches for; prefetches cannot fault.
            unsafe {
                if !first {
                    for (block, sum) in sum.iter_mut().enumerate() {
                        for (row, sum) in sum.iter_mut().enumerate() {
                            *sum = _mm256_loadu_ps(sums.add(block * C + row).cast());
                        }
                    }
                }
                for _ in 0..groups {
                    for block in 0..B {
                        _mm_prefetch::<_MM_HINT_T1>(weight.add(block * stride).cast::<i8>().wrapping_add(ahead));
                    }
                    step!($name even weight, stride, x, sum);
                    weight = reloaded(weight);
                    x = x.add(8);
                    step!($name odd weight, stride, x, sum);
                    weight = weight.add(GROUP);
                    x = x.add(C * GROUP - 8);
                }
                for (block, sum) in sum.iter().enumerate() {
                    for (row, sum) in sum.iter().enumerate() {
                        _mm256_storeu_ps(sums.add(block * C + row).cast(), *sum);
                    }
                }
            }
        }
    };
}
tile!(bf16, Bf16);
tile!(f32, f32);

/// [`Lanes::sum`] of eight partial sums at once, with the same additions.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn sum_of_eight(sums: [__m256; 8]) -> __m256 {
    // s[i] = lane[i] + lane[i + 4], of sums `a` in the low and of `a + 4` in the high half.
    let folded = [0, 1, 2, 3].map(|a| {
        let (low, high) = (sums[a], sums[a + 4]);
        _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
    });
    // s[0] + s[2] and s[1] + s[3] of sums 0, 2 (even) and 1, 3 (odd), interleaved.
    let pair = |a: __m256, b: __m256| _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let even = pair(folded[0], folded[2]);
    let odd = pair(folded[1], folded[3]);
    _mm256_add_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd))
}

macro_rules! finish {
    ($name:ident, $element:ty) => {
        /// See [`super::kernel::Finish`].
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $name(sums: *const Lanes, step: usize, count: usize, bias: *const $element, out: *mut $element) {
            let whole = count / 8 * 8;
            // SAFETY: within the sizes that the caller vouches for.
            unsafe {
                for index in (0..whole).step_by(8) {
                    let mut values = [0.0_f32; 8];
                    let eight = sums.add(index * step);
                    let eight = std::array::from_fn(|at| _mm256_loadu_ps(eight.add(at * step).cast()));
                    _mm256_storeu_ps(values.as_mut_ptr(), sum_of_eight(eight));
                    if !bias.is_null() {
                        for lane in 0..8 {
                            values[lane] += (*bias.add(index + lane)).widen();
                        }
                    }
                    for lane in 0..8 {
                        *out.add(index + lane) = <$element>::narrow(values[lane]);
                    }
                }
                let bias = if bias.is_null() { bias } else { bias.add(whole) };
                portable::finish(sums.add(whole * step), step, count - whole, bias, out.add(whole));
            }
        }
    };
}
finish!(finish_bf16, Bf16);
finish!(finish_f32, f32);

macro_rules! pack {
    ($name:ident, $element:ty) => {
        /// See [`super::kernel::Pack`].
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $name(x: *const $element, rows: usize, inputs: usize, packed: *mut f32) {
            // SAFETY: the same contract; this compiles the same loop with wider vectors.
            unsafe { portable::pack::<$element>(x, rows, inputs, packed) }
        }
    };
}
pack!(pack_bf16, Bf16);
pack!(pack_f32, f32);

const BLOCKS: [usize; 6] = [4, 4, 3, 3, 2, 2];

pub static BF16: Kernel<Bf16> =
    Kernel { tile: tile_table!(bf16), block_rows: BLOCKS, tile_rows: 6, pack: pack_bf16, finish: finish_bf16 };

pub static F32: Kernel<f32> =
    Kernel { tile: tile_table!(f32), block_rows: BLOCKS, tile_rows: 6, pack: pack_f32, finish: finish_f32 };
