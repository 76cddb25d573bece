"""What a drafter beside the target knows of a request, and what the two say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.types import FloatArray, TokenArray


class Origin(IntEnum):
    """Where a draft came from."""

    HIT = 0
    SLOW = 1
    FAST = 2
    ZERO = 3


class Text:
    """The drafter's own copy of a request: its committed tokens and how it wants tokens drawn.

    Parameters
    ----------
    request : int
    tokens : array of uint32, shape (T,)
        Committed tokens.
    capacity : int
        Tokens to make room for.
    temperature, top_k, top_p, min_p : float, int, float, float
        As in ``SamplingParams``.
    seed, sample : int
        Keys of the draft coins.
    repeatable : bool
        The text must depend on its seed alone: no draft may depend on what was ready when.
    """

    def __init__(
        self,
        request: int,
        tokens: TokenArray,
        *,
        capacity: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        sample: int = 0,
        repeatable: bool = False,
    ) -> None:
        self.request = request
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self.seed, self.sample, self.repeatable = seed, sample, repeatable
        self.capacity = max(capacity, len(tokens))
        self._buffer = np.empty(self.capacity, np.uint32)
        self._buffer[: len(tokens)] = tokens
        self._length = len(tokens)

    @property
    def tokens(self) -> TokenArray:
        """Committed tokens, the anchor last; a view."""
        return self._buffer[: self._length]

    def update(self, keep: int, new: TokenArray) -> None:
        """Keep the first ``keep`` tokens and append ``new``."""
        if not 0 <= keep <= self._length:
            raise InvalidInputError(f"request {self.request} has {self._length} tokens, asked to keep {keep}")
        if keep + len(new) > len(self._buffer):
            grown = np.empty(keep + len(new) + 256, np.uint32)
            grown[:keep] = self._buffer[:keep]
            self._buffer = grown
        self._buffer[keep : keep + len(new)] = new
        self._length = keep + len(new)


@dataclass(frozen=True, eq=False)
class Chain:
    """Drafted tokens, and the laws they were drawn from, shape (n, V), or None if chosen with certainty."""

    tokens: TokenArray
    laws: FloatArray | None = None

    def first(self, count: int) -> Chain:
        """Return the first ``count`` tokens."""
        if len(self.tokens) <= count:
            return self
        return Chain(self.tokens[:count], None if self.laws is None else self.laws[:count])


NOTHING = Chain(np.empty(0, np.uint32))


@dataclass(frozen=True, eq=False)
class Query:
    """One request's part of a question: how its last round ended, and how much to draft now.

    Attributes
    ----------
    request : int
    generation : int
        Counts the request's rounds; a guess is good for one.
    keep : int
        Tokens of the drafter's copy that still stand.
    new : array of uint32
        Committed tokens after those.
    accepted : int
        Drafts accepted in the last round, or -1 when that round had none of the drafter's drafts.
    budget : int
        Most tokens to draft.
    """

    request: int
    generation: int
    keep: int
    new: TokenArray
    accepted: int
    budget: int

    @property
    def bonus(self) -> int:
        """The last committed token."""
        return int(self.new[-1]) if len(self.new) else -1


@dataclass(frozen=True, eq=False)
class Reply:
    """One request's part of an answer, with the question's outcome echoed, so that a wrong one is found out."""

    request: int
    generation: int
    accepted: int
    bonus: int
    origin: Origin
    chain: Chain


@dataclass(frozen=True, eq=False)
class Answer:
    """What the drafter answers.

    Attributes
    ----------
    round : int
        The question's number.
    replies : tuple of Reply
    service_seconds : float
        From reading the question to having the answer.
    pre_draft_seconds : float
        What drafting for guesses took in the round before.
    busy_seconds : float
        How long the question waited for a forward of drafting ahead to end.
    """

    round: int
    replies: tuple[Reply, ...]
    service_seconds: float = 0.0
    pre_draft_seconds: float = 0.0
    busy_seconds: float = 0.0


class Link(Protocol):
    """The way to a drafter, wherever it runs."""

    def start(self, text: Text) -> None:
        """Tell of a new request. Does not wait."""
        ...

    def finish(self, request: int) -> None:
        """Tell that a request is over. Does not wait."""
        ...

    def speculate(self, round_: int, queries: Sequence[Query]) -> Answer:
        """Ask for drafts and wait for them.

        Raises
        ------
        DrafterLateError
            Nothing came in time; the answer may come later and is then thrown away.
        DrafterLostError
            The drafter is gone.
        """
        ...

    def close(self) -> None:
        """Let the drafter go."""
        ...


@dataclass(frozen=True)
class SsdOptions:
    """How to draft beside the target.

    Attributes
    ----------
    lookahead : int
        K, tokens of a draft; 0 decodes plainly.
    fan_out : int
        Guesses per number of accepted drafts, on average: ``fan_out * (lookahead + 1)`` are shared out to where they
        bring most. 0 guesses nothing: synchronous drafting.
    fallback : {'auto', 'slow', 'fast', 'zero'}
        After a miss: draft anew, continue text already seen, do not draft, or whichever was measured fastest.
    saguaro : float
        Weight C in (0, 1] of the guessed tokens in the draft law; 1 is off. Sampled requests alone.
    max_cache_bytes : int
        Memory of drafts that wait for their outcome.
    """

    lookahead: int = 4
    fan_out: int = 3
    fallback: str = "auto"
    saguaro: float = 1.0
    max_cache_bytes: int = 1 << 30
    acceptance: float = field(default=0.7, kw_only=True)

    def __post_init__(self) -> None:
        if self.lookahead < 0:
            raise InvalidInputError(f"draft_tokens must be >= 0, got {self.lookahead}")
        if self.fan_out < 0:
            raise InvalidInputError(f"fan_out must be >= 0 (0 guesses nothing), got {self.fan_out}")
        if self.fallback not in ("auto", "slow", "fast", "zero"):
            raise InvalidInputError(f"fallback must be 'auto', 'slow', 'fast' or 'zero', got {self.fallback!r}")
        if not 0 < self.saguaro <= 1:
            raise InvalidInputError(f"saguaro must be in (0, 1] (1 is off), got {self.saguaro!r}")
        if self.max_cache_bytes < 0:
            raise InvalidInputError(f"max_cache_bytes must be >= 0, got {self.max_cache_bytes}")
