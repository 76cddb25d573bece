"""The drafter process: answer when asked, draft ahead otherwise, end when the socket closes."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from specrs.ssd import messages
from specrs.ssd.bell import Bell
from specrs.ssd.messages import Kind
from specrs.ssd.ring import Ring

if TYPE_CHECKING:
    from specrs.ssd.predrafter import PreDrafter


#: Seconds to watch for a question after drafting ahead is done, on a core of its own.
BUSY_SECONDS = 0.05


def serve(drafter: PreDrafter, bell: Bell, questions: Ring, answers: Ring, busy_seconds: float) -> None:
    """Serve one target until its end of the socket closes."""
    going, busy = False, (0.0, 0.0)
    while True:
        if going and not questions.has_message() and not bell.wait(0):
            started = time.perf_counter()
            going = drafter.pre_draft(steps=1)
            busy = (started, time.perf_counter())
            continue
        bell.wait(None, there=questions.has_message, busy_seconds=busy_seconds)
        try:
            bell.take()
        except (EOFError, ConnectionError):
            return
        data = questions.read()
        if data is None:
            continue
        kind, value = messages.decode(data)
        if kind == Kind.START:
            drafter.start(value)
        elif kind == Kind.FINISH:
            drafter.finish(value)
        elif kind == Kind.SPECULATE:
            round_, queries, asked = value
            # The clock is the machine's, the same for both processes.
            waited = busy[1] - asked if busy[0] <= asked <= busy[1] else 0.0
            made = replace(drafter.answer(round_, queries), busy_seconds=waited)
            _reply(bell, answers, messages.answer(made))
            going = True


def _reply(bell: Bell, answers: Ring, parts: messages.Parts) -> None:
    answers.write(parts)
    try:
        bell.ring()
    except OSError:  # the target left; the next read of the socket ends this process
        return


def _pin(cores: list[int] | None) -> None:
    if cores is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(len(cores))


def main(arguments: list[str]) -> None:
    """Run the process: socket, questions and answers by descriptor."""
    descriptor, *files = map(int, arguments)
    ours = socket.socket(fileno=descriptor)
    hello = Connection(os.dup(descriptor))
    questions, answers = Ring(files[0]), Ring(files[1])
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
            "version": messages.VERSION,
            "max_context": drafter.drafter.max_context,
            "tokens_are_drawn": drafter.drafter.tokens_are_drawn,
        }
    )
    hello.close()
    bell = Bell(ours)
    try:
        serve(drafter, bell, questions, answers, 0.0 if cores is None else BUSY_SECONDS)
    except Exception as error:  # the target goes on without drafts, and says why
        _reply(bell, answers, messages.failure(repr(error)))


if __name__ == "__main__":
    main(sys.argv[1:])
