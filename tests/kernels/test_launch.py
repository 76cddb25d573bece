"""The launch path itself: the table of kernels, errors of driver and kernel, refused arguments."""

import pytest
import torch
from tests.kernels.emulator import IMAGE

from specrs import _core
from specrs.errors import GpuError, InvalidInputError
from specrs.ops.launch import launch
from specrs.ops.outcome import lookup_cache


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
