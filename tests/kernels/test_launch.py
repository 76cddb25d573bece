"""The launch path itself: the table of kernels, errors of driver and kernel, refused arguments."""

import ctypes
import subprocess
import sys

import pytest
import torch
from tests.kernels.emulator import IMAGE, ROOT
from tests.kernels.test_attention import case, visibility

from specrs import _core
from specrs.errors import GpuError, InvalidInputError
from specrs.ops import launch as launch_module
from specrs.ops.attention import tree_attention
from specrs.ops.launch import launch
from specrs.ops.outcome import lookup_cache


def output_of(script):
    """What a script prints in a process of its own, where no stand-in is open."""
    command, env = [sys.executable, "-c", script], {"PYTHONPATH": str(ROOT / "python")}
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=env).stdout


def test_table_equals_the_sources(stand_in):
    """Name, block size and parameter types of every kernel, as the launcher and as the compiler see them."""
    sources = stand_in.kernels()
    table = {name: (parameters.replace("p", "P"), threads) for name, threads, _, parameters in _core.gpu_kernels()}
    assert table == sources
    assert len(table) == len(_core.gpu_kernels())


def keys():
    return torch.zeros((2, 3), dtype=torch.int64), torch.zeros((1, 3), dtype=torch.int64)


def test_driver_errors_are_named(stand_in):
    stand_in.open()
    _core.gpu_prepare(0)
    stand_in.refuse_next(2)
    with pytest.raises(GpuError, match=r"cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        lookup_cache(*keys())
    assert lookup_cache(*keys()).tolist() == [0]
    stand_in.refuse_next(209)
    with pytest.raises(GpuError, match="no code for this device"):
        lookup_cache(*keys())


def test_no_driver_and_bad_image(stand_in):
    with pytest.raises(GpuError, match="no CUDA driver"):
        _core.gpu_open("/nowhere/libcuda.so.1", IMAGE)
    with pytest.raises(GpuError, match="cuLibraryLoadData"):
        _core.gpu_open(str(stand_in.path), b"no fatbin at all")
    if _core.GPU_FATBIN_BYTES is None:
        with pytest.raises(GpuError, match="without nvcc"):
            _core.gpu_open(str(stand_in.path))
    stand_in.open()
    assert _core.gpu_driver() == (13000, 2)
    _core.gpu_prepare(1)
    with pytest.raises(GpuError, match="cuDeviceGet"):
        _core.gpu_prepare(2)


def test_launches_that_no_kernel_takes(stand_in):
    stand_in.open()
    first, second = keys()
    hits = torch.empty(1, dtype=torch.int64)
    good = [first, 2, second, 1, hits]
    for kernel, grid, arguments, match in [
        ("no_kernel", 1, good, "no kernel is called"),
        ("lookup_cache", 1, good[:4], "takes 5 arguments"),
        ("lookup_cache", 1, [first, 2, second, 1, None], "argument 4 must not be null"),
        ("lookup_cache", 1, [first.t(), 2, second, 1, hits], "contiguous"),
    ]:
        with pytest.raises(InvalidInputError, match=match):
            launch(kernel, grid, arguments)
    with pytest.raises(InvalidInputError, match="shared memory"):
        launch("lookup_cache", 1, good, shared=1)
    with pytest.raises(InvalidInputError, match="on one device"):
        launch("lookup_cache", 1, [first, 2, second.to("meta"), 1, hits])
    launch("lookup_cache", 0, good)  # an empty grid is no launch


def test_every_op_is_silent_about_empty_batches(stand_in):
    stand_in.open()
    first, second = keys()
    assert lookup_cache(first, second[:0]).tolist() == []


#: Each thread's calls are a process's first again and again, for an opening that failed is tried anew.
FIRST_CALLS = """
import sys, threading
from specrs import _core
from specrs.errors import GpuError

def calls():
    for _ in range(5000):
        try:
            _core.gpu_driver()
        except GpuError:
            pass

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=calls) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


def test_first_calls_of_several_threads_do_not_wait_for_each_other_for_ever():
    assert output_of(FIRST_CALLS) == "done\n"


#: What a process without a stand-in says of host tensors: nothing is launched, no driver is opened.
ON_THE_HOST = """
import torch
from specrs import _core
from specrs.errors import InvalidInputError
from specrs.ops.outcome import lookup_cache
from specrs.ops.rows import row_statistics

def launched(*_):
    raise AssertionError("a host pointer went to the driver")

_core.unsafe_launch_ptr = launched
keys = torch.zeros((2, 3), dtype=torch.int64)
for run in (lambda: row_statistics(torch.zeros(2, 9)), lambda: lookup_cache(keys, keys)):
    try:
        run()
    except InvalidInputError as error:
        print(error)
"""


def test_host_memory_is_for_a_stand_in_alone():
    """Without one a kernel's address must be a device's: host tensors are refused before a launch."""
    assert output_of(ON_THE_HOST) == "a kernel's tensors must be on a CUDA device, got cpu\n" * 2


def test_a_stand_in_takes_host_memory_alone(stand_in):
    stand_in.open()
    first, second = keys()
    with pytest.raises(InvalidInputError, match="must be on the host, for a stand-in of the driver is open, got meta"):
        launch("lookup_cache", 1, [first.to("meta"), 2, second.to("meta"), 1, torch.empty(1, device="meta")])


def test_a_launch_reaches_the_device_and_the_stream_it_is_for(stand_in, monkeypatch):
    stand_in.open()
    for there in ((0, 0), (1, 0xABCD), (0, 2**40 + 8)):
        monkeypatch.setattr(launch_module, "_where", lambda tensors, there=there: there)
        assert lookup_cache(*keys()).tolist() == [0]
        assert stand_in.last_launch() == there


@pytest.mark.parametrize(("device", "current"), [(torch.device("cuda", 1), 0), (torch.device("cuda"), 1)])
def test_a_tensors_device_and_its_current_stream_are_taken(monkeypatch, device, current):
    """Of tensors on a CUDA device: its ordinal, and the stream that torch gives its own kernels there."""

    class There:
        def __init__(self):
            self.device = device

    class Stream:
        def __init__(self, index):
            self.cuda_stream = 100 + index

    monkeypatch.setattr(_core, "gpu_takes_host_memory", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    assert launch_module._where([There(), There()]) == (1, 101)


#: The least that a device with our machine code grants, of dynamic shared memory: 8.6, 8.9 and 12.0.
LEAST_GRANTED = 101_376


def attend(dim):
    """A launch of the tensor-core kernel of a head size."""
    query, keys, values, prefix, row_ptr = case(torch.bfloat16, dim, 2, 1, [3], [[-1]], 8)
    bits, _ = visibility([[-1]])
    return tree_attention(query, keys, values, prefix, row_ptr, bits)


def test_shared_memory_is_allowed_before_it_is_used(stand_in):
    """With 99 KiB on request, as 8.6, 8.9 and 12.0 have it, every kernel loads and runs; with less, loading says so."""
    assert max(shared for _, _, shared, _ in _core.gpu_kernels()) == LEAST_GRANTED
    try:
        stand_in.grant_shared(LEAST_GRANTED)
        stand_in.open()
        stand_in.configure()
        for dim in (64, 128, 256):
            assert not attend(dim)[0].isnan().any()
        stand_in.grant_shared(LEAST_GRANTED)  # what the kernels asked for is forgotten
        attend(64)
        for dim in (128, 256):
            with pytest.raises(GpuError, match=r"cuLaunchKernel failed with CUDA_ERROR_INVALID_VALUE \(1\)"):
                attend(dim)
        stand_in.grant_shared(LEAST_GRANTED - 1)
        stand_in.open()
        with pytest.raises(GpuError, match=r"cuKernelSetAttribute failed with CUDA_ERROR_INVALID_VALUE"):
            _core.gpu_prepare(0)
    finally:
        stand_in.grant_shared()


def test_a_launch_needs_a_context(stand_in):
    kernel = ctypes.c_void_p()
    assert stand_in.library.cuLibraryGetKernel(ctypes.byref(kernel), None, b"lookup_cache") == 0
    invalid_context = 201
    assert stand_in.library.cuLaunchKernel(kernel, 1, 1, 1, 256, 1, 1, 0, None, None, None) == invalid_context
