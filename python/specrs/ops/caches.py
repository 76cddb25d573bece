"""Caches that each belong to one request: new rows written, and attended, by one launch for all requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrs.errors import InvalidInputError
from specrs.ops.attention import Parts, check_owners, check_rows, has_tensor_core_kernel, launch_attention
from specrs.ops.draft import check_device, check_tensor
from specrs.ops.launch import Argument, launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def write_caches(
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
) -> None:
    """Write each request's new rows behind its committed slots, in place.

    Row ``i`` of request ``b`` goes to ``keys[b][0, :, lengths[b] + i]``, and likewise of values. A request whose length
    is negative, or whose rows pass its slots, is left as it is; so are, on a device, requests that ``row_ptr`` leads
    out of the rows (a host refuses those).

    Parameters
    ----------
    keys, values : sequences of B tensors, shape (1, Hkv, slots[b], D)
        Each request's own cache, which no other shares, without gaps; heads of a multiple of 16 bytes.
    addresses : tensor, shape (2 * B,)
        int64: addresses of the keys, then of the values, on their device (``cache_addresses([*keys, *values])``). Taken
        at their word on a device, as are the slots; a host goes by the tensors.
    slots : tensor, shape (B,)
        int64: slots of each request's cache.
    lengths : tensor, shape (B,)
        int64: committed slots of each request.
    row_ptr : tensor, shape (B + 1,)
        int64: rows of each request.
    new_keys, new_values : tensor, shape (R, Hkv, D)
        Any strides of a multiple of 16 bytes, with a contiguous last axis.
    """
    check_write(keys, values, addresses, slots, lengths, row_ptr, new_keys, new_values)
    (rows, heads, dim), size = new_keys.shape, new_keys.element_size()
    strides = [stride * size for tensor in (new_keys, new_values) for stride in tensor.stride()[:2]]
    # As of caches: a strided view is described by its strides.
    sources: list[Argument] = [new if new.is_contiguous() else new.data_ptr() for new in (new_keys, new_values)]
    where: list[Argument] = [addresses, slots, lengths, row_ptr, len(keys)]
    blocks = (rows * heads * (dim * size // 16) + 255) // 256
    launch("write_caches", (blocks, 2, 1), [*sources, *strides, *where, rows, heads, dim * size])


def attend_caches(
    query: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    visibility: torch.Tensor,
    *,
    scale: float | None = None,
    splits: int = 1,
    least_part: int = 1,
    most_rows: int | None = None,
    plain: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as :func:`specrs.ops.attention.tree_attention`, each request over its own cache.

    Parameters
    ----------
    query, lengths, row_ptr, visibility, scale, most_rows, plain, out
        As there; a request whose length is negative sees nothing.
    keys, values, addresses, slots
        As of :func:`write_caches`.
    splits : int
        Most parts that a request's slots are cut into.
    least_part : int
        Slots that a part has at least. A request is cut into ``slots // least_part`` parts, up to ``splits``: where
        no request would take more than ``splits``, the bits of each are those of a call of its own.

    Returns
    -------
    (tensor (R, Hq, D) of the query's type, tensor (R, Hq) float32)
        As there.
    """
    check_attend(query, keys, values, addresses, slots, lengths, row_ptr, visibility, splits, least_part, most_rows)
    kv_heads = keys[0].shape[1] if keys else 1
    caches: list[Argument] = [None, None, None, 0, 0, 0, 0, 0, 0, addresses, slots]
    plain, parts, pointers = plain or not has_tensor_core_kernel(query), Parts(splits, least_part), [lengths, row_ptr]
    return launch_attention(query, caches, kv_heads, pointers, visibility, scale, parts, most_rows, plain, out)


def in_chunks(rows: torch.Tensor) -> bool:
    """Whether every head of rows (R, H, D) is whole chunks of 16 bytes in memory, from a multiple of 16 bytes on."""
    size = rows.element_size()
    whole = not any(count * size % 16 for count in (rows.shape[2], *rows.stride()[:2]))
    return rows.stride(2) == 1 and whole and rows.data_ptr() % 16 == 0


def check_caches(
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    like: torch.Tensor,
    heads: int,
) -> None:
    """Refuse caches that are not keys and values of `heads` heads, with the type and the head size of rows `like`."""
    import torch

    requests = len(keys)
    if len(values) != requests:
        raise InvalidInputError(f"there must be values for each request's keys, got {len(values)} for {requests}")
    check_tensor("addresses", addresses, torch.int64, (2 * requests,))
    check_tensor("slots", slots, torch.int64, (requests,))
    check_tensor("lengths", lengths, torch.int64, (requests,))
    check_device(like, addresses=addresses, slots=slots, lengths=lengths)
    dtype, device, dim = like.dtype, like.device, like.shape[2]
    for b, (own_keys, own_values) in enumerate(zip(keys, values, strict=True)):
        shape = (1, heads, own_keys.shape[2] if own_keys.dim() == 4 else -1, dim)
        for name, tensor in (("keys", own_keys), ("values", own_values)):
            alike = tensor.shape == shape and tensor.dtype == dtype and tensor.device == device
            if not alike or not tensor.is_contiguous() or tensor.data_ptr() % 16:
                raise InvalidInputError(
                    f"{name}[{b}] must be contiguous {dtype} on {device} of shape (1, {heads}, slots, {dim}), as its "
                    f"keys, from a multiple of 16 bytes on; got {tensor.dtype} on {tensor.device} of shape "
                    f"{tuple(tensor.shape)}, strides {tensor.stride()}, at {tensor.data_ptr()}"
                )


def check_write(
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
) -> None:
    """Refuse rows and caches that do not belong together. Lengths and pointers are not looked at."""
    if new_keys.dim() != 3:
        raise InvalidInputError(f"new_keys must be (R, Hkv, D), got {tuple(new_keys.shape)}")
    check_tensor("new_values", new_values, new_keys.dtype, tuple(new_keys.shape))
    check_device(new_keys, new_values=new_values)
    check_owners(lengths, row_ptr, new_keys.shape[0])
    check_caches(keys, values, addresses, slots, lengths, new_keys, new_keys.shape[1])
    for name, rows in (("new_keys", new_keys), ("new_values", new_values)):
        if not in_chunks(rows):
            raise InvalidInputError(
                f"{name} must have heads of a multiple of 16 bytes, contiguous, at multiples of 16 bytes, got "
                f"{rows.dtype} {tuple(rows.shape)}, strides {rows.stride()}, at {rows.data_ptr()}"
            )


def check_attend(
    query: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    visibility: torch.Tensor,
    splits: int,
    least_part: int,
    most_rows: int | None,
) -> None:
    """Refuse queries and caches that do not belong together. Lengths and pointers are not looked at."""
    check_rows(query, lengths, row_ptr, visibility, splits, most_rows)
    if least_part < 1:
        raise InvalidInputError(f"least_part must be positive, got {least_part}")
    heads = keys[0].shape[1] if keys and keys[0].dim() == 4 else 1
    if heads == 0 or query.shape[1] % heads:
        raise InvalidInputError(f"query heads must be a multiple of the caches', got {query.shape[1]} and {heads}")
    check_caches(keys, values, addresses, slots, lengths, query, heads)
