"""What every verifier takes and returns: draft laws, the verdict, the protocol."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

#: The bonus of a request that has none (its target row was unusable).
NO_TOKEN = 0xFFFFFFFF

#: What each status code means.
STATUS = {
    0: "ok",
    1: "empty residual: target and draft law are equal to the last bit, the bonus is from the target's law",
    2: "unusable target row (NaN, +inf or masked throughout): the path ends there, no bonus",
    3: "unusable draft row: the bonus is from the target's law",
    4: "draft token in neither vocabulary: the draft was cut there",
}


@dataclass(frozen=True)
class OneHotLaw:
    """Each draft token was chosen with certainty: argmax, cache drafts, fixed trees."""


@dataclass(frozen=True)
class DenseLaw:
    """The rows that the draft tokens were drawn from, exactly, in float32.

    Attributes
    ----------
    probs : array of float32, shape (M, V_draft)
        Ids that a row does not cover have probability 0.
    rows : array of int64, shape (N,), optional
        Row of each node; by default node i has row i. Siblings share the row of their first draw.
    """

    probs: npt.NDArray[np.float32]
    rows: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class SparseLaw:
    """As ``DenseLaw`` with the positive entries alone.

    Attributes
    ----------
    ptr : array of int64, shape (M + 1,)
        Row r is ``ptr[r] .. ptr[r + 1]``.
    ids : array of uint32, shape (E,)
        Ascending within a row.
    probs : array of float32, shape (E,)
    rows : array of int64, shape (N,), optional
    """

    ptr: npt.NDArray[np.int64]
    ids: npt.NDArray[np.uint32]
    probs: npt.NDArray[np.float32]
    rows: npt.NDArray[np.int64] | None = None


DraftLaw = OneHotLaw | DenseLaw | SparseLaw


@dataclass(frozen=True)
class Verdict:
    """What stands of each request's draft.

    Attributes
    ----------
    path_ptr : array of int64, shape (B + 1,)
        Request b accepted ``path[path_ptr[b]:path_ptr[b + 1]]``.
    path : array of int32
        Accepted nodes, counted within their request, from the anchor down.
    bonus : array of uint32, shape (B,)
        The token drawn behind each path; ``NO_TOKEN`` where there is none.
    status : array of uint8, shape (B,)
        Keys of ``STATUS``.
    bias : array of float64, shape (B,)
        Total-variation distance from the target's law that a relaxed rule gathered this round; 0 under an exact rule.
        The sum over a text's rounds bounds the distance of the whole text's law from the target's.
    """

    path_ptr: npt.NDArray[np.int64]
    path: npt.NDArray[np.int32]
    bonus: npt.NDArray[np.uint32]
    status: npt.NDArray[np.uint8]
    bias: npt.NDArray[np.float64]

    @property
    def accepted(self) -> npt.NDArray[np.int64]:
        """Number of accepted drafts of each request, shape (B,)."""
        return np.diff(self.path_ptr)

    def path_of(self, request: int) -> npt.NDArray[np.int32]:
        """Return the accepted nodes of one request."""
        return self.path[self.path_ptr[request] : self.path_ptr[request + 1]]


class Verifier(Protocol):
    """An acceptance rule. Capabilities are data: nothing asks for its name."""

    #: Whether the output law is the target's in exact arithmetic.
    lossless: ClassVar[bool]
    #: Whether the rule needs the law that the draft tokens were drawn from.
    needs_law: ClassVar[bool]
    #: Whether the rule takes trees, or chains only.
    takes_trees: ClassVar[bool]

    @property
    def rule(self) -> str:
        """The rule's name in the extension."""
        ...

    def knobs(self, nodes: int) -> npt.NDArray[np.float32] | None:
        """Return the knobs of a relaxed rule for a batch of ``nodes`` nodes; None for an exact rule."""
        ...
