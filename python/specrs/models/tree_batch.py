"""What a device is told of a packed forward: whose rows they are, what each sees, and where the caches lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specrs.ops import where

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import torch

    from specrs.models.attention import Segment

#: A request's tokens are attended in parts of at least this many, which run side by side.
PART_TOKENS, MOST_PARTS = 512, 32


def parts_of(slots: int) -> int:
    """Return how many parts a request's slots are cut into."""
    return min(max(slots // PART_TOKENS, 1), MOST_PARTS)


class Places(NamedTuple):
    """What the ops take of one layer: see :func:`specrs.ops.caches.write_caches`."""

    addresses: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    row_ptr: torch.Tensor


class TreeBatch:
    """The requests of a packed forward whose rows are written by one launch and attended by another.

    What the launches take goes to the device in one copy for the forward, and again only where storage was made or
    moved since: in the first forward of a cache, layer by layer, and where it grows.

    Attributes
    ----------
    trees, others : list of Segment
        Those that the ops take, and those that they do not, whose rows are left out of all that follows.
    most_rows : int
        Most rows of a tree.
    splits : int
        Most parts of a tree's tokens. How many it is cut into follows from its own tokens alone.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.trees = [segment for segment in segments if segment.is_tree]
        self.others = [segment for segment in segments if not segment.is_tree]
        self.most_rows = max((tree.end - tree.start for tree in self.trees), default=0)
        tokens = max((tree.cache.length + tree.end - tree.start for tree in self.trees), default=0)
        self.splits = parts_of(tokens)
        lengths = [tree.cache.length for tree in self.trees]
        rows = [np.arange(tree.start, tree.end) for tree in self.trees]
        row_ptr = np.cumsum([0] + [len(of_tree) for of_tree in rows])
        self._rows = [lengths, row_ptr, *(tree.bits() for tree in self.trees), *rows]
        self._places: list[npt.NDArray[np.int64]] | None = None
        self._on: dict[torch.device, tuple[torch.Tensor, ...]] = {}

    def on(self, device: torch.device, layer: int) -> tuple[Places, torch.Tensor, torch.Tensor]:
        """Return what the ops take of a layer in which room is made for the trees' R rows, on a device.

        Beside the places what each row sees, bit sets (R, 1), and where in the packed sequence it stands, (R,).
        """
        places = [tree.cache.places() for tree in self.trees]
        if self._places is None or any(now is not then for now, then in zip(places, self._places, strict=True)):
            self._places = places
            self._on.clear()
        if device not in self._on:
            self._on[device] = self._upload(device, np.stack(places, axis=2))
        addresses, slots, lengths, row_ptr, visibility, rows = self._on[device]
        return Places(addresses[layer], slots[layer], lengths, row_ptr), visibility, rows

    def _upload(self, device: torch.device, places: npt.NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Return addresses (L, 2 * B), slots (L, B), lengths (B,), row pointers (B + 1,), bit sets (R, 1), rows (R,).

        They are parts of one buffer; ``places`` has shape (L, 3, B).
        """
        layers, _, requests = places.shape
        rows = sum(tree.end - tree.start for tree in self.trees)
        buffer = where.as_tensor(np.concatenate([places[:, :2], places[:, 2], *self._rows], axis=None), device)
        sizes = [2 * layers * requests, layers * requests, requests, requests + 1, rows, rows]
        addresses, slots, lengths, row_ptr, visibility, packed_rows = buffer.split(sizes)
        return addresses.view(layers, -1), slots.view(layers, -1), lengths, row_ptr, visibility[:, None], packed_rows
