"""The kernels through the CUDA compiler: every target, no warnings, no spills, within budget, PTX that drivers take.

Runs where the dependency group ``cuda`` (or SPECRS_NVCC) is; a build server sets SPECRS_REQUIRE_NVCC so that it cannot
be skipped there. What the headers say is checked everywhere.
"""

import os
import re
import subprocess
import time

import pytest
from tests.kernels import resources
from tests.kernels.resources import ARCHS, CUDA, FATBIN_BYTES, PTX_VERSION, SECTIONS

from specrs import _core


def test_every_header_says_what_its_kernels_do():
    found = resources.headers()
    for file, sections in found.items():
        assert set(sections) == {"Purpose", *SECTIONS}, file
        assert all(len(text) > 3 for text in sections.values()), file
    budgets = resources.budgets()
    assert set(budgets) == {resources.stem(name) for name, *_ in _core.gpu_kernels()}
    page = resources.PAGE.read_text()
    assert all(f"| `{name}` |" in page for name in [*found, *budgets])


@pytest.fixture(scope="module")
def compiler():
    found = resources.nvcc()
    if found is None:
        assert "SPECRS_REQUIRE_NVCC" not in os.environ, "no nvcc where SPECRS_NVCC says"
        pytest.skip("no nvcc: pip install --group cuda, or set SPECRS_NVCC")
    return found


@pytest.fixture(scope="module")
def compiled(compiler, tmp_path_factory):
    """The fatbin, what ptxas said about it, and how long it took."""
    output = tmp_path_factory.mktemp("nvcc") / "specrs.fatbin"
    started = time.monotonic()
    log = resources.compile_all(compiler, output)
    return output, log, time.monotonic() - started


@pytest.mark.timeout(900)
def test_budgets(compiled):
    output, log, seconds = compiled
    budgets, used = resources.budgets(), resources.usage(log)
    for (kernel, arch), (registers, shared, spilled) in used.items():
        most_registers, most_shared = budgets[resources.stem(kernel)]
        assert spilled == 0, f"{kernel} spills {spilled} bytes on {arch}"
        assert registers <= most_registers, f"{kernel} uses {registers} registers on {arch}, budget {most_registers}"
        assert shared <= most_shared, f"{kernel} uses {shared} bytes on {arch}, budget {most_shared}"
    assert {(resources.stem(kernel), arch) for kernel, arch in used} == {
        (name, f"sm_{arch}") for name in budgets for arch in ARCHS
    }
    assert output.stat().st_size <= FATBIN_BYTES
    assert seconds < 300, f"compiling took {seconds:.0f} s"


@pytest.mark.timeout(900)
def test_the_page_quotes_the_compiler(compiled):
    page = resources.PAGE.read_text()
    message = "run: python -m tests.kernels.resources --write"
    assert page == resources.page_with(page, resources.tables(compiled[1])), message


@pytest.mark.timeout(300)
def test_ptx(compiler, tmp_path):
    """The version that drivers take, and atomics that shared memory does natively: others become loops."""
    output = tmp_path / "specrs.ptx"
    command = [compiler, "-std=c++17", "-O3", f"-arch=compute_{ARCHS[0]}", "-ptx", "-o", output, CUDA / "specrs.cu"]
    subprocess.run(command, check=True)
    text = output.read_text()
    assert re.search(r"^\.version (\S+)", text, re.M).group(1) == PTX_VERSION
    assert set(re.findall(r"\b(?:atom|red)\.shared\S*", text)) == {"atom.shared.add.u32"}
