"""Keys and values of one sequence: preallocated, written in place, rolled back by moving a length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from specrs.errors import CapacityError, InternalError, InvalidInputError
from specrs.ops import where
from specrs.ops.packing import packed, unpacked

if TYPE_CHECKING:
    import numpy.typing as npt

    from specrs.types import IndexArray


class SequenceCache:
    """The keys and values of one sequence, for all layers.

    The first ``length`` slots hold committed tokens. A forward writes its new rows (pending tokens, then draft nodes)
    behind them; :meth:`commit` moves the accepted rows into place and advances the length. What lies behind the length
    is never read again, so a rollback costs nothing.

    Parameters
    ----------
    layers : int
        Number of layers that store keys and values.
    capacity : int
        Tokens to make room for. Storage is made at the first write, when head counts and dtype are known, and grows by
        half (one copy) in the rare case that more is needed.
    dtype : torch.dtype, optional
        What to store keys and values in; default: as they come.
    """

    def __init__(self, layers: int, capacity: int, dtype: torch.dtype | None = None) -> None:
        self.length = 0
        self._dtype = dtype
        self._capacity = max(capacity, 1)
        self._keys: list[torch.Tensor | None] = [None] * layers
        self._values: list[torch.Tensor | None] = [None] * layers
        self._addresses: torch.Tensor | None = None
        self._places: npt.NDArray[np.int64] | None = None

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new rows of one layer behind the committed ones.

        Parameters
        ----------
        layer : int
        keys, values : tensor, shape (1, heads, n, head size)

        Returns
        -------
        keys, values : tensor, shape (1, heads, length + n, head size)
            Views of the storage.
        """
        end = self.length + keys.shape[2]
        stored_keys, stored_values = self.make_room(layer, keys, values, keys.shape[2])
        stored_keys[:, :, self.length : end] = keys
        stored_values[:, :, self.length : end] = values
        return stored_keys[:, :, :end], stored_values[:, :, :end]

    def make_room(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the storage of one layer, with room for new rows behind the committed ones.

        Parameters
        ----------
        layer : int
        keys, values : tensor, shape (1, heads, any, head size)
            Rows of the layer, whose shape and type the storage takes when it is made.
        rows : int
            New rows to make room for.

        Returns
        -------
        keys, values : tensor, shape (1, heads, slots, head size)
        """
        end = self.length + rows
        stored_keys, stored_values = self._keys[layer], self._values[layer]
        if stored_keys is None or stored_values is None or end > stored_keys.shape[2]:
            stored_keys = self._grow(stored_keys, keys, end)
            stored_values = self._grow(stored_values, values, end)
            self._keys[layer], self._values[layer] = stored_keys, stored_values
            self._addresses = self._places = None
        return stored_keys, stored_values

    def keeps(self, dtype: torch.dtype) -> bool:
        """Whether rows of this type are stored as they come."""
        return self._dtype is None or self._dtype == dtype

    def places(self) -> npt.NDArray[np.int64]:
        """Return where each layer is stored, shape (layers, 3): address of its keys, of its values, slots.

        Zeros for a layer without storage. It is the same array until storage is made or moves.
        """
        if self._places is None:
            stored = zip(self._keys, self._values, strict=True)
            self._places = np.array(
                [(0, 0, 0) if k is None or v is None else (k.data_ptr(), v.data_ptr(), k.shape[2]) for k, v in stored],
                np.int64,
            )
        return self._places

    def _grow(self, stored: torch.Tensor | None, rows: torch.Tensor, needed: int) -> torch.Tensor:
        if needed > self._capacity:
            self._capacity = max(needed, self._capacity + self._capacity // 2)
        _, heads, _, size = rows.shape
        dtype = self._dtype or rows.dtype
        try:
            grown = rows.new_empty((1, heads, self._capacity, size), dtype=dtype)
        except (MemoryError, RuntimeError) as error:  # torch has no class of its own for this on the CPU
            raise CapacityError(
                f"no memory for the keys or values of {self._capacity} tokens in one more of {len(self._keys)} layers: "
                f"{heads * self._capacity * size * dtype.itemsize} bytes, beside {self.size_bytes()} held; "
                "expected a smaller max_new_tokens, a shorter prompt or fewer texts at once"
            ) from error
        if stored is not None:
            grown[:, :, : self.length] = stored[:, :, : self.length]
        return grown

    def commit(self, kept_nodes: IndexArray, pending: int) -> None:
        """Keep the pending rows and the rows of the accepted nodes; forget the others.

        Parameters
        ----------
        kept_nodes : array of int32
            Accepted nodes, root first. Nodes lie behind the pending rows in the order of the draft, so a path rises
            strictly.
        pending : int
            Committed tokens that the last forward wrote first.
        """
        start = self.length + pending
        if len(kept_nodes) and not np.array_equal(kept_nodes, np.arange(len(kept_nodes))):
            if (np.diff(kept_nodes) <= 0).any():
                raise InternalError(f"an accepted path must rise, got {kept_nodes.tolist()}")
            stored = [tensor for tensor in (*self._keys, *self._values) if tensor is not None]
            with torch.inference_mode():  # the rows were written in it
                if stored and where.on_a_device(stored[0]) and _is_laid_out_alike(stored):
                    self._move_by_kernel(stored, start, kept_nodes)
                else:
                    rows = [start + int(node) for node in kept_nodes]
                    for tensor in stored:
                        tensor[:, :, start : start + len(rows)] = tensor[:, :, rows]
        self.length = start + len(kept_nodes)

    def _move_by_kernel(self, stored: list[torch.Tensor], start: int, nodes: IndexArray) -> None:
        """Move the rows of ``nodes``, which lie from slot ``start`` on, to the slots from there: one launch for all."""
        from specrs.ops import torch_ops
        from specrs.ops.attention import cache_addresses

        if self._addresses is None:
            self._addresses = cache_addresses(stored)
        # The op counts from the anchor, which lies before the nodes; a length and a bonus token it writes go unused.
        given = packed([[start - 1], [0], nodes, [len(nodes)]], [np.int64, np.int64, np.int32, np.int32])
        buffer = where.as_tensor(given, stored[0].device)
        types = [torch.int64, torch.int64, torch.int32, torch.int32]
        lengths, bonus, path, accepted = unpacked(buffer, [1, 1, len(nodes), 1], [8, 8, 4, 4], types)
        torch_ops.NAMESPACE.commit_cache(stored, self._addresses, lengths, path[None], accepted, bonus)

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        if not 0 <= length <= self.length:
            raise InvalidInputError(f"can keep 0 to {self.length} tokens, asked to keep {length}")
        self.length = length

    def size_bytes(self) -> int:
        """Return the memory held, in bytes."""
        return sum(t.numel() * t.element_size() for t in (*self._keys, *self._values) if t is not None)


def _is_laid_out_alike(stored: list[torch.Tensor]) -> bool:
    """Whether one launch can move rows of all: one shape, type and device, and slots of whole 16 bytes."""
    first = stored[0]
    alike = all((t.shape, t.dtype, t.device) == (first.shape, first.dtype, first.device) for t in stored)
    return alike and first.shape[3] * first.element_size() % 16 == 0
