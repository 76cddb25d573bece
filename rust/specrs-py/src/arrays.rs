//! Arrays that cross the border: token ids and other integers of any width, and those that every chain shares.

use numpy::{
    Element, PyArray1, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray2, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::enter::invalid;

/// Chains up to this length share their parents and depths.
const SHARED: usize = 64;

type Chain = (Py<PyArray1<i32>>, Py<PyArray1<i32>>);
type Columns<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

/// Token ids of any integer array, or of anything `numpy.asarray` takes; negative and too large ids are refused.
pub fn tokens_of(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    // numpy compares unlike types slowly, so the array says first which one to try.
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        match (array.dtype().kind(), array.dtype().itemsize()) {
            (b'u', 4) => {
                if let Ok(array) = value.cast::<PyArray1<u32>>() {
                    let array = array.try_readonly()?;
                    return Ok(array
                        .as_slice()
                        .map_or_else(|_| array.as_array().iter().copied().collect(), <[u32]>::to_vec));
                }
            }
            (b'i', 4) => {
                if let Ok(array) = value.cast::<PyArray1<i32>>() {
                    return checked(py, array.try_readonly()?.as_array().iter().map(|&token| i64::from(token)));
                }
            }
            (b'i', 8) => {
                if let Ok(array) = value.cast::<PyArray1<i64>>() {
                    return checked(py, array.try_readonly()?.as_array().iter().copied());
                }
            }
            (b'u', 8) => {
                if let Ok(array) = value.cast::<PyArray1<u64>>() {
                    let wide = |&token: &u64| i64::try_from(token).unwrap_or(i64::MAX);
                    return checked(py, array.try_readonly()?.as_array().iter().map(wide));
                }
            }
            _ => {}
        }
    }
    let array = py.import("numpy")?.call_method1("asarray", (value,))?;
    let untyped = array.cast::<PyUntypedArray>()?;
    let kind = untyped.dtype().kind();
    if untyped.ndim() != 1 || !(matches!(kind, b'i' | b'u') || untyped.len() == 0) {
        let shape = untyped.shape().to_vec();
        return Err(invalid(
            py,
            &format!("token ids must be a 1-D array of integers, got shape {shape:?} and dtype {}", untyped.dtype()),
        ));
    }
    let wide = array.call_method1("astype", ("int64",))?;
    checked(py, wide.cast::<PyArray1<i64>>()?.readonly().as_array().iter().copied())
}

fn checked(py: Python<'_>, tokens: impl Iterator<Item = i64>) -> PyResult<Vec<u32>> {
    tokens
        .enumerate()
        .map(|(at, token)| {
            u32::try_from(token)
                .ok()
                .filter(|&token| token != u32::MAX)
                .ok_or_else(|| invalid(py, &format!("token ids must be 0 to 4294967294, got {token} at index {at}")))
        })
        .collect()
}

/// Documents, one after the other, and where each starts.
pub fn documents_of(
    py: Python<'_>,
    tokens: &Bound<'_, PyAny>,
    ptr: &Bound<'_, PyAny>,
) -> PyResult<(Vec<u32>, Vec<i64>)> {
    Ok((tokens_of(py, tokens)?, integers_of(py, "ptr", ptr)?))
}

/// A 1-D array of integers that are not tokens.
pub fn integers_of(py: Python<'_>, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if let Ok(array) = value.cast::<PyArray1<i64>>() {
        return Ok(array.try_readonly()?.as_array().iter().copied().collect());
    }
    let array = py.import("numpy")?.call_method1("asarray", (value,))?;
    let untyped = array.cast::<PyUntypedArray>()?;
    if untyped.ndim() != 1 || !(matches!(untyped.dtype().kind(), b'i' | b'u') || untyped.len() == 0) {
        let shape = untyped.shape().to_vec();
        return Err(invalid(
            py,
            &format!("{name} must be a 1-D array of integers, got shape {shape:?} and dtype {}", untyped.dtype()),
        ));
    }
    let wide = array.call_method1("astype", ("int64",))?;
    Ok(wide.cast::<PyArray1<i64>>()?.readonly().as_array().iter().copied().collect())
}

/// A two-dimensional array, row after row. One that lies column after column is contiguous too, and would be read askew.
pub fn flat_of<'a, T: Element>(py: Python<'_>, name: &str, array: &'a PyReadonlyArray2<'_, T>) -> PyResult<&'a [T]> {
    match array.as_slice() {
        Ok(flat) if array.is_c_contiguous() => Ok(flat),
        _ => Err(invalid(py, &format!("{name} must be C-contiguous, got strides {:?} bytes", array.strides()))),
    }
}

/// Parents and depths of a chain of `nodes` nodes. Those of short chains are made once, and read-only: all chains of a
/// length have the same, and an array costs more than a short draft.
pub fn chain_of(py: Python<'_>, nodes: usize) -> PyResult<Columns<'_>> {
    static CHAINS: PyOnceLock<Vec<Chain>> = PyOnceLock::new();
    let made = |nodes: usize| {
        let nodes = nodes as i32;
        let column = |first: i32| PyArray1::from_iter(py, first..first + nodes);
        (column(-1), column(1))
    };
    let chains = CHAINS.get_or_try_init(py, || {
        let frozen = |array: Bound<'_, PyArray1<i32>>| -> PyResult<Py<PyArray1<i32>>> {
            array.call_method1("setflags", (false,))?;
            Ok(array.unbind())
        };
        let one = |nodes: usize| {
            let (parents, depths) = made(nodes);
            Ok((frozen(parents)?, frozen(depths)?))
        };
        (0..=SHARED).map(one).collect::<PyResult<Vec<_>>>()
    })?;
    Ok(match chains.get(nodes) {
        Some((parents, depths)) => (parents.bind(py).clone(), depths.bind(py).clone()),
        None => made(nodes),
    })
}
