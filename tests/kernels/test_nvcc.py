"""The kernels through the CUDA compiler: every target, no warnings, no spills, within budget, PTX that drivers take.

Runs where the dependency group ``cuda`` (or SPECRS_NVCC) is; a build server sets SPECRS_REQUIRE_NVCC so that it cannot
be skipped there.
"""

import os
import re
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest
from tests.kernels.budget import ARCHS, BUDGET, FATBIN_BYTES, PTX_VERSION
from tests.kernels.emulator import CUDA


def compiler():
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvcc"
    found = Path(os.environ.get("SPECRS_NVCC", wheel))
    if not found.exists():
        assert "SPECRS_REQUIRE_NVCC" not in os.environ, f"no nvcc at {found}"
        pytest.skip("no nvcc: pip install --group cuda, or set SPECRS_NVCC")
    return found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The fatbin, what ptxas said about it, and how long it took."""
    output = tmp_path_factory.mktemp("nvcc") / "specrs.fatbin"
    command = [compiler(), "-O3", "-std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v", "-t", "2"]
    for arch in ARCHS:
        command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    command += ["-gencode", f"arch=compute_{ARCHS[0]},code=compute_{ARCHS[0]}", "--compress-mode=size", "-fatbin"]
    started = time.monotonic()
    done = subprocess.run([*command, "-o", output, CUDA / "specrs.cu"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output, done.stderr, time.monotonic() - started


def stem(kernel):
    """The budget's name of a kernel: without its element type, with an attention kernel's head size."""
    parts = [part for part in kernel.split("_") if part not in ("f32", "bf16", "f16")]
    return "_".join(parts)


@pytest.mark.timeout(900)
def test_budgets(compiled):
    output, log, seconds = compiled
    blocks = re.split(r"Compiling entry function '", log)[1:]
    seen = set()
    for block in blocks:
        kernel, arch = re.match(r"(\w+)' for '(sm_\d+)'", block).groups()
        registers, shared = BUDGET[stem(kernel)]
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", block)
        assert spills.groups() == ("0", "0"), f"{kernel} spills on {arch}: {spills.group()}"
        used = int(re.search(r"Used (\d+) registers", block).group(1))
        assert used <= registers, f"{kernel} uses {used} registers on {arch}, budget {registers}"
        static = re.search(r"(\d+) bytes smem", block)
        assert int(static.group(1) if static else 0) <= shared, f"{kernel} on {arch}: {static.group()}, budget {shared}"
        seen.add((stem(kernel), arch))
    assert seen == {(name, f"sm_{arch}") for name in BUDGET for arch in ARCHS}
    assert output.stat().st_size <= FATBIN_BYTES
    assert seconds < 300, f"compiling took {seconds:.0f} s"


@pytest.mark.timeout(300)
def test_ptx_version(tmp_path):
    output = tmp_path / "specrs.ptx"
    command = [compiler(), "-std=c++17", "-arch=compute_80", "-ptx", "-o", output, CUDA / "kernels" / "cache_lookup.cu"]
    subprocess.run(command, check=True)
    assert re.search(r"^\.version (\S+)", output.read_text(), re.M).group(1) == PTX_VERSION
