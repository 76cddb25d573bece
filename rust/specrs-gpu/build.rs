//! Compiles `cuda/specrs.cu` into the fatbin that the crate embeds, when an nvcc is at hand.
//!
//! `SPECRS_NVCC` names the compiler; otherwise the one of the `PyPI` wheels in the active virtual environment is taken.
//! `SPECRS_NVCC=none` asks for a build without kernels, `SPECRS_CUDA_ARCHS=90` (comma separated) for fewer targets.
//! Without a compiler the crate builds all the same, embeds nothing and says so at run time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Machine code for each, and PTX of the first for what comes after.
const ARCHS: &str = "80,86,89,90,100,120";

fn wheel_nvcc() -> Option<PathBuf> {
    let lib = PathBuf::from(env::var_os("VIRTUAL_ENV")?).join("lib");
    let pythons = fs::read_dir(lib).ok()?.flatten();
    pythons.map(|python| python.path().join("site-packages/nvidia/cu13/bin/nvcc")).find(|path| path.exists())
}

fn compile(nvcc: &Path, source: &Path, output: &Path) -> Result<(), String> {
    let archs = env::var("SPECRS_CUDA_ARCHS").unwrap_or_else(|_| ARCHS.into());
    let mut command = Command::new(nvcc);
    command.args(["-O3", "-std=c++17", "-Werror", "all-warnings", "-t", "2", "--compress-mode=size", "-fatbin"]);
    for arch in archs.split(',') {
        command.arg("-gencode").arg(format!("arch=compute_{arch},code=sm_{arch}"));
    }
    let first = archs.split(',').next().unwrap_or_default();
    command.arg("-gencode").arg(format!("arch=compute_{first},code=compute_{first}"));
    let result = command.arg("-o").arg(output).arg(source).output().map_err(|e| format!("{}: {e}", nvcc.display()))?;
    if result.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&result.stderr).into_owned()) }
}

fn main() {
    println!("cargo::rustc-check-cfg=cfg(specrs_fatbin)");
    for variable in ["SPECRS_NVCC", "SPECRS_CUDA_ARCHS", "VIRTUAL_ENV"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let cuda = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../cuda");
    for part in ["specrs.cu", "include", "kernels"] {
        println!("cargo::rerun-if-changed={}", cuda.join(part).display());
    }
    let nvcc = match env::var("SPECRS_NVCC") {
        Ok(choice) if choice == "none" => None,
        Ok(choice) => Some(PathBuf::from(choice)),
        Err(_) => wheel_nvcc(),
    };
    let Some(nvcc) = nvcc else { return };
    let output = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join("specrs.fatbin");
    if let Err(message) = compile(&nvcc, &cuda.join("specrs.cu"), &output) {
        println!(
            "cargo::error=the CUDA kernels do not compile with {}: {}",
            nvcc.display(),
            message.replace('\n', " | ")
        );
        return;
    }
    println!("cargo::rustc-cfg=specrs_fatbin");
    println!("cargo::rustc-env=SPECRS_FATBIN={}", output.display());
}
