"""The payoff router through Python: routing a real cache's drafts, learning by replay, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specrs import SuffixCache
from specrs._core import PayoffRouter
from specrs.errors import CorruptFileError, InvalidInputError, RequestError

NOTHING = (np.empty(0, np.uint32), np.empty(0, np.int32), np.empty(0, np.float32))


def chain(tokens: list[int], confidence: list[float]) -> Any:
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    return np.array(tokens, np.uint32), parents, np.array(confidence, np.float32)


def route(router: PayoffRouter, offer: Any, text: Any = (), **options: Any) -> tuple[str, int, int]:
    settings = {"budget": 40, "remaining": 500, "uniform": 0.5, **options}
    return router.route(1, np.asarray(text, np.uint32), offer, **settings)


def started(**options: Any) -> PayoffRouter:
    router = PayoffRouter(explore=0.0, **options)
    router.start(1, 0)
    return router


def test_routes_a_copy_to_the_cache_and_new_text_to_the_model() -> None:
    cache = SuffixCache()
    text = np.arange(500)
    cache.add(text)
    router = started(token_cost=0.01, model_cost=0.1)
    cache.start(1, text[:60])
    tokens, parents, _, confidence, *_ = cache.draft(1, 16)
    assert route(router, (tokens, parents, confidence), backlog=1) == ("chain", 16, 0)
    cache.start(2, [9999])
    tokens, parents, _, confidence, *_ = cache.draft(2, 16)
    arm, nodes, drafted = route(router, (tokens, parents, confidence), backlog=1)
    assert (arm, nodes) == ("model", 0)
    assert 1 <= drafted <= 8
    assert route(router, NOTHING) == ("plain", 0, 0)


def test_a_cheap_row_has_both_verified_together() -> None:
    router = started(token_cost=0.004, model_cost=0.05)
    offer = chain(list(range(12)), [0.1] + 11 * [0.97])
    arm, nodes, drafted = route(router, offer, backlog=1, beside=True)
    assert arm == "chain"
    assert 0 < drafted < nodes
    assert route(router, offer, backlog=1) == ("model", 0, drafted)
    again = PayoffRouter.load(router.save())
    again.start(1, 0)
    assert route(again, offer, backlog=1, beside=True) == (arm, nodes, drafted)


def test_learns_from_drafts_that_were_not_verified() -> None:
    router = started(token_cost=0.2)
    before = router.save()
    offer = chain([5, 6], [0.6, 0.9])
    assert route(router, offer)[0] == "chain"
    text: list[int] = []
    for _ in range(300):
        route(router, offer, text)
        text.append(7)
    assert route(router, offer, text) == ("plain", 0, 0)
    router.finish(1, np.array(text, np.uint32))
    assert router.save() != before
    assert PayoffRouter.load(router.save()).save() == router.save() == router.copy().save()
    untouched = started(token_cost=0.2)
    route(untouched, offer)
    untouched.finish(1, np.empty(0, np.uint32))
    assert untouched.save() == before, "no text, no label"


@pytest.mark.parametrize("confidence", [0.7, 0.9])
def test_slow_rows_shorten_drafts_to_the_fastest_length(confidence: float) -> None:
    nodes = np.arange(31)
    tokens = np.cumsum(confidence**nodes)
    offer = chain(list(range(30)), list(confidence ** nodes[1:]))
    cheap, dear = started(), started()
    for _ in range(200):
        for rows in (1, 9, 31):
            cheap.note_forward(rows, 0.1 + 0.0001 * rows)
            dear.note_forward(rows, 0.1 + 0.05 * rows)
    fastest = int(np.argmax(tokens / (0.15 + 0.05 * nodes)))
    assert 0 < route(dear, offer)[1] <= fastest + 1
    assert route(cheap, offer)[1] > 2 * route(dear, offer)[1]


def test_bad_input() -> None:
    router = started()
    tokens, parents, confidence = chain([1, 2], [0.5, 0.5])
    with pytest.raises(InvalidInputError, match="one length"):
        route(router, (tokens[:1], parents, confidence))
    with pytest.raises(InvalidInputError, match="parent of node 0"):
        route(router, (tokens, parents + 1, confidence))
    with pytest.raises(InvalidInputError, match="contiguous"):
        route(router, (tokens, parents, np.zeros(4, np.float32)[::2]))
    with pytest.raises(InvalidInputError, match="must not be negative"):
        PayoffRouter(token_cost=-1.0)
    with pytest.raises(InvalidInputError, match="rise from 1"):
        router.set_costs(([2.0], [0.1]), None)
    with pytest.raises(RequestError, match="is routed already"):
        router.start(1, 0)
    router.finish(1, tokens)
    with pytest.raises(RequestError, match="start it first"):
        route(router, NOTHING)
    with pytest.raises(CorruptFileError, match="first line"):
        PayoffRouter.load("hello")


def test_a_chain_is_weighed_for_a_loop_of_somebody_elses() -> None:
    router = PayoffRouter(token_cost=0.2)
    paths = np.array([0.6, 0.54], np.float32)
    assert router.weigh(paths) == 2
    assert router.weigh(paths[:0]) == 0
    before = router.save()
    router.note_chain(np.array([5, 6], np.uint32), paths, [])
    assert router.save() == before, "no text, no label"
    for _ in range(300):
        router.note_chain(np.array([5, 6], np.uint32), paths, [7])
    assert router.weigh(paths) == 0
    with pytest.raises(InvalidInputError, match="one length"):
        router.note_chain(np.array([5], np.uint32), paths, [7])
