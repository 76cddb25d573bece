"""What the engine asks of a drafter: one propose() for all kinds, capabilities as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.engine.request import Request
    from specrs.types import Draft, TokenArray


class TokenFacts(Protocol):
    """What is known after one more token of each of several chains.

    Attributes
    ----------
    requests : sequence of int
        Which requests of the round, by index.
    lengths : sequence of int
        Tokens of each chain, the last one included.
    confidence : list of float
        Largest probability of the law that each last token was drawn from, at temperature 1.
    """

    @property
    def requests(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def lengths(self) -> Sequence[int]: ...  # noqa: D102

    @property
    def confidence(self) -> list[float]: ...  # noqa: D102

    def entropy(self) -> list[float]:
        """Return the entropy of each law in nats, at temperature 1."""
        ...

    def token_probs(self) -> list[float]:
        """Return the probability of each last token, at temperature 1."""
        ...

    def top_probs(self, count: int) -> list[list[float]]:
        """Return the ``count`` largest probabilities of each law, largest first."""
        ...


if TYPE_CHECKING:
    #: Asked after each token of a chain: whether each of the chains gets another one.
    GoOn = Callable[[TokenFacts], list[bool]]


class Drafter(Protocol):
    """Proposes tokens that the target may agree with.

    Attributes
    ----------
    name : str
        As in the registry and in reports.
    max_context : int or None
        Most committed tokens that the drafter can read; beyond, the engine decodes without drafts.
    tokens_are_drawn : bool
        Whether proposals are drawn from a law (``Draft.draft_probs``), so that a length policy may not look at what was
        drawn before it cuts.
    """

    name: str
    max_context: int | None
    tokens_are_drawn: bool
    # A drafter that writes token by token may have ``asks_to_go_on = True``; its ``propose`` then takes a third
    # argument, a ``GoOn`` or None, and ends a chain where that says so. Three more are optional: ``memory_bytes()``,
    # which the report shows; ``unread(request)``, the committed tokens that it reads before it drafts, for that time is
    # no policy's measure of drafting; ``figures_from_now()``, which returns a function that gives figures of its own
    # for the report, as plain values.

    def start(self, request: Request) -> None:
        """Meet a new request; ``request.tokens`` holds its prompt."""
        ...

    def propose(self, requests: Sequence[Request], budgets: Sequence[int]) -> Draft:
        """Propose at most ``budgets[b]`` nodes for each request. An empty draft means one plain step."""
        ...

    def commit(self, request: Request, kept: TokenArray) -> None:
        """Learn which tokens were committed. The drafter rolls its own state back to ``request.tokens``."""
        ...

    def finish(self, request: Request) -> None:
        """Let go of a request, finished or aborted. Unknown requests are ignored."""
        ...
