//! What a path provides: scores of a run of slots and sums of their values, for one row or two at once.

use super::Path;
use super::portable;

/// A run of slots of one head: keys or values.
#[derive(Clone, Copy)]
pub struct Run {
    pub data: *const f32,
    /// Elements from slot to slot.
    pub stride: usize,
    pub count: usize,
    /// Elements of a slot, a multiple of [`super::GROUP`].
    pub size: usize,
}

impl Run {
    /// `count` slots from `first` on.
    ///
    /// # Safety
    ///
    /// The slots exist.
    pub unsafe fn part(self, first: usize, count: usize) -> Self {
        // SAFETY: the caller vouches for the slots.
        Self { data: unsafe { self.data.add(first * self.stride) }, count, ..self }
    }
}

/// Writes the scores of a run of keys for `R` queries.
///
/// # Safety
///
/// Queries are valid for `keys.size` elements, outputs for `keys.count`, and the processor has the path's features.
pub type Scores<const R: usize> = unsafe fn(queries: [*const f32; R], keys: Run, out: [*mut f32; R]);

/// Adds weight times value of a run of slots to `R` sums.
///
/// # Safety
///
/// Weights are valid for `values.count` elements, sums for `values.size`, and the processor has the path's features.
pub type Mix<const R: usize> = unsafe fn(weights: [*const f32; R], values: Run, sums: [*mut f32; R]);

/// The leaf routines of a path.
pub struct Leaves {
    pub scores: Scores<1>,
    pub scores_of_two: Scores<2>,
    pub mix: Mix<1>,
    pub mix_of_two: Mix<2>,
}

/// The leaf routines of `path`.
pub fn of(path: Path) -> &'static Leaves {
    match path {
        Path::Portable => &portable::LEAVES,
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => &super::avx2::LEAVES,
    }
}
