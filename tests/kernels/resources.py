"""What the kernels take: budgets and floors from their headers, registers and shared memory from the compiler.

``python -m tests.kernels.resources --write`` compiles every target and writes the tables of docs/kernels.md.
"""

import argparse
import os
import re
import subprocess
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
CUDA = ROOT / "cuda"
PAGE = ROOT / "docs" / "kernels.md"
FATBIN_BYTES = 3 * 2**20
PTX_VERSION = "9.0"
ARCHS = (80, 86, 89, 90, 100, 120)
SECTIONS = ("Maths", "Shapes", "Blocks", "Bytes", "Operations", "Floor", "Budget")
MARK = "<!-- written by python -m tests.kernels.resources --write -->"


def headers():
    """File name: its header's sections, each as one line."""
    found = {}
    for file in sorted((CUDA / "kernels").glob("*.cu")):
        comment = re.match(r"(?://[^\n]*\n)+", file.read_text()).group()
        text = " ".join(line.removeprefix("//").strip() for line in comment.splitlines())
        parts = re.split(rf"(?:^| )({'|'.join(SECTIONS)})\. ", text)
        found[file.name] = {"Purpose": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    return found


def budgets():
    """Kernel without its element type: (registers, bytes of static shared memory) that its file allows."""
    entries = [
        entry
        for sections in headers().values()
        for entry in re.findall(r"(\w+): (\d+) registers, (\d+) KB", sections["Budget"])
    ]
    assert len({name for name, *_ in entries}) == len(entries)
    return {name: (int(registers), int(kilobytes) * 1024) for name, registers, kilobytes in entries}


def nvcc():
    """The pinned compiler, of this environment or where SPECRS_NVCC says; None without one."""
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "nvcc"
    found = Path(os.environ.get("SPECRS_NVCC", wheel))
    return found if found.exists() else None


def compile_all(compiler, output):
    """Compile every target into a fatbin as the build does; return what ptxas said."""
    command = [compiler, "-O3", "-std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v", "-t", "2"]
    for arch in ARCHS:
        command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    command += ["-gencode", f"arch=compute_{ARCHS[0]},code=compute_{ARCHS[0]}", "--compress-mode=size", "-fatbin"]
    done = subprocess.run([*command, "-o", output, CUDA / "specrs.cu"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def stem(kernel):
    """The budget's name of a kernel: without its element type, with an attention kernel's head size."""
    return "_".join(part for part in kernel.split("_") if part not in ("f32", "bf16", "f16"))


def usage(log):
    """(kernel, target): registers, bytes of static shared memory, bytes spilled, as ptxas reports them."""
    found = {}
    for block in re.split(r"Compiling entry function '", log)[1:]:
        kernel, arch = re.match(r"(\w+)' for '(sm_\d+)'", block).groups()
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", block)
        shared = re.search(r"(\d+) bytes smem", block)
        registers = int(re.search(r"Used (\d+) registers", block).group(1))
        spilled = sum(int(number) for number in spills.groups())
        found[kernel, arch] = registers, int(shared.group(1)) if shared else 0, spilled
    return found


def tables(log):
    """Registers and shared memory of each kernel, the most of all targets and types; work and floor of each file."""
    from specrs import _core

    most, allowed = {}, budgets()
    for (kernel, _), (registers, shared, _) in usage(log).items():
        before = most.get(stem(kernel), (0, 0))
        most[stem(kernel)] = max(before[0], registers), max(before[1], shared)
    dynamic = {stem(name): shared for name, _, shared, _ in _core.gpu_kernels()}
    lines = ["| kernel | registers (budget) | shared memory, bytes | asked for at launch |", "|---|---|---|---|"]
    for name in sorted(most):
        registers, shared = most[name]
        lines.append(f"| `{name}` | {registers} ({allowed[name][0]}) | {shared:,} | {dynamic[name]:,} |")
    lines += ["", "| file | bytes moved | operations | floor |", "|---|---|---|---|"]
    for file, sections in headers().items():
        cells = (sections[name].replace("|", "\\|").strip() for name in ("Bytes", "Operations", "Floor"))
        lines.append(f"| `{file}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def page_with(text, table):
    """Return a page's text with what stands between its marks replaced."""
    before, _, after = text.split(MARK)
    return f"{before}{MARK}\n\n{table}\n\n{MARK}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/kernels.md instead of printing")
    write = parser.parse_args().write
    compiler = nvcc()
    if compiler is None:
        parser.error("no nvcc: pip install --group cuda, or set SPECRS_NVCC")
    (ROOT / "target").mkdir(exist_ok=True)
    table = tables(compile_all(compiler, ROOT / "target" / "resources.fatbin"))
    if write:
        PAGE.write_text(page_with(PAGE.read_text(), table))
    else:
        print(table)  # noqa: T201  a command


if __name__ == "__main__":
    main()
