"""The payoff router through Python: routing a real cache's drafts, learning by replay, bad input."""

from __future__ import annotations

import numpy as np
import pytest

from specrs import SuffixCache
from specrs._core import PayoffRouter
from specrs.errors import CorruptFileError, InvalidInputError


def test_routes_a_copy_to_the_cache_and_new_text_to_the_model() -> None:
    cache = SuffixCache()
    text = np.arange(500)
    cache.add(text)
    router = PayoffRouter(token_cost=0.01, model_cost=0.2, explore=0.0)
    cache.start(1, text[:60])
    confidence = cache.draft(1, 16)[3]
    arm, nodes = router.choose(np.cumprod(confidence), 0.5)
    assert arm == "cache"
    assert nodes == 16
    cache.start(2, [9999])
    assert router.choose(np.cumprod(cache.draft(2, 16)[3]), 0.5) == ("model", 0)
    assert PayoffRouter().choose([], 0.5) == ("plain", 0)


def test_learns_from_drafts_that_were_not_verified() -> None:
    router = PayoffRouter(explore=0.0)
    before = router.expected([0.6, 0.5])
    for _ in range(300):
        router.note_cache([5, 6], [-1, 0], [0.6, 0.5], [7])
    assert router.expected([0.6, 0.5]) < 0.4 * before
    untouched = PayoffRouter()
    untouched.note_cache([5, 6], [-1, 0], [0.6, 0.5], [])
    assert untouched.save() == PayoffRouter().save()
    assert PayoffRouter.load(router.save()).save().splitlines()[2:] == router.save().splitlines()[2:]


def test_slow_tokens_shorten_drafts() -> None:
    paths = np.cumprod(np.full(30, 0.9, dtype=np.float32))
    cheap, dear = PayoffRouter(), PayoffRouter()
    for _ in range(200):
        for tokens in (1, 9, 31):
            cheap.note_time(tokens, 0.1 + 0.0001 * tokens)
            dear.note_time(tokens, 0.1 + 0.02 * tokens)
    assert cheap.choose(paths, 0.5)[1] > 2 * dear.choose(paths, 0.5)[1] > 0


def test_bad_input() -> None:
    router = PayoffRouter()
    with pytest.raises(InvalidInputError, match="one length"):
        router.note_cache([1], [-1, 0], [0.5], [1])
    with pytest.raises(InvalidInputError, match="parent of node 0"):
        router.note_cache([1], [0], [0.5], [1])
    with pytest.raises(InvalidInputError, match="must not be negative"):
        PayoffRouter(token_cost=-1.0)
    with pytest.raises(CorruptFileError, match="first line"):
        PayoffRouter.load("hello")
