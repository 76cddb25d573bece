"""The drafter process: answer when asked, draft ahead otherwise, end when the socket closes."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from specrs import _core
from specrs.errors import DrafterLateError, DrafterLostError
from specrs.ssd import messages
from specrs.ssd.cores import watch_seconds

if TYPE_CHECKING:
    from specrs.ssd.predrafter import PreDrafter


def serve(drafter: PreDrafter, channel: _core.DrafterChannel, cores: list[int] | None) -> None:
    """Serve one target until its end of the socket closes; ``cores`` are those that this process is pinned to."""
    going, busy, watch = False, (0.0, 0.0), 0.0
    while True:
        if going and not channel.has_message():
            started = time.perf_counter()
            going = drafter.pre_draft(steps=1)
            busy = (started, time.perf_counter())
            continue
        try:
            told = channel.receive(None, watch if drafter.texts else 0.0)
        except DrafterLostError as error:  # the target left, or it speaks another version
            with contextlib.suppress(DrafterLateError, DrafterLostError):
                channel.fail(str(error))
            return
        if told is None:
            continue
        kind, value = told
        if kind == "start":
            watch = watch_seconds(cores, os.getppid())
            drafter.start(messages.text_of(value))
        elif kind == "finish":
            drafter.finish(value)
        elif kind == "speculate":
            round_, queries, asked = messages.queries_of(value)
            # The clock is the machine's, the same for both processes.
            waited = busy[1] - asked if busy[0] <= asked <= busy[1] else 0.0
            made = drafter.answer(round_, queries)
            try:
                messages.send_answer(channel, replace(made, busy_seconds=waited) if waited else made)
            except (DrafterLateError, DrafterLostError):  # the target left
                return
            going = True


def _pin(cores: list[int] | None) -> None:
    if cores is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(len(cores))


def main(arguments: list[str]) -> None:
    """Run the process: socket, questions and answers by descriptor."""
    descriptor, questions, answers = map(int, arguments)
    ours = socket.socket(fileno=descriptor)
    hello = Connection(os.dup(descriptor))
    channel = _core.DrafterChannel(descriptor, questions, answers)
    told: dict[str, Any] = hello.recv()
    cores = told["cores"]
    try:
        if cores is not None:  # before anything starts threads of its own
            os.environ["OMP_NUM_THREADS"] = str(len(cores))
            _pin(cores)
        drafter: PreDrafter = pickle.loads(told["build"])()  # from our own parent
        _pin(cores)
    except Exception as error:  # whatever loading raises is the reason that the other side reports
        hello.send(repr(error))
        return
    hello.send(
        {
            "version": _core.DRAFTER_MESSAGE_VERSION,
            "max_context": drafter.drafter.max_context,
            "tokens_are_drawn": drafter.drafter.tokens_are_drawn,
        }
    )
    hello.close()
    ours.close()
    try:
        serve(drafter, channel, cores)
    except Exception as error:  # the target goes on without drafts, and says why
        channel.fail(repr(error))


if __name__ == "__main__":
    main(sys.argv[1:])
