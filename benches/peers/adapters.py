"""One adapter per cache drafter, all with the same methods; each peer is imported from its installed package.

build(docs)             put a list of int32 arrays into the shared history
start(rid, prompt)      open a request
step(rid, new, ctx, k)  append ``new``, then draft; returns (tokens, parents), parents[i] = -1 at the anchor
stop(rid)               close the request and forget its text
batch(rows, k)          rows = [(rid, new, ctx)]; returns a list of (tokens, parents)
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


class Arctic:
    """arctic-inference ``SuffixDecodingCache``: depth 24 is vLLM's default, 64 the class default."""

    # An evicted response leaves equal-count siblings in another order, so each replay gets a fresh cache.
    fresh = True

    def __init__(self, depth: int, tree: bool = False) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(max_tree_depth=depth, max_cached_requests=-1)
        self.depth, self.tree = depth, tree

    def build(self, docs: list[np.ndarray]) -> None:
        # Global tree only, as a warm-up loader would do: the public path also builds a tree per request.
        for number, doc in enumerate(docs):
            self.cache._global_tree.extend_ndarray(1_000_000 + number, doc)

    def start(self, rid: int, prompt: np.ndarray) -> None:
        self.cache.start_request(rid, prompt)

    def step(self, rid: int, new: np.ndarray, ctx: np.ndarray, k: int) -> tuple[Any, Any]:
        if len(new):
            self.cache.add_active_response(rid, new)
        draft = self.cache.speculate(
            rid, ctx[-self.depth :], max_spec_tokens=k, max_spec_factor=1.0, min_token_prob=0.1, use_tree_spec=self.tree
        )
        return draft.token_ids, draft.parents

    def stop(self, rid: int) -> None:
        self.cache.stop_request(rid)
        self.cache.evict_cached_response(rid)

    def batch(self, rows: list[tuple[int, np.ndarray, np.ndarray]], k: int) -> list[tuple[Any, Any]]:
        return [self.step(rid, new, ctx, k) for rid, new, ctx in rows]


class Specrs:
    """specrs ``SuffixCache``."""

    fresh = False

    def __init__(self, shape: str = "chain", threads: int = 2, min_prob: float | None = None, **options: Any) -> None:
        import specrs

        self.cache = specrs.SuffixCache(**options)
        self.shape, self.threads = shape, threads
        self.draft = {"shape": shape} | ({} if min_prob is None else {"min_prob": min_prob})

    def build(self, docs: list[np.ndarray]) -> None:
        ptr = np.cumsum([0, *map(len, docs)])
        self.cache.add_many(np.concatenate(docs), ptr)

    def start(self, rid: int, prompt: np.ndarray) -> None:
        self.cache.start(rid, prompt)

    def step(self, rid: int, new: np.ndarray, ctx: np.ndarray, k: int) -> tuple[Any, Any]:
        return self.cache.step(rid, new, k, **self.draft)[:2]

    def stop(self, rid: int) -> None:
        self.cache.abort(rid)

    def batch(self, rows: list[tuple[int, np.ndarray, np.ndarray]], k: int) -> list[tuple[Any, Any]]:
        news = [row[1] for row in rows]
        ptr = np.cumsum([0, *map(len, news)])
        ids = np.array([row[0] for row in rows])
        out = self.cache.step_many(ids, np.concatenate(news), ptr, k, threads=self.threads, **self.draft)
        tokens, parents, row_ptr = out[0], out[1], out[4]
        return [(tokens[a:b], parents[a:b]) for a, b in itertools.pairwise(row_ptr)]


PEERS: dict[str, Any] = {
    "arctic24": lambda: Arctic(24),
    "arctic64": lambda: Arctic(64),
    "arctic64tree": lambda: Arctic(64, tree=True),
    "specrs": lambda: Specrs(),
    "specrs-tree": lambda: Specrs("tree", min_prob=0.08),
}
