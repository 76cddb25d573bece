"""The relaxed rules at one position: acceptance probability of a token, and what is drawn when it falls.

Each rule is a function of the target's law, the draft's law and its knobs that returns a ``Decision``. ``emitted_law``
gives the law that the position emits, so that its distance from the target's is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specrs.reference.rules import Law, positive_part, residual


class Decision(NamedTuple):
    """What a rule does at a position."""

    #: Acceptance probability of each token, shape (V,).
    accept_prob: list[Any]
    #: The law drawn from after a rejection, shape (V,).
    rejected_law: list[Any]


def total_variation(left: Law, right: Law) -> Any:
    """Return half the sum of absolute differences."""
    return sum(abs(a - b) for a, b in zip(left, right, strict=True)) / 2


def emitted_law(decision: Decision, draft: Law) -> list[Any]:
    """Return the law of the emitted token when the candidate comes from ``draft``."""
    accepted = [a * q for a, q in zip(decision.accept_prob, draft, strict=True)]
    missing = 1 - sum(accepted)
    return [a + missing * r for a, r in zip(accepted, decision.rejected_law, strict=True)]


def ensemble(target: Law, draft: Law, target_weight: Any, *, beyond_support: bool = False) -> Decision:
    """Accept as if ``w * target + (1 - w) * draft`` were the target (arXiv 2604.07622).

    A token that the target's law excludes falls, unless ``beyond_support``.
    """
    accept = []
    for p, q in zip(target, draft, strict=True):
        mixed = target_weight * p + (1 - target_weight) * q
        allowed = beyond_support or p > 0
        accept.append((min(1 + 0 * p, mixed / q) if q > 0 else 1 + 0 * p) if allowed else 0 * p)
    return Decision(accept, residual(target, draft))


def lenience(target: Law, draft: Law, factor: Any) -> Decision:
    """Accept with probability ``min(1, target / (l * draft))`` (Leviathan et al.)."""
    accept = [min(1 + 0 * p, p / (factor * q)) if q > 0 else 1 + 0 * p for p, q in zip(target, draft, strict=True)]
    return Decision(accept, residual(target, [factor * q for q in draft]))


def typical(target: Law, draft: Law, epsilon: float, delta: float) -> Decision:
    """Accept what is more probable than ``min(epsilon, delta * exp(-entropy))`` (arXiv 2401.10774)."""
    del draft
    entropy = -sum(float(p) * math.log(float(p)) for p in target if p > 0)
    bound = min(epsilon, delta * math.exp(-entropy))
    return Decision([p * 0 + int(p > bound) for p in target], list(target))


def top_k(target: Law, draft: Law, count: int) -> Decision:
    """Accept the ``count`` most probable tokens of the target's law, ties included."""
    del draft
    bound = sorted(target, reverse=True)[:count][-1]
    return Decision([p * 0 + int(p > 0 and p >= bound) for p in target], list(target))


def cascade(target: Law, draft: Law, alpha: Any) -> Decision:
    """Follow the draft's law where its peak is within ``alpha * distance`` of the target's peak (arXiv 2405.19261)."""
    distance = sum(positive_part(target, draft))
    return ensemble(target, draft, 0 if max(draft) >= max(target) - alpha * distance else 1)


def fuzzy(target: Law, draft: Law, threshold: Any, divergence: str = "total_variation") -> Decision:
    """Follow the draft's law where the divergence is below ``threshold`` (arXiv 2502.20704)."""

    def kl(left: Sequence[float], right: Sequence[float]) -> float:
        return sum((a * math.log(a / b) if b > 0 else math.inf) for a, b in zip(left, right, strict=True) if a > 0)

    p, q = [float(x) for x in target], [float(x) for x in draft]
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    measures: dict[str, Callable[[], Any]] = {
        "total_variation": lambda: sum(positive_part(target, draft)),
        "jensen_shannon": lambda: (kl(p, middle) + kl(q, middle)) / 2,
        "kullback_leibler": lambda: kl(p, q),
    }
    return ensemble(target, draft, 0 if measures[divergence]() < threshold else 1)


RELAXED_RULES: dict[str, Callable[..., Decision]] = {
    "ensemble": ensemble,
    "lenience": lenience,
    "typical": typical,
    "top_k": top_k,
    "cascade": cascade,
    "fuzzy": fuzzy,
}
