//! What this binary is: version, build profile, processor features.

use pyo3::prelude::*;

/// `debug` or `release`; benches refuse the former.
fn profile() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

/// The processor features that the hot paths ask for, and whether this processor has them.
#[pyfunction]
fn cpu_features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    return vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    return Vec::new();
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("BUILD_PROFILE", profile())?;
    m.add_function(wrap_pyfunction!(cpu_features, m)?)
}
