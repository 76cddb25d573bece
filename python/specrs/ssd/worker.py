"""The drafter process: answer when asked, draft ahead otherwise, end when the socket closes."""

from __future__ import annotations

import os
import pickle
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from specrs.ssd import messages
from specrs.ssd.messages import Kind
from specrs.ssd.ring import Ring

if TYPE_CHECKING:
    from specrs.ssd.predrafter import PreDrafter


def serve(drafter: PreDrafter, bell: Connection, questions: Ring, answers: Ring) -> None:
    """Serve one target until its end of the socket closes."""
    going = False
    while True:
        if going and not bell.poll(0):
            going = drafter.pre_draft(steps=1)
            continue
        try:
            bell.recv_bytes()
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
            made = drafter.answer(*value)
            parts = messages.answer(made)
            _reply(bell, answers, parts)
            going = True


def _reply(bell: Connection, answers: Ring, parts: messages.Parts) -> None:
    answers.write(parts)
    try:
        bell.send_bytes(b"!")
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
    socket, *files = map(int, arguments)
    bell = Connection(socket)
    questions, answers = Ring(files[0]), Ring(files[1])
    told: dict[str, Any] = bell.recv()
    try:
        if told["cores"] is not None:  # before anything starts threads of its own
            os.environ["OMP_NUM_THREADS"] = str(len(told["cores"]))
            _pin(told["cores"])
        drafter: PreDrafter = pickle.loads(told["build"])()  # from our own parent
        _pin(told["cores"])
    except Exception as error:  # whatever loading raises is the reason that the other side reports
        bell.send(repr(error))
        return
    bell.send(
        {
            "version": messages.VERSION,
            "max_context": drafter.drafter.max_context,
            "tokens_are_drawn": drafter.drafter.tokens_are_drawn,
        }
    )
    try:
        serve(drafter, bell, questions, answers)
    except Exception as error:  # the target goes on without drafts, and says why
        _reply(bell, answers, messages.failure(repr(error)))


if __name__ == "__main__":
    main(sys.argv[1:])
