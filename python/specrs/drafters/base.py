"""What the engine asks of a drafter: one propose() for all kinds, capabilities as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.types import Draft, TokenArray


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
