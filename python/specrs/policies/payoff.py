"""Payoff: the drafter compares its own drafts by what they pay; the policy bounds them and reports what rounds cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs._core import PayoffRouter
    from specrs.drafters.base import GoOn
    from specrs.engine.request import Request
    from specrs.policies.base import RoundSeconds
    from specrs.types import Draft, Verdict


class Payoff:
    """Ask for at most ``max_nodes`` nodes, score what the drafter chose, and tell its router the time.

    Parameters
    ----------
    router : PayoffRouter
        The drafter's.
    max_nodes : int
        Longest draft.
    """

    name = "payoff"
    # The router cuts cache drafts, which are certain, and chooses the model drafter's length before it draws.
    cuts_on_drawn_tokens = False

    def __init__(self, router: PayoffRouter, max_nodes: int) -> None:
        if max_nodes < 0:
            raise InvalidInputError(f"draft_tokens must be >= 0, got {max_nodes}")
        self._router = router
        self._max_nodes = max_nodes

    def budgets(self, requests: Sequence[Request], limits: Sequence[int]) -> list[int]:
        """Return ``max_nodes``, within the limits."""
        return [min(self._max_nodes, limit) for limit in limits]

    def go_on(self, requests: Sequence[Request]) -> GoOn | None:
        """Leave the length of a chain to its drafter."""
        return None

    def trim(self, requests: Sequence[Request], draft: Draft) -> Draft:
        """Return the draft as it is: the drafter has cut it."""
        return draft

    def observe(self, requests: Sequence[Request], draft: Draft, verdict: Verdict, seconds: RoundSeconds) -> None:
        """Tell the router what the forward cost."""
        self._router.note_forward(draft.batch_size + len(draft.tokens), seconds.score)

    def finish(self, request: Request) -> None:
        """Nothing is kept per request."""

    def message(self) -> str | None:
        """Nothing to add: the report counts what each arm brought."""
        return None
