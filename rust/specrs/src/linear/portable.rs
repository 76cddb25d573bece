//! The path in plain Rust: the definition of the order of accumulation that the others are tested against.

use super::element::{Bf16, Element};
use super::kernel::{GROUP, Kernel, Lanes, TILE_ROWS, TileCall, tile_table};

/// See [`super::kernel::Tile`].
unsafe fn tile<E: Element, const B: usize, const C: usize>(call: &TileCall<E>) {
    for block in 0..B {
        for row in 0..C {
            // SAFETY: the caller's sums are valid for B × C.
            let sums = unsafe { &mut *call.sums.add(block * C + row) };
            let mut lanes = if call.first { [0.0_f32; 8] } else { sums.0 };
            for group in 0..call.groups {
                // SAFETY: the caller's pointers are valid for B weight rows and C tile rows of `groups` groups.
                let (weight, x) = unsafe {
                    (
                        &*call.weight.add(block * call.stride + group * GROUP).cast::<[E; GROUP]>(),
                        &*call.x.add((group * C + row) * GROUP).cast::<[f32; GROUP]>(),
                    )
                };
                for half in 0..2 {
                    for lane in 0..8 {
                        let value = weight[E::places(lane)[half]].widen();
                        lanes[lane] = value.mul_add(x[8 * half + lane], lanes[lane]);
                    }
                }
            }
            sums.0 = lanes;
        }
    }
}

/// See [`super::kernel::Pack`].
pub unsafe fn pack<E: Element>(x: *const E, rows: usize, inputs: usize, packed: *mut f32) {
    let groups = inputs.div_ceil(GROUP);
    for row in 0..rows {
        for group in 0..groups {
            for half in 0..2 {
                for lane in 0..8 {
                    let column = group * GROUP + E::places(lane)[half];
                    // SAFETY: `column` is checked, and the destination is within rows × groups × 16.
                    unsafe {
                        let value = if column < inputs { (*x.add(row * inputs + column)).widen() } else { 0.0 };
                        *packed.add((group * rows + row) * GROUP + 8 * half + lane) = value;
                    }
                }
            }
        }
    }
}

/// See [`super::kernel::Finish`].
pub unsafe fn finish<E: Element>(sums: *const Lanes, step: usize, count: usize, bias: *const E, out: *mut E) {
    for index in 0..count {
        // SAFETY: within the sizes that the caller vouches for.
        unsafe {
            let mut sum = (*sums.add(index * step)).sum();
            if !bias.is_null() {
                sum += (*bias.add(index)).widen();
            }
            *out.add(index) = E::narrow(sum);
        }
    }
}

unsafe fn bf16<const B: usize, const C: usize>(call: &TileCall<Bf16>) {
    // SAFETY: the same contract.
    unsafe { tile::<Bf16, B, C>(call) }
}

unsafe fn f32<const B: usize, const C: usize>(call: &TileCall<f32>) {
    // SAFETY: the same contract.
    unsafe { tile::<f32, B, C>(call) }
}

const BLOCKS: [usize; TILE_ROWS] = [1; TILE_ROWS];

pub static BF16: Kernel<Bf16> = Kernel {
    tile: tile_table!(bf16),
    block_rows: BLOCKS,
    tile_rows: TILE_ROWS,
    pack: pack::<Bf16>,
    finish: finish::<Bf16>,
};

pub static F32: Kernel<f32> = Kernel {
    tile: tile_table!(f32),
    block_rows: BLOCKS,
    tile_rows: TILE_ROWS,
    pack: pack::<f32>,
    finish: finish::<f32>,
};
