"""Messages between target and drafter process: versioned words of 64 bits, then float32 laws.

Every message begins with (magic, version, kind, number). A reader that finds another magic or version refuses the
message by an error that names both. Doubles travel as their bits.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.errors import DrafterLostError
from specrs.ssd.texts import NOTHING, Answer, Chain, Origin, Query, Reply, Text

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC = 0x5353_4430
VERSION = 1


class Kind(IntEnum):
    """What a message is."""

    START = 1
    FINISH = 2
    SPECULATE = 3
    ANSWER = 4
    FAILURE = 5


Parts = list[Any]  # of bytes and memoryviews


def _words(kind: Kind, number: int, body: Sequence[int]) -> bytes:
    return struct.pack(f"<{4 + len(body)}q", MAGIC, VERSION, kind, number, *body)


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _real(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def start(text: Text) -> Parts:
    """Encode a new request."""
    numbers = [text.request, text.capacity, text.top_k, _signed(text.seed), text.sample, int(text.repeatable)]
    reals = [_bits(text.temperature), _bits(text.top_p), _bits(text.min_p)]
    return [_words(Kind.START, 0, [*numbers, *reals, *text.tokens.tolist()])]


def finish(request: int) -> Parts:
    """Encode the end of a request."""
    return [_words(Kind.FINISH, 0, [request])]


def speculate(round_: int, queries: Sequence[Query], asked: float = 0.0) -> Parts:
    """Encode a question, and when it was asked."""
    body = [_bits(asked), len(queries)]
    for query in queries:
        body += [query.request, query.generation, query.keep, query.accepted, query.budget, len(query.new)]
        body += query.new.tolist()
    return [_words(Kind.SPECULATE, round_, body)]


def answer(made: Answer) -> Parts:
    """Encode an answer; the laws are written as they lie in memory."""
    times = (made.service_seconds, made.pre_draft_seconds, made.busy_seconds)
    body = [len(made.replies), *(int(seconds * 1e9) for seconds in times)]
    laws: Parts = []
    for reply in made.replies:
        rows = reply.chain.laws
        width = 0 if rows is None else rows.shape[1]
        body += [reply.request, reply.generation, reply.accepted, reply.bonus, int(reply.origin)]
        body += [len(reply.chain.tokens), width, *reply.chain.tokens.tolist()]
        if rows is not None:
            laws.append(np.ascontiguousarray(rows, np.float32).data.cast("B"))
    return [_words(Kind.ANSWER, made.round, body), *laws]


def failure(reason: str) -> Parts:
    """Encode that the drafter gives up."""
    text = reason.encode()
    return [_words(Kind.FAILURE, 0, [len(text)]), text]


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def words(self, count: int) -> list[int]:
        if count < 0 or self.at + 8 * count > len(self.data):
            raise DrafterLostError(f"a message of {len(self.data)} bytes ends early, expected {count} words more")
        found = struct.unpack_from(f"<{count}q", self.data, self.at)
        self.at += 8 * count
        return list(found)

    def floats(self, rows: int, width: int) -> Any:
        size = 4 * rows * width
        if self.at + size > len(self.data):
            raise DrafterLostError(f"a message of {len(self.data)} bytes ends early, expected {size} bytes of laws")
        found = np.frombuffer(self.data, np.float32, rows * width, self.at).reshape(rows, width)
        self.at += size
        return found


def decode(data: bytes) -> tuple[Kind, Any]:
    """Return the kind of a message and its value: Text, int, (round, queries, asked), Answer, or str.

    Raises
    ------
    DrafterLostError
        The message is foreign, of another version, or cut off.
    """
    reader = _Reader(data, 0)
    magic, version, kind, number = reader.words(4)
    if magic != MAGIC or version != VERSION:
        raise DrafterLostError(
            f"a message has magic {magic:#x} and version {version}, expected {MAGIC:#x} and {VERSION}: target and "
            "drafter must run the same specrs"
        )
    if kind == Kind.START:
        return Kind.START, _start(reader)
    if kind == Kind.FINISH:
        return Kind.FINISH, reader.words(1)[0]
    if kind == Kind.SPECULATE:
        asked = _real(reader.words(1)[0])
        return Kind.SPECULATE, (number, [_query(reader) for _ in range(reader.words(1)[0])], asked)
    if kind == Kind.ANSWER:
        return Kind.ANSWER, _answer(reader, number)
    if kind == Kind.FAILURE:
        size = reader.words(1)[0]
        return Kind.FAILURE, data[reader.at : reader.at + size].decode(errors="replace")
    raise DrafterLostError(f"a message is of kind {kind}, expected one of {[k.value for k in Kind]}")


def _start(reader: _Reader) -> Text:
    request, capacity, top_k, seed, sample, repeatable, *reals = reader.words(9)
    temperature, top_p, min_p = map(_real, reals)
    tokens = np.array(reader.words((len(reader.data) - reader.at) // 8), np.uint32)
    return Text(
        request,
        tokens,
        capacity=capacity,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed % (1 << 64),
        sample=sample,
        repeatable=bool(repeatable),
    )


def _query(reader: _Reader) -> Query:
    request, generation, keep, accepted, budget, size = reader.words(6)
    return Query(request, generation, keep, np.array(reader.words(size), np.uint32), accepted, budget)


def _answer(reader: _Reader, number: int) -> Answer:
    count, service, pre_draft, busy = reader.words(4)
    heads = []
    for _ in range(count):
        head = reader.words(7)
        heads.append((head, reader.words(head[5])))
    replies = []
    for (request, generation, accepted, bonus, origin, size, width), tokens in heads:
        laws = reader.floats(size, width) if width else None
        chain = Chain(np.array(tokens, np.uint32), laws) if size else NOTHING
        try:
            known = Origin(origin)
        except ValueError as error:
            raise DrafterLostError(f"a reply's origin is {origin}, expected one of {list(map(int, Origin))}") from error
        replies.append(Reply(request, generation, accepted, bonus, known, chain))
    return Answer(number, tuple(replies), service / 1e9, pre_draft / 1e9, busy / 1e9)
