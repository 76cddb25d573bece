//! The CUDA kernels (`specrs_gpu`): one process-wide set, opened by the first call that needs it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyList};
use specrs_gpu::{Argument, Gpu, GpuError, KERNELS, embedded_bytes};

use crate::enter::{invalid, raise};

static GPU: Mutex<Option<Arc<Gpu>>> = Mutex::new(None);

fn to_py(py: Python<'_>, error: &GpuError) -> PyErr {
    let name = match error {
        GpuError::InvalidLaunch(_) => "InvalidInputError",
        _ => "GpuError",
    };
    raise(py, name, &error.to_string())
}

/// The process-wide set. Who waits for it gives up the GIL, which its holder may need before it can let go.
fn slot(py: Python<'_>) -> MutexGuard<'static, Option<Arc<Gpu>>> {
    GPU.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
}

fn current(py: Python<'_>) -> PyResult<Arc<Gpu>> {
    let mut slot = slot(py);
    if let Some(gpu) = slot.as_ref() {
        return Ok(gpu.clone());
    }
    let gpu = Arc::new(py.detach(|| Gpu::open(None, None)).map_err(|error| to_py(py, &error))?);
    *slot = Some(gpu.clone());
    Ok(gpu)
}

/// Opens the driver and loads the kernels, from other files than the usual ones if they are given.
#[pyfunction]
#[pyo3(signature = (driver = None, image = None))]
fn gpu_open(py: Python<'_>, driver: Option<String>, image: Option<Bound<'_, PyBytes>>) -> PyResult<()> {
    let image = image.map(|bytes| bytes.as_bytes().to_vec());
    let opened = py.detach(|| Gpu::open(driver.as_deref(), image.as_deref())).map_err(|error| to_py(py, &error))?;
    *slot(py) = Some(Arc::new(opened));
    Ok(())
}

/// Whether the opened driver is a stand-in, whose kernels take host memory; false before one is opened.
#[pyfunction]
fn gpu_takes_host_memory(py: Python<'_>) -> bool {
    slot(py).as_ref().is_some_and(|gpu| gpu.takes_host_memory())
}

/// Version of the driver and number of devices.
#[pyfunction]
fn gpu_driver(py: Python<'_>) -> PyResult<(i32, i32)> {
    let gpu = current(py)?;
    gpu.driver_version().and_then(|version| Ok((version, gpu.devices()?))).map_err(|error| to_py(py, &error))
}

/// Loads every kernel on `device`, so that later launches can be captured in a graph.
#[pyfunction]
fn gpu_prepare(py: Python<'_>, device: i32) -> PyResult<()> {
    let gpu = current(py)?;
    py.detach(|| gpu.prepare(device)).map_err(|error| to_py(py, &error))
}

/// (name, threads, dynamic shared memory, parameters) of each kernel.
#[pyfunction]
fn gpu_kernels() -> Vec<(&'static str, u32, u32, &'static str)> {
    KERNELS.iter().map(|kernel| (kernel.name, kernel.threads, kernel.shared, kernel.parameters)).collect()
}

fn arguments(py: Python<'_>, kernel: &str, values: &Bound<'_, PyList>) -> PyResult<Vec<Argument>> {
    let Some(spec) = KERNELS.iter().find(|spec| spec.name == kernel) else {
        return Err(invalid(py, &format!("no kernel is called '{kernel}'")));
    };
    if values.len() != spec.parameters.len() {
        let message = format!("kernel {kernel} takes {} arguments, got {}", spec.parameters.len(), values.len());
        return Err(invalid(py, &message));
    }
    let convert = |(value, letter): (Bound<'_, PyAny>, char)| match letter {
        'P' | 'p' => value.extract().map(Argument::Address),
        'i' => value.extract().map(Argument::I32),
        'l' => value.extract().map(Argument::I64),
        _ => value.extract().map(Argument::F32),
    };
    values.iter().zip(spec.parameters.chars()).map(convert).collect()
}

/// Launches a kernel on a stream. Every address must be memory of `device` as the kernel's header describes it.
#[pyfunction]
#[pyo3(signature = (kernel, device, stream, grid, shared, values))]
fn unsafe_launch_ptr(
    py: Python<'_>,
    kernel: &str,
    device: i32,
    stream: u64,
    grid: [u32; 3],
    shared: u32,
    values: Bound<'_, PyList>,
) -> PyResult<()> {
    let gpu = current(py)?;
    let arguments = arguments(py, kernel, &values)?;
    // A launch returns within microseconds: giving up the GIL for it would cost more.
    // SAFETY: the name of this function says that its caller vouches for the addresses.
    #[allow(unsafe_code, reason = "device pointers")]
    unsafe { gpu.launch(kernel, device, stream, grid, shared, &arguments) }.map_err(|error| to_py(py, &error))
}

#[allow(clippy::unsafe_removed_from_name, reason = "the macro renames the function inside itself alone")]
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("GPU_FATBIN_BYTES", embedded_bytes())?;
    m.add_function(wrap_pyfunction!(gpu_open, m)?)?;
    m.add_function(wrap_pyfunction!(gpu_takes_host_memory, m)?)?;
    m.add_function(wrap_pyfunction!(gpu_driver, m)?)?;
    m.add_function(wrap_pyfunction!(gpu_prepare, m)?)?;
    m.add_function(wrap_pyfunction!(gpu_kernels, m)?)?;
    m.add_function(wrap_pyfunction!(unsafe_launch_ptr, m)?)
}
