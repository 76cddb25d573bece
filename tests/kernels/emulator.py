"""The stand-in driver: built by g++ from the kernels' sources on demand, opened in the driver's place.

A kernel under test runs through the real launch path (``specrs.ops``, ``specrs._core``, driver API); only what is
behind the driver API differs. Builds are kept under target/. Every tensor that a kernel gets lies between guard bytes,
and memory that the ops allocate starts poisoned.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from specrs import _core
from specrs.ops import launch as launch_module
from specrs.ops import where

ROOT = Path(__file__).parents[2]
CUDA = ROOT / "cuda"
CACHE = ROOT / "target" / "emulator"
#: What the loader takes for a fatbin: its magic number.
IMAGE = bytes.fromhex("50ed55ba") + bytes(12)
ORDERS = {"forward": 0, "reverse": 1, "shuffle": 2}
GUARD = 64
GUARD_BYTE = 0xA5
FLAGS = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-function"]
#: Inline variables must not be shared between stand-ins of one process.
SHARED = ["-shared", "-fPIC", "-fno-gnu-unique"]


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
    CACHE.mkdir(parents=True, exist_ok=True)
    with output.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be building the same
        if not output.exists():
            part = output.with_suffix(".part")
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
        self.library.emu_last_stream.restype = ctypes.c_uint64
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

    def run(self, name: str, grid: int, threads: int, *arguments: torch.Tensor) -> str:
        """Launch past the loader, for kernels that are not in its table; return the fault, if any."""
        kernel = ctypes.c_void_p()
        assert self.library.cuLibraryGetKernel(ctypes.byref(kernel), None, name.encode()) == 0, name
        addresses = [ctypes.c_uint64(argument.data_ptr()) for argument in arguments]
        pointers = (ctypes.c_void_p * len(addresses))(*(ctypes.addressof(address) for address in addresses))
        context = ctypes.c_void_p()
        assert self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.library.cuCtxPushCurrent_v2(context) == 0
        code = self.library.cuLaunchKernel(kernel, grid, 1, 1, threads, 1, 1, 0, None, pointers, None)
        assert self.library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
        return self.fault() if code else ""

    def refuse_next(self, error: int) -> None:
        self.library.emu_refuse_next(error)

    def grant_shared(self, size: int = 227 * 1024) -> None:
        """Let the device grant this much dynamic shared memory; as 9.0 does without an argument."""
        self.library.emu_grant_shared(size)

    def last_launch(self) -> tuple[int, int]:
        """Device and stream of the last launch."""
        return self.library.emu_last_device(), self.library.emu_last_stream()


@contextlib.contextmanager
def launched(names: set[str]):
    """Collect the kernels that are launched."""
    submit = launch_module._submit

    def noting(kernel, *rest):
        names.add(kernel)
        submit(kernel, *rest)

    launch_module._submit = noting
    try:
        yield
    finally:
        launch_module._submit = submit


@contextlib.contextmanager
def recorded_launches(record: list, pointed: Sequence[torch.Tensor] = ()):
    """Append (kernel, blocks, shared, arguments before, buffers after) of every launch to `record`.

    A table of the addresses of `pointed` is recorded as what they hold.
    """
    submit, table = launch_module._submit, [tensor.data_ptr() for tensor in pointed]

    def content(x):
        if not isinstance(x, torch.Tensor) or not x.numel():
            return x
        return [t.clone() for t in pointed] if table and x.reshape(-1).tolist() == table else x.detach().clone()

    def recording(kernel, blocks, arguments, shared, device, stream):
        before = [content(x) for x in arguments]
        submit(kernel, blocks, arguments, shared, device, stream)
        after = [buffer for x in arguments for buffer in buffers_of(content(x))]
        record.append((kernel, blocks, shared, before, after))

    launch_module._submit = recording
    try:
        yield
    finally:
        launch_module._submit = submit


def buffers_of(value) -> list[torch.Tensor]:
    """What a recorded argument holds in memory: one buffer, those of a table of addresses, or none."""
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, torch.Tensor) and value.numel() else []


def replay(program: Path, record: list, folder: Path, table: dict | None = None) -> str:
    """Run `record` in the sanitizer build `program`; return what it complains about. Results must be the same bits."""
    if table is None:
        table = {name: (threads, parameters) for name, threads, _, parameters in _core.gpu_kernels()}

    def words(*values: int) -> bytes:
        return b"".join(value.to_bytes(8, "little") for value in values)

    def scalar(value: float | None, letter: str) -> bytes:
        kind = {"f": ctypes.c_float, "i": ctypes.c_int32}.get(letter, ctypes.c_int64)
        return bytes(kind(0 if value is None or isinstance(value, torch.Tensor) else value)).ljust(8, b"\0")

    data = words(len(record))
    for kernel, blocks, shared, before, _ in record:
        threads, parameters = table[kernel]
        data += words(len(kernel)) + kernel.encode() + words(*blocks, threads, shared, len(before))
        for value, letter in zip(before, parameters, strict=True):
            buffers = [bytes(buffer.reshape(-1).view(torch.uint8).numpy()) for buffer in buffers_of(value)]
            if isinstance(value, list):
                data += words(2, len(buffers))
            else:
                data += words(1) if buffers else words(0) + scalar(value, letter)
            data += b"".join(words(len(raw)) + raw for raw in buffers)
    (folder / "in").write_bytes(data)
    command = [str(program), str(folder / "in"), str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    if done.returncode:
        return done.stderr or f"exit status {done.returncode}"
    result, at = (folder / "out").read_bytes(), 0
    for kernel, *_, after in record:
        for tensor in after:
            raw = bytes(tensor.reshape(-1).view(torch.uint8).numpy())
            assert result[at : at + len(raw)] == raw, f"{kernel} gave other bits on OS threads"
            at += len(raw)
    return ""


@contextlib.contextmanager
def poisoned():
    """Let what the ops allocate start as NaN or the largest integer."""
    was = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was[0])
        torch.utils.deterministic.fill_uninitialized_memory = was[1]


def open_real_driver() -> None:
    """Open the driver of this machine in the place of a stand-in, with the kernels of this build."""
    if _core.GPU_FATBIN_BYTES is None:
        pytest.skip("no kernels in this build: install nvcc (dependency group 'cuda', or SPECRS_NVCC) and build again")
    _core.gpu_open()
    where._why_not.cache_clear()


def refuse_host_addresses(kernel: str, arguments: list) -> None:
    """Skip a test whose kernel gets addresses of host memory past its tensors: a device has no use for them."""
    letters = next(parameters for name, _, _, parameters in _core.gpu_kernels() if name == kernel)
    raw = [x for x, letter in zip(arguments, letters, strict=True) if letter in "Pp" and isinstance(x, int)]
    by_table = kernel in ("commit_cache", "write_caches") or (kernel.startswith("tree_") and arguments[1] is None)
    if raw or by_table:
        pytest.skip(f"{kernel} is given addresses of host memory; test_gpu.py has it on a device")


@contextlib.contextmanager
def between_guards(tensors: Sequence[torch.Tensor]):
    """Yield copies of `tensors` between guards, for kernels that reach them by address; check the guards after it."""
    rooms = [torch.full((tensor.nbytes + 2 * GUARD,), GUARD_BYTE, dtype=torch.uint8) for tensor in tensors]
    copies = []
    for room, tensor in zip(rooms, tensors, strict=True):
        assert room.data_ptr() % 16 == 0
        copies.append(room[GUARD:-GUARD].view(tensor.dtype).view(tensor.shape))
        copies[-1].copy_(tensor)
    yield copies
    for room in rooms:
        assert bool((torch.cat([room[:GUARD], room[-GUARD:]]) == GUARD_BYTE).all()), "wrote outside a tensor"


@contextlib.contextmanager
def guarded_launches(place: str = "cpu"):
    """Give every kernel copies of its tensors between guard bytes, check those after it, and copy the results back.

    The copies lie on `place`: with ``"cuda"`` and the real driver a test on host tensors runs its kernels there.
    """
    submit, where_of = launch_module._submit, launch_module._where

    def where_copies_lie(tensors):
        return where_of([torch.empty(0, device=place) if x.device.type == "cpu" else x for x in tensors])

    def guarded(kernel, blocks, arguments, shared, device, stream):
        if place != "cpu":
            refuse_host_addresses(kernel, arguments)
        copies = {}
        values = []
        for argument in arguments:
            if not isinstance(argument, torch.Tensor) or argument.numel() == 0:
                values.append(argument)
                continue
            key = (argument.data_ptr(), argument.numel())
            if key not in copies:
                size = argument.numel() * argument.element_size()
                room = torch.full((size + 2 * GUARD + 16,), GUARD_BYTE, dtype=torch.uint8, device=place)
                start = GUARD + (argument.data_ptr() - room.data_ptr() - GUARD) % 16  # as aligned as the original
                room[start : start + size].copy_(argument.reshape(-1).view(torch.uint8))
                copies[key] = (room, argument, start, size)
            room, _, start, size = copies[key]
            values.append(room[start : start + size].view(argument.dtype))
        submit(kernel, blocks, values, shared, device, stream)
        for room, argument, start, size in copies.values():
            outside = torch.cat([room[:start], room[start + size :]])
            assert bool((outside == GUARD_BYTE).all()), (
                f"{kernel} wrote outside a tensor of shape {tuple(argument.shape)}"
            )
            argument.reshape(-1).view(torch.uint8).copy_(room[start : start + size])

    launch_module._submit, launch_module._where = guarded, where_copies_lie
    try:
        yield
    finally:
        launch_module._submit, launch_module._where = submit, where_of
