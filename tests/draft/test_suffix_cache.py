"""The public cache drafter: one request, many requests, bad input (cases B63, B64)."""

from __future__ import annotations

import time

import numpy as np
import pytest

from specrs import SuffixCache
from specrs.errors import InvalidInputError, RequestError


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def test_repeats_the_text_after_a_long_match() -> None:
    cache = SuffixCache()
    text = np.arange(100, 160, dtype=np.uint32)
    cache.start(7, np.concatenate([text, text[:20]]))
    drafted, parents, depths, confidence, match_length, expected = cache.draft(7, 30)
    assert drafted.tolist() == text[20:50].tolist()
    assert parents.tolist() == list(range(-1, 29))
    assert depths.tolist() == list(range(1, 31))
    assert match_length == 20
    assert np.all((confidence > 0) & (confidence < 1))
    assert expected == pytest.approx(np.cumprod(confidence).sum(), rel=1e-4)


def test_no_evidence_gives_an_empty_draft() -> None:
    cache = SuffixCache()
    cache.start(1, tokens(1, 2, 3))
    assert cache.draft(1, 8)[0].size == 0
    cache.start(2, tokens())
    assert cache.draft(2, 8)[0].size == 0
    assert cache.draft(2, 0)[0].size == 0


def test_ids_are_checked() -> None:
    cache = SuffixCache()
    cache.start(1, tokens(1))
    with pytest.raises(RequestError, match="request 1 is active already"):
        cache.start(1, tokens(1))
    for call in (cache.abort, cache.finish, lambda i: cache.append(i, tokens(1)), lambda i: cache.draft(i, 4)):
        with pytest.raises(RequestError, match="request 2 is not active"):
            call(2)
    with pytest.raises(InvalidInputError, match="-1 at index 1"):
        cache.append(1, np.array([0, -1]))


def test_vocabulary_and_eos_bound_the_draft() -> None:
    cache = SuffixCache(vocab_size=50)
    cache.start(1, tokens(1, 2, 3, 4, 60, 5, 1, 2, 3))
    assert cache.draft(1, 8, min_prob=0.0)[0].tolist() == [4]
    assert cache.draft(1, 8, min_prob=0.0, eos=[4])[0].tolist() == [4]
    wide = SuffixCache()
    wide.start(1, tokens(1, 2, 3, 4, 60, 5, 1, 2, 3))
    assert wide.draft(1, 8, min_prob=0.0)[0].tolist()[:3] == [4, 60, 5]


def test_step_many_equals_single_steps() -> None:
    rng = np.random.default_rng(3)
    many, one = SuffixCache(), SuffixCache()
    for request in range(8):
        prompt = rng.integers(0, 6, 50, dtype=np.uint32)
        many.start(request, prompt)
        one.start(request, prompt)
    for step in range(20):
        new = [rng.integers(0, 6, rng.integers(0, 4), dtype=np.uint32) for _ in range(8)]
        ptr = np.cumsum([0, *map(len, new)])
        shape = "tree" if step % 2 else "chain"
        got = many.step_many(np.arange(8), np.concatenate(new), ptr, 6, shape=shape, threads=1 + step % 3)
        for request in range(8):
            one.append(request, new[request])
            single = one.draft(request, 6, shape=shape)
            rows = slice(got[4][request], got[4][request + 1])
            for part in range(4):
                assert np.array_equal(got[part][rows], single[part])
            assert (got[5][request], got[6][request]) == (single[4], single[5])


def test_finished_text_serves_requests_that_are_active() -> None:
    cache = SuffixCache()
    cache.start(1, tokens(5, 6, 7))
    cache.start(2, tokens(5, 6, 7, 8, 9))
    assert cache.draft(1, 4)[0].size == 0
    cache.finish(2)
    assert cache.draft(1, 4, min_prob=0.0)[0].tolist() == [8, 9]


@pytest.mark.parametrize("length", [0, 1, 5, 63, 64, 65, 100])
def test_a_chain_has_its_own_parents_and_depths_or_shared_ones_that_nobody_can_change(length: int) -> None:
    cache = SuffixCache()
    text = np.arange(200)
    cache.add(text)
    cache.start(1, text[:50])
    for _ in range(2):
        tokens, parents, depths, confidence, *_ = cache.draft(1, length, min_prob=0.0)
        assert tokens.tolist() == list(range(50, 50 + length))
        assert parents.tolist() == list(range(-1, length - 1))
        assert depths.tolist() == list(range(1, length + 1))
        assert len(confidence) == length
        for column in (parents, depths):
            if column.flags.writeable:
                column[:] = 77
            elif length:
                with pytest.raises(ValueError, match="read-only"):
                    column[0] = 77


def microseconds_of_a_step(cache: SuffixCache, text: np.ndarray, deepest: int) -> float:
    """Processor time of one step (append and draft) of a text that repeats, and once more where nothing repeats."""
    cache.start(1, text)
    steps, ptr = 200, np.array([0, 1])
    best = np.inf
    for attempt in range(5):
        start = time.process_time()
        for step in range(steps):
            cache.step_many([1], text[attempt * steps + step : attempt * steps + step + 1], ptr, deepest)
        best = min(best, 1e6 * (time.process_time() - start) / steps)
    cache.abort(1)
    return best


@pytest.mark.parametrize("draft_tokens", [4, 64])
def test_b63_a_step_costs_the_same_however_long_the_text(draft_tokens: int) -> None:
    """B63: at 100,000 tokens a step stays within 50 microseconds, and within a few times one at 2,000."""
    text = np.random.default_rng(0).integers(0, 50_000, 100_000).astype(np.uint32)
    text[60_000:] = text[:40_000]
    short, long = (microseconds_of_a_step(SuffixCache(), one, draft_tokens) for one in (text[:2_000], text))
    assert long < 50, (short, long)
    assert long < 5 * short + 10, (short, long)


def test_b64_a_capped_cache_stays_small_and_right_through_many_texts() -> None:
    """B64: 20,000 texts through a cache of a few thousand tokens; what stays drafts, what went does not."""
    cache = SuffixCache(max_tokens=8_000)
    for number in range(20_000):
        cache.add(np.arange(16, dtype=np.uint32) + 16 * number)
        if number % 1000 == 999:
            assert cache.stats()["cached_tokens"] <= 8_000
    for number, drafted in ((19_990, [8, 9, 10, 11]), (1, [])):
        cache.start(number, np.arange(8, dtype=np.uint32) + 16 * number)
        assert cache.draft(number, 4)[0].tolist() == [16 * number + token for token in drafted]
