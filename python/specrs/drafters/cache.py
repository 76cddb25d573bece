"""Cache drafting: the text so far is the drafter (suffix automaton in Rust)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specrs.cache import SuffixCache
from specrs.types import Confidence, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.types import IndexArray, TokenArray


class CacheDrafter:
    """Continues the longest suffix of the text that occurred before.

    Parameters
    ----------
    vocab_size : int
        The target's; ids beyond it are never proposed.
    shape : {'chain', 'tree'}
        One continuation, or the likeliest ones merged.
    min_prob : float
        Stop a branch when its estimated probability of being reached falls below.
    cache : SuffixCache, optional
        A cache to share between engines; by default a new one that knows only the requests' own text.
    """

    name = "cache"
    max_context: int | None = None
    tokens_are_drawn = False

    def __init__(
        self, vocab_size: int, *, shape: str = "chain", min_prob: float = 0.1, cache: SuffixCache | None = None
    ) -> None:
        self._cache = SuffixCache(vocab_size) if cache is None else cache
        self._shape = shape
        self._min_prob = min_prob
        self._unread: dict[int, TokenArray] = {}

    def start(self, request: Request) -> None:
        """Index the request's prompt."""
        self._cache.start(request.id, request.tokens)
        self._unread[request.id] = np.empty(0, np.uint32)

    def propose(self, requests: Sequence[Request], budgets: Sequence[int]) -> Draft:
        """Read what was committed since the last call and continue each text, in one call without the GIL."""
        return self.step(requests, budgets, self._shape)[0]

    def step(self, requests: Sequence[Request], budgets: Sequence[int], shape: str) -> tuple[Draft, IndexArray]:
        """Propose in the given shape; also return the longest match behind each draft, shape (B,)."""
        unread = [self._unread[request.id] for request in requests]
        tokens, parents, depths, confidence, node_ptr, matches, _ = self._cache.step_many(
            np.array([request.id for request in requests], np.uint64),
            np.concatenate(unread),
            np.concatenate([[0], np.cumsum([len(new) for new in unread])]).astype(np.int64),
            np.asarray(budgets, np.int32),
            shape=shape,
            min_prob=self._min_prob,
        )
        for request in requests:
            self._unread[request.id] = np.empty(0, np.uint32)
        draft = Draft(
            tokens=tokens,
            parents=parents,
            depths=depths,
            node_ptr=node_ptr,
            confidence=confidence,
            confidence_kind=Confidence.COUNT_RATIO,
            source=self.name,
        )
        return draft, matches

    def commit(self, request: Request, kept: TokenArray) -> None:
        """Keep the new text for the next step."""
        self._unread[request.id] = np.concatenate([self._unread[request.id], kept])

    def memory_bytes(self) -> int:
        """Return the bytes of all text held, that of a shared cache included."""
        return self._cache.memory_bytes()

    def finish(self, request: Request) -> None:
        """Forget the request's text."""
        if self._unread.pop(request.id, None) is not None:
            self._cache.abort(request.id)
