"""The llama.cpp adapter's one context for many texts: growth, eviction, limits, and what comes back."""

import numpy as np
import pytest
from tests.models.llama_trees import PROMPTS, generate
from tests.models.toy_llama import law

from specrs.errors import CapacityError
from specrs.models.llama import memory as memory_module
from specrs.models.llama_cpp import LlamaCppTarget
from specrs.types import Draft


def test_the_context_grows_and_keeps_every_bit(library, gguf):
    target = LlamaCppTarget(gguf, threads=1, context=256)
    states = [target.new_state(0) for _ in range(3)]
    texts = [np.arange(n, dtype=np.uint32) % 50 for n in (100, 200, 700)]
    for state, text in zip(states, texts, strict=True):
        target.prefill(state, text)
    assert len(library.contexts) > 1
    assert [c.freed for c in library.contexts] == [True] * (len(library.contexts) - 1) + [False]
    scores = target.score(states, [np.array([9], np.uint32)] * 3, Draft.empty(3))
    for row, text in zip(scores.logits, texts, strict=True):
        assert np.array_equal(row, law([*text, 9]))
    assert states[0].size_bytes() == 0  # the toy's file tells no sizes


def test_idle_states_give_way_and_are_read_again(library, gguf, monkeypatch):
    monkeypatch.setattr(memory_module, "GROW_FIRST", 0)
    target = LlamaCppTarget(gguf, threads=1, context=512)
    states = [target.new_state(0) for _ in range(3)]
    texts = [(np.arange(200) * (i + 1)).astype(np.uint32) % 50 for i in range(3)]
    for state, text in zip(states, texts, strict=True):
        target.prefill(state, text)
    assert len(library.contexts) == 1
    assert target._memory.resident == 2
    assert states[0].slot.sequence is None
    assert states[0].length == 200
    scores = target.score([states[0]], [np.array([9], np.uint32)], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law([*texts[0], 9]))
    assert states[1].slot.sequence is None


def test_more_requests_than_sequences(target):
    prompts = [[i % 50, (i + 1) % 50] for i in range(300)]
    states = [target.new_state(4) for _ in prompts]
    for state, prompt in zip(states, prompts, strict=True):
        target.prefill(state, np.array(prompt, np.uint32))
    assert target._memory.resident == 256
    with pytest.raises(CapacityError, match="at most 256 sequences"):
        target.score(states, [np.array([1], np.uint32)] * 300, Draft.empty(300))
    scores = target.score(states[:5], [np.array([1], np.uint32)] * 5, Draft.empty(5))
    assert np.array_equal(scores.logits[0], law([0, 1, 1]))


def test_cells_of_a_dropped_state_come_back(target):
    states = [target.new_state(4) for _ in range(4)]
    for state in states:
        target.prefill(state, np.arange(5, dtype=np.uint32))
    del states, state
    target.prefill(target.new_state(1), np.array([1], np.uint32))
    target.prefill(target.new_state(1), np.array([1], np.uint32))
    assert target._memory.resident <= 1
    generate(target, PROMPTS, drafter="none", max_new_tokens=4)
    with target._memory.exclusive() as context:
        assert len(context._cells.cells) <= 1  # finished texts hold nothing


def test_no_memory_for_a_larger_context(library, gguf):
    target = LlamaCppTarget(gguf, threads=1, context=256)
    state = target.new_state(0)
    text = np.arange(100, dtype=np.uint32) % 50
    target.prefill(state, text)
    library.most_cells = 256
    with pytest.raises(CapacityError, match="out of memory"):
        target.prefill(state, np.zeros(400, np.uint32))
    scores = target.score([state], [np.array([9], np.uint32)], Draft.empty(1))
    assert np.array_equal(scores.logits[0], law([*text, 9]))
