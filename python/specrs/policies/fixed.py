"""Fixed length: the same number of nodes every round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.policies.base import RoundSeconds
    from specrs.types import Draft, Verdict


class FixedLength:
    """Ask for ``nodes`` nodes and score whatever comes."""

    name = "fixed"
    cuts_on_drawn_tokens = False

    def __init__(self, nodes: int) -> None:
        if nodes < 0:
            raise InvalidInputError(f"draft_tokens must be >= 0, got {nodes}")
        self.nodes = nodes

    def budgets(self, requests: Sequence[Request], limits: Sequence[int]) -> list[int]:
        """Return ``nodes``, within the limits."""
        return [min(self.nodes, limit) for limit in limits]

    def trim(self, requests: Sequence[Request], draft: Draft) -> Draft:
        """Return the draft as it is."""
        return draft

    def observe(self, requests: Sequence[Request], draft: Draft, verdict: Verdict, seconds: RoundSeconds) -> None:
        """Learn nothing."""
