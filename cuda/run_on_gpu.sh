#!/usr/bin/env bash
# One call on a machine with a GPU: builds with kernels, tests on the device, sanitises, benches, writes benches/record/.
# usage: cuda/run_on_gpu.sh [PYTHON]   (an environment with torch for CUDA, pytest and maturin)
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-.venv/bin/python}
OUT=${OUT:-target/gpu}
mkdir -p "$OUT"
say() { printf '== %s\n' "$*"; }

say "driver and device"
nvidia-smi --query-gpu=name,driver_version --format=csv

say "building with kernels"
"$PYTHON" -m pip install -q --group cuda || say "the pinned compiler could not be installed; using SPECRS_NVCC or the one on PATH"
if [ -z "${SPECRS_NVCC:-}" ]; then
  SPECRS_NVCC=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13/bin/nvcc
  [ -x "$SPECRS_NVCC" ] || SPECRS_NVCC=$(command -v nvcc)
fi
export SPECRS_NVCC SPECRS_REQUIRE_NVCC=1
VIRTUAL_ENV=$("$PYTHON" -c 'import sys; print(sys.prefix)') "$PYTHON" -m maturin develop -q --release --skip-install
export PYTHONPATH=$PWD/python

say "tests on the device"
"$PYTHON" -m pytest -q -m gpu tests/kernels | tee "$OUT/tests.log"

if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck synccheck; do
    say "compute-sanitizer $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$PYTHON" -m pytest -q -m gpu tests/kernels -k "not graph and not repeats" \
      >"$OUT/$tool.log" 2>&1 || { tail -20 "$OUT/$tool.log"; exit 1; }
  done
else
  say "no compute-sanitizer on PATH: skipped"
fi

say "bench"
"$PYTHON" benches/kernels.py --record benches/record | tee "$OUT/bench.log"
