//! Small-batch linear layers (`specrs::linear`) on tensors by address.

use pyo3::prelude::*;
use specrs::linear::{Bf16, Element, Shape, Workers, linear};

use crate::enter::{enter, invalid};
use crate::memory::{checked_len, view, view_mut, workers};

/// Where the tensors lie and how large they are.
struct Call {
    x: usize,
    weight: usize,
    bias: usize,
    out: usize,
    shape: Shape,
    workers: Workers,
}

/// # Safety
///
/// The addresses are of live tensors of the element type with the sizes of the shape, `out` is not shared.
unsafe fn run<E: Element>(py: Python<'_>, call: &Call) -> PyResult<()> {
    let Shape { rows, inputs, outputs } = call.shape;
    let size = size_of::<E>();
    let x = checked_len(py, "x", call.x, rows.checked_mul(inputs), size)?;
    let weight = checked_len(py, "weight", call.weight, outputs.checked_mul(inputs), size)?;
    let out = checked_len(py, "out", call.out, rows.checked_mul(outputs), size)?;
    if call.bias != 0 {
        checked_len(py, "bias", call.bias, Some(outputs), size)?;
    }
    // SAFETY: as `view`; `out` is the caller's alone.
    let (x, weight, bias, out) = unsafe {
        let bias = (call.bias != 0).then(|| view::<E>(call.bias, outputs));
        (view::<E>(call.x, x), view::<E>(call.weight, weight), bias, view_mut::<E>(call.out, out))
    };
    enter(py, || linear(x, weight, bias, out, call.shape, call.workers))
}

/// `out = x · weightᵀ + bias` on memory by address. See `_core.pyi`.
#[pyfunction]
#[pyo3(name = "unsafe_linear_ptr", signature = (x, weight, bias, out, rows, inputs, outputs, element_size, openmp, threads, /))]
#[allow(clippy::too_many_arguments, reason = "one flat call: objects would cost more than the kernel's start")]
fn linear_ptr(
    py: Python<'_>,
    x: usize,
    weight: usize,
    bias: usize,
    out: usize,
    rows: usize,
    inputs: usize,
    outputs: usize,
    element_size: usize,
    openmp: usize,
    threads: u32,
) -> PyResult<()> {
    // SAFETY: the caller vouches for the function's address.
    let workers = unsafe { workers(openmp, threads) };
    let call = Call { x, weight, bias, out, shape: Shape { rows, inputs, outputs }, workers };
    // SAFETY: the caller vouches for the tensors, as the name says.
    unsafe {
        match element_size {
            2 => run::<Bf16>(py, &call),
            4 => run::<f32>(py, &call),
            _ => Err(invalid(py, &format!("element_size must be 2 (bfloat16) or 4 (float32), got {element_size}"))),
        }
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(linear_ptr, m)?)
}
