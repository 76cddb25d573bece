"""What the engine asks of a length policy: how much to draft, whether to go on, how much of the draft to score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.drafters.base import GoOn
    from specrs.engine.request import Request
    from specrs.types import Draft, Verdict


class LengthPolicy(Protocol):
    """Decides how much to draft and how much of it to score.

    Attributes
    ----------
    name : str
        As in the registry and in reports.
    cuts_on_drawn_tokens : bool
        Whether :meth:`trim` looks at quantities that depend on the drafted tokens themselves. Such a policy would bias
        the output of a drafter that draws its tokens; the engine refuses the pair.
    """

    name: str
    cuts_on_drawn_tokens: bool

    def budgets(self, requests: Sequence[Request], limits: Sequence[int]) -> list[int]:
        """Return how many nodes to ask for, at most ``limits[b]`` each, from past rounds alone."""
        ...

    def go_on(self, requests: Sequence[Request]) -> GoOn | None:
        """Return what a drafter that writes token by token asks after each token; None leaves it to the drafter."""
        ...

    def trim(self, requests: Sequence[Request], draft: Draft) -> Draft:
        """Return the part of the draft that is worth scoring."""
        ...

    def observe(self, requests: Sequence[Request], draft: Draft, verdict: Verdict, seconds: RoundSeconds) -> None:
        """Learn from a finished round; ``draft`` is what was scored."""
        ...

    def finish(self, request: Request) -> None:
        """Let go of a request, finished or aborted."""
        ...

    def message(self) -> str | None:
        """Return what a reader of the report should know of the choices made, in one line."""
        ...


class RoundSeconds:
    """Seconds that the stages of one round took."""

    __slots__ = ("commit", "draft", "score", "tree", "verify")

    def __init__(self, draft: float, tree: float, score: float, verify: float, commit: float) -> None:
        self.draft = draft
        self.tree = tree
        self.score = score
        self.verify = verify
        self.commit = commit

    @property
    def total(self) -> float:
        """Sum of the stages."""
        return self.draft + self.tree + self.score + self.verify + self.commit
