"""The verify stage: one verdict per request, by ``specrs::verify_round`` on a device and by its host side on a host.

The host side is called past the dispatcher, which would cost more than the rules themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specrs.ops import round as rounds
from specrs.ops import where
from specrs.types import Verdict
from specrs.verification.logits import as_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from specrs.engine.request import Request
    from specrs.types import Draft, Scores


class Relaxation(NamedTuple):
    """A relaxed rule and its knobs, and, float64 (B,), the bias that each request may gather (no limit without it)."""

    rule: str
    knobs: npt.NDArray[np.float32]
    budget: npt.NDArray[np.float64] | None


EXACT = Relaxation("exact", np.zeros(0, np.float32), None)


def verify(requests: Sequence[Request], draft: Draft, scores: Scores, logits: Any) -> Verdict:
    """Decide which nodes stand and what comes behind them.

    Deterministic drafts are walked (draw from the target, follow while a child matches), drawn ones go through chain
    rejection sampling. Coins are keyed by (seed, sample, position, purpose): where the rule is evaluated does not
    change them.

    Parameters
    ----------
    requests : sequence of Request
        B requests: their seeds, samples, sampling parameters and committed lengths.
    draft : Draft
    scores : Scores
        Whose ``row_ptr`` says which rows are whose.
    logits : array or tensor, shape (B + N, V)
        Processed. On a CUDA device they stay there: one copy takes the draft over, one brings the verdict back, and a
        draft law that lies there, too, is not moved.
    """
    return decide(requests, draft, scores, logits)[0]


def decide(
    requests: Sequence[Request], draft: Draft, scores: Scores, logits: Any, relaxation: Relaxation = EXACT
) -> tuple[Verdict, npt.NDArray[np.float64]]:
    """Verify exactly, or by a relaxed rule; return the verdict and, float64 (B,), the bias that it cost."""
    given, weighted = _round(requests, draft, scores, relaxation), relaxation.rule == "ensemble"
    probs: Any = draft.draft_probs
    knobs = [] if weighted else relaxation.knobs.tolist()
    if not where.on_a_device(logits):
        probs = None if probs is None else where.as_array(probs)
        made = rounds.on_host(*as_rows(logits), given, probs, relaxation.rule, knobs)
    else:
        from specrs.ops import torch_ops

        longest, budgeted = int(draft.depths.max(initial=1)), relaxation.budget is not None
        probs = None if probs is None else where.as_tensor(probs, logits.device)
        buffer = where.as_tensor(given.packed(), logits.device)
        rule, rows = (relaxation.rule, knobs, budgeted), logits.detach().contiguous()
        words = torch_ops.NAMESPACE.verify_round(rows, buffer, probs, len(requests), longest, *rule)
        made = rounds.Verdict.of_words(words.cpu().numpy())
    return Verdict(*made[:4]), made.bias


def _round(requests: Sequence[Request], draft: Draft, scores: Scores, relaxation: Relaxation) -> rounds.Round:
    sampling = [request.sampling for request in requests]
    return rounds.Round(
        row_ptr=scores.row_ptr,
        tokens=draft.tokens,
        seeds=np.array([request.seed for request in requests], np.uint64).view(np.int64),
        samples=np.array([request.sample for request in requests], np.int64),
        positions=np.array([len(request.tokens) for request in requests], np.int64),
        budget=np.zeros(0) if relaxation.budget is None else relaxation.budget,
        parents=draft.parents,
        depths=draft.depths,
        temperature=np.array([s.temperature for s in sampling], np.float32),
        top_k=np.array([s.top_k for s in sampling], np.int32),
        top_p=np.array([s.top_p for s in sampling], np.float32),
        min_p=np.array([s.min_p for s in sampling], np.float32),
        target_weight=relaxation.knobs if relaxation.rule == "ensemble" else np.zeros(0, np.float32),
    )
