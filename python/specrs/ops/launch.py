"""Launches one kernel: checks that its tensors live together, finds device and stream, hands over pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from specrs import _core
from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

#: What a kernel takes: a tensor or its address, a number, or None for a pointer that may be null.
Argument: TypeAlias = "torch.Tensor | int | float | None"


def _where(tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Return (device ordinal, stream) of tensors that must share a device, one that the driver's kernels run on."""
    import torch

    device = tensors[0].device
    for tensor in tensors[1:]:
        if tensor.device != device:
            message = f"all tensors of a kernel must be on one device, got {device} and {tensor.device}"
            raise InvalidInputError(message)
    on_host = _core.gpu_takes_host_memory()
    if device.type != ("cpu" if on_host else "cuda"):
        where = "on the host, for a stand-in of the driver is open" if on_host else "on a CUDA device"
        raise InvalidInputError(f"a kernel's tensors must be {where}, got {device}")
    if on_host:
        return 0, 0
    index = device.index if device.index is not None else torch.cuda.current_device()
    return index, int(torch.cuda.current_stream(index).cuda_stream)


def _submit(
    kernel: str,
    blocks: tuple[int, int, int],
    arguments: Sequence[Argument],
    shared: int,
    device: int,
    stream: int,
) -> None:
    """Hand a checked launch to the driver. The tensors stay alive: the stream's allocator orders their reuse."""
    values = [
        0 if argument is None else argument if isinstance(argument, (int, float)) else argument.data_ptr()
        for argument in arguments
    ]
    _core.unsafe_launch_ptr(kernel, device, stream, list(blocks), shared, values)


def launch(
    kernel: str,
    grid: int | tuple[int, int, int],
    arguments: Sequence[Argument],
    *,
    shared: int = 0,
) -> None:
    """Launch `kernel` on the current stream of its tensors' device.

    Parameters
    ----------
    kernel : str
        A name of ``_core.gpu_kernels()``.
    grid : int or (int, int, int)
        Blocks; an empty grid launches nothing.
    arguments : sequence
        The kernel's parameters in order; tensors give their address and must be contiguous.
    shared : int
        Bytes of dynamic shared memory.

    Raises
    ------
    InvalidInputError
        Tensors on several devices, on none that the kernels run on, or not contiguous; arguments of the wrong number
        or type.
    GpuError
        No driver, no kernels in this build, or an error of the driver.
    """
    import torch

    blocks = (grid, 1, 1) if isinstance(grid, int) else grid
    if 0 in blocks:
        return
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    for tensor in tensors:
        if not tensor.is_contiguous():
            message = (
                f"a kernel's tensors must be contiguous, got strides {tensor.stride()} of shape {tuple(tensor.shape)}"
            )
            raise InvalidInputError(message)
    _submit(kernel, blocks, arguments, shared, *_where(tensors))
