"""Whether a draft model's reading of a text can still be paid back by what is left to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.engine.request import Request
    from specrs.policies.cost import CostTable

#: Unread tokens that are read without asking: they take a draft model about as long as a few drafted tokens.
FEW = 64
#: Longest draft that is thought of in what drafting can save.
LONGEST = 48


class Reading:
    """Refuses drafts of a model that would first have to read more than they can bring back.

    A draft model reads the prompt before its first draft. With u unread tokens and n left to write at most, drafting
    cannot pay where ``R(u) > n * (V(1) - min_k (k * d + V(k + 1)) / (k + 1))``: R(u) are the draft model's seconds for
    the stretch, d its step, V(m) the target's forward over m rows. The right side is what drafts save that are all
    accepted, so as far as the costs are known nothing that could pay is refused. A request that is refused stays so:
    its text grows, and what is left to write shrinks.

    Parameters
    ----------
    unread : callable
        Returns how many committed tokens of a request the draft model has not read.
    drafting : callable
        Returns the draft model's cost table; called when a stretch of more than ``FEW`` tokens is met first.
    scoring : CostTable
        The target's.
    """

    def __init__(self, unread: Callable[[Request], int], drafting: Callable[[], CostTable], scoring: CostTable) -> None:
        self._unread = unread
        self._drafting = drafting
        self._scoring = scoring
        self._refused: set[int] = set()
        self._first: tuple[int, float, int, float] | None = None

    def limits(self, requests: Sequence[Request], limits: Sequence[int]) -> list[int]:
        """Return ``limits``, 0 for a request whose text is not worth reading any more."""
        return [limit if limit and self._pays(request) else 0 for request, limit in zip(requests, limits, strict=True)]

    def forget(self, request: Request) -> None:
        """Let go of a request."""
        self._refused.discard(request.id)

    def _pays(self, request: Request) -> bool:
        if request.id in self._refused:
            return False
        unread = self._unread(request)
        if unread <= FEW:
            return True
        drafting, scoring = self._drafting(), self._scoring
        step = drafting.seconds(1)
        best = min((k * step + scoring.seconds(k + 1)) / (k + 1) for k in range(LONGEST))
        left = request.stop.max_new_tokens - request.generated
        takes, saves = drafting.seconds(unread), left * (scoring.seconds(1) - best)
        if takes <= saves:
            return True
        self._refused.add(request.id)
        self._first = self._first or (unread, takes, left, saves)
        return False

    def message(self) -> str | None:
        """Tell what was not read first, and why."""
        if self._first is None:
            return None
        unread, takes, left, saves = self._first
        return (
            f"the draft model did not read a text of {unread} tokens: it would take {takes:.1f} s, and drafts save "
            f"{saves:.1f} s at most on the {left} tokens left to write (policy_options={{'backoff': False}} reads it)"
        )
