//! Foreign memory by address, checked for null and alignment: tensors, whose library this crate does not know.

use pyo3::prelude::*;
use specrs::linear::{OpenMpParallel, Workers};

use crate::enter::invalid;

/// How many elements a slice over foreign memory has.
pub fn checked_len(
    py: Python<'_>,
    name: &str,
    address: usize,
    elements: Option<usize>,
    size: usize,
) -> PyResult<usize> {
    let fits = elements.and_then(|count| count.checked_mul(size)).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    match elements {
        Some(count) if fits && (count == 0 || (address != 0 && address.is_multiple_of(size))) => Ok(count),
        _ => Err(invalid(
            py,
            &format!(
                "{name}: address {address:#x} for {elements:?} elements of {size} bytes is null, misaligned or too large"
            ),
        )),
    }
}

/// A view of foreign memory. An empty tensor may have a null address, a slice may not.
///
/// # Safety
///
/// `address` is of `count` live elements, not null and aligned.
pub unsafe fn view<'a, E>(address: usize, count: usize) -> &'a [E] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the same contract.
    unsafe { std::slice::from_raw_parts(address as *const E, count) }
}

/// As [`view`], to be written.
///
/// # Safety
///
/// As [`view`], and nobody else has the memory.
pub unsafe fn view_mut<'a, E>(address: usize, count: usize) -> &'a mut [E] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the same contract.
    unsafe { std::slice::from_raw_parts_mut(address as *mut E, count) }
}

/// The OpenMP team of `GOMP_parallel` at `openmp`, or threads for the call where it is 0.
///
/// # Safety
///
/// As [`OpenMpParallel::from_address`].
pub unsafe fn workers(openmp: usize, threads: u32) -> Workers {
    // SAFETY: the caller vouches for the function's address.
    match unsafe { OpenMpParallel::from_address(openmp) } {
        Some(parallel) => Workers::OpenMp(parallel, threads),
        None => Workers::Threads(threads),
    }
}
