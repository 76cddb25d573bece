//! What can keep a kernel from running.

use std::fmt;

/// Why there is no GPU, or why it refused a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuError {
    /// No CUDA driver library could be opened.
    NoDriver(String),
    /// The crate was built without nvcc, so it holds no kernels.
    NoKernels,
    /// The driver answered with an error.
    Driver {
        /// The driver function.
        call: &'static str,
        /// Its error number.
        code: i32,
        /// The number's name, as the driver gives it.
        name: String,
    },
    /// The launch is not one that the kernel takes.
    InvalidLaunch(String),
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver(why) => write!(f, "no CUDA driver: {why}"),
            Self::NoKernels => f.write_str(
                "this build of specrs holds no CUDA kernels: it was made without nvcc (install the dependency group \
                 'cuda' or set SPECRS_NVCC, and build again)",
            ),
            Self::Driver { call, code: 209, name } => {
                write!(f, "{call} failed with {name} (209): the kernels hold no code for this device")
            }
            Self::Driver { call, code, name } => write!(f, "{call} failed with {name} ({code})"),
            Self::InvalidLaunch(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for GpuError {}
