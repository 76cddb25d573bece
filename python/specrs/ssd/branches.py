"""What drafting behind guesses asks of a drafter, and what a finished guess is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from specrs.ssd.texts import Chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.ssd.texts import Text
    from specrs.types import TokenArray


@dataclass(frozen=True, eq=False)
class Job:
    """A draft that the target is verifying, and how many bonus tokens to guess behind each of its prefixes.

    Attributes
    ----------
    text : Text
    trunk : array of uint32, shape (L,)
        The draft.
    fan_out : list of int, length L + 1
    """

    text: Text
    trunk: TokenArray
    fan_out: Sequence[int]


@dataclass(eq=False)
class Branch:
    """A guess: ``accepted`` drafts of job number ``job``, then the bonus token ``bonus``; and the draft behind it.

    ``rank`` counts from 1 the guesses behind the same number of accepted drafts, best first.
    """

    job: int
    accepted: int
    bonus: int
    rank: int
    tokens: list[int] = field(default_factory=list)
    laws: list[object] = field(default_factory=list)


class Growth(Protocol):
    """Drafting for guesses in progress. The caller steps it, and may drop guesses or stop at any time."""

    branches: list[Branch]

    def step(self) -> bool:
        """Draft on by one forward for all guesses; False when they are complete."""
        ...

    def keep_only(self, branches: Sequence[Branch]) -> None:
        """Go on with these guesses alone."""
        ...

    def chain(self, branch: Branch) -> Chain:
        """Return what a guess has by now."""
        ...

    def close(self) -> None:
        """Forget the guesses; only committed text and the verified draft stay in memory."""
        ...


class BranchDrafter(Protocol):
    """A drafter that can also draft behind texts that do not exist yet.

    Attributes
    ----------
    name : str
    max_context : int or None
        Most tokens that it can read.
    tokens_are_drawn : bool
        Whether tokens are drawn from laws (requests at a temperature above 0).
    """

    name: str
    max_context: int | None
    tokens_are_drawn: bool

    def start(self, text: Text) -> None:
        """Meet a request."""
        ...

    def finish(self, request: int) -> None:
        """Let go of a request."""
        ...

    def sync(self, text: Text, keep: int) -> None:
        """Roll back to the first ``keep`` tokens of a text that was just changed after them."""
        ...

    def draft(self, texts: Sequence[Text], budgets: Sequence[int]) -> list[Chain]:
        """Draft behind the texts as they are."""
        ...

    def grow(self, jobs: Sequence[Job], lookahead: int) -> Growth:
        """Begin to draft ``lookahead`` tokens behind each guess."""
        ...
