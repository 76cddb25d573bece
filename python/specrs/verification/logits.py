"""Rows of logits as the Rust core takes them: without a copy where they are on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specrs.errors import InvalidInputError


def as_rows(logits: Any) -> tuple[npt.NDArray[Any], str]:
    """Return logits as a NumPy array and the name of their dtype: a view of host memory, a copy of a device's.

    Parameters
    ----------
    logits : array or tensor, shape (R, V)
        float32, float16 or (tensors) bfloat16; the last axis contiguous.

    Returns
    -------
    array, shape (R, V)
        bfloat16 comes as its bits in uint16.
    {'f32', 'f16', 'bf16'}
    """
    if not isinstance(logits, np.ndarray):
        name = str(getattr(logits, "dtype", type(logits).__name__))
        if name == "torch.bfloat16":
            import torch

            return logits.detach().cpu().view(torch.uint16).numpy(), "bf16"
        if not name.startswith("torch."):
            raise InvalidInputError(f"logits must be a NumPy array or a tensor, got {type(logits).__name__}")
        logits = logits.detach().cpu().numpy()
    kinds = {"float32": "f32", "float16": "f16"}
    if logits.dtype.name not in kinds:
        raise InvalidInputError(f"logits must be float32, float16 or bfloat16, got {logits.dtype.name}")
    return logits, kinds[logits.dtype.name]


def as_float32(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """Return what :func:`as_rows` gives as float32, shape (R, V)."""
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
