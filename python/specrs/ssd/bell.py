"""A doorbell between two processes: one byte per message over a socket, and a short busy wait before sleeping.

A processor that fell asleep takes a good part of a millisecond to wake up. Where each side has a core of its own, the
one that waits first watches the message counter in shared memory; the byte on the socket still comes with every
message, so that nothing is read before its system call has ordered the memory, and a dead process is noticed.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class Bell:
    """One end of the doorbell.

    Parameters
    ----------
    end : socket
        Stream socket, connected.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def ring(self) -> None:
        """Say that a message is there."""
        self._socket.send(b"!")

    def wait(
        self, timeout: float | None, *, there: Callable[[], bool] | None = None, busy_seconds: float = 0.0
    ) -> bool:
        """Wait for the other end to ring, or to go; False after ``timeout`` seconds.

        Parameters
        ----------
        timeout : float or None
            None waits for ever.
        there : callable, optional
            Whether a message is there already: watched for ``busy_seconds`` before sleeping.
        busy_seconds : float
        """
        if there is not None and busy_seconds > 0:
            until = time.perf_counter() + (busy_seconds if timeout is None else min(busy_seconds, timeout))
            while time.perf_counter() < until:
                if there():
                    return True
        return bool(self._poll.poll(None if timeout is None else max(0, int(timeout * 1000))))

    def take(self) -> None:
        """Take one ring.

        Raises
        ------
        EOFError
            The other end is gone.
        """
        if self._socket.recv(1) != b"!":
            raise EOFError("the other end of the doorbell is gone")
