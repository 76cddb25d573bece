"""Goodput: draft and score as many tokens as pay, by expected tokens over measured seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.policies.base import RoundSeconds
    from specrs.policies.cost import CostTable
    from specrs.types import Draft, FloatArray, Verdict

#: Equal-width bins of stated confidence, each with its own acceptance record.
BINS = 16
#: Observations that the stated confidence counts for, in each bin, before it is outweighed.
PRIOR_WEIGHT = 6.0
#: Weight of the newest observation in the running means.
RECENT = 0.1
#: Share of decisions above which a longer draft must pay, so that noise does not tip the scales.
MARGIN = 1.02
#: The same while drafting rests: one lucky probe must not bring it back.
RETURN_MARGIN = 1.1


class Goodput:
    """Choose the draft length with the largest E(L) / C(L).

    E(L) = 1 + sum of survival probabilities of the first L nodes; C(L) = drafting time + V(1 + L), where V is the
    target's measured cost of scoring that many rows. With deterministic drafts the finished draft is cut by its
    confidences, calibrated online. With drafters that take time per token, the length is chosen beforehand from the
    running acceptance rate. L = 0 is always among the choices: a plain step.

    Parameters
    ----------
    cost : CostTable
        Measured cost of scoring m rows.
    max_nodes : int
        Longest draft.
    drawn : bool
        The drafter draws its tokens, so the draft may not be cut by what was drawn.
    """

    name = "goodput"

    def __init__(self, cost: CostTable, *, max_nodes: int, drawn: bool) -> None:
        self._cost = cost
        self._max_nodes = max_nodes
        self.cuts_on_drawn_tokens = not drawn
        self._stated = (np.arange(BINS) + 0.5) / BINS
        self._observed = np.full(BINS, PRIOR_WEIGHT)
        self._accepted = self._stated * PRIOR_WEIGHT
        self._acceptance = 0.7
        self._draft_seconds = 0.0
        self._rounds = 0
        self._resting = False

    def budgets(self, requests: Sequence[Request], limits: Sequence[int]) -> list[int]:
        """Return the lengths to draft: all that may pay, or what pays at the running acceptance rate."""
        longest = self._max_nodes
        if self._draft_seconds > 0.02 * self._cost.seconds(1):
            longest = self._best_length_beforehand(len(requests))
            if longest == 0 and self._rounds % 32 == 0:
                longest = 1  # probe: acceptance may have come back
        return [min(longest, limit) for limit in limits]

    def _best_length_beforehand(self, batch: int) -> int:
        lengths = np.arange(self._max_nodes + 1)
        a = min(self._acceptance, 0.995)
        expected = batch * (1 - a ** (lengths + 1)) / (1 - a)
        cost = np.array([n * self._draft_seconds + self._cost.seconds(batch * (1 + int(n))) for n in lengths])
        rate = expected / cost
        best = int(rate.argmax())
        self._resting = rate[best] < (RETURN_MARGIN if self._resting else MARGIN) * rate[0]
        return 0 if self._resting else best

    def trim(self, requests: Sequence[Request], draft: Draft) -> Draft:
        """Cut each draft where another node costs more than it brings."""
        if not self.cuts_on_drawn_tokens or draft.confidence is None or not len(draft.tokens):
            return draft
        survival = self._survival(draft)
        order = np.argsort(-survival, kind="stable")
        batch = draft.batch_size
        expected = batch + np.concatenate([[0.0], np.cumsum(survival[order])])
        cost = np.array([self._cost.seconds(batch + n) for n in range(len(order) + 1)])
        rate = expected / cost
        best = int(rate.argmax())
        if rate[best] < MARGIN * rate[0]:
            best = 0
        kept = np.zeros(len(order), np.bool_)
        kept[order[:best]] = True
        return draft.keep_nodes(kept)

    def _survival(self, draft: Draft) -> FloatArray:
        """Return P(node accepted) per node: the product of calibrated confidences along its path."""
        assert draft.confidence is not None
        calibrated = (self._accepted / self._observed)[self._bin(draft.confidence)]
        survival = np.empty(len(calibrated), np.float32)
        for b in range(draft.batch_size):
            nodes = draft.nodes_of(b)
            for node, parent in enumerate(draft.parents[nodes].tolist(), nodes.start):
                above = 1.0 if parent < 0 else survival[nodes.start + parent]
                # Strictly less than the parent's, so that the sort by survival keeps parents first.
                survival[node] = above * min(float(calibrated[node]), 0.999)
        return survival

    @staticmethod
    def _bin(confidence: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.clip((confidence * BINS).astype(np.int64), 0, BINS - 1)

    def observe(self, requests: Sequence[Request], draft: Draft, verdict: Verdict, seconds: RoundSeconds) -> None:
        """Update costs, calibration and acceptance."""
        self._rounds += 1
        nodes = len(draft.tokens)
        self._cost.observe(draft.batch_size + nodes, seconds.score)
        if nodes:
            per_token = seconds.draft / max(1, int(np.diff(draft.node_ptr).max()))
            self._draft_seconds += (per_token - self._draft_seconds) * RECENT
        for b in range(draft.batch_size):
            path = verdict.path[verdict.path_ptr[b] : verdict.path_ptr[b + 1]]
            self._learn(draft, b, set(path.tolist()))

    def _learn(self, draft: Draft, b: int, accepted: set[int]) -> None:
        nodes = draft.nodes_of(b)
        parents = draft.parents[nodes].tolist()
        for node, parent in enumerate(parents):
            if parent >= 0 and parent not in accepted:
                continue
            hit = node in accepted
            self._acceptance += (hit - self._acceptance) * RECENT
            if draft.confidence is not None:
                bin_ = int(self._bin(draft.confidence[nodes][node : node + 1])[0])
                # Old observations fade, so that a change of workload is followed.
                decay = 1 - 1 / 256
                self._observed[bin_] = self._observed[bin_] * decay + 1
                self._accepted[bin_] = self._accepted[bin_] * decay + hit
