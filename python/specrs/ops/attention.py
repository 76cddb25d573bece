"""Attention of draft trees over a key/value cache, and the commit of an accepted path, on the device."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from specrs.errors import InvalidInputError
from specrs.ops import where
from specrs.ops.draft import Layout, Verdict, check_device, check_tensor, to_fill
from specrs.ops.launch import Argument, launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

#: Head sizes that have a tensor-core kernel.
TENSOR_CORE_DIMS = (64, 128, 256)
#: (row, query head) pairs of a block.
PAIRS = 64


class CacheLayout(NamedTuple):
    """Where the slots of a cache lie; strides in elements.

    ``page_size`` slots are together in one of ``pages``; ``block_table`` int32 (B, most pages) names those of each
    request, and without it request ``b`` owns page ``b`` (a cache of shape (B, heads, slots, D), say).
    """

    pages: int
    page_size: int
    page_stride: int
    head_stride: int
    slot_stride: int
    block_table: torch.Tensor | None = None

    @staticmethod
    def of(cache: torch.Tensor, block_table: torch.Tensor | None = None) -> CacheLayout:
        """Return the layout of a tensor (pages, heads, slots, D), any strides with a contiguous last axis."""
        if cache.dim() != 4 or cache.stride(3) != 1:
            message = (
                f"a cache must be (pages, heads, slots, D), D contiguous, got {tuple(cache.shape)}, {cache.stride()}"
            )
            raise InvalidInputError(message)
        (pages, _, page_size, _), strides = cache.shape, cache.stride()
        return CacheLayout(pages, page_size, strides[0], strides[1], strides[2], block_table)

    def check_table(self, requests: int) -> None:
        """Refuse a block table, or a cache without one, that is not one row or one page per request."""
        import torch

        if self.block_table is not None:
            width = self.block_table.shape[-1] if self.block_table.dim() else 0
            check_tensor("block_table", self.block_table, torch.int32, (requests, width))
        elif self.pages < requests:
            raise InvalidInputError(f"{requests} requests need a page each or a block table, got {self.pages} pages")


def _attention_bytes(dim: int) -> int:
    """Return the dynamic shared memory of a tensor-core block (``AttentionShape`` of the kernel)."""
    keys = 32 if dim == 256 else 64
    return 2 * (PAIRS + 4 * keys) * (dim + 8)


def tree_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    visibility: torch.Tensor,
    *,
    scale: float | None = None,
    block_table: torch.Tensor | None = None,
    splits: int = 1,
    most_rows: int | None = None,
    plain: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from anchor and nodes to their prefix and ancestors. No mask is formed.

    Parameters
    ----------
    query : tensor, shape (R, Hq, D)
        float32, bfloat16 or float16.
    keys, values : tensor, shape (pages, Hkv, slots, D)
        The cache, of one layout and of the query's type; the rows' own keys and values lie in slots
        ``lengths[b] + row``.
    lengths : tensor, shape (B,)
        int64: slots of the committed prefix, which every row sees.
    row_ptr : tensor, shape (B + 1,)
        int64: rows of each request, anchor first.
    visibility : tensor, shape (R, words)
        int64 bit sets: bit ``j`` of row ``i`` says that it sees row ``j`` of its request (itself included).
    scale : float, optional
        1 / sqrt(D) without it.
    block_table : tensor, optional
        int32 (B, pages) for a paged cache. As far as a request's slots reach it must name pages of the cache: a host
        refuses others, on a device their slots are not seen.
    splits : int
        Parts that a request's slots are cut into; more for few requests with long prefixes.
    most_rows : int, optional
        Most rows of one request, R without it; on a device further ones see nothing.
    plain : bool
        Take the kernel without tensor cores, which float32 and other head sizes take anyway.
    out : (tensor, tensor), optional
        Tensors to fill, of what is returned.

    Returns
    -------
    (tensor (R, Hq, D) of the query's type, tensor (R, Hq) float32)
        The attended values and the base-2 log-sum-exp of the scores; 0 and -inf where a request would pass the cache,
        for rows that no request owns, and for requests that ``row_ptr`` leads out of the rows (a host refuses those).
    """
    check_attention(query, keys, values, lengths, row_ptr, visibility, block_table, splits, most_rows)
    layout, plain = CacheLayout.of(keys, block_table), plain or not has_tensor_core_kernel(query)
    if not plain and (any(stride % 8 for stride in layout[2:5]) or any(t.data_ptr() % 16 for t in (keys, values))):
        raise InvalidInputError(f"keys and values must be 16-byte aligned, got strides {keys.stride()}")
    table_width = 0 if block_table is None else block_table.shape[1]
    # A strided view is described by its strides; only whole tensors go through the launch's check of contiguity.
    sources: list[Argument] = [cache if cache.is_contiguous() else cache.data_ptr() for cache in (keys, values)]
    caches: list[Argument] = [*sources, block_table, table_width, *layout[:5], None, None]
    parts, pointers = Parts(splits, 1), [lengths, row_ptr]
    return launch_attention(query, caches, keys.shape[1], pointers, visibility, scale, parts, most_rows, plain, out)


class Parts(NamedTuple):
    """How a request's slots are cut: into at most ``splits`` parts, of at least ``least`` slots each."""

    splits: int
    least: int


def has_tensor_core_kernel(query: torch.Tensor) -> bool:
    """Whether queries (R, Hq, D) are of a type and head size that tensor cores attend from."""
    import torch

    return query.dtype != torch.float32 and query.shape[2] in TENSOR_CORE_DIMS


def launch_attention(
    query: torch.Tensor,
    caches: list[Argument],
    kv_heads: int,
    pointers: Sequence[torch.Tensor],
    visibility: torch.Tensor,
    scale: float | None,
    parts: Parts,
    most_rows: int | None,
    plain: bool,
    out: tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch attention on checked tensors and merge its parts.

    ``caches`` are the kernels' parameters from the keys to the slots, ``pointers`` the lengths and ``row_ptr``.
    """
    import torch

    most_rows = query.shape[0] if most_rows is None else most_rows
    (rows, q_heads, dim), (lengths, row_ptr), words = query.shape, pointers, visibility.shape[1]
    requests, (splits, least) = lengths.shape[0], parts
    scale = (1 / math.sqrt(dim) if scale is None else scale) * math.log2(math.e)
    partial = torch.empty((splits, rows, q_heads, dim), dtype=torch.float32, device=query.device)
    lse = torch.empty((splits, rows, q_heads), dtype=torch.float32, device=query.device)
    attended, merged = to_fill(out, query, attention_layout(query))
    name = _names()[query.dtype]
    if plain:
        count = rows * q_heads * splits
        tail: list[Argument] = [visibility, words, q_heads, kv_heads, dim, scale, splits, least, rows, partial, lse]
        arguments: list[Argument] = [query, *caches, lengths, row_ptr, requests, *tail]
        launch(f"tree_attention_plain_{name}", (count + 3) // 4, arguments)
    else:
        if query.data_ptr() % 16:
            raise InvalidInputError(f"query must begin at a multiple of 16 bytes, got {query.data_ptr()}")
        tiles = (most_rows * (q_heads // kv_heads) + PAIRS - 1) // PAIRS
        tail = [visibility, words, q_heads, kv_heads, scale, splits, least, tiles, rows, partial, lse]
        grid = (splits * tiles, kv_heads, requests)
        arguments = [query, *caches, lengths, row_ptr, *tail]
        launch(f"tree_attention_{name}_{dim}", grid, arguments, shared=_attention_bytes(dim))
    owners: list[Argument] = [row_ptr, requests, most_rows]
    launch(
        f"merge_attention_{name}", rows * q_heads, [partial, lse, splits, rows, q_heads, dim, *owners, attended, merged]
    )
    return attended, merged


def attention_layout(query: torch.Tensor, *_: torch.Tensor | float | None) -> Layout:
    """Return the layout of what :func:`tree_attention` returns."""
    import torch

    return {"out": (query.dtype, tuple(query.shape)), "lse": (torch.float32, tuple(query.shape[:2]))}


def _names() -> dict[torch.dtype, str]:
    import torch

    return {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def check_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    visibility: torch.Tensor,
    block_table: torch.Tensor | None,
    splits: int,
    most_rows: int | None,
) -> None:
    """Refuse tensors that do not belong together. Lengths and pointers stay on the device and are not looked at."""
    check_rows(query, lengths, row_ptr, visibility, splits, most_rows)
    _, q_heads, dim = query.shape
    layout = CacheLayout.of(keys, block_table)
    if keys.dtype != query.dtype or values.dtype != query.dtype or CacheLayout.of(values, block_table) != layout:
        found = f"{query.dtype}, {keys.dtype} and {values.dtype}, strides {keys.stride()} and {values.stride()}"
        raise InvalidInputError(f"keys and values must have the query's type and one layout, got {found}")
    kv_heads = keys.shape[1]
    if keys.shape[3] != dim or values.shape != keys.shape or kv_heads == 0 or q_heads % kv_heads:
        found = f"{tuple(keys.shape)} and {tuple(values.shape)}"
        message = f"keys and values must fit queries of shape {tuple(query.shape)}, got {found}"
        raise InvalidInputError(message)
    layout.check_table(lengths.shape[0])
    check_device(query, keys=keys, values=values, block_table=block_table)


def check_rows(
    query: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    visibility: torch.Tensor,
    splits: int,
    most_rows: int | None,
) -> None:
    """Refuse queries that no kernel takes, and what does not say whose they are and what each sees."""
    import torch

    if query.dim() != 3 or query.dtype not in _names():
        message = f"query must be (R, Hq, D) in float32, bfloat16 or float16, got {query.dtype} {tuple(query.shape)}"
        raise InvalidInputError(message)
    rows, _, dim = query.shape
    if dim % 32 or dim > 256 or splits < 1:
        raise InvalidInputError(
            f"a head must be a multiple of 32 up to 256, and splits positive, got {dim} and {splits}"
        )
    if most_rows is not None and most_rows < 1:
        raise InvalidInputError(f"most_rows must be positive, got {most_rows}")
    check_owners(lengths, row_ptr, rows)
    words = visibility.shape[1] if visibility.dim() == 2 else -1
    check_tensor("visibility", visibility, torch.int64, (rows, words))


def check_owners(lengths: torch.Tensor, row_ptr: torch.Tensor, rows: int) -> None:
    """Refuse lengths and row pointers that are not of the same requests, or of none where there are rows."""
    import torch

    requests = lengths.shape[0]
    check_tensor("lengths", lengths, torch.int64, (requests,))
    check_tensor("row_ptr", row_ptr, torch.int64, (requests + 1,))
    if rows and not requests:
        raise InvalidInputError(f"rows must have a request that owns them, got {rows} rows of none")


def commit_cache(
    tensors: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    lengths: torch.Tensor,
    verdict: Verdict,
    block_table: torch.Tensor | None = None,
) -> None:
    """Move the accepted path's keys and values of every layer into place and advance `lengths`, both in place.

    Parameters
    ----------
    tensors : sequence of tensors, shape (pages, heads, slots, D)
        Keys and values of all layers, laid out alike.
    addresses : tensor, shape (T,)
        int64: their addresses, on their device (see :func:`cache_addresses`); made once, so that a graph can hold it.
    lengths : tensor, shape (B,)
        int64: committed slots; the anchor lies in the next one. Grows by the path and the anchor.
    verdict : Verdict
        What stands of each draft. A path must rise: a host refuses another, on a device such a request moves nothing
        and keeps its length.
    block_table : tensor, optional
        int32 (B, pages) for a paged cache. A host refuses what it names that is no page, a device drops the move.
    """
    layout, strides = check_commit(tensors, addresses, lengths, verdict, block_table)
    requests, (path, accepted, bonus, _) = lengths.shape[0], verdict
    heads, slot_bytes = tensors[0].shape[1], tensors[0].shape[3] * tensors[0].element_size()
    table_width = 0 if block_table is None else block_table.shape[1]
    capacity = layout.page_size * (table_width if block_table is not None else 1)
    per_request = (heads * slot_bytes // 16 + 255) // 256
    where: list[Argument] = [
        addresses,
        block_table,
        table_width,
        layout.pages,
        layout.page_size,
        *strides,
        heads,
        slot_bytes,
        lengths,
        capacity,
    ]
    moves: list[Argument] = [path, accepted, path.shape[1], per_request]
    launch("commit_cache", (requests * per_request, len(tensors), 1), [*where, *moves])
    launch("advance_lengths", (requests + 255) // 256, [lengths, path, accepted, bonus, path.shape[1], requests])


def check_commit(
    tensors: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    lengths: torch.Tensor,
    verdict: Verdict,
    block_table: torch.Tensor | None,
) -> tuple[CacheLayout, list[int]]:
    """Refuse caches and verdicts that do not belong together; return the layout and its strides in bytes."""
    import torch

    first = tensors[0]
    layout = CacheLayout.of(first, block_table)
    requests, (path, accepted, bonus, _) = lengths.shape[0], verdict
    check_tensor("path", path, torch.int32, (requests, path.shape[-1]))
    check_tensor("accepted", accepted, torch.int32, (requests,))
    check_tensor("bonus", bonus, torch.int64, (requests,))
    check_tensor("addresses", addresses, torch.int64, (len(tensors),))
    check_tensor("lengths", lengths, torch.int64, (requests,))
    layout.check_table(requests)
    check_device(lengths, **{f"tensor {at}": tensor for at, tensor in enumerate(tensors)})
    for tensor in tensors:
        if CacheLayout.of(tensor, block_table) != layout or tensor.dtype != first.dtype or tensor.shape != first.shape:
            message = (
                f"all cache tensors must be laid out as the first, {tuple(first.shape)}, got {tuple(tensor.shape)}"
            )
            raise InvalidInputError(message)
    size, slot_bytes = first.element_size(), first.shape[3] * first.element_size()
    strides = [stride * size for stride in layout[2:5]]
    if slot_bytes % 16 or any(stride % 16 for stride in strides):
        raise InvalidInputError(
            f"a head's bytes and the strides must be multiples of 16, got {slot_bytes} and {strides}"
        )
    for at, tensor in enumerate(tensors):
        if tensor.data_ptr() % 16:
            raise InvalidInputError(
                f"cache tensors must begin at a multiple of 16 bytes, got {tensor.data_ptr()} for tensor {at}"
            )
    return layout, strides


def check_path(path: list[int], accepted: int) -> None:
    """Refuse, on a host, a request of a verdict that is no path through a draft."""
    nodes = path[: max(0, accepted)]
    if len(nodes) != accepted or any(node <= before for before, node in pairwise([-1, *nodes])):
        raise InvalidInputError(f"an accepted path must rise, got {accepted} nodes of {path}")


def check_page(page: int, pages: int) -> int:
    """Refuse, on a host, a page that the cache does not have."""
    if not 0 <= page < pages:
        raise InvalidInputError(f"block_table must name pages below {pages}, got {page}")
    return page


def cache_addresses(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the addresses of `tensors` as int64 (T,) on their device."""
    import torch

    addresses = torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64)
    return where.as_tensor(addresses, tensors[0].device)
