//! Runs a numeric loop compiled for the widest vectors that this processor has.
//!
//! The loops are ordinary Rust over fixed-width lanes, so that the result is the same with and without wide vectors:
//! the order of additions is written down, and a fused multiply-add is fused everywhere.

/// Runs `work`, a closure whose callees are all `#[inline(always)]`, with AVX2 and FMA where there are any.
#[inline]
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[target_feature(enable = "avx2,fma")]
        fn wide<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        // SAFETY: both features were detected on the line above.
        return unsafe { wide(work) };
    }
    work()
}
