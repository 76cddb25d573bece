"""A drafter in a process of its own: starting it, talking to it, noticing when it is late or gone."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import time
import weakref
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from specrs import _core
from specrs.errors import DrafterLateError, DrafterLostError, InvalidInputError
from specrs.ssd import messages
from specrs.ssd.cores import watch_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.ssd.texts import Answer, Query, Text

#: Bytes for questions: prompts of a few hundred thousand tokens fit.
QUESTION_BYTES = 8 << 20
#: Least bytes for answers.
ANSWER_BYTES = 1 << 20
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
        files = [
            messages.shared_file(QUESTION_BYTES),
            messages.shared_file(max(ANSWER_BYTES, 4 * LAWS_OF * law_bytes)),
        ]
        ours, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "specrs.ssd.worker", str(theirs.fileno()), *map(str, files)],
                pass_fds=[theirs.fileno(), *files],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._channel = _core.DrafterChannel(ours.fileno(), files[1], files[0])
        finally:
            theirs.close()
            for descriptor in files:
                os.close(descriptor)
        self._cores = cores
        self._watch_seconds = 0.0
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
        if ready["version"] != _core.DRAFTER_MESSAGE_VERSION:
            self.close()
            raise DrafterLostError(
                f"the drafter process speaks version {ready['version']}, expected {_core.DRAFTER_MESSAGE_VERSION}"
            )
        self.max_context: int | None = ready["max_context"]
        self.tokens_are_drawn: bool = ready["tokens_are_drawn"]
        #: Seconds of the last exchange that neither side's work explains.
        self.message_seconds = 0.0
        #: Number of the last question.
        self.last_round = 0

    def start(self, text: Text) -> None:
        """Tell the drafter of a request."""
        self._watch_seconds = watch_seconds(self._cores, os.getpid())
        self._send(lambda: messages.send_start(self._channel, text))

    def finish(self, request: int) -> None:
        """Tell the drafter that a request is over."""
        self._send(lambda: self._channel.finish(request))

    def speculate(self, round_: int, queries: Sequence[Query]) -> Answer:
        """Ask, and wait at most ``patience`` seconds. Answers to older questions are thrown away."""
        asked = time.perf_counter()
        self.last_round = round_
        self._send(lambda: messages.send_questions(self._channel, round_, queries, asked))
        left = self.patience
        while True:
            kind, value = self._receive(left)
            if kind == "failure":
                raise DrafterLostError(f"the drafter process failed: {value}")
            if kind != "answer":
                raise DrafterLostError(f"the drafter process sent a message of kind {kind!r}, expected an answer")
            answer = messages.answer_of(value)
            waited = time.perf_counter() - asked
            if answer.round == round_:
                self.message_seconds = waited - answer.service_seconds - answer.busy_seconds
                return answer
            left = max(self.patience - waited, 0.0)

    def _send(self, send: Callable[[], None]) -> None:
        try:
            send()
        except DrafterLostError as error:
            raise self._gone(error) from error

    def _receive(self, seconds: float) -> tuple[str, Any]:
        try:
            found = self._channel.receive(seconds, self._watch_seconds)
        except DrafterLostError as error:
            raise self._gone(error) from error
        if found is None:
            raise DrafterLateError(f"no answer from the drafter process within {self.patience} s")
        return found

    def _gone(self, error: DrafterLostError) -> DrafterLostError:
        return DrafterLostError(f"the drafter process is gone (exit status {self.process.poll()}): {error}")

    def close(self) -> None:
        """End the process."""
        self._stop()


def _stop(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)  # the channel holds the socket too
    ours.close()
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
