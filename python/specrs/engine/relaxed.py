"""The verify stage under a relaxed rule: more drafts stand, and every request's distance from the target is metered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.engine import verifier
from specrs.errors import InvalidInputError
from specrs.verification.ensemble_head import EnsembleHead, Pair
from specrs.verification.entry import warn_once
from specrs.verification.named import named_rule
from specrs.verification.relaxed import DynamicEnsemble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.types import Draft, Scores, Verdict
    from specrs.verification.base import Verifier


class RelaxedVerification:
    """Verifies by a relaxed rule and keeps each request's bias meter.

    Parameters
    ----------
    rule : Verifier or EnsembleHead
        A head gives each token's weight from both models' hidden states, which draft and scores must then carry.
    budget : float, optional
        Most bias (total-variation bound) that a request may gather; beyond it the rule is exact.

    Raises
    ------
    InvalidInputError
        A lossless rule, a negative budget.
    """

    def __init__(self, rule: Verifier | EnsembleHead, *, budget: float | None = None) -> None:
        if not isinstance(rule, EnsembleHead) and getattr(rule, "lossless", True):
            raise InvalidInputError(f"verification must be a relaxed rule or an ensemble head, got {rule!r}")
        if budget is not None and not budget >= 0:
            raise InvalidInputError(f"bias_budget must be at least 0, got {budget}")
        self.rule = rule
        self.budget = budget
        self._bias: dict[int, float] = {}

    @property
    def needs_hidden(self) -> bool:
        """Whether draft and scores must carry hidden states."""
        return isinstance(self.rule, EnsembleHead)

    def bias_of(self, request: Request) -> float:
        """Return the bias that a request has gathered: a bound on its text's distance from the target's law."""
        return self._bias.get(request.id, 0.0)

    def verify(self, requests: Sequence[Request], draft: Draft, scores: Scores, logits: Any) -> Verdict:
        """Decide which nodes stand and what comes behind them; see :func:`specrs.engine.verifier.verify`."""
        rule = self._rule_for(draft, scores)
        warn_once(rule)
        left = None
        if self.budget is not None:
            left = np.array([max(self.budget - self.bias_of(request), 0.0) for request in requests])
        knobs = rule.knobs(len(draft.tokens))
        assert knobs is not None, f"{rule} is no relaxed rule"
        relaxation = verifier.Relaxation(rule.rule, knobs, left)
        verdict, gathered = verifier.decide(requests, draft, scores, logits, relaxation)
        for request, bias in zip(requests, gathered.tolist(), strict=True):
            self._bias[request.id] = self.bias_of(request) + bias
        return verdict

    def _rule_for(self, draft: Draft, scores: Scores) -> Verifier:
        if not isinstance(self.rule, EnsembleHead):
            return self.rule
        if not len(draft.tokens):
            return DynamicEnsemble(np.empty(0, np.float32))
        if draft.hidden is None or scores.hidden is None:
            raise InvalidInputError("an ensemble head needs a model drafter and a target that keep hidden states")
        # A node is judged by the row that its token was drawn behind: its parent's.
        owner = np.repeat(np.arange(draft.batch_size), np.diff(draft.node_ptr))
        rows = scores.row_ptr[owner] + 1 + draft.parents
        return DynamicEnsemble(self.rule.weights(draft.hidden, scores.hidden[rows]))


def relaxed_verification(
    chosen: Any, budget: float | None, target: Any, drafter: Any, *, sampled: bool
) -> RelaxedVerification | None:
    """Return the relaxed verify stage that a caller asked for, or None for the exact one.

    Parameters
    ----------
    chosen : Verifier, EnsembleHead, str, Path or None
        Text may name a rule (``lenience=0.5``); else it is the path of a saved head, which must be the pair's own.
    budget : float or None
    target : TargetModel
    drafter : Drafter
    sampled : bool
        Whether the requests have a temperature above 0.

    Raises
    ------
    InvalidInputError
        A budget without a relaxed rule, greedy requests, a head without a model drafter, or a head of another pair.
    """
    if chosen is None:
        if budget is not None:
            raise InvalidInputError("bias_budget is for a relaxed verification, got verification=None")
        return None
    if not sampled:
        raise InvalidInputError("a relaxed verification needs a temperature above 0: a greedy draft has no law")
    if isinstance(chosen, str):
        chosen = named_rule(chosen) or chosen
    rule = chosen
    if isinstance(chosen, (str, Path, EnsembleHead)):
        model = getattr(drafter, "model", None)
        if model is None or not hasattr(target, "keeps_hidden") or not hasattr(model, "keeps_hidden"):
            raise InvalidInputError(
                "an ensemble head needs drafter='model' and transformers models on both sides, got drafter "
                f"{drafter.name!r}"
            )
        pair = pair_of(target, model)
        rule = chosen if isinstance(chosen, EnsembleHead) else EnsembleHead.load(chosen, pair)
        if rule.pair != pair:
            raise InvalidInputError(f"the head was trained for {rule.pair}, expected {pair}")
        target.keeps_hidden = model.keeps_hidden = True
    return RelaxedVerification(rule, budget=budget)


def pair_of(target: Any, draft: Any) -> Pair:
    """Return what names a pair of transformers targets: model names and sizes of the hidden states."""

    def size(model: Any) -> int:
        return int(model.model.config.get_text_config(decoder=True).hidden_size)

    return Pair(Path(draft.name).name, Path(target.name).name, size(draft), size(target))
