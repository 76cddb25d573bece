"""Small arrays as one buffer, so that one copy takes them to a device. Nothing here needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def packed(arrays: Sequence[Any], types: Sequence[Any]) -> npt.NDArray[np.uint8]:
    """Return arrays of these types one behind the other; those of 8 bytes an entry come before those of 4."""
    pairs = zip(arrays, types, strict=True)
    return np.concatenate([np.ascontiguousarray(array, kind).view(np.uint8) for array, kind in pairs])


def unpacked(buffer: Any, counts: Sequence[int], sizes: Sequence[int], types: Sequence[Any]) -> list[Any]:
    """Return the parts of a buffer, an array or a tensor: so many entries of so many bytes, as types of its library."""
    parts, at = [], 0
    for count, size, kind in zip(counts, sizes, types, strict=True):
        end = at + count * size
        parts.append(buffer[at:end].view(kind))
        at = end
    return parts
