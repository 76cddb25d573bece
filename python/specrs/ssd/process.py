"""A drafter in a process of its own: starting it, talking to it, noticing when it is late or gone."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import time
import weakref
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from specrs.errors import DrafterLateError, DrafterLostError, InvalidInputError
from specrs.ssd import messages
from specrs.ssd.bell import Bell
from specrs.ssd.ring import Ring, shared_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.ssd.texts import Answer, Query, Text

#: Bytes for questions: prompts of a few hundred thousand tokens fit.
QUESTION_BYTES = 8 << 20
#: Least bytes for answers.
ANSWER_BYTES = 1 << 20
#: Seconds to watch for an answer before sleeping, where both sides have cores of their own.
BUSY_SECONDS = 0.002
#: Requests whose laws must fit in one answer.
LAWS_OF = 8


class ProcessLink:
    """Talks to a drafter process.

    The process is started afresh (not forked), told by a socket that a message lies in shared memory, and ends when the
    socket closes, whichever way this process ends.

    Parameters
    ----------
    build : callable
        Makes the ``PreDrafter``, in the new process. Must pickle: a module's function, or ``functools.partial`` of one.
    law_bytes : int
        Size of the laws of one request's draft, 4·K·V, or 0 when tokens are not drawn.
    cores : sequence of int, optional
        Pin the process to these; its torch uses as many threads.
    patience : float
        Seconds to wait for an answer before the round is decoded plainly.
    start_timeout : float
        Seconds that starting (and loading a model) may take.
    clock : callable
        Seconds; may jump.

    Raises
    ------
    DrafterLostError
        The process did not come up; the message says why.
    """

    def __init__(
        self,
        build: Callable[[], Any],
        *,
        law_bytes: int = 0,
        cores: Sequence[int] | None = None,
        patience: float = 10.0,
        start_timeout: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if os.name != "posix":
            raise InvalidInputError(f"a drafter process needs a POSIX system, got {os.name!r}; use overlap='none'")
        try:
            built = pickle.dumps(build)
        except Exception as error:
            raise InvalidInputError(
                f"the drafter cannot be sent to a process of its own ({error}); name the draft model by its path, or "
                "use overlap='none'"
            ) from error
        self.patience = patience
        self._clock = clock
        files = [shared_file(QUESTION_BYTES), shared_file(max(ANSWER_BYTES, 4 * LAWS_OF * law_bytes))]
        ours, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "specrs.ssd.worker", str(theirs.fileno()), *map(str, files)],
                pass_fds=[theirs.fileno(), *files],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._questions, self._answers = Ring(files[0]), Ring(files[1])
        finally:
            theirs.close()
            for descriptor in files:
                os.close(descriptor)
        self._bell = Bell(ours)
        self._busy_seconds = 0.0 if cores is None else BUSY_SECONDS
        self._stop = weakref.finalize(self, _stop, ours, self.process)
        hello = Connection(os.dup(ours.fileno()))
        try:
            hello.send({"build": built, "cores": None if cores is None else list(cores)})
            ready = hello.recv() if hello.poll(start_timeout) else f"not up after {start_timeout} s"
        except (EOFError, OSError) as error:
            ready = f"it ended while starting ({error!r})"
        finally:
            hello.close()
        if not isinstance(ready, dict):
            self.close()
            raise DrafterLostError(f"the drafter process did not come up: {ready}")
        if ready["version"] != messages.VERSION:
            self.close()
            raise DrafterLostError(
                f"the drafter process speaks version {ready['version']}, expected {messages.VERSION}"
            )
        self.max_context: int | None = ready["max_context"]
        self.tokens_are_drawn: bool = ready["tokens_are_drawn"]
        #: Seconds of the last exchange that neither side's work explains.
        self.message_seconds = 0.0
        #: Number of the last question.
        self.last_round = 0

    def start(self, text: Text) -> None:
        """Tell the drafter of a request."""
        self._send(messages.start(text))

    def finish(self, request: int) -> None:
        """Tell the drafter that a request is over."""
        self._send(messages.finish(request))

    def speculate(self, round_: int, queries: Sequence[Query]) -> Answer:
        """Ask, and wait at most ``patience`` seconds. Answers to older questions are thrown away."""
        asked = time.perf_counter()
        self.last_round = round_
        self._send(messages.speculate(round_, queries, asked))
        deadline = self._clock() + self.patience
        while True:
            kind, value = self._receive(deadline)
            if kind == messages.Kind.FAILURE:
                raise DrafterLostError(f"the drafter process failed: {value}")
            if kind != messages.Kind.ANSWER:
                raise DrafterLostError(f"the drafter process sent a message of kind {kind!r}, expected an answer")
            answer: Answer = value
            if answer.round == round_:
                self.message_seconds = time.perf_counter() - asked - answer.service_seconds - answer.busy_seconds
                return answer

    def _send(self, parts: Sequence[bytes]) -> None:
        try:
            self._questions.write(parts)
            self._bell.ring()
        except (OSError, ValueError) as error:
            if isinstance(error, DrafterLateError):
                raise
            raise DrafterLostError(f"the drafter process is gone ({error!r})") from error

    def _receive(self, deadline: float) -> tuple[messages.Kind, Any]:
        # A clock that jumped back must not make the wait longer than patience, nor one that jumped ahead negative.
        left = min(max(deadline - self._clock(), 0.0), self.patience)
        try:
            if not self._bell.wait(left, there=self._answers.has_message, busy_seconds=self._busy_seconds):
                raise DrafterLateError(f"no answer from the drafter process within {self.patience} s")
            self._bell.take()
        except (EOFError, ConnectionError) as error:
            code = self.process.poll()
            raise DrafterLostError(f"the drafter process is gone (exit status {code})") from error
        data = self._answers.read()
        if data is None:
            raise DrafterLostError("the drafter process rang without a message")
        return messages.decode(data)

    def close(self) -> None:
        """End the process."""
        self._stop()


def _stop(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
