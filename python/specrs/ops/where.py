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


def on_a_device(rows: Any) -> bool:
    """Return whether an array or tensor lies on a CUDA device that our kernels run on."""
    return bool(getattr(rows, "is_cuda", False)) and _runs_kernels(rows.get_device())


@functools.cache
def _runs_kernels(device: int) -> bool:
    try:
        _core.gpu_prepare(device)
    except GpuError as error:
        warnings.warn(
            f"our kernels do not run on CUDA device {device}: {error}; each round's logits are copied to the host",
            stacklevel=2,
        )
        return False
    return True


def on_host(rows: Any) -> Any:
    """Return what lies on a device copied to the host, and anything else as it is."""
    return rows.cpu() if on_a_device(rows) else rows


def as_array(rows: Any) -> npt.NDArray[Any]:
    """Return an array of what may be a tensor: host memory as it is, a device's copied."""
    return rows if isinstance(rows, np.ndarray) else rows.cpu().numpy()


def as_tensor(rows: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor on ``device`` of what may be an array."""
    import torch

    return torch.as_tensor(rows).to(device)


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
