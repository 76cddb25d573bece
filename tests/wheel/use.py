"""What an installed specrs does with numpy alone (B84): run by `./dev wheel`, in an empty environment."""

import os
import subprocess
import sys
import time

start = time.perf_counter()
import specrs  # noqa: E402

seconds = time.perf_counter() - start
assert not {"torch", "transformers"} & set(sys.modules), "the core must import neither"

kernels = specrs._core.GPU_FATBIN_BYTES
assert kernels or "SPECRS_REQUIRE_NVCC" not in os.environ, "built with a CUDA compiler, and has no kernels"

import numpy as np  # noqa: E402

cache = specrs.SuffixCache()
text = np.array([5, 6, 7, 8, 5, 6], np.uint32)
cache.start(1, text)
tokens, parents, *_ = cache.step_many([1], [7], [0, 1], 4)
assert tokens.tolist()[:2] == [8, 5], tokens.tolist()
assert parents.tolist()[:2] == [-1, 0], parents.tolist()

logits = np.log(np.array([[0.1, 0.2, 0.6, 0.1]] * 2, np.float32))
verdict = specrs.verify(logits, [2], [-1])
assert verdict.path.tolist() == [0]
assert verdict.bonus.tolist() == [2]

said = ""
try:
    specrs.load("smollm2-135m")
except specrs.SpecrsError as error:
    said = str(error)
assert "specrs[hf]" in said, f"loading a model without torch must name the extra that brings it, got {said!r}"

version = subprocess.run([sys.executable, "-m", "specrs.cli", "--version"], capture_output=True, text=True, check=True)
assert specrs.__version__ in version.stdout
sys.stdout.write(
    f"specrs {specrs.__version__}: cache drafting, verification, command line; imported in {1000 * seconds:.0f} ms; "
    f"{kernels or 0:,} bytes of kernels\n"
)
