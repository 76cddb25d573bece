#!/usr/bin/env bash
# One call on a machine with a GPU: builds with kernels, tests on the device, benches, runs a small model end to end,
# sanitises, and writes benches/record/. About a quarter of an hour; what is not installed is skipped and said so.
# usage: cuda/run_on_gpu.sh [PYTHON]   (an environment with torch for CUDA, numpy, pytest and maturin; with transformers the
#        end-to-end part runs too). LIMIT=SECONDS bounds a step (300), OUT=FOLDER takes the logs (target/gpu), RECORDS=FOLDER the record.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-.venv/bin/python}
OUT=${OUT:-target/gpu}
LIMIT=${LIMIT:-300}
DAY=$(date +%F)
RECORDS=${RECORDS:-benches/record}
RECORD=$RECORDS/$DAY-gpu.txt
mkdir -p "$OUT" "$RECORDS"
failed=()

say() { printf '== %s [%s]\n' "$*" "$(date +%T)"; }
die() { printf 'run_on_gpu: %s\n' "$*" >&2; exit 1; }

# step NAME COMMAND...: run with the time limit, keep the log, go on when it fails and say so at the end.
step() {
  local name=$1 started=$SECONDS
  shift
  say "$name"
  if timeout --kill-after=10 "$LIMIT" "$@" >"$OUT/$name.log" 2>&1; then
    tail -4 "$OUT/$name.log"
    echo "$name: passed in $((SECONDS - started)) s" >>"$RECORD"
  else
    local code=$?
    tail -25 "$OUT/$name.log"
    failed+=("$name")
    echo "$name: FAILED with $code after $((SECONDS - started)) s ($OUT/$name.log)" >>"$RECORD"
  fi
}

# What nobody wants to learn after ten minutes.
say "what is here"
command -v nvidia-smi >/dev/null || die "no nvidia-smi: this machine has no NVIDIA driver"
nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv | tee "$OUT/device.csv" || die "nvidia-smi failed"
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)
[ "${driver%%.*}" -ge 580 ] 2>/dev/null || die "the kernels are built with CUDA 13.0, which needs driver 580 or later, got $driver"
"$PYTHON" - <<'CHECK' || die "the environment of $PYTHON does not do; see above"
import sys
from importlib.util import find_spec
missing = [name for name in ("torch", "numpy", "pytest", "maturin") if find_spec(name) is None]
if missing:
    sys.exit(f"missing: {', '.join(missing)} (pip install {' '.join(missing)})")
import torch
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} sees no CUDA device: install a CUDA build of torch")
if torch.cuda.get_device_capability() < (8, 0):
    sys.exit(f"compute capability 8.0 or later is needed, got {torch.cuda.get_device_capability()}")
free, total = torch.cuda.mem_get_info()
if free < 12 * 2**30:
    sys.exit(f"12 GiB of free device memory are needed, got {free / 2**30:.1f} of {total / 2**30:.1f}")
print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {free / 2**30:.0f} GiB free")
CHECK
command -v cargo >/dev/null || [ -x "$HOME/.cargo/bin/cargo" ] || die "no cargo: install Rust >= 1.88"
export PATH=$PATH:$HOME/.cargo/bin

# Not installed beside torch, whose runtime wheels it would replace.
SPECRS_NVCC=${SPECRS_NVCC:-$(command -v nvcc)} || die "no nvcc: run ./dev gpu, or put one on PATH or into SPECRS_NVCC"
compiler=$("$SPECRS_NVCC" --version) || die "$SPECRS_NVCC does not run"
[[ $compiler == *'release 13.'* ]] || die "nvcc of CUDA 13 is needed, got: $compiler"
export SPECRS_NVCC SPECRS_REQUIRE_NVCC=1

{
  echo "specrs on a GPU, $DAY, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  cat "$OUT/device.csv"
} >"$RECORD"

# For this device alone: six targets take minutes.
SPECRS_CUDA_ARCHS=${SPECRS_CUDA_ARCHS:-$("$PYTHON" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')}
export SPECRS_CUDA_ARCHS
VIRTUAL_ENV=$("$PYTHON" -c 'import sys; print(sys.prefix)')
export VIRTUAL_ENV PYTHONPATH=$PWD/python
LIMIT=600 step build "$PYTHON" -m maturin develop --release --skip-install
[ ${#failed[@]} -eq 0 ] || die "the build failed: $OUT/build.log"
step first-launch "$PYTHON" -c 'import torch, specrs._core as core
print("driver and devices", core.gpu_driver(), "fatbin bytes", core.GPU_FATBIN_BYTES)
from specrs.ops.rows import row_statistics
rows = torch.randn(8, 151936, device="cuda", dtype=torch.bfloat16)
assert torch.equal(row_statistics(rows).argmax, rows.float().argmax(1)), "a first kernel is wrong"'
[ ${#failed[@]} -eq 0 ] || die "no kernel runs: $OUT/first-launch.log"

LIMIT=900 step tests "$PYTHON" -m pytest -q -m gpu tests/kernels
step bench "$PYTHON" benches/kernels.py --record "$RECORDS"
if "$PYTHON" -c 'import transformers' 2>/dev/null; then
  step end-to-end "$PYTHON" benches/gpu_end_to_end.py --record "$RECORDS"
else
  echo "end-to-end: skipped, transformers is not installed" | tee -a "$RECORD"
fi
SANITIZER=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
if [ -n "$SANITIZER" ]; then
  # Small cases; without torch's caching an access behind a tensor leaves its allocation.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  for tool in memcheck racecheck synccheck initcheck; do
    step "$tool" "$SANITIZER" --tool "$tool" --error-exitcode 9 "$PYTHON" -m pytest -q -x -m gpu tests/kernels/test_gpu.py \
      -k "device_equals_host or attention_on_the_device or caches_on_the_device or commit_on_the_device"
  done
else
  echo "compute-sanitizer: skipped, not installed" | tee -a "$RECORD"
fi

say "record: $RECORD"
cat "$RECORD"
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
