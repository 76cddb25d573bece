"""The llama.cpp adapter's rows: trees as sequences of one context, scores bit for bit, rollback.

The stand-in (``toy_llama.py``) refuses what llama.cpp refuses and answers by what a row can really see, so trees,
rollback, growth and eviction are checked without a build of llama.cpp; ``test_llama_real.py`` has the real kernels.
"""

import numpy as np
import pytest
from tests.models.llama_trees import PARENTS, check_rows, tree_draft
from tests.models.toy_llama import law

from specrs.models.llama.branches import Branches, waves
from specrs.models.llama.context import Rows, plain_rows
from specrs.types import Draft


def test_branches_of_a_tree():
    tree = Branches.of(PARENTS)
    assert tree.members == ((0, 1), (0,), (0,), (1,), (1,), (2,))
    assert tree.count == 3
    assert [tree.through(node) for node in range(6)] == [0, 0, 0, 1, 1, 2]
    assert Branches.of([]).count == 1
    assert Branches.of([-1, 0, 1]).members == ((0,), (0,), (0,))
    # Branch 0 follows first children even where another leaf has a lower index.
    assert Branches.of([-1, 0, 0, 1]).members == ((0, 1), (0,), (1,), (0,))


def test_waves_cover_a_tree_with_few_leaves_each():
    assert [wave.tolist() for wave in waves(PARENTS, 3)] == [[0, 1, 2, 3, 4, 5]]
    assert [wave.tolist() for wave in waves(PARENTS, 1)] == [[0, 1, 2], [0, 3, 4], [5]]
    assert [wave.tolist() for wave in waves(PARENTS, 2)] == [[0, 1, 2, 3, 4], [5]]


def test_rows_are_cut_to_what_one_forward_takes():
    rows = plain_rows(np.arange(1200), 7, (3,), last_wanted=True)
    sizes = [len(piece.tokens) for piece in rows.pieces()]
    assert sizes == [512, 512, 176]
    assert [piece.wanted.sum() for piece in rows.pieces()] == [0, 0, 1]
    wanted = Rows(rows.tokens, rows.positions, rows.sequences, np.ones(1200, np.bool_))
    assert [len(piece.tokens) for piece in wanted.pieces()] == [256, 256, 256, 256, 176]


@pytest.mark.parametrize("pending", [1, 3, 20])  # an anchor; a short stretch; a prompt's end, read by itself
def test_scores_of_a_tree_and_what_a_commit_keeps(target, pending):
    rng = np.random.default_rng(pending)
    text = rng.integers(0, 60, 30 + pending).astype(np.uint32)
    state = target.new_state(100)
    target.prefill(state, text[:30])
    tokens = np.array([11, 12, 13, 14, 15, 16], np.uint32)
    for kept in ([], [0], [0, 1, 2], [0, 3], [0, 3, 4], [5]):
        scores = target.score([state], [text[state.length :]], tree_draft(tokens))
        assert scores.row_ptr.tolist() == [0, 7]
        check_rows(scores, 0, text, tokens, PARENTS)
        state.commit(np.array(kept, np.int32), len(text) - state.length)
        text = np.concatenate([text, tokens[kept], rng.integers(0, 60, 1).astype(np.uint32)])
        assert state.length == len(text) - 1
        assert state.tokens.tolist() == text[:-1].tolist()
    scores = target.score([state], [text[-1:]], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law(text))
    state.truncate(20)
    assert state.length == 20
    scores = target.score([state], [text[20:22]], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law(text[:22]))


def test_a_batch_of_trees_chains_and_prompts(target, library):
    texts = [np.arange(n, dtype=np.uint32) for n in (5, 12, 9, 33)]
    read = [4, 11, 0, 0]
    states = [target.new_state(64) for _ in texts]
    for state, text, n in zip(states, texts, read, strict=True):
        target.prefill(state, text[:n])
    tokens = np.array([21, 22, 23, 24, 25, 26], np.uint32)
    sizes = [6, 0, 3, 6]
    library.forwards.clear()
    scores = target.score(states, [t[n:] for t, n in zip(texts, read, strict=True)], tree_draft(tokens, sizes))
    assert len(library.forwards) == 2  # the long prompts' ends, then every anchor and node at once
    for b, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        check_rows(scores, scores.row_ptr[b], text, tokens, PARENTS[:size])
    for state, text, n in zip(states, texts, read, strict=True):
        state.commit(np.empty(0, np.int32), len(text) - n)
    assert sorted(c[1] for c in library.contexts[0].cells) == sorted(p for t in texts for p in range(len(t)))


def test_a_round_that_was_never_committed_leaves_nothing(target):
    state = target.new_state(10)
    target.score([state], [np.array([1, 2], np.uint32)], tree_draft(np.arange(6, dtype=np.uint32)))
    scores = target.score([state], [np.array([3], np.uint32)], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law([3]))


def test_logits_are_the_callers_own(target):
    state = target.new_state(10)
    first = target.score([state], [np.array([1], np.uint32)], Draft.empty(1)).logits
    before = first.copy()
    assert first.dtype == np.float32
    target.score([state], [np.array([2], np.uint32)], Draft.empty(1))
    assert np.array_equal(first, before)


def test_more_leaves_than_sequences(target, monkeypatch):
    """A tree that finds too few free sequences is scored subtree by subtree, and its text is read again."""
    text = np.arange(6, dtype=np.uint32)
    tokens = np.array([11, 12, 13, 14, 15, 16], np.uint32)
    states = [target.new_state(16), target.new_state(16)]
    target.prefill(states[0], text[:5])
    target.prefill(states[1], text[:5])
    target._memory._free = target._memory._free[:2]  # enough for the first tree's branches, not for the second's
    scores = target.score(states, [text[5:]] * 2, tree_draft(tokens, [6, 6]))
    for b in range(2):
        check_rows(scores, scores.row_ptr[b], text, tokens, PARENTS)
    for state in states:
        state.commit(np.array([0, 3], np.int32), 1)
    assert [state.length for state in states] == [8, 6]
    pending = [np.array([9], np.uint32), np.array([11, 14, 9], np.uint32)]
    scores = target.score(states, pending, Draft.empty(2))
    for row in scores.logits:
        assert np.array_equal(row, law([*text, 11, 14, 9]))
