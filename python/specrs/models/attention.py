"""Tree attention for transformers models: each packed request sees its own memory and its own ancestors.

A forward packs the new rows of all requests into one sequence without padding, so every linear layer sees only real
rows. This module, plugged in through the attention interface of transformers, takes the packed queries apart again:
request by request it writes the new keys and values into that request's cache and attends over committed tokens plus
the visible new rows. What a request computes here does not depend on its neighbours.

On a device the op ``specrs::tree_attention`` does this without a mask where it has a tensor-core kernel for the layer:
half precision, heads of 64, 128 or 256, no sliding window and no softcap. Long stretches of a prompt, and every other
layer, go through torch's attention with a mask, which is exact as well. On a host with our linear kernels the
row-invariant kernel of :mod:`specrs.ops.attend` does it all, but for softcaps and odd head sizes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from specrs.errors import InternalError, UnsupportedModelError
from specrs.ops import where
from specrs.ops.attend import attend, takes
from specrs.ops.attention import TENSOR_CORE_DIMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from specrs.models.sequence_cache import SequenceCache

#: Element types of the op's tensor-core kernels.
KERNEL_TYPES = (torch.bfloat16, torch.float16)
#: Most new rows of a request that the op takes: it reads the committed tokens once for each 64 pairs of row and head.
MOST_KERNEL_ROWS = 64
#: The op cuts a request's tokens into parts of at least this many, which run side by side.
PART_TOKENS, MOST_PARTS = 512, 32

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
    _trees: dict[torch.device, tuple[torch.Tensor, ...]] = field(default_factory=dict)

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

    def tree(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return what the op takes: committed length (1,), row pointers (2,) and bit sets (n, words); made once."""
        if device not in self._trees:
            rows = len(self.positions)
            seen = np.tri(rows, dtype=np.bool_) if self.visible is None else self.visible
            words = (rows + 63) // 64
            padded = np.pad(seen, ((0, 0), (0, 64 * words - rows)))
            bits = np.packbits(padded, axis=1, bitorder="little").view("<i8")
            buffer = where.as_tensor(np.concatenate([[self.cache.length, 0, rows], bits.reshape(-1)]), device)
            self._trees[device] = buffer[:1], buffer[1:3], buffer[3:].view(rows, words)
        return self._trees[device]


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
    query_heads, key_heads = query.shape[1], key.shape[1]
    groups = query_heads // key_heads
    by_kernel = _has_kernel(query, key, value) and sliding_window is None and softcap is None
    outputs = []
    for segment in forward:
        start, end = segment.start, segment.end
        keys, values = segment.cache.write(forward.layer, key[:, :, start:end], value[:, :, start:end])
        if by_kernel and segment.is_tree and keys.dtype == query.dtype:
            outputs.append(_attend_tree(query[:, :, start:end], keys, values, segment, scaling))
            continue
        first, mask = segment.mask(sliding_window, groups, keys.dtype)
        rows = query[:, :, start:end].reshape(1, key_heads, groups * (end - start), query.shape[-1])
        attended = _attend(rows.to(keys.dtype), keys[:, :, first:], values[:, :, first:], mask, scaling, softcap)
        outputs.append(attended.to(query.dtype).view(1, query_heads, end - start, -1))
    packed = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return packed.transpose(1, 2).contiguous(), None


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


def _has_kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    if not where.on_a_device(query):
        return False
    return query.dtype in KERNEL_TYPES and query.shape[3] in TENSOR_CORE_DIMS and key.shape[3] == value.shape[3]


def _attend_tree(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, segment: Segment, scaling: float | None
) -> torch.Tensor:
    """Attend one request's rows, shape (1, query heads, n, head size), by the op."""
    from specrs.ops import torch_ops

    rows = query[0].transpose(0, 1).contiguous()
    parts = min(max(keys.shape[2] // PART_TOKENS, 1), MOST_PARTS)
    tree = segment.tree(query.device)
    attended, _ = torch_ops.NAMESPACE.tree_attention(rows, keys, values, *tree, scaling, None, parts)
    return attended.transpose(0, 1)[None]  # type: ignore[no-any-return]


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
