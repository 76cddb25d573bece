"""The relaxed rules: more drafts stand, the output law is not the target's, and the distance is metered.

All of them verify chains. At temperature 0 they decide as greedy decoding does; an ensemble takes the mixture's argmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from specrs.errors import InvalidInputError


def _require(holds: bool, name: str, expected: str, found: object) -> None:
    if not holds:
        raise InvalidInputError(f"{name} must be {expected}, got {found}")


class _Relaxed:
    lossless: ClassVar[bool] = False
    takes_trees: ClassVar[bool] = False


@dataclass(frozen=True)
class StaticEnsemble(_Relaxed):
    """Verify against ``w * target + (1 - w) * draft`` with one weight (arXiv 2604.07622).

    Attributes
    ----------
    target_weight : float
        Weight of the target, in (0, 1]; 1 is exact.
    """

    target_weight: float
    needs_law: ClassVar[bool] = True
    rule: ClassVar[str] = "ensemble"

    def __post_init__(self) -> None:
        _require(0 < self.target_weight <= 1, "target_weight", "in (0, 1]", self.target_weight)

    def knobs(self, nodes: int) -> npt.NDArray[np.float32]:
        """Return the weight of every node."""
        return np.full(nodes, self.target_weight, np.float32)


@dataclass(frozen=True, eq=False)
class DynamicEnsemble(_Relaxed):
    """Verify against a mixture whose weight is chosen per token (DIVERSED, arXiv 2604.07622).

    Attributes
    ----------
    target_weights : array of float32, shape (N,)
        Weight of the target at each node of the batch, in (0, 1], from the row that the node's token was drawn behind.
    """

    target_weights: npt.NDArray[np.float32] = field(repr=False)
    needs_law: ClassVar[bool] = True
    rule: ClassVar[str] = "ensemble"

    def __post_init__(self) -> None:
        weights = np.ascontiguousarray(self.target_weights, dtype=np.float32)
        sound = weights.ndim == 1 and bool(((weights > 0) & (weights <= 1)).all())
        _require(sound, "target_weights", "a vector in (0, 1]", self.target_weights)
        object.__setattr__(self, "target_weights", weights)

    def knobs(self, nodes: int) -> npt.NDArray[np.float32]:
        """Return the weight of every node."""
        _require(len(self.target_weights) == nodes, "target_weights", f"{nodes} long", len(self.target_weights))
        return self.target_weights


@dataclass(frozen=True)
class Lenience(_Relaxed):
    """Accept with probability ``min(1, target / (l * draft))`` (arXiv 2211.17192, appendix).

    Attributes
    ----------
    factor : float
        l, in (0, 1]; 1 is exact.
    """

    factor: float
    needs_law: ClassVar[bool] = True
    rule: ClassVar[str] = "lenience"

    def __post_init__(self) -> None:
        _require(0 < self.factor <= 1, "lenience factor", "in (0, 1]", self.factor)

    def knobs(self, nodes: int) -> npt.NDArray[np.float32]:
        """Return l."""
        del nodes
        return np.array([self.factor], np.float32)


@dataclass(frozen=True)
class Typical(_Relaxed):
    """Accept what is more probable than ``min(epsilon, delta * exp(-entropy))`` (Medusa, arXiv 2401.10774).

    Attributes
    ----------
    epsilon : float
        In (0, 1].
    delta : float
        Above 0. The customary pair is 0.09 and its root.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    needs_law: ClassVar[bool] = False
    rule: ClassVar[str] = "typical"

    def __post_init__(self) -> None:
        _require(0 < self.epsilon <= 1, "epsilon", "in (0, 1]", self.epsilon)
        _require(0 < self.delta < math.inf, "delta", "above 0", self.delta)

    def knobs(self, nodes: int) -> npt.NDArray[np.float32]:
        """Return epsilon and delta."""
        del nodes
        return np.array([self.epsilon, self.delta], np.float32)


@dataclass(frozen=True)
class TopKAcceptance(_Relaxed):
    """Accept the ``count`` most probable tokens of the target's law, ties included.

    Attributes
    ----------
    count : int
        At least 1.
    """

    count: int
    needs_law: ClassVar[bool] = False
    rule: ClassVar[str] = "top_k"

    def __post_init__(self) -> None:
        _require(self.count >= 1, "count", "at least 1", self.count)

    def knobs(self, nodes: int) -> npt.NDArray[np.float32]:
        """Return the count."""
        del nodes
        return np.array([self.count], np.float32)


@dataclass(frozen=True)
class Cascade(_Relaxed):
    """Follow the draft's law where its peak is within ``alpha * distance`` of the target's (arXiv 2405.19261).

    Attributes
    ----------
    alpha : float
        At least 0.
    """

    alpha: float
    needs_law: ClassVar[bool] = True
    rule: ClassVar[str] = "cascade"

    def __post_init__(self) -> None:
        _require(0 <= self.alpha < math.inf, "alpha", "at least 0", self.alpha)

    def knobs(self, nodes: int) -> npt.NDArray[np.float32]:
        """Return alpha."""
        del nodes
        return np.array([self.alpha], np.float32)


@dataclass(frozen=True)
class Fuzzy(_Relaxed):
    """Follow the draft's law where its divergence from the target's is below ``threshold`` (arXiv 2502.20704).

    Attributes
    ----------
    threshold : float
        At least 0, in nats except for total variation; 0 is exact.
    divergence : {'jensen_shannon', 'total_variation', 'kullback_leibler'}
    """

    threshold: float
    divergence: Literal["jensen_shannon", "total_variation", "kullback_leibler"] = "jensen_shannon"
    needs_law: ClassVar[bool] = True

    def __post_init__(self) -> None:
        known = ("jensen_shannon", "total_variation", "kullback_leibler")
        _require(self.divergence in known, "divergence", f"one of {known}", repr(self.divergence))
        _require(0 <= self.threshold < math.inf, "threshold", "at least 0", self.threshold)

    @property
    def rule(self) -> str:
        """The rule's name in the extension."""
        return f"fuzzy_{self.divergence}"

    def knobs(self, nodes: int) -> npt.NDArray[np.float32]:
        """Return the threshold."""
        del nodes
        return np.array([self.threshold], np.float32)
