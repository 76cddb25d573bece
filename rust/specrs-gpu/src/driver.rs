//! The CUDA driver API, opened at run time: no toolkit and no driver is needed to build or to import.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::error::GpuError;

pub(crate) type Pointer = *mut c_void;
type Code = c_int;

#[cfg(unix)]
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> Pointer;
    fn dlsym(library: Pointer, symbol: *const c_char) -> Pointer;
    fn dlerror() -> *const c_char;
}

/// The functions that we call. Loaded once; the library stays open for the life of the process.
pub(crate) struct Driver {
    /// A stand-in for tests, which runs the kernels on the host and says so by a symbol that no driver has.
    pub(crate) takes_host_memory: bool,
    get_error_name: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
    get_version: unsafe extern "C" fn(*mut c_int) -> Code,
    device_count: unsafe extern "C" fn(*mut c_int) -> Code,
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> Code,
    context_retain: unsafe extern "C" fn(*mut Pointer, c_int) -> Code,
    context_push: unsafe extern "C" fn(Pointer) -> Code,
    context_pop: unsafe extern "C" fn(*mut Pointer) -> Code,
    library_load:
        unsafe extern "C" fn(*mut Pointer, *const c_void, Pointer, Pointer, c_uint, Pointer, Pointer, c_uint) -> Code,
    library_kernel: unsafe extern "C" fn(*mut Pointer, Pointer, *const c_char) -> Code,
    kernel_function: unsafe extern "C" fn(*mut Pointer, Pointer) -> Code,
    /// Missing before CUDA 12.4.
    function_load: Option<unsafe extern "C" fn(Pointer) -> Code>,
    kernel_attribute: unsafe extern "C" fn(c_int, c_int, Pointer, c_int) -> Code,
    launch: unsafe extern "C" fn(
        Pointer,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Pointer,
        *mut Pointer,
        Pointer,
    ) -> Code,
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;

impl Driver {
    /// Opens the driver library (`libcuda.so.1` unless `path` names another) and initialises it.
    #[cfg(unix)]
    pub(crate) fn open(path: Option<&str>) -> Result<Self, GpuError> {
        const RTLD_NOW: c_int = 2;
        let path = path.unwrap_or("libcuda.so.1");
        let file = CString::new(path).map_err(|_| GpuError::NoDriver(format!("{path:?} is not a file name")))?;
        // SAFETY: `file` is a C string; opening a library runs its initialisers, which is what the caller asks for.
        let library = unsafe { dlopen(file.as_ptr(), RTLD_NOW) };
        if library.is_null() {
            // SAFETY: dlerror returns null or a C string that lives until the next dl call of this thread.
            let why = unsafe {
                let text = dlerror();
                if text.is_null() { path.to_owned() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
            };
            return Err(GpuError::NoDriver(why));
        }
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the driver API documents this function with the type of the field it goes to.
                unsafe { std::mem::transmute_copy(&find(library, $name)?) }
            };
        }
        let init: unsafe extern "C" fn(c_uint) -> Code = symbol!("cuInit");
        let driver = Self {
            takes_host_memory: find(library, "specrs_takes_host_memory").is_ok(),
            get_error_name: symbol!("cuGetErrorName"),
            get_version: symbol!("cuDriverGetVersion"),
            device_count: symbol!("cuDeviceGetCount"),
            device_get: symbol!("cuDeviceGet"),
            context_retain: symbol!("cuDevicePrimaryCtxRetain"),
            context_push: symbol!("cuCtxPushCurrent_v2"),
            context_pop: symbol!("cuCtxPopCurrent_v2"),
            library_load: symbol!("cuLibraryLoadData"),
            library_kernel: symbol!("cuLibraryGetKernel"),
            kernel_function: symbol!("cuKernelGetFunction"),
            function_load: match find(library, "cuFuncLoad") {
                // SAFETY: as above.
                Ok(found) => Some(unsafe { std::mem::transmute_copy(&found) }),
                Err(_) => None,
            },
            kernel_attribute: symbol!("cuKernelSetAttribute"),
            launch: symbol!("cuLaunchKernel"),
        };
        // SAFETY: cuInit takes a flags word that must be 0.
        driver.check("cuInit", unsafe { init(0) })?;
        Ok(driver)
    }

    #[cfg(not(unix))]
    pub(crate) fn open(_path: Option<&str>) -> Result<Self, GpuError> {
        Err(GpuError::NoDriver("only Linux is supported".into()))
    }

    /// Turns a driver code into an error that carries its name.
    fn check(&self, call: &'static str, code: Code) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a static C string, or leaves null for an unknown code.
        let name = unsafe {
            (self.get_error_name)(code, &raw mut text);
            if text.is_null() { "an unknown error".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        Err(GpuError::Driver { call, code, name })
    }

    pub(crate) fn version(&self) -> Result<i32, GpuError> {
        let mut version = 0;
        // SAFETY: writes one int.
        self.check("cuDriverGetVersion", unsafe { (self.get_version)(&raw mut version) })?;
        Ok(version)
    }

    pub(crate) fn devices(&self) -> Result<i32, GpuError> {
        let mut count = 0;
        // SAFETY: writes one int.
        self.check("cuDeviceGetCount", unsafe { (self.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// Loads a fatbin or cubin. `image` must be 8-byte aligned and must live as long as the process.
    pub(crate) fn load(&self, image: &'static [u64]) -> Result<Pointer, GpuError> {
        let (mut library, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `image` is aligned and never freed; no options are given.
        let code =
            unsafe { (self.library_load)(&raw mut library, image.as_ptr().cast(), none, none, 0, none, none, 0) };
        self.check("cuLibraryLoadData", code)?;
        Ok(library)
    }

    pub(crate) fn kernel(&self, library: Pointer, name: &str) -> Result<Pointer, GpuError> {
        let name = CString::new(name).map_err(|_| GpuError::InvalidLaunch(format!("{name:?} is no kernel name")))?;
        let mut kernel = std::ptr::null_mut();
        // SAFETY: `library` came from cuLibraryLoadData; `name` is a C string.
        let code = unsafe { (self.library_kernel)(&raw mut kernel, library, name.as_ptr()) };
        self.check("cuLibraryGetKernel", code)?;
        Ok(kernel)
    }

    /// The primary context of a device, kept for the life of the process.
    pub(crate) fn context(&self, ordinal: i32) -> Result<(c_int, Pointer), GpuError> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: both write one word.
        self.check("cuDeviceGet", unsafe { (self.device_get)(&raw mut device, ordinal) })?;
        // SAFETY: `device` is valid after the call above.
        self.check("cuDevicePrimaryCtxRetain", unsafe { (self.context_retain)(&raw mut context, device) })?;
        Ok((device, context))
    }

    /// Runs `work` with `context` current.
    pub(crate) fn within<T>(
        &self,
        context: Pointer,
        work: impl FnOnce() -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        // SAFETY: `context` is a retained primary context.
        self.check("cuCtxPushCurrent", unsafe { (self.context_push)(context) })?;
        let result = work();
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops what was pushed above.
        self.check("cuCtxPopCurrent", unsafe { (self.context_pop)(&raw mut popped) })?;
        result
    }

    /// Loads a kernel's code into the current context, so that nothing is loaded during a graph capture, and allows it
    /// `shared` bytes of dynamic shared memory.
    pub(crate) fn prepare(&self, kernel: Pointer, device: c_int, shared: u32) -> Result<(), GpuError> {
        if shared > 48 * 1024 {
            // SAFETY: `kernel` came from cuLibraryGetKernel.
            let code = unsafe { (self.kernel_attribute)(MAX_DYNAMIC_SHARED, shared as c_int, kernel, device) };
            self.check("cuKernelSetAttribute", code)?;
        }
        let mut function = std::ptr::null_mut();
        // SAFETY: `kernel` came from cuLibraryGetKernel; a context is current.
        self.check("cuKernelGetFunction", unsafe { (self.kernel_function)(&raw mut function, kernel) })?;
        if let Some(load) = self.function_load {
            // SAFETY: `function` is valid after the call above.
            self.check("cuFuncLoad", unsafe { load(function) })?;
        }
        Ok(())
    }

    /// Launches in the current context.
    ///
    /// # Safety
    /// `arguments` must point to values of the kernel's parameter types, and pointers among them to device memory that
    /// the kernel may use in the way and to the extent that it documents.
    pub(crate) unsafe fn launch(
        &self,
        kernel: Pointer,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        stream: u64,
        arguments: &mut [Pointer],
    ) -> Result<(), GpuError> {
        let (stream, extra) = (stream as usize as Pointer, std::ptr::null_mut());
        // SAFETY: the caller vouches for the arguments; the driver copies them before it returns.
        let code = unsafe {
            (self.launch)(
                kernel,
                grid[0],
                grid[1],
                grid[2],
                threads,
                1,
                1,
                shared,
                stream,
                arguments.as_mut_ptr(),
                extra,
            )
        };
        self.check("cuLaunchKernel", code)
    }
}

#[cfg(unix)]
fn find(library: Pointer, name: &str) -> Result<Pointer, GpuError> {
    let symbol = CString::new(name).map_err(|_| GpuError::NoDriver(format!("{name:?} is no symbol")))?;
    // SAFETY: `library` is open and `symbol` a C string.
    let found = unsafe { dlsym(library, symbol.as_ptr()) };
    if found.is_null() {
        return Err(GpuError::NoDriver(format!("the driver has no {name}; CUDA 12 or newer is needed")));
    }
    Ok(found)
}
