"""The public cache drafter: one request, many requests, bad input."""

from __future__ import annotations

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
