"""The one place that trims an accepted run: EOS, stop tokens, stop strings and length, token by token in text order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request


@dataclass(frozen=True)
class Kept:
    """What stays of an emitted run.

    Attributes
    ----------
    count : int
        Tokens kept, from the run's start.
    pieces : tuple of str
        Text that became whole with each kept token; empty where no text is decoded.
    finish_reason : {'stop', 'length'} or None
        Why the request is finished, if it is.
    stopped_by : int, str or None
        The id or the string that stopped it.
    """

    count: int
    pieces: tuple[str, ...]
    finish_reason: str | None = None
    stopped_by: int | str | None = None


def trim(request: Request, emitted: Sequence[int], max_context: int | None) -> Kept:
    """Return what plain decoding would have kept of ``emitted``.

    A stop inside the length limit wins over the limit; nothing after the token that stops is kept.
    """
    rules = request.stop
    ending = set(rules.ending_ids)
    limit = rules.max_new_tokens
    if max_context is not None:
        limit = min(limit, max_context - request.prompt_length)
    pieces: list[str] = []
    for index, token in enumerate(emitted):
        written = request.generated + index
        if request.text is not None:
            pieces.append(request.text.push(token))
        done, count = tuple(pieces), index + 1
        if written >= rules.min_new_tokens:
            if token in ending:
                return Kept(count, done, "stop", token)
            stop_string = request.text.completed_stop() if rules.stop_strings and request.text is not None else None
            if stop_string is not None:
                return Kept(count, done, "stop", stop_string)
        if request.watcher is not None and (reason := request.watcher.stops(emitted[:count])) is not None:
            return Kept(count, done, "stop", reason)
        if written + 1 >= limit:
            return Kept(count, done, "length")
    return Kept(len(emitted), tuple(pieces))
