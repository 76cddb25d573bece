"""The values that pass from stage to stage: a draft, its scores, a verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

TokenArray = npt.NDArray[np.uint32]
IndexArray = npt.NDArray[np.int32]
OffsetArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

#: The parent of the nodes at depth 1: the anchor, the last committed token.
ANCHOR = -1


class Confidence(Enum):
    """What a draft's confidences are estimates by."""

    COUNT_RATIO = "count-ratio"
    MAX_PROB = "max-prob"
    #: The drafted token's own probability.
    TOKEN_PROB = "token-prob"
    #: A head whose input holds the drafted token.
    HEAD = "head"

    @property
    def sees_token(self) -> bool:
        """Whether it depends on the drafted token, and not on the law it is drawn from alone."""
        return self is not Confidence.MAX_PROB


@dataclass(frozen=True, eq=False)
class Draft:
    """Proposed tokens for a batch: one tree below each request's anchor, ragged and flat.

    Attributes
    ----------
    tokens : array of uint32, shape (N,)
        Proposed tokens of all requests, each request's nodes parents first.
    parents : array of int32, shape (N,)
        Index of the parent within the same request; ``ANCHOR`` below the anchor.
    depths : array of int32, shape (N,)
        1 for children of the anchor.
    node_ptr : array of int64, shape (B + 1,)
        Request b owns nodes ``node_ptr[b]:node_ptr[b + 1]``.
    confidence : array of float32, shape (N,), optional
        Estimate of P(node accepted given that its parent is).
    confidence_kind : Confidence, optional
        What ``confidence`` was estimated by.
    draft_probs : array or tensor of float32, shape (N, V), optional
        The law that each token was drawn from, exactly as drawn; a tensor on the device that it was drawn on. None: the
        tokens were chosen deterministically (a one-hot law).
    source : str
        Name of the drafter, for the statistics.
    hidden : array of float32, shape (N, H), optional
        The drafting model's state whose output row each token was drawn from.
    sources : tuple of str
        The same for each request, where a drafter has several ways; empty: ``source`` for all.
    """

    tokens: TokenArray
    parents: IndexArray
    depths: IndexArray
    node_ptr: OffsetArray
    confidence: FloatArray | None = None
    confidence_kind: Confidence | None = None
    draft_probs: Any = None
    source: str = ""
    hidden: FloatArray | None = None
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        nodes = len(self.tokens)
        for name in ("parents", "depths", "confidence", "draft_probs", "hidden"):
            value = getattr(self, name)
            if value is not None and len(value) != nodes:
                raise InvalidInputError(f"{name} has {len(value)} rows, expected one per node: {nodes}")
        if self.node_ptr[0] != 0 or self.node_ptr[-1] != nodes or (np.diff(self.node_ptr) < 0).any():
            raise InvalidInputError(f"node_ptr must rise from 0 to {nodes}, got {self.node_ptr.tolist()}")
        if nodes:
            self._check_trees()

    def _check_trees(self) -> None:
        """Refuse trees that are not in topological order or whose depths are not theirs: positions come from them."""
        sizes = np.diff(self.node_ptr)
        first = np.repeat(self.node_ptr[:-1], sizes)
        index = np.arange(len(self.tokens)) - first
        wrong = np.flatnonzero((self.parents < ANCHOR) | (self.parents >= index))
        if len(wrong):
            node = int(wrong[0])
            raise InvalidInputError(
                f"a parent must come before its child: node {index[node]} has parent {self.parents[node]}, "
                f"expected {ANCHOR} to {index[node] - 1}"
            )
        expected = np.where(self.parents == ANCHOR, 0, self.depths[first + np.maximum(self.parents, 0)]) + 1
        wrong = np.flatnonzero(self.depths != expected)
        if len(wrong):
            node = int(wrong[0])
            raise InvalidInputError(
                f"a node is one deeper than its parent: node {index[node]} with parent {self.parents[node]} has depth "
                f"{self.depths[node]}, expected {expected[node]}"
            )

    @property
    def batch_size(self) -> int:
        """Number of requests, B."""
        return len(self.node_ptr) - 1

    def nodes_of(self, request: int) -> slice:
        """Return the slice of request number ``request`` in the flat arrays."""
        return slice(int(self.node_ptr[request]), int(self.node_ptr[request + 1]))

    def source_of(self, request: int) -> str:
        """Return who drafted for request number ``request``."""
        return self.sources[request] if self.sources else self.source

    def keep_nodes(self, kept: npt.NDArray[np.bool_]) -> Draft:
        """Return the draft with only the nodes where ``kept``, shape (N,), is true.

        The kept nodes must be closed under parents; what remains is renumbered.
        """
        if kept.all():
            return self
        node_ptr = np.concatenate([[0], np.cumsum(kept)])[self.node_ptr].astype(np.int64)
        parents = self.parents[kept].copy()
        for b in range(self.batch_size):
            nodes = self.nodes_of(b)
            new_index = np.cumsum(kept[nodes], dtype=np.int32) - 1
            mine = parents[node_ptr[b] : node_ptr[b + 1]]
            below = mine >= 0
            if not kept[nodes][mine[below]].all():
                raise InvalidInputError("the kept nodes of a draft must be closed under parents")
            mine[below] = new_index[mine[below]]
        return Draft(
            tokens=self.tokens[kept],
            parents=parents,
            depths=self.depths[kept],
            node_ptr=node_ptr,
            confidence=None if self.confidence is None else self.confidence[kept],
            confidence_kind=self.confidence_kind,
            draft_probs=None if self.draft_probs is None else self.draft_probs[kept],
            source=self.source,
            hidden=None if self.hidden is None else self.hidden[kept],
            sources=self.sources,
        )

    def within(self, budgets: Sequence[int]) -> Draft:
        """Return at most the first ``budgets[b]`` nodes of each request; a prefix of a tree is a tree."""
        sizes = np.diff(self.node_ptr)
        if (sizes <= budgets).all():
            return self
        index = np.arange(len(self.tokens)) - np.repeat(self.node_ptr[:-1], sizes)
        return self.keep_nodes(index < np.repeat(np.asarray(budgets), sizes))

    def readable(self, vocab_size: int) -> Draft:
        """Return the draft as a target of that vocabulary can read it: ids that it does not have become 0.

        For scoring alone. The verifier sees the ids as they are and accepts none that the target lacks, so what a row
        below such a node says is never used.
        """
        if not len(self.tokens) or int(self.tokens.max()) < vocab_size:
            return self
        return replace(self, tokens=np.where(self.tokens < vocab_size, self.tokens, 0).astype(np.uint32))

    @classmethod
    def empty(cls, batch_size: int, source: str = "none") -> Draft:
        """Return a draft without nodes: each request makes one plain step."""
        return cls(
            tokens=np.empty(0, np.uint32),
            parents=np.empty(0, np.int32),
            depths=np.empty(0, np.int32),
            node_ptr=np.zeros(batch_size + 1, np.int64),
            source=source,
        )

    @classmethod
    def chains(
        cls,
        chains: Sequence[Sequence[int] | TokenArray],
        *,
        confidence: Sequence[Sequence[float] | FloatArray] | None = None,
        confidence_kind: Confidence | None = None,
        draft_probs: Any = None,
        source: str = "",
        hidden: FloatArray | None = None,
    ) -> Draft:
        """Return the draft of one chain (a path without branches) per request; a chain may be empty."""
        sizes = [len(chain) for chain in chains]
        return cls(
            tokens=np.concatenate([np.asarray(chain, np.uint32) for chain in chains])
            if chains
            else np.empty(0, np.uint32),
            parents=np.concatenate([np.arange(-1, size - 1, dtype=np.int32) for size in sizes]),
            depths=np.concatenate([np.arange(1, size + 1, dtype=np.int32) for size in sizes]),
            node_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            confidence=None if confidence is None else np.concatenate([np.asarray(c, np.float32) for c in confidence]),
            confidence_kind=confidence_kind,
            draft_probs=draft_probs,
            source=source,
            hidden=hidden,
        )


@dataclass(frozen=True, eq=False)
class Scores:
    """What one target forward says about a draft.

    Attributes
    ----------
    logits : tensor, shape (B + N, V)
        One row per anchor and node: request b's anchor row, then its nodes' rows, then the next request's. On the
        host, or on the CUDA device that the target computed them on.
    row_ptr : array of int64, shape (B + 1,)
        Request b owns rows ``row_ptr[b]:row_ptr[b + 1]``.
    hidden : array of float32, shape (B + N, H), optional
        What the output head read for each row, after the final norm; for targets told to keep it.
    """

    logits: Any
    row_ptr: OffsetArray
    hidden: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the verifier keeps of a draft.

    Attributes
    ----------
    path_ptr : array of int64, shape (B + 1,)
    path : array of int32, shape (sum of accepted,)
        Accepted nodes of each request, root first, as indices within the request.
    bonus : array of uint32, shape (B,)
        The token drawn at the end of each path.
    status : array of uint8, shape (B,)
        See ``specrs.verification``: 0 is ok.
    """

    path_ptr: OffsetArray
    path: IndexArray
    bonus: TokenArray
    status: npt.NDArray[np.uint8]
