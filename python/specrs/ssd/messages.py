"""Messages between target and drafter process: the values of ``texts`` to and from what the channel carries.

``specrs._core.DrafterChannel`` lays numbers and arrays out in shared memory; the classes stay on this side.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs.errors import CapacityError, DrafterLostError
from specrs.ssd.texts import NOTHING, Answer, Chain, Origin, Query, Reply, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs._core import DrafterChannel


def shared_file(size: int) -> int:
    """Return a descriptor of ``size`` bytes of memory, zeros, that can be handed to another process.

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


def send_start(channel: DrafterChannel, text: Text) -> None:
    """Send a new request."""
    channel.start(
        text.request,
        text.tokens,
        capacity=text.capacity,
        temperature=text.temperature,
        top_k=text.top_k,
        top_p=text.top_p,
        min_p=text.min_p,
        seed=text.seed,
        sample=text.sample,
        repeatable=text.repeatable,
    )


def text_of(value: Any) -> Text:
    """Return the request of a message of kind ``start``."""
    request, tokens, capacity, (temperature, top_k, top_p, min_p), (seed, sample, repeatable) = value
    return Text(
        request,
        tokens,
        capacity=capacity,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        sample=sample,
        repeatable=repeatable,
    )


def send_questions(channel: DrafterChannel, round_: int, queries: Sequence[Query], asked: float) -> None:
    """Send a question, and when it was asked."""
    channel.speculate(round_, asked, [(q.request, q.generation, q.keep, q.accepted, q.budget, q.new) for q in queries])


def queries_of(value: Any) -> tuple[int, list[Query], float]:
    """Return number, parts and time of a message of kind ``speculate``."""
    round_, asked, parts = value
    queries = [
        Query(request, made, keep, new, accepted, budget) for request, made, keep, accepted, budget, new in parts
    ]
    return round_, queries, asked


def send_answer(channel: DrafterChannel, made: Answer) -> None:
    """Send an answer; laws are copied once, into shared memory."""
    channel.answer(
        made.round,
        [made.service_seconds, made.pre_draft_seconds, made.busy_seconds],
        [(r.request, r.generation, r.accepted, r.bonus, r.origin, r.chain.tokens, r.chain.laws) for r in made.replies],
    )


def answer_of(value: Any) -> Answer:
    """Return the answer in a message of kind ``answer``.

    Raises
    ------
    DrafterLostError
        An origin is none that this version knows.
    """
    round_, (service, pre_draft, busy), parts = value
    replies = []
    for request, generation, accepted, bonus, origin, tokens, laws in parts:
        try:
            known = Origin(origin)
        except ValueError as error:
            raise DrafterLostError(f"a reply's origin is {origin}, expected one of {list(map(int, Origin))}") from error
        chain = Chain(tokens, laws) if len(tokens) else NOTHING
        replies.append(Reply(request, generation, accepted, bonus, known, chain))
    return Answer(round_, tuple(replies), service, pre_draft, busy)
