"""What peers got wrong: each test is one of their reported faults, or a limit that must be a clear error."""

from __future__ import annotations

import os

import numpy as np
import pytest

from specrs import SuffixCache
from specrs.errors import InvalidInputError, RequestError, SpecrsError


@pytest.fixture
def cache() -> SuffixCache:
    cache = SuffixCache()
    cache.start(1, np.tile(np.arange(10, dtype=np.uint32), 4))
    return cache


def test_defaults_work(cache: SuffixCache) -> None:
    assert len(cache.draft(1, 4)[0]) == 4


@pytest.mark.parametrize("budget", [0, 1, 5, 64, 100_000])
def test_any_budget_is_taken(cache: SuffixCache, budget: int) -> None:
    """B65: never more than was asked for, and no error where less is there."""
    for shape in ("chain", "tree"):
        drafted = cache.draft(1, budget, shape=shape, min_prob=0.0)
        assert len(drafted[0]) <= budget
        assert len(drafted[0]) > 0 or budget == 0


def test_a_chain_is_not_capped_by_the_match(cache: SuffixCache) -> None:
    cache.add(np.arange(1000, 3000))
    cache.start(2, np.arange(1000, 1008))
    drafted = cache.draft(2, 1500, min_prob=0.0)
    assert drafted[4] == 8
    assert drafted[0].tolist() == list(range(1008, 2508))


@pytest.mark.parametrize(
    "tokens",
    [
        np.array([1, -1]),
        np.array([1, -1], dtype=np.int32),
        np.array([1, 2**32 - 1]),
        np.array([1, 2**32 - 1], dtype=np.uint32),
        np.array([2**40]),
        np.array([2**63], dtype=np.uint64),
        np.array([1.5]),
        np.array([True]),
        np.array([[1, 2]]),
        np.array(["a"]),
        "text",
        None,
        [1, None],
    ],
)
def test_what_is_not_a_token_is_refused_and_changes_nothing(cache: SuffixCache, tokens: object) -> None:
    before = cache.stats()
    for call in (
        lambda: cache.append(1, tokens),
        lambda: cache.start(2, tokens),
        lambda: cache.add(tokens),
        lambda: cache.step_many([1], tokens, [0, 2], 4),
    ):
        with pytest.raises((InvalidInputError, TypeError)):
            call()
    assert cache.stats() == before


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64, np.uint16, np.uint8, np.uint64, np.int16])
def test_every_integer_type_and_stride_is_taken(dtype: type) -> None:
    cache = SuffixCache()
    text = np.array([1, 9, 2, 9, 3, 9, 4, 9, 1, 9, 2, 9], dtype=dtype)
    cache.start(1, text[::2])
    assert cache.draft(1, 2, min_prob=0.0)[0].tolist() == [3, 4]
    cache.append(1, [3])
    cache.append(1, (4,))
    assert cache.draft(1, 1, min_prob=0.0)[0].tolist() == [1]


@pytest.mark.parametrize("token", [0, 65_535, 65_536, 200_000, 2**31, 2**32 - 2])
def test_no_id_is_special(token: int) -> None:
    cache = SuffixCache()
    cache.add([7, token, 8])
    cache.start(1, [7])
    assert cache.draft(1, 2, min_prob=0.0)[0].tolist() == [token, 8]
    cache.append(1, [token])
    assert cache.draft(1, 2, min_prob=0.0)[0].tolist() == [8]


def test_unknown_and_duplicate_ids(cache: SuffixCache) -> None:
    with pytest.raises(RequestError, match="request 1 is active already"):
        cache.start(1, [1])
    for call in (
        lambda: cache.finish(5),
        lambda: cache.abort(5),
        lambda: cache.append(5, [1]),
        lambda: cache.draft(5, 1),
        lambda: cache.step(5, [1], 1),
        lambda: cache.step_many([1, 5], [1, 2], [0, 1, 2], 4),
    ):
        with pytest.raises(RequestError, match="request 5 is not active"):
            call()
    with pytest.raises(RequestError, match="request 1 is listed twice"):
        cache.step_many([1, 1], [1, 2], [0, 1, 2], 4)
    assert cache.stats()["active_tokens"] == 40
    cache.finish(1)
    with pytest.raises(RequestError):
        cache.finish(1)


@pytest.mark.parametrize(
    ("ptr", "budget"),
    [([0, 1], 4), ([0, 1, 3], 4), ([1, 1, 2], 4), ([0, 2, 1], 4), ([], 4), ([0, 1, 2], [4]), ([0, 1, 2], [4, -1])],
)
def test_shapes_of_a_step_are_checked(cache: SuffixCache, ptr: list[int], budget: object) -> None:
    cache.start(2, [1])
    with pytest.raises(InvalidInputError):
        cache.step_many([1, 2], [3, 4], ptr, budget)
    assert cache.stats()["active_tokens"] == 41


@pytest.mark.parametrize(
    "options",
    [
        {"budget": -1},
        {"budget": 1, "shape": "graph"},
        {"budget": 1, "min_prob": 1.5},
        {"budget": 1, "min_prob": float("nan")},
    ],
)
def test_options_are_checked(cache: SuffixCache, options: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        cache.draft(1, **options)


def test_an_empty_step_is_a_step(cache: SuffixCache) -> None:
    tokens, *_, row_ptr, lengths, expected = cache.step_many([], [], [0], 4)
    assert (len(tokens), row_ptr.tolist(), len(lengths), len(expected)) == (0, [0], 0, 0)


def test_a_restarted_id_knows_nothing_of_its_former_text() -> None:
    fresh, used = SuffixCache(), SuffixCache()
    used.start(1, [1, 2, 3, 4, 1, 2])
    used.draft(1, 4)
    used.abort(1)
    for cache in (fresh, used):
        cache.start(1, [9, 1, 2])
    assert used.draft(1, 4, min_prob=0.0)[0].tolist() == []
    for shape in ("chain", "tree"):
        for got, want in zip(used.draft(1, 4, shape=shape), fresh.draft(1, 4, shape=shape), strict=True):
            assert np.array_equal(got, want)


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_capacity_holds_from_its_minimum_on(most: int) -> None:
    cache = SuffixCache(max_tokens=most)
    rng = np.random.default_rng(0)
    for request in range(60):
        cache.start(request, rng.integers(0, 5, 9, dtype=np.uint32))
        cache.draft(request, 4, shape="tree")
        cache.finish(request)
        assert cache.stats()["cached_tokens"] <= most


def test_evicted_text_is_as_if_never_added() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 4, 70_000), rng.integers(0, 4, 70_000)
    both, one = SuffixCache(), SuffixCache()
    both.add(first)  # more than a segment takes, so it is sealed
    both.add(second)
    both.evict_to(70_000)
    one.add(second)
    for cache in (both, one):
        cache.start(1, [])
    for new in np.array_split(rng.integers(0, 4, 200), 60):
        for shape in ("chain", "tree"):
            got, want = (cache.step(1, new, 8, shape=shape, min_prob=0.0) for cache in (both, one))
            for left, right in zip(got, want, strict=True):
                assert np.array_equal(left, right)
    assert both.count([1, 2, 3]) == one.count([1, 2, 3])


def test_drafts_never_cross_documents() -> None:
    cache = SuffixCache()
    cache.add_many([1, 2, 3, 4, 5, 6], [0, 3, 3, 6])
    cache.start(1, [2, 3])
    assert cache.draft(1, 8, min_prob=0.0)[0].size == 0
    cache.compact()
    assert cache.draft(1, 8, min_prob=0.0)[0].size == 0
    assert cache.count([3, 4]) == 0


def test_asking_twice_gives_the_same_draft(cache: SuffixCache) -> None:
    cache.step(1, [0, 1, 2, 77], 8)
    first = cache.draft(1, 8, shape="tree", min_prob=0.0)
    for _ in range(20):
        for got, want in zip(cache.draft(1, 8, shape="tree", min_prob=0.0), first, strict=True):
            assert np.array_equal(got, want)


def test_a_replaced_token_does_not_lose_the_place() -> None:
    cache = SuffixCache()
    text = np.arange(100, 300)
    cache.add(text)
    cache.start(1, text[:50])
    cache.draft(1, 8)
    drafted = cache.step(1, [150, 151, 7], 8, min_prob=0.01)  # 7 replaces 152
    assert drafted[0].tolist()[:3] == [153, 154, 155]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_goes_on(cache: SuffixCache) -> None:
    for number in range(400):  # seals and background merges
        cache.add(np.random.default_rng(number).integers(0, 50, 1000))
    child = os.fork()
    if child == 0:
        try:
            for number in range(400):
                cache.add(np.random.default_rng(number).integers(0, 50, 1000))
            cache.step(1, [1], 4)
            os._exit(0)
        except SpecrsError:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
