"""Where a stage of the round runs: by our kernels on its rows' device, or by the Rust rules on the host."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.errors import GpuError

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


#: The driver's name of an error that may be gone at the next try.
_MAY_PASS = "CUDA_ERROR_OUT_OF_MEMORY"


def on_a_device(rows: Any) -> bool:
    """Return whether an array or tensor lies on a CUDA device that our kernels run on."""
    if not getattr(rows, "is_cuda", False):
        return False
    device = rows.get_device()
    try:
        why = _why_not(device)
    except GpuError as error:
        why = str(error)
        _warn(device, why)
    return why is None


@functools.cache
def _why_not(device: int) -> str | None:
    """Return why the kernels will not run on a device, None if they do; an error that may pass is raised, not kept."""
    try:
        _core.gpu_prepare(device)
    except GpuError as error:
        if _MAY_PASS in str(error):
            raise
        _warn(device, str(error))
        return str(error)
    return None


def _warn(device: int, why: str) -> None:
    warnings.warn(
        f"our kernels do not run on CUDA device {device}: {why}; each round's logits are copied to the host",
        stacklevel=3,
    )


def on_host(rows: Any) -> Any:
    """Return what lies on a device copied to the host, and anything else as it is."""
    return rows.cpu() if on_a_device(rows) else rows


def as_array(rows: Any) -> npt.NDArray[Any]:
    """Return an array of what may be a tensor: host memory as it is, a device's copied."""
    return rows if isinstance(rows, np.ndarray) else rows.cpu().numpy()


def as_tensor(rows: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor on ``device`` of what may be an array.

    What goes from the host to a CUDA device goes through pinned memory: the copy takes its place in the device's work,
    and the host does not wait until all before it is done. Torch keeps that memory until then.
    """
    import torch

    tensor = torch.as_tensor(rows)
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def moment(rows: Any) -> torch.cuda.Event | None:
    """Return an event at the end of what the rows' device was given to do so far; None for rows on a host."""
    if not on_a_device(rows):
        return None
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(rows.device))
    return event


def seconds_between(first: torch.cuda.Event, last: torch.cuda.Event) -> float:
    """Return the device's seconds between two moments, once the last has come."""
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000


def wait_for(rows: Any) -> None:
    """Return once a device has computed `rows`; those on a host are there."""
    end = moment(rows)
    if end is not None:
        end.synchronize()
