"""A policy of the registry: the decisions are made in Rust, this class carries them to and from the engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from specrs.drafters.base import GoOn, TokenFacts
    from specrs.engine.request import Request
    from specrs.policies.base import RoundSeconds
    from specrs.policies.reading import Reading
    from specrs.types import Draft, Verdict

_NO_PARENTS = np.empty(0, np.int32)


class NamedPolicy:
    """One policy of ``specrs.policies.registry`` for the rounds of one engine.

    Parameters
    ----------
    name : str
    options : mapping
        All options of the policy, checked.
    drawn : bool
        The drafter draws its tokens (at temperature > 0).
    stepwise : bool
        The drafter writes token by token and asks after each.
    sampled : bool
        Some request has a temperature above 0.
    cost : _core.CostTable, optional
        For the policies that need one, and for ``guarded``.
    learned : _core.Learned, optional
        What is known of the drafter, shared and kept between runs.
    guarded : bool
        Rest drafting while plain decoding is faster.
    head : callable, optional
        For ``specdecpp`` and ``disco``: takes the facts of a step and returns P(accepted) per chain.
    reading : Reading, optional
        For a draft model: refuses drafts that its reading of the text would cost more than they bring.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        drawn: bool,
        stepwise: bool,
        sampled: bool = True,
        cost: _core.CostTable | None = None,
        learned: _core.Learned | None = None,
        guarded: bool = False,
        head: Callable[[TokenFacts], Sequence[float]] | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.name = name
        self._core = _core.LengthPolicy(
            name, dict(options), stepwise=stepwise, cost=cost, learned=learned, guarded=guarded
        )
        self._biased = drawn and not self._core.safe_when_drawn
        self.cuts_on_drawn_tokens = self._biased and sampled
        self._drawn = drawn
        self._asks_entropy = name in ENTROPY_POLICIES
        self._head = head
        self._reading = reading
        self._steps = 0

    def _facts(self, requests: Sequence[Request]) -> tuple[list[int], list[float], list[bool], int]:
        temperatures = [request.sampling.temperature for request in requests]
        return (
            [request.id for request in requests],
            temperatures,
            [self._drawn and t > 0 for t in temperatures],
            max(len(request.tokens) for request in requests),
        )

    def budgets(self, requests: Sequence[Request], limits: Sequence[int]) -> list[int]:
        """Return the nodes to ask for."""
        self._steps = 0
        if self._reading is not None:
            limits = self._reading.limits(requests, limits)
        return self._core.budgets(*self._facts(requests), list(limits))

    def go_on(self, requests: Sequence[Request]) -> GoOn | None:
        """Return the rule that decides after each token; None where the policy has none."""
        if not self._core.decides_stepwise:
            return None
        facts = self._facts(requests)

        def ask(step: TokenFacts) -> list[bool]:
            unknown = [math.nan] * len(step.requests)
            entropy = step.entropy() if self._asks_entropy else unknown
            head = list(self._head(step)) if self._head is not None else unknown
            return self._core.more(
                *facts, list(step.requests), list(step.lengths), step.confidence, entropy, step.token_probs(), head
            )

        return ask

    def trim(self, requests: Sequence[Request], draft: Draft) -> Draft:
        """Return the part of the draft that is worth scoring."""
        if not len(draft.tokens):
            return draft
        self._steps = int(np.diff(draft.node_ptr).max())
        facts = self._facts(requests)
        if self._biased and any(facts[2]):
            raise InvalidInputError(f"policy {self.name!r} looks at the whole draft and would bias a sampled request")
        kept = self._core.trim(*facts, draft.parents, draft.confidence, draft.node_ptr, _sees_token(draft))
        return draft.keep_nodes(kept)

    def observe(self, requests: Sequence[Request], draft: Draft, verdict: Verdict, seconds: RoundSeconds) -> None:
        """Learn from a finished round."""
        accepted = np.zeros(len(draft.tokens), np.bool_)
        for b in range(draft.batch_size):
            accepted[draft.node_ptr[b] + verdict.path[verdict.path_ptr[b] : verdict.path_ptr[b + 1]]] = True
        other = seconds.tree + seconds.verify + seconds.commit
        self._core.observe(
            *self._facts(requests),
            draft.parents if len(draft.tokens) else _NO_PARENTS,
            draft.confidence,
            draft.node_ptr,
            _sees_token(draft),
            accepted,
            self._steps,
            (seconds.draft, seconds.score, other),
        )

    def finish(self, request: Request) -> None:
        """Forget the request."""
        self._core.forget(request.id)
        if self._reading is not None:
            self._reading.forget(request)

    def message(self) -> str | None:
        """Tell when drafting rested, or why a draft model did not begin."""
        guard = self._core.guard
        if guard is None or not guard[2]:
            return None if self._reading is None else self._reading.message()
        rested, rounds, _, slowdown = guard
        why = f"drafting took {slowdown:.2f}x of plain decoding's time" if slowdown else "for some of the requests"
        return f"drafting rested in {rested} of {rounds} rounds: {why}; it is tried again now and then"


#: Policies that ask for the entropy of the law that a token came from.
ENTROPY_POLICIES = frozenset({"svip", "adaedl"})


def _sees_token(draft: Draft) -> bool:
    return draft.confidence_kind is not None and draft.confidence_kind.sees_token
