"""The rows of a ``generate`` batch while they grow: stopping criteria, recorded scores, and the streamer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class TogetherStop:
    """Rows that end together: without an end-of-sequence token, ``generate`` goes on until the last row is done.

    Parameters
    ----------
    rows : int
    """

    def __init__(self, rows: int) -> None:
        self._met: list[int | None] = [None] * rows

    def done(self, row: int, generated: int, *, met: bool) -> bool:
        """Return whether ``row``, now ``generated`` tokens long, may end; ``met`` tells that a criterion held there."""
        if met and self._met[row] is None:
            self._met[row] = generated
        length = self.length
        return length is not None and generated >= length

    @property
    def length(self) -> int | None:
        """New tokens at which the last row was done; None while one is not."""
        known = [length for length in self._met if length is not None]
        return max(known) if len(known) == len(self._met) else None


class RowWatcher:
    """Follows one row for ``generate``: applies its stopping criteria, token by token, and records its scores.

    Parameters
    ----------
    prompt : tensor of int64, shape (L,)
        The row as given, with its padding: criteria count it.
    row : int
    max_new_tokens : int
    criteria : sequence of StoppingCriteria
        Called with ids of shape (1, length) and, if scores are recorded, the scores so far.
    tail : sequence of LogitsProcessor
        What the verifier applies by itself; recorded scores go through it, too.
    record_scores, record_logits : bool
    together : TogetherStop, optional
        Rows that end together.
    """

    def __init__(
        self,
        prompt: torch.Tensor,
        row: int,
        max_new_tokens: int,
        criteria: Sequence[Any],
        tail: Sequence[Any],
        *,
        record_scores: bool,
        record_logits: bool,
        together: TogetherStop | None = None,
    ) -> None:
        self._prompt_length = len(prompt)
        self._ids = torch.empty((1, len(prompt) + max_new_tokens + 1), dtype=torch.long)
        self._ids[0, : len(prompt)] = prompt
        self._length = len(prompt)
        self._row = row
        self._criteria = list(criteria)
        self._tail = list(tail)
        self._together = together
        self.scores: list[torch.Tensor] | None = [] if record_scores else None
        self.logits: list[torch.Tensor] | None = [] if record_logits else None
        self._offered_scores: list[torch.Tensor] = []
        self._offered_logits: list[torch.Tensor] = []
        self._scores_finished = 0
        self.wants_rows = record_scores or record_logits

    def offered(self, raw: torch.Tensor, processed: torch.Tensor) -> None:
        """Keep the rows of a run, each of shape (1, V), until it is known which of them count."""
        if self.logits is not None:
            self._offered_logits = list(raw.to("cpu", torch.float32).split(1))
        if self.scores is not None:
            self._offered_scores = [row.clone() for row in processed.to("cpu", torch.float32).split(1)]

    def stops(self, run: Sequence[int]) -> str | None:
        """Return the name of the stopping criterion that holds after the last token of ``run``."""
        at = self._length + len(run)
        self._ids[0, at - 1] = run[-1]
        ids = self._ids[:, :at]
        scores = None
        if self.scores is not None:
            self._finish_scores(len(run))
            scores = tuple(self.scores + self._offered_scores[: len(run)])
        met = None
        for criterion in self._criteria:
            # All are asked, as `generate` asks all: one may count its calls.
            if bool(torch.as_tensor(criterion(ids, scores)).any()) and met is None:
                met = type(criterion).__name__
        if self._together is not None:
            done = self._together.done(self._row, at - self._prompt_length, met=met is not None)
            return (met or "the other rows") if done else None
        return met

    def _finish_scores(self, count: int) -> None:
        """Apply to the first rows the truncation that the verifier did by itself: scores are what was drawn from."""
        for index in range(self._scores_finished, count):
            history = self._ids[:, : self._length + index]
            for processor in self._tail:
                self._offered_scores[index] = processor(history, self._offered_scores[index])
        self._scores_finished = max(self._scores_finished, count)

    def kept(self, count: int) -> None:
        """Record what belongs to the tokens that were kept."""
        if self.scores is not None:
            self._finish_scores(count)  # a text that ended by a token was not asked about that token
            self.scores += self._offered_scores[:count]
        if self.logits is not None:
            self.logits += self._offered_logits[:count]
        self._offered_scores, self._offered_logits, self._scores_finished = [], [], 0
        self._length += count


class ColumnStreamer:
    """Hands a streamer one column of the batch at a time, as ``generate`` does: the newest token of every row.

    Rows grow at different speeds, so a column goes out when the slowest row has reached it. A finished row shows
    padding.

    Parameters
    ----------
    streamer : BaseStreamer
    rows : int
    padding : int
        What a finished row shows.
    """

    def __init__(self, streamer: Any, rows: int, padding: int) -> None:
        self._streamer = streamer
        self._tokens: list[list[int]] = [[] for _ in range(rows)]
        self._finished = [False] * rows
        self._padding = padding
        self._shown = 0

    def add(self, row: int, tokens: Sequence[int], *, finished: bool) -> None:
        """Take what a row has committed."""
        self._tokens[row] += tokens
        self._finished[row] |= finished

    def show(self, limit: int | None = None) -> None:
        """Hand out the columns that are complete, ``limit`` in all at most."""
        growing = [len(t) for t, finished in zip(self._tokens, self._finished, strict=True) if not finished]
        width = min(growing, default=max(map(len, self._tokens)))
        width = width if limit is None else min(width, limit)
        for column in range(self._shown, width):
            tokens = [row[column] if column < len(row) else self._padding for row in self._tokens]
            self._streamer.put(torch.tensor(tokens))
        self._shown = max(self._shown, width)

    def end(self) -> None:
        """Close the streamer."""
        self._streamer.end()
