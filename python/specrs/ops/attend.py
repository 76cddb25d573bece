"""Attention of a text's new rows on the CPU: a row's bits do not depend on the rows that are computed beside it.

The other half of :mod:`specrs.ops.linear`: with both, a forward gives each of its rows the very logits that plain
decoding computes there, rounding included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specrs import _core
from specrs.errors import InvalidInputError
from specrs.ops.linear import openmp_address

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["HEAD_MULTIPLE", "attend", "takes"]

#: The kernel takes heads of a multiple of so many elements.
HEAD_MULTIPLE: int = _core.ATTENTION_HEAD_MULTIPLE


def takes(size: int, softcap: float | None) -> bool:
    """Tell whether the kernel takes layers with heads of ``size`` elements and this cap of their scores."""
    return softcap is None and size % HEAD_MULTIPLE == 0


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: npt.NDArray[np.int64],
    flags: npt.NDArray[np.bool_] | None,
    out: torch.Tensor,
    *,
    window: int | None = None,
    scale: float | None = None,
) -> None:
    """Attend from new rows to what each sees. See the module ``specrs::attention`` for the order of operations.

    Parameters
    ----------
    query : Tensor, shape (query heads, rows, size), float32
        On the CPU; ``size`` is a multiple of ``HEAD_MULTIPLE``.
    keys, values : Tensor, shape (key heads, slots, size), float32
        Of one layout. Committed tokens in the order of their positions, then S more slots, the new rows last.
    positions : array of int64, shape (S,)
        Positions in the text of the slots behind the committed ones.
    flags : array of bool, shape (rows, S), or None
        What each row sees of them, itself and nothing later; None is everything up to itself.
    out : Tensor, shape (rows, query heads, size), float32
        Dense; written whole. A head whose scores are NaN is NaN.
    window : int, optional
        A row at position p sees positions above ``p - window``.
    scale : float, optional
        Default: size ** -0.5.

    Raises
    ------
    InvalidInputError
        Types or sizes do not belong together.
    """
    heads, rows, size = query.shape
    tensors = (query, keys, values, out)
    if any(t.dtype is not torch.float32 or not t.is_cpu or t.stride(-1) != 1 for t in tensors):
        found = ", ".join(f"{t.dtype} on {t.device} with strides {t.stride()}" for t in tensors)
        raise InvalidInputError(f"attention takes float32 tensors on the CPU, the last axis dense; got {found}")
    if keys.shape != values.shape or keys.stride() != values.stride() or keys.shape[2] != size:
        raise InvalidInputError(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} do not fit size {size}")
    if tuple(out.shape) != (rows, heads, size) or not out.is_contiguous():
        raise InvalidInputError(f"out must be dense of shape {(rows, heads, size)}, got {tuple(out.shape)}")
    committed = keys.shape[1] - len(positions)
    if committed < 0:
        raise InvalidInputError(f"{keys.shape[1]} slots cannot hold {len(positions)} positions")
    _core.unsafe_attention_ptr(
        query.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        out.data_ptr(),
        (query.stride(1), query.stride(0)),
        (keys.stride(0), keys.stride(1)),
        (rows, heads, keys.shape[0], size),
        committed,
        positions,
        flags,
        window,
        size**-0.5 if scale is None else scale,
        openmp_address(),
        torch.get_num_threads(),
    )
