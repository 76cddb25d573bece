"""The stand-in driver: built by g++ from the kernels' sources on demand, kept under target/, opened in the driver's place.

A kernel under test runs through the real launch path (``specrs.ops`` → ``specrs._core`` → driver API); only the library
behind the driver API differs. Every tensor that a kernel gets lies between guard bytes, and memory that the ops allocate
starts poisoned.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

from specrs import _core
from specrs.ops import launch as launch_module

ROOT = Path(__file__).parents[2]
CUDA = ROOT / "cuda"
CACHE = ROOT / "target" / "emulator"
#: What the loader takes for a fatbin: its magic number.
IMAGE = bytes.fromhex("50ed55ba") + bytes(12)
ORDERS = {"forward": 0, "reverse": 1, "shuffle": 2}
GUARD = 64
GUARD_BYTE = 0xA5
FLAGS = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    assert found, "the emulator needs g++ (Debian: apt-get install g++)"
    return found


def build(source: Path, *flags: str, cuda: Path = CUDA) -> Path:
    """Compile `source` (below `cuda`) with `flags`; the result is kept for as long as nothing changes."""
    digest = hashlib.sha256(repr((FLAGS, flags, source.relative_to(cuda))).encode())
    for file in sorted(path for path in cuda.rglob("*") if path.is_file()):
        digest.update(file.relative_to(cuda).as_posix().encode() + file.read_bytes())
    output = CACHE / f"{source.stem}-{digest.hexdigest()[:16]}{'.so' if '-shared' in flags else ''}"
    if not output.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = output.with_suffix(f".{os.getpid()}.part")
        command = [compiler(), *FLAGS, *flags, "-x", "c++", str(source), "-o", str(part), "-pthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        part.rename(output)
    return output


class Emulator:
    """One stand-in driver, opened in the real one's place."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self.library = ctypes.CDLL(str(library))
        self.library.emu_kernels.restype = ctypes.c_char_p
        self.library.emu_fault.restype = ctypes.c_char_p
        self.library.emu_configure.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int]

    def open(self) -> None:
        _core.gpu_open(str(self.path), IMAGE)

    def configure(self, threads: str = "forward", blocks: str = "forward", seed: int = 1) -> None:
        self.library.emu_configure(ORDERS[threads], ORDERS[blocks], seed, 1)

    def kernels(self) -> dict[str, tuple[str, int]]:
        lines = self.library.emu_kernels().decode().split("\n")
        return {name: (parameters, int(threads)) for name, parameters, threads in (x.split() for x in lines if x)}

    def fault(self) -> str:
        return self.library.emu_fault().decode()

    def refuse_next(self, error: int) -> None:
        self.library.emu_refuse_next(error)


@contextlib.contextmanager
def guarded_launches():
    """Give every kernel copies of its tensors between guard bytes, check those after it, and copy the results back."""
    submit = launch_module._submit

    def guarded(kernel, blocks, arguments, shared, device, stream):
        copies = {}
        values = []
        for argument in arguments:
            if not isinstance(argument, torch.Tensor) or argument.numel() == 0:
                values.append(argument)
                continue
            key = (argument.data_ptr(), argument.numel())
            if key not in copies:
                size = argument.numel() * argument.element_size()
                room = torch.full((size + 2 * GUARD + 16,), GUARD_BYTE, dtype=torch.uint8)
                start = GUARD + (argument.data_ptr() - room.data_ptr() - GUARD) % 16  # as aligned as the original
                room[start : start + size] = argument.reshape(-1).view(torch.uint8)
                copies[key] = (room, argument, start, size)
            room, _, start, size = copies[key]
            values.append(room[start : start + size].view(argument.dtype))
        submit(kernel, blocks, values, shared, device, stream)
        for room, argument, start, size in copies.values():
            outside = torch.cat([room[:start], room[start + size :]])
            assert bool((outside == GUARD_BYTE).all()), f"{kernel} wrote outside a tensor of shape {tuple(argument.shape)}"
            argument.reshape(-1).view(torch.uint8).copy_(room[start : start + size])

    launch_module._submit = guarded
    try:
        yield
    finally:
        launch_module._submit = submit
