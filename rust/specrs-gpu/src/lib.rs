//! Loads the CUDA kernels of specrs through the driver API and launches them on the caller's stream.
//!
//! No torch, no CUDA runtime, no toolkit: a binary with this crate builds without a GPU, starts without a driver, and
//! serves every torch. The kernels are compiled ahead of time into one fatbin (see `build.rs`); [`KERNELS`] lists them with
//! their parameters, and a test compares that list with the sources.
//!
//! ```no_run
//! use specrs_gpu::{Argument, Gpu};
//!
//! let gpu = Gpu::open(None, None)?;
//! gpu.prepare(0)?; // before a graph capture
//! # let (device_pointer, stream) = (0u64, 0u64);
//! # let arguments: Vec<Argument> = Vec::new();
//! // SAFETY: the pointers are device memory of the shapes that the kernel's header states.
//! unsafe { gpu.launch("walk_tree", 0, stream, [1, 1, 1], 0, &arguments)? };
//! # Ok::<(), specrs_gpu::GpuError>(())
//! ```

mod driver;
mod error;
mod table;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use driver::{Driver, Pointer};
pub use error::GpuError;
pub use table::{KERNELS, Kernel};

#[cfg(specrs_fatbin)]
static FATBIN: Option<&[u8]> = Some(include_bytes!(env!("SPECRS_FATBIN")));
#[cfg(not(specrs_fatbin))]
static FATBIN: Option<&[u8]> = None;

/// Size of the embedded fatbin in bytes, if there is one.
pub fn embedded_bytes() -> Option<usize> {
    FATBIN.map(<[u8]>::len)
}

/// One argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A device pointer; 0 only where the kernel's table says so.
    Address(u64),
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// A float.
    F32(f32),
}

impl Argument {
    fn letter(self) -> char {
        match self {
            Self::Address(_) => 'P',
            Self::I32(_) => 'i',
            Self::I64(_) => 'l',
            Self::F32(_) => 'f',
        }
    }
}

/// Handles of the driver. It is safe to use them from any thread.
struct Handle(Pointer);
// SAFETY: the driver API is thread-safe; the pointers are opaque handles that are never freed.
#[allow(unsafe_code, reason = "handles of a thread-safe C library")]
unsafe impl Send for Handle {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "handles of a thread-safe C library")]
unsafe impl Sync for Handle {}

/// The loaded kernels, for every device of the machine.
pub struct Gpu {
    driver: Driver,
    kernels: HashMap<&'static str, (&'static Kernel, Handle)>,
    contexts: Mutex<HashMap<i32, usize>>,
}

impl Gpu {
    /// Opens the driver (`libcuda.so.1`, or the file given) and loads the embedded fatbin (or the image given).
    ///
    /// # Errors
    /// No driver, no embedded kernels, or an image that the driver refuses or that lacks a kernel.
    pub fn open(driver: Option<&str>, image: Option<&[u8]>) -> Result<Self, GpuError> {
        let image = image.or(FATBIN).ok_or(GpuError::NoKernels)?;
        let driver = Driver::open(driver)?;
        // The driver wants 8-byte alignment, and the image for as long as the library is loaded.
        let words: Vec<u64> = image
            .chunks(8)
            .map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            })
            .collect();
        let library = driver.load(Box::leak(words.into_boxed_slice()))?;
        let mut kernels = HashMap::new();
        for kernel in KERNELS {
            kernels.insert(kernel.name, (kernel, Handle(driver.kernel(library, kernel.name)?)));
        }
        Ok(Self { driver, kernels, contexts: Mutex::default() })
    }

    /// The driver's version, 13000 for CUDA 13.0.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn driver_version(&self) -> Result<i32, GpuError> {
        self.driver.version()
    }

    /// Whether the driver is a stand-in that runs the kernels on host memory, as in our tests; no device does.
    pub fn takes_host_memory(&self) -> bool {
        self.driver.takes_host_memory
    }

    /// Number of devices.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn devices(&self) -> Result<i32, GpuError> {
        self.driver.devices()
    }

    /// Loads every kernel on `device`, so that a later launch can be captured in a graph.
    ///
    /// # Errors
    /// An unknown device, one that the fatbin has no code for, or one without memory for it.
    pub fn prepare(&self, device: i32) -> Result<(), GpuError> {
        self.context(device).map(|_| ())
    }

    /// The context of `device`; the first call per device loads every kernel there.
    fn context(&self, device: i32) -> Result<Pointer, GpuError> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&context) = contexts.get(&device) {
            return Ok(context as Pointer);
        }
        let (number, context) = self.driver.context(device)?;
        self.driver.within(context, || {
            self.kernels.values().try_for_each(|(spec, kernel)| self.driver.prepare(kernel.0, number, spec.shared))
        })?;
        contexts.insert(device, context as usize);
        Ok(context)
    }

    /// Launches `kernel` on `stream` of `device` with `shared` bytes of dynamic shared memory. Returns before it ran.
    ///
    /// # Errors
    /// An unknown kernel, arguments of other types than its table lists, a null pointer where none may be, an empty grid,
    /// and whatever the driver reports.
    ///
    /// # Safety
    /// Each address must be device memory of `device` that holds what the kernel's header describes, and must stay alive
    /// until the stream has passed the launch.
    #[allow(unsafe_code, reason = "device pointers cannot be checked here")]
    pub unsafe fn launch(
        &self,
        kernel: &str,
        device: i32,
        stream: u64,
        grid: [u32; 3],
        shared: u32,
        arguments: &[Argument],
    ) -> Result<(), GpuError> {
        let Some((spec, handle)) = self.kernels.get(kernel) else {
            return Err(GpuError::InvalidLaunch(format!("no kernel is called {kernel:?}")));
        };
        spec.check(grid, shared, arguments)?;
        let context = self.context(device)?;
        let mut values: Vec<u64> = arguments
            .iter()
            .map(|&argument| match argument {
                Argument::Address(address) => address,
                Argument::I32(value) => u64::from(value as u32),
                Argument::I64(value) => value as u64,
                Argument::F32(value) => u64::from(value.to_bits()),
            })
            .collect();
        // Little-endian: a 32-bit value is the first half of its word.
        let mut pointers: Vec<Pointer> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        self.driver.within(context, || {
            // SAFETY: the argument types were checked; the caller vouches for the addresses.
            unsafe { self.driver.launch(handle.0, grid, spec.threads, shared, stream, &mut pointers) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_named() {
        let error = Gpu::open(Some("/nowhere/libcuda.so.1"), Some(&[0; 16])).err();
        assert!(matches!(error, Some(GpuError::NoDriver(why)) if why.contains("/nowhere/libcuda.so.1")));
    }

    #[test]
    fn a_build_without_kernels_says_so() {
        if embedded_bytes().is_none() {
            assert_eq!(Gpu::open(None, None).err(), Some(GpuError::NoKernels));
        }
    }
}
