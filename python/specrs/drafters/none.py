"""No drafter: plain decoding through the same loop and cache, the baseline of every report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrs.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.types import TokenArray


class NoDrafter:
    """Proposes nothing."""

    name = "none"
    max_context: int | None = None
    tokens_are_drawn = False

    def start(self, request: Request) -> None:
        """Meet a new request."""

    def propose(self, requests: Sequence[Request], budgets: Sequence[int]) -> Draft:
        """Return an empty draft."""
        return Draft.empty(len(budgets), self.name)

    def commit(self, request: Request, kept: TokenArray) -> None:
        """Learn nothing."""

    def finish(self, request: Request) -> None:
        """Let go of nothing."""
