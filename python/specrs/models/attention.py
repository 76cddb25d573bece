"""Tree attention for transformers models: each packed request sees its own memory and its own ancestors.

A forward packs the new rows of all requests into one sequence without padding, so every linear layer sees only real
rows. This module, plugged in through the attention interface of transformers, takes the packed queries apart again:
each request's new keys and values are written into its own cache, and its rows attend over committed tokens plus the
visible new rows. What a request computes here does not depend on its neighbours.

On a device the ops ``specrs::write_caches`` and ``specrs::attend_caches`` do this for all requests at once, without a
mask, where there is a tensor-core kernel for the layer: half precision, heads of 64, 128 or 256, no sliding window and
no softcap. Long stretches of a prompt, and every other layer, go request by request through torch's attention with a
mask, which is exact as well. On a host with our linear kernels the
row-invariant kernel of :mod:`specrs.ops.attend` does it all, but for softcaps and odd head sizes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from specrs.errors import InternalError, UnsupportedModelError
from specrs.models.tree_batch import PART_TOKENS, TreeBatch
from specrs.ops import where
from specrs.ops.attend import attend, takes
from specrs.ops.attention import TENSOR_CORE_DIMS
from specrs.ops.caches import in_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from specrs.models.sequence_cache import SequenceCache

#: Element types of the op's tensor-core kernels.
KERNEL_TYPES = (torch.bfloat16, torch.float16)
#: Most new rows of a request that the op takes, whose bits are one word: it reads the committed tokens once for each 64
#: pairs of row and head.
MOST_KERNEL_ROWS = 64

#: The name under which transformers finds :func:`packed_tree_attention`.
ATTENTION_NAME = "specrs"


@dataclass
class Segment:
    """The rows of one request in a packed forward.

    Attributes
    ----------
    start, end : int
        Rows of the packed sequence.
    cache : SequenceCache
    positions : array of int64, shape (n,)
        Position of each new row in its text; siblings share one.
    visible : array of bool, shape (n, m + n), or None
        Which of the last m slots and of the new rows each new row sees; None is causal. Tokens before them are always
        seen.
    earlier : array of int64, shape (m,)
        Positions of slots before the new rows that some of them do not see.
    """

    start: int
    end: int
    cache: SequenceCache
    positions: npt.NDArray[np.int64]
    visible: npt.NDArray[np.bool_] | None
    earlier: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _masks: dict[tuple[int | None, int, torch.dtype], tuple[int, torch.Tensor | None]] = field(default_factory=dict)

    def mask(self, window: int | None, groups: int, dtype: torch.dtype) -> tuple[int, torch.Tensor | None]:
        """Return (first key slot needed, additive mask or None), made once per forward and kind of layer.

        The mask has shape (groups * n, keys) and is 0 where visible, -inf elsewhere; query heads that share a key head
        are stacked along its rows.
        """
        key = (window, groups, dtype)
        if key not in self._masks:
            self._masks[key] = self._make_mask(window, groups, dtype)
        return self._masks[key]

    @property
    def behind(self) -> npt.NDArray[np.int64]:
        """Positions of the slots behind those that every row sees, shape (m + n,)."""
        return np.concatenate([self.earlier, self.positions]) if len(self.earlier) else self.positions

    def _make_mask(self, window: int | None, groups: int, dtype: torch.dtype) -> tuple[int, torch.Tensor | None]:
        committed, rows = self.cache.length - len(self.earlier), len(self.positions)
        first = 0
        if window is not None:
            first = min(max(0, int(self.positions.min()) - window + 1), committed)
        windowed = window is not None and int(self.positions[-1]) - first >= window
        if rows == 1 and not windowed and self.visible is None:
            return first, None
        seen = np.ones((rows, committed - first + len(self.behind)), np.bool_)
        causal = np.tri(rows, len(self.behind), len(self.earlier), dtype=np.bool_)
        seen[:, committed - first :] = causal if self.visible is None else self.visible
        if window is not None:
            key_positions = np.concatenate([np.arange(first, committed), self.behind])
            seen &= self.positions[:, None] - key_positions[None, :] < window
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), -torch.inf)
        return first, mask.repeat(groups, 1)

    @property
    def is_tree(self) -> bool:
        """Whether the op can take it: the new rows are few, and all that lies behind the committed ones."""
        return len(self.positions) <= MOST_KERNEL_ROWS and not len(self.earlier)

    def bits(self) -> npt.NDArray[np.int64]:
        """Return which of the new rows of a tree each sees, shape (n,), bit by bit."""
        rows = len(self.positions)
        seen = np.tri(rows, dtype=np.bool_) if self.visible is None else self.visible
        padded = np.pad(seen, ((0, 0), (0, MOST_KERNEL_ROWS - rows)))
        return np.packbits(padded, axis=1, bitorder="little").view("<i8")[:, 0]


@dataclass
class PackedForward:
    """One forward in progress: the segments, and a stand-in for the cache object that transformers expects.

    With ``row_invariant`` attention is our own kernel, where it takes a layer, and torch's elsewhere.
    """

    segments: Sequence[Segment]
    row_invariant: bool = False
    layer: int = -1

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note which layer speaks; the rows are stored by :func:`packed_tree_attention`."""
        self.layer = layer_idx
        return key_states, value_states

    @cached_property
    def batch(self) -> TreeBatch:
        """What the ops take of the segments, made once."""
        return TreeBatch(self.segments)

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: positions are always given explicitly."""
        return 0

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)


_active = threading.local()


def set_active(forward: PackedForward | None) -> None:
    """Name the packed forward that attention calls of this thread belong to."""
    _active.forward = forward


def packed_tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend packed rows: the attention function that transformers models call.

    Parameters
    ----------
    module : Module
        The attention layer.
    query : tensor, shape (1, query heads, rows, head size)
    key, value : tensor, shape (1, key heads, rows, head size)
        New rows only.
    attention_mask : None
        Masks are made here, from positions and ancestors.
    scaling : float, optional
        Default: head size ** -0.5.
    sliding_window : int, optional
        A row at position i sees positions above ``i - sliding_window``.
    softcap : float, optional
        Scores become ``softcap * tanh(scores / softcap)``.
    s_aux : tensor, optional
        Attention sinks; not supported.

    Returns
    -------
    tensor, shape (1, rows, query heads, head size), and None
    """
    forward: PackedForward | None = getattr(_active, "forward", None)
    if forward is None:
        raise InternalError("the specrs attention was called outside a packed forward")
    if s_aux is not None:
        raise UnsupportedModelError(f"{type(module).__name__} uses attention sinks, which specrs does not support yet")
    if attention_mask is not None or dropout:
        raise InternalError("a packed forward makes its own masks and has no dropout")
    if forward.row_invariant and query.is_cpu and takes(query.shape[-1], softcap):
        return _attend_invariantly(forward, query, key, value, scaling, sliding_window), None
    others: Sequence[Segment] = forward.segments
    if sliding_window is None and softcap is None and _has_kernel(forward, query, key, value):
        out, others = _attend_trees(forward, query, key, value, scaling), forward.batch.others
    else:
        out = query.new_empty((query.shape[2], query.shape[1], value.shape[3]))
    for segment in others:
        rows = slice(segment.start, segment.end)
        keys, values = segment.cache.write(forward.layer, key[:, :, rows], value[:, :, rows])
        out[rows] = _attend_segment(segment, query[:, :, rows], keys, values, scaling, sliding_window, softcap)
    return out[None], None


def _attend_invariantly(
    forward: PackedForward,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attend by the kernel of :mod:`specrs.ops.attend`; arguments and result as in :func:`packed_tree_attention`."""
    asked = query[0].float()
    asked = asked if asked.stride(-1) == 1 else asked.contiguous()
    out = asked.new_empty(asked.shape[1], asked.shape[0], asked.shape[2])
    for segment in forward:
        rows = slice(segment.start, segment.end)
        keys, values = segment.cache.write(forward.layer, key[:, :, rows], value[:, :, rows])
        given = (asked[:, rows], keys[0], values[0], segment.behind, segment.visible, out[rows])
        attend(*given, window=window, scale=scaling)
    return out.to(query.dtype)[None]


def _has_kernel(forward: PackedForward, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the ops take this layer and any request of the forward."""
    if not where.on_a_device(query) or query.dtype not in KERNEL_TYPES or query.shape[3] not in TENSOR_CORE_DIMS:
        return False
    alike = key.dtype == value.dtype == query.dtype and key.shape[3] == value.shape[3] == query.shape[3]
    trees = forward.batch.trees
    return alike and bool(trees) and all(tree.cache.keeps(query.dtype) for tree in trees)


def _attend_trees(
    forward: PackedForward, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Write and attend the rows of all requests that the ops take, by the ops.

    Returns a tensor of shape (rows, query heads, head size), whose other rows are still to be filled.
    """
    from specrs.ops import torch_ops

    batch, rows = forward.batch, query.shape[2]
    stored = [tree.cache.make_room(forward.layer, key, value, tree.end - tree.start) for tree in batch.trees]
    keys, values = [list(tensors) for tensors in zip(*stored, strict=True)]
    places, visibility, tree_rows = batch.on(query.device, forward.layer)
    if batch.others:
        query, key, value = (packed.index_select(2, tree_rows) for packed in (query, key, value))
    torch_ops.NAMESPACE.write_caches(keys, values, *places, _by_row(key), _by_row(value))
    asked, cut = query[0].transpose(0, 1).contiguous(), (batch.splits, PART_TOKENS, batch.most_rows)
    attended: torch.Tensor = torch_ops.NAMESPACE.attend_caches(asked, keys, values, *places, visibility, scaling, *cut)[
        0
    ]
    if not batch.others:
        return attended
    return attended.new_empty((rows, *attended.shape[1:])).index_copy_(0, tree_rows, attended)


def _by_row(packed: torch.Tensor) -> torch.Tensor:
    """Return new rows (1, heads, rows, head size) as (rows, heads, head size), a view where the op takes it."""
    rows = packed[0].transpose(0, 1)
    return rows if in_chunks(rows) else rows.contiguous()


def _attend_segment(
    segment: Segment,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend one request's rows over its cache by torch, shape (n, query heads, head size)."""
    (_, heads, count, size), key_heads = query.shape, keys.shape[1]
    groups = heads // key_heads
    first, mask = segment.mask(window, groups, keys.dtype)
    rows = query.reshape(1, key_heads, groups * count, size).to(keys.dtype)
    attended = _attend(rows, keys[:, :, first:], values[:, :, first:], mask, scaling, softcap)
    return attended.to(query.dtype).view(heads, count, -1).transpose(0, 1)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    if mask is not None:
        mask = where.as_tensor(mask, query.device)
    if softcap is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value
