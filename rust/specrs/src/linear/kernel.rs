//! What a path provides: three leaf routines in a table, and how the driver may tile them.

use super::element::Element;

/// An implementation of the leaf routines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// Plain Rust; fast where fused multiply-add is part of the target, as on 64-bit Arm.
    Portable,
    /// x86-64 with AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Path {
    /// Whether this processor has what the path needs.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        }
    }

    /// The fastest path of this processor.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if Self::Avx2.is_available() {
            return Self::Avx2;
        }
        Self::Portable
    }
}

/// Inputs are read in groups of this many elements.
pub const GROUP: usize = 16;

/// The partial sums of one output.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub struct Lanes(pub [f32; 8]);

impl Lanes {
    /// Step 3 of the order of accumulation.
    pub fn sum(&self) -> f32 {
        let lane = &self.0;
        let pair = |i: usize| lane[i] + lane[i + 4];
        (pair(0) + pair(2)) + (pair(1) + pair(3))
    }
}

/// A block of weight rows against one tile of packed rows.
pub struct TileCall<E> {
    /// First weight of the block.
    pub weight: *const E,
    /// Elements from one weight row to the next.
    pub stride: usize,
    /// The packed tile, by group, then row, then 16 values (first half, second half).
    pub x: *const f32,
    /// Groups to go through.
    pub groups: usize,
    /// Partial sums by weight row, then row of the tile.
    pub sums: *mut Lanes,
    /// Whether the partial sums start at zero; otherwise they are carried on.
    pub first: bool,
    /// Bytes from a weight to the one to prefetch meanwhile; 0 for none.
    pub ahead: usize,
}

/// Continues the partial sums of a block of weight rows.
///
/// # Safety
///
/// The pointers are valid for the sizes stated, and the processor has the path's features.
pub type Tile<E> = unsafe fn(call: &TileCall<E>);

/// Packs `rows` rows of `inputs` elements as [`TileCall::x`] wants them, padded with zeros to whole groups.
///
/// # Safety
///
/// `x` is valid for `rows * inputs` elements, `packed` for `rows * inputs.next_multiple_of(GROUP)`.
pub type Pack<E> = unsafe fn(x: *const E, rows: usize, inputs: usize, packed: *mut f32);

/// Reduces `count` partial sums that lie `step` apart, adds the bias and rounds.
///
/// # Safety
///
/// `sums` is valid for `(count - 1) * step + 1`, `out` and a `bias` that is not null for `count` elements.
pub type Finish<E> = unsafe fn(sums: *const Lanes, step: usize, count: usize, bias: *const E, out: *mut E);

/// The most rows in a tile.
pub const TILE_ROWS: usize = 6;
/// The most weight rows in a block.
pub const BLOCK_ROWS: usize = 4;

/// The leaf routines of a path for one element type.
pub struct Kernel<E: Element> {
    /// By weight rows − 1, then tile rows − 1.
    pub tile: [[Tile<E>; TILE_ROWS]; BLOCK_ROWS],
    /// How many weight rows to take with a tile of (index + 1) rows.
    pub block_rows: [usize; TILE_ROWS],
    /// The largest tile to cut the rows into.
    pub tile_rows: usize,
    /// See [`Pack`].
    pub pack: Pack<E>,
    /// See [`Finish`].
    pub finish: Finish<E>,
}

/// The 4 × 6 table of a tile routine that is generic over both sizes.
macro_rules! tile_table {
    ($tile:ident) => {
        tile_table!(@rows $tile, 1, 2, 3, 4)
    };
    (@rows $tile:ident, $($block:literal),*) => {
        [$([$tile::<$block, 1>, $tile::<$block, 2>, $tile::<$block, 3>, $tile::<$block, 4>, $tile::<$block, 5>, $tile::<$block, 6>]),*]
    };
}
pub(super) use tile_table;
