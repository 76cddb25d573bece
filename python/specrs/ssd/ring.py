"""A ring of messages in shared memory, for one writer and one reader.

The first 16 bytes count what was written and what was read; the rest holds messages, each behind its length, padded to
8 bytes, in one piece. The doorbell is the caller's (a socket), whose system calls also order the memory accesses.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from specrs.errors import CapacityError, DrafterLateError

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD = 16
WORD = struct.Struct("<q")
#: A length that says: go on at the beginning.
WRAP = -1


def shared_file(size: int) -> int:
    """Return a descriptor of ``size`` bytes of memory that can be handed to another process.

    Raises
    ------
    CapacityError
        The machine's shared memory has no room for it.
    """
    memory = Path("/dev/shm")
    folder = str(memory) if memory.is_dir() else None
    if folder is not None:
        free = os.statvfs(folder)
        if free.f_bavail * free.f_frsize < size:
            raise CapacityError(
                f"/dev/shm has {free.f_bavail * free.f_frsize} bytes free, expected {size} for messages between target "
                "and drafter; make it larger (docker: --shm-size) or use overlap='none'"
            )
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        return os.dup(file.fileno())


class Ring:
    """One direction of messages.

    Parameters
    ----------
    descriptor : int
        From :func:`shared_file`.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, 0)
        self.capacity = (len(self._map) - HEAD) // 8 * 8

    def _written(self) -> int:
        return int(WORD.unpack_from(self._map, 0)[0])

    def _read(self) -> int:
        return int(WORD.unpack_from(self._map, 8)[0])

    def write(self, parts: Sequence[bytes | memoryview], timeout: float = 5.0) -> None:
        """Append a message; waits for room.

        Raises
        ------
        CapacityError
            The message could never fit.
        DrafterLateError
            The reader made no room in time.
        """
        size = sum(len(part) for part in parts)
        padded = 8 + (size + 7) // 8 * 8
        if padded + 8 > self.capacity // 2:
            raise CapacityError(f"a message has {size} bytes, expected at most {self.capacity // 2 - 16}")
        written = self._written()
        at = written % self.capacity
        wrap = self.capacity - at if at + padded > self.capacity else 0
        patience = timeout
        while written + wrap + padded - self._read() > self.capacity:
            if patience <= 0:
                raise DrafterLateError(f"no room for a message after {timeout} s")
            time.sleep(0.001)
            patience -= 0.001
        if wrap:
            WORD.pack_into(self._map, HEAD + at, WRAP)
            at = 0
        WORD.pack_into(self._map, HEAD + at, size)
        at += HEAD + 8
        for part in parts:
            self._map[at : at + len(part)] = part
            at += len(part)
        WORD.pack_into(self._map, 0, written + wrap + padded)

    def has_message(self) -> bool:
        """Tell whether a message waits."""
        return self._map[:8] != self._map[8:16]

    def read(self) -> bytes | None:
        """Return the oldest message not read yet, or None."""
        read = self._read()
        if read == self._written():
            return None
        at = read % self.capacity
        (size,) = WORD.unpack_from(self._map, HEAD + at)
        if size == WRAP:
            read += self.capacity - at
            at = 0
            (size,) = WORD.unpack_from(self._map, HEAD)
        at += HEAD + 8
        data = self._map[at : at + size]
        WORD.pack_into(self._map, 8, read + 8 + (size + 7) // 8 * 8)
        return data
