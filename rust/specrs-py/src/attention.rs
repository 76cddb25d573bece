//! Attention of new rows (`specrs::attention`) on tensors by address.

use numpy::{PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use specrs::attention::{GROUP, Memory, Query, Shape, Visible, attention};

use crate::arrays::flat_of;
use crate::enter::{enter, invalid};
use crate::memory::{checked_len, view, view_mut, workers};

/// Elements from the first of (heads, rows, size) to the last, by strides.
fn reach(heads: usize, head_stride: usize, rows: usize, row_stride: usize, size: usize) -> Option<usize> {
    let last = |count: usize, stride: usize| count.checked_sub(1)?.checked_mul(stride);
    last(heads, head_stride)?.checked_add(last(rows, row_stride)?)?.checked_add(size)
}

/// Attention on memory by address. See `_core.pyi`.
#[pyfunction]
#[pyo3(
    name = "unsafe_attention_ptr",
    signature = (query, keys, values, out, query_strides, memory_strides, shape, committed, positions, flags, window, scale, openmp, threads, /)
)]
#[allow(clippy::too_many_arguments, reason = "one flat call: objects would cost more than the kernel's start")]
fn attention_ptr(
    py: Python<'_>,
    query: usize,
    keys: usize,
    values: usize,
    out: usize,
    query_strides: (usize, usize),
    memory_strides: (usize, usize),
    shape: (usize, usize, usize, usize),
    committed: usize,
    positions: PyReadonlyArray1<'_, i64>,
    flags: Option<PyReadonlyArray2<'_, bool>>,
    window: Option<usize>,
    scale: f32,
    openmp: usize,
    threads: u32,
) -> PyResult<()> {
    let (rows, query_heads, key_heads, size) = shape;
    let Ok(positions) = positions.as_slice() else { return Err(invalid(py, "positions must be contiguous")) };
    let flags = flags.as_ref().map(|flags| flat_of(py, "flags", flags)).transpose()?;
    if rows == 0 {
        return Ok(());
    }
    let slots = committed.checked_add(positions.len());
    let asked = reach(query_heads, query_strides.1, rows, query_strides.0, size);
    let stored = slots.and_then(|slots| reach(key_heads, memory_strides.0, slots, memory_strides.1, size));
    let written = rows.checked_mul(query_heads).and_then(|heads| heads.checked_mul(size));
    let bytes = size_of::<f32>();
    let asked = checked_len(py, "query", query, asked, bytes)?;
    let stored_keys = checked_len(py, "keys", keys, stored, bytes)?;
    let stored_values = checked_len(py, "values", values, stored, bytes)?;
    let written = checked_len(py, "out", out, written, bytes)?;
    // SAFETY: the caller vouches for the tensors, as the name says; `out` is its alone.
    let (query, keys, values, out, workers) = unsafe {
        let (keys, values) = (view::<f32>(keys, stored_keys), view::<f32>(values, stored_values));
        (view::<f32>(query, asked), keys, values, view_mut::<f32>(out, written), workers(openmp, threads))
    };
    let query = Query { data: query, row_stride: query_strides.0, head_stride: query_strides.1 };
    let memory = Memory { keys, values, head_stride: memory_strides.0, slot_stride: memory_strides.1 };
    let visible = Visible { committed, positions, window, flags };
    let shape = Shape { rows, query_heads, key_heads, size };
    enter(py, || attention(query, memory, visible, shape, scale, out, workers))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("ATTENTION_HEAD_MULTIPLE", GROUP)?;
    m.add_function(wrap_pyfunction!(attention_ptr, m)?)
}
