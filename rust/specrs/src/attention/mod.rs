//! Attention of a text's new rows over its keys and values on the CPU, each row's bits its own.
//!
//! In speculative decoding the rows of one forward are the tokens not read yet and the nodes of a draft, and each sees
//! the committed tokens and its own ancestors. A row computed here among others has the bits that it has alone: when
//! its ancestors have become committed tokens and it is the one new row of a plain step. With [`crate::linear`] this
//! makes a verified token the very token of plain decoding, rounding included.
//!
//! # The order of operations
//!
//! A row sees a sequence of slots in the order of their positions: its run of committed ones, then its ancestors, then
//! itself. Every path (portable, AVX2) computes, for each row and query head:
//!
//! 1. The query times the scale, rounded once.
//! 2. A score per slot: eight `f32` lanes, lane `i` taking in elements `i`, `i + 8`, … of the products one by one by
//!    fused multiply-add, and their sum as in step 3 of [`crate::linear`].
//! 3. Weights `exp(score - largest)` in `f32` and their sum, whose order depends on places in the sequence alone.
//! 4. For each element of the values, the sum of weight times value over the sequence, slot by slot by fused
//!    multiply-add; then times the inverse of the weights' sum.
//!
//! # Examples
//!
//! ```
//! use specrs::attention::{Memory, Query, Shape, Visible, Workers, attention};
//!
//! // One committed token and one new one, which sees both alike: the mean of their values.
//! let (keys, values) = ([0.0; 16], [[1.0; 8], [3.0; 8]].concat());
//! let mut out = [0.0; 8];
//! let shape = Shape { rows: 1, query_heads: 1, key_heads: 1, size: 8 };
//! let memory = Memory { keys: &keys, values: &values, head_stride: 16, slot_stride: 8 };
//! let query = Query { data: &[1.0; 8], row_stride: 8, head_stride: 8 };
//! let visible = Visible { committed: 1, positions: &[1], window: None, flags: None };
//! attention(query, memory, visible, shape, 0.35, &mut out, Workers::Serial)?;
//! assert_eq!(out, [2.0; 8]);
//! # Ok::<(), specrs::Error>(())
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
mod driver;
mod leaves;
mod portable;
mod visible;

pub use crate::linear::Path;
pub use crate::workers::{OpenMpParallel, Workers};
pub use visible::Visible;

use crate::{Error, Result};

/// Elements of a head come in groups of this many.
pub const GROUP: usize = 8;

/// The sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// New rows.
    pub rows: usize,
    /// Heads of a query, a multiple of `key_heads`: neighbours share a key head.
    pub query_heads: usize,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Elements of a head, a multiple of [`GROUP`].
    pub size: usize,
}

/// Queries, (rows, query heads, size) by strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// From the first element on.
    pub data: &'a [f32],
    /// From row to row.
    pub row_stride: usize,
    /// From head to head.
    pub head_stride: usize,
}

/// Keys and values of one layout, (key heads, slots, size) by strides in elements. Slot `s < committed` holds the token
/// at position `s`; the others are those of [`Visible::positions`].
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// Keys from the first element on.
    pub keys: &'a [f32],
    /// Values from the first element on.
    pub values: &'a [f32],
    /// From head to head.
    pub head_stride: usize,
    /// From slot to slot.
    pub slot_stride: usize,
}

/// Attends from every new row to what it sees, by the fastest path of this processor.
///
/// # Shapes
///
/// `out` (rows, query heads, size), dense. The rest as in [`Query`], [`Memory`] and [`Visible`].
///
/// A score that is NaN or +∞ makes its head of the row NaN.
///
/// # Errors
///
/// [`crate::ErrorKind::InvalidInput`] when a slice is too short for its shape, a size is out of place, a row does not see
/// itself or sees a later row, or the scale is not a positive number.
pub fn attention(
    query: Query<'_>,
    memory: Memory<'_>,
    visible: Visible<'_>,
    shape: Shape,
    scale: f32,
    out: &mut [f32],
    workers: Workers,
) -> Result<()> {
    attention_by(Path::best(), query, memory, visible, shape, scale, out, workers)
}

/// [`attention`] by a named path. All paths give the same bits; this is for tests and comparisons.
///
/// # Errors
///
/// As [`attention`], and when this processor cannot run the path.
#[allow(clippy::too_many_arguments, reason = "attention has seven, and this one more")]
pub fn attention_by(
    path: Path,
    query: Query<'_>,
    memory: Memory<'_>,
    visible: Visible<'_>,
    shape: Shape,
    scale: f32,
    out: &mut [f32],
    workers: Workers,
) -> Result<()> {
    if !path.is_available() {
        return Err(Error::invalid(format!("this processor cannot run the path {path:?}")));
    }
    let Shape { rows, query_heads, key_heads, size } = shape;
    if size == 0 || !size.is_multiple_of(GROUP) {
        return Err(Error::invalid(format!("a head must have a multiple of {GROUP} elements, got {size}")));
    }
    if key_heads == 0 || query_heads == 0 || !query_heads.is_multiple_of(key_heads) {
        return Err(Error::invalid(format!("query heads must be a multiple of the {key_heads} key heads: {shape:?}")));
    }
    if !(scale.is_finite() && scale > 0.0) {
        return Err(Error::invalid(format!("the scale must be a positive number, got {scale}")));
    }
    let slots = visible.committed.checked_add(visible.positions.len());
    let reach = |last: Option<usize>, stride: usize, heads: usize, head_stride: usize| {
        let within = last?.checked_mul(stride)?.checked_add(size)?;
        (heads - 1).checked_mul(head_stride)?.checked_add(within)
    };
    let queries = reach(rows.checked_sub(1), query.row_stride, query_heads, query.head_stride);
    let stored = reach(slots.and_then(|slots| slots.checked_sub(1)), memory.slot_stride, key_heads, memory.head_stride);
    let written = rows.checked_mul(query_heads).and_then(|heads| heads.checked_mul(size));
    if out.len() != written.unwrap_or(usize::MAX) {
        return Err(Error::invalid(format!("out has {} elements, {shape:?} wants {written:?}", out.len())));
    }
    if rows == 0 {
        return Ok(());
    }
    for (name, found, least) in [
        ("query", query.data.len(), queries),
        ("keys", memory.keys.len(), stored),
        ("values", memory.values.len(), stored),
    ] {
        if found < least.unwrap_or(usize::MAX) {
            return Err(Error::invalid(format!("{name} has {found} elements, {shape:?} reaches {least:?}")));
        }
    }
    let seen = visible.by_row(rows)?;
    driver::run(leaves::of(path), query, memory, &seen, shape, scale, out, workers);
    Ok(())
}

#[cfg(test)]
mod tests;
