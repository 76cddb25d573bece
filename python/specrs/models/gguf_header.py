"""Reads the metadata of a GGUF file (format versions 2 and 3) without touching its tensors."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from specrs.errors import CorruptFileError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_metadata(source: Path) -> dict[str, Any]:
    """Return the key-value pairs of the GGUF file ``source``.

    Raises
    ------
    CorruptFileError
        It is not a GGUF file of a version we know, or it ends early.
    """
    with source.open("rb") as file:
        magic = file.read(4)
        if magic != b"GGUF":
            raise CorruptFileError(f"{source} starts with {magic!r}, expected b'GGUF'")
        # Mapped, because the metadata is a few megabytes at the start of gigabytes and nothing tells its size.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _pairs(data)
            except (struct.error, KeyError) as error:
                raise CorruptFileError(f"{source} is damaged: its metadata cannot be read ({error})") from error
            except CorruptFileError as error:
                raise CorruptFileError(f"{source} {error}") from None


def _pairs(data: mmap.mmap) -> dict[str, Any]:
    version, _tensors, pairs = struct.unpack_from("<IQQ", data, 4)
    if version not in {2, 3}:
        raise CorruptFileError(f"has GGUF version {version}, expected 2 or 3")
    at = 24
    found = {}
    for _ in range(pairs):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        found[key], at = _value(data, at + 4, kind)
    return found


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise struct.error(f"a text of {length} bytes at {at} passes the end")
    return data[at + 8 : end].decode("utf-8", errors="surrogateescape"), end


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind != _ARRAY:
        layout = "<" + _SCALARS[kind]
        return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind in _SCALARS:
        layout = f"<{count}{_SCALARS[kind]}"
        return list(struct.unpack_from(layout, data, at)), at + struct.calcsize(layout)
    items = []
    for _ in range(count):
        item, at = _value(data, at, kind)
        items.append(item)
    return items, at
