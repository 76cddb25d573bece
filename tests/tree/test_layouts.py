"""Tree layouts through Python, on the drafts of a real cache step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from specrs import SuffixCache
from specrs.errors import InvalidInputError
from specrs.trees import pad_drafts, tree_links, tree_merge, tree_prune, tree_retrieve_indices, tree_visibility


@pytest.fixture
def step() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(5)
    cache = SuffixCache()
    for request in range(5):
        cache.start(request, rng.integers(0, 3, 200 * (request > 0), dtype=np.uint32))
    return cache.step_many(range(5), [], np.zeros(6, dtype=int), [9, 0, 3, 12, 70], shape="tree", min_prob=0.001)


def test_visibility_equals_the_closure(step: tuple[np.ndarray, ...]) -> None:
    parents, row_ptr = step[1], step[4]
    words = tree_visibility(parents, row_ptr)
    assert words.shape == (len(parents), 2)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
    for start, end in itertools.pairwise(row_ptr):
        for node in range(start, end):
            seen, at = {0}, node - start
            while at >= 0:
                seen.add(at + 1)
                at = parents[start + at]
            assert set(np.flatnonzero(bits[node])) == seen


def test_retrieve_indices_and_links_cover_the_tree(step: tuple[np.ndarray, ...]) -> None:
    parents, depths, row_ptr = step[1], step[2], step[4]
    paths = tree_retrieve_indices(parents, row_ptr)
    child, sibling = tree_links(parents, row_ptr)
    assert paths.shape[2] == 1 + depths.max()
    for row, (start, end) in enumerate(itertools.pairwise(row_ptr)):
        seen = set(paths[row][paths[row] >= 0].tolist())
        assert seen == set(range(end - start + 1))
        for path in paths[row]:
            real = path[path >= 0]
            for above, below in itertools.pairwise(real):
                assert parents[start + below - 1] == above - 1
        base = start + row
        children: dict[int, list[int]] = {}
        for index in range(end - start + 1):
            at = child[base + index]
            while at >= 0:
                children.setdefault(index, []).append(int(at))
                at = sibling[base + at]
        expected: dict[int, list[int]] = {}
        for node in range(end - start):
            expected.setdefault(int(parents[start + node]) + 1, []).append(node + 1)
        assert children == expected


def test_padding(step: tuple[np.ndarray, ...]) -> None:
    tokens, row_ptr = step[0], step[4]
    padded, lengths = pad_drafts(tokens, row_ptr, 70, fill=-7)
    assert padded.dtype == np.int32
    assert np.array_equal(lengths, np.diff(row_ptr))
    assert np.array_equal(padded[padded != -7], tokens)
    with pytest.raises(InvalidInputError, match="more than the width 1"):
        pad_drafts(tokens, row_ptr, 1)


def test_merge_then_prune_is_a_tree_within_budget(step: tuple[np.ndarray, ...]) -> None:
    tokens, parents, _, confidence, row_ptr = step[:5]
    drafts = [(tokens[a:b], parents[a:b], confidence[a:b]) for a, b in itertools.pairwise(row_ptr)]
    merged = tree_merge(drafts)
    (kept, above, depths, sure), nodes = tree_prune(merged[0], merged[1], merged[3], 10)
    assert len(kept) == 10
    assert np.array_equal(merged[0][nodes], kept)
    assert np.all(above < np.arange(10))
    path = np.where(above < 0, sure, 0.0)
    for node in range(10):
        if above[node] >= 0:
            path[node] = path[above[node]] * sure[node]
            assert depths[node] == depths[above[node]] + 1
    with pytest.raises(InvalidInputError, match="parent of node 0"):
        tree_prune([1], [0], [0.5], 1)
