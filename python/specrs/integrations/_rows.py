"""Which request stands in which row of an engine's batch, told from the text in the rows.

vLLM hands a custom proposer the rows and no request ids. Text is the better key anyway: equal text means equal drafts,
an id that is used again cannot bring back another request's state, and a preempted request is known when it returns.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

#: Last tokens of the known text that must stand where they stood.
TAIL = 16
#: Tokens spread over the text as first seen that must stand where they stood. A row that may hold a request of another
#: row, or one that was away, must also have the checksum of that text.
MARKS = 8
#: Steps for which a request may be out of the batch before it counts as finished.
PATIENCE = 16
#: Most comparisons of rows with requests whose length is not the expected one.
MOST_COMPARISONS = 4096


@dataclass
class Matched:
    """What :meth:`Rows.match` found, for B rows.

    Attributes
    ----------
    requests : array of int64, shape (B,)
        Request of each row: a number that stays with the request.
    read : array of int64, shape (B,)
        Tokens of the row that were known before; 0 for a new request.
    new : list of int
        Rows that hold a request not seen before.
    finished : list of int
        Requests that are gone for good.
    absent : set of int
        Requests that are out of the batch but may come back.
    """

    requests: Integers
    read: Integers
    new: list[int]
    finished: list[int] = field(default_factory=list)
    absent: set[int] = field(default_factory=set)


@dataclass
class _Signature:
    """What a request is known again by."""

    length: int
    tail: npt.NDArray[np.int32]
    mark_at: Integers
    marks: npt.NDArray[np.int32]
    first_length: int
    checksum: int
    away: int = 0

    def is_in(self, row: npt.NDArray[np.int32], length: int) -> bool:
        if not 0 < self.length <= length or not np.array_equal(row[self.mark_at], self.marks):
            return False
        return (
            np.array_equal(_tail(row, self.length), self.tail) and _checksum(row[: self.first_length]) == self.checksum
        )


class Rows:
    """Follows requests through the rows of a batch.

    Rows may be permuted, left, and taken by others at every step. A request that leaves the batch is finished once a
    new request arrives (engines bring preempted requests back first) or after ``PATIENCE`` steps; should it return
    later all the same, it is a new request with a long prompt.

    Parameters
    ----------
    next_request : int
        Number of the first new request; the others follow.
    """

    def __init__(self, next_request: int = 0) -> None:
        self.next_request = next_request
        self._away: dict[int, _Signature] = {}
        self._resize(0)

    def _resize(self, rows: int) -> None:
        self._request = np.full(rows, -1, np.int64)
        self._length = np.zeros(rows, np.int64)
        self._tail = np.full((rows, TAIL), -1, np.int32)
        self._mark_at = np.zeros((rows, MARKS), np.int64)
        self._marks = np.full((rows, MARKS), -1, np.int32)
        self._first = np.zeros((rows, 2), np.int64)

    def match(self, tokens: npt.NDArray[np.int32], lengths: Integers, fresh: Integers) -> Matched:
        """Tell which request each row holds, and remember its text.

        Parameters
        ----------
        tokens : array of int32, shape (at least B, L)
            Text of each row.
        lengths : array of int64, shape (B,)
            Tokens of each row that are text.
        fresh : array of int64, shape (B,)
            How many of them came with the last step.
        """
        batch = len(lengths)
        before = len(self._request)
        shared = min(batch, before)
        same = self._unmoved(tokens, lengths[:shared], shared)
        found = Matched(np.full(batch, -1, np.int64), np.zeros(batch, np.int64), [])
        found.requests[:shared][same] = self._request[:shared][same]
        found.read[:shared][same] = self._length[:shared][same]
        if not (same.all() and batch == before) or self._away:
            self._match_moved(tokens, lengths, fresh, found, same)
        self._length[:] = lengths
        self._tail[:] = _tails(tokens, lengths)
        return found

    def _unmoved(self, tokens: npt.NDArray[np.int32], lengths: Integers, rows: int) -> npt.NDArray[np.bool_]:
        """Return which rows go on with the text that they held."""
        known = self._length[:rows]
        at = np.arange(rows)[:, None]
        tails = _tails(tokens, known) == self._tail[:rows]
        marks = take(tokens, at, self._mark_at[:rows]) == self._marks[:rows]
        same: npt.NDArray[np.bool_] = (known > 0) & (known <= lengths) & tails.all(1) & marks.all(1)
        return same

    def _match_moved(
        self,
        tokens: npt.NDArray[np.int32],
        lengths: Integers,
        fresh: Integers,
        found: Matched,
        same: npt.NDArray[np.bool_],
    ) -> None:
        """Find the requests of the other rows, among those that left their row and those that left the batch."""
        for row in range(len(self._request)):
            if row >= len(same) or not same[row]:
                self._away[int(self._request[row])] = _Signature(
                    int(self._length[row]),
                    self._tail[row].copy(),
                    self._mark_at[row].copy(),
                    self._marks[row].copy(),
                    *self._first[row].tolist(),
                )
        others = np.flatnonzero(found.requests < 0).tolist()
        signatures = self._find(tokens, lengths, fresh, others, found)
        request, mark_at, marks, first = self._request, self._mark_at, self._marks, self._first
        self._resize(len(lengths))
        rows = np.flatnonzero(same)
        self._request[rows], self._mark_at[rows] = request[rows], mark_at[rows]
        self._marks[rows], self._first[rows] = marks[rows], first[rows]
        for row in others:
            signature = signatures.get(row)
            if signature is None:
                found.new.append(row)
                found.requests[row] = self.next_request
                self.next_request += 1
                at = np.linspace(0, max(int(lengths[row]) - 1, 0), MARKS).astype(np.int64)
                self._mark_at[row], self._marks[row] = at, tokens[row, at]
                self._first[row] = lengths[row], _checksum(tokens[row, : lengths[row]])
            else:
                self._mark_at[row], self._marks[row] = signature.mark_at, signature.marks
                self._first[row] = signature.first_length, signature.checksum
            self._request[row] = found.requests[row]
        self._let_go(found)

    def _find(
        self, tokens: npt.NDArray[np.int32], lengths: Integers, fresh: Integers, rows: list[int], found: Matched
    ) -> dict[int, _Signature]:
        """Match rows with absent requests: by the expected length and tail, else by comparing each with each."""
        signatures: dict[int, _Signature] = {}
        if not rows or not self._away:
            return signatures
        by_tail: dict[tuple[int, bytes], list[int]] = {}
        for request, signature in self._away.items():
            by_tail.setdefault((signature.length, signature.tail.tobytes()), []).append(request)

        def take(row: int, request: int) -> None:
            signatures[row] = self._away.pop(request)
            found.requests[row], found.read[row] = request, signatures[row].length

        for row in rows:
            length = int(lengths[row] - fresh[row])
            candidates = by_tail.get((length, _tail(tokens[row], length).tobytes()), [])
            for request in candidates:
                if self._away[request].is_in(tokens[row], int(lengths[row])):
                    candidates.remove(request)
                    take(row, request)
                    break
        unknown = [row for row in rows if row not in signatures]
        if len(unknown) * len(self._away) <= MOST_COMPARISONS:
            for row in unknown:
                for request, signature in self._away.items():
                    if signature.is_in(tokens[row], int(lengths[row])):
                        take(row, request)
                        break
        return signatures

    def _let_go(self, found: Matched) -> None:
        for signature in self._away.values():
            signature.away += 1
        gone = [request for request, s in self._away.items() if found.new or s.away > PATIENCE]
        for request in gone:
            del self._away[request]
        found.finished = gone
        found.absent = set(self._away)


def _tails(tokens: npt.NDArray[np.int32], lengths: Integers) -> npt.NDArray[np.int32]:
    """Return the last ``TAIL`` tokens before each row's length, shape (B, TAIL); -1 where there are fewer."""
    at = lengths[:, None] + np.arange(-TAIL, 0)
    tails = take(tokens, np.arange(len(lengths))[:, None], np.maximum(at, 0))
    if len(lengths) and lengths.min() < TAIL:
        tails[at < 0] = -1
    return tails


def take(tokens: npt.NDArray[np.int32], rows: Integers, columns: Integers) -> npt.NDArray[np.int32]:
    """Return ``tokens[rows, columns]``; from one piece of memory in a third of the time."""
    made: npt.NDArray[np.int32]
    if tokens.flags.c_contiguous:
        made = tokens.reshape(-1).take(rows * tokens.shape[1] + columns)
    else:
        made = tokens[rows, columns]
    return made


def _checksum(text: npt.NDArray[np.int32]) -> int:
    return zlib.crc32(text.tobytes())


def _tail(row: npt.NDArray[Any], length: int) -> npt.NDArray[np.int32]:
    """Return the last ``TAIL`` of a row's first ``length`` tokens; -1 where there are fewer."""
    tail = np.full(TAIL, -1, np.int32)
    if length > 0:
        text = row[max(length - TAIL, 0) : length]
        tail[TAIL - len(text) :] = text
    return tail
