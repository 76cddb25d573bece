"""The draft-model hook of llama-cpp-python: a loop like its own over known text, with a clock of its own."""

import sys
import types

import numpy as np
import pytest

from specrs import SuffixCache
from specrs.errors import InvalidInputError
from specrs.integrations import llama_cpp as hook
from specrs.integrations.llama_cpp import DraftModel

#: Seconds of a forward over so many rows: the first row costs as much as three more.
ROW, FIRST = 0.010, 0.030


class Clock:
    """``time.perf_counter`` that stands still unless told."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(hook, "time", types.SimpleNamespace(perf_counter=lambda: self.now))


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def run(model, prompt, text, clock, pause=0.0):
    """Write ``text`` after ``prompt`` as ``Llama.generate`` would; return the steps and the seconds they took."""
    known, steps, began = len(prompt), 0, clock.now
    whole = np.concatenate([prompt, text]).astype(np.intc)
    while known < len(whole):
        known += 1  # what the sampler draws, always
        draft = model(whole[:known])
        assert draft.dtype == np.intc
        assert draft.ndim == 1
        clock.now += FIRST + ROW * (1 + len(draft)) + pause
        steps += 1
        for token in draft:
            if known < len(whole) and whole[known] == token:
                known += 1
            else:
                break
    return steps, clock.now - began


COPIED = np.random.default_rng(0).permutation(5000)[:400]
NEW = np.random.default_rng(1).permutation(5000)[:400] + 5000


def test_a_copy_is_drafted_and_new_text_costs_plain_steps(clock):
    model = DraftModel()
    steps, seconds = run(model, COPIED, COPIED, clock)
    assert seconds < 0.4 * 400 * (FIRST + ROW)
    assert steps < 60
    judged = model.drafted - len(model._offered)  # the text ends on a draft, of which no later call tells
    assert model.accepted / judged > 0.95
    fresh = DraftModel()
    steps, seconds = run(fresh, COPIED, NEW, clock)
    assert steps == 400
    assert fresh.drafted == 0
    assert fresh.acceptance_rate is None


def test_drafts_that_never_come_true_are_held_back(clock):
    """Every word was seen before, and never goes on as it did."""
    rng = np.random.default_rng(2)
    prompt = rng.integers(0, 40, 2000)
    model = DraftModel()
    _, seconds = run(model, prompt, rng.integers(0, 40, 400), clock)
    assert seconds < 1.02 * 400 * (FIRST + ROW)
    assert model.gated > 300


def test_a_finished_text_serves_the_next(clock):
    model = DraftModel()
    run(model, COPIED[:1], COPIED[1:], clock)
    before = model.steps
    steps, _ = run(model, COPIED[:1], COPIED[1:], clock)
    assert steps < 0.2 * before


def test_a_cache_of_earlier_runs(clock):
    cache = SuffixCache()
    cache.add(NEW)
    steps, _ = run(DraftModel(cache=cache), NEW[:3], NEW[3:], clock)
    assert steps < 80


def test_pauses_of_the_reader_do_not_count(clock):
    model = DraftModel()
    run(model, COPIED, COPIED[:100], clock)
    learned = model._router.save()
    clock.now += 3600.0
    model._learn(np.array([1]), model._clock.stop())
    assert model._router.save() == learned
    model._learn(np.array([1]), 0.2)
    assert model._router.save() != learned


def test_steps_that_have_become_slower_count(clock):
    timer = hook._StepClock()
    for seconds in [0.05] * 5 + [1.0] * 5:
        timer.start(1)
        clock.now += seconds
        last = timer.stop()
    assert last is None
    timer.start(1)
    clock.now += 1.0
    assert timer.stop() == pytest.approx(1.0)
    assert timer.stop() is None  # nothing was started


def test_a_pause_in_a_step_of_unknown_size_does_not_count(clock):
    timer = hook._StepClock()
    for rows, seconds, counts in [
        (1, 0.05, True),
        (8, 0.2, True),
        (40, 300.0, False),
        (40, 1.0, True),
        (2, 9.0, False),
    ]:
        timer.start(rows)
        clock.now += seconds
        assert (timer.stop() is not None) == counts, rows


def test_longest_draft(clock):
    model = DraftModel(max_tokens=3)
    model(COPIED.astype(np.intc))
    assert len(model(np.concatenate([COPIED, COPIED[:5]]).astype(np.intc))) <= 3


def test_it_is_a_draft_model_where_the_library_is(monkeypatch):
    import abc

    class LlamaDraftModel(abc.ABC):
        @abc.abstractmethod
        def __call__(self, input_ids, /, **kwargs):
            """Return a draft."""

    package, module = types.ModuleType("llama_cpp"), types.ModuleType("llama_cpp.llama_speculative")
    module.LlamaDraftModel = LlamaDraftModel
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", module)
    assert isinstance(DraftModel(), LlamaDraftModel)


def test_bad_input():
    with pytest.raises(InvalidInputError, match="max_tokens must be >= 1, got 0"):
        DraftModel(max_tokens=0)
    with pytest.raises(InvalidInputError, match="min_prob"):
        DraftModel(min_prob=2.0)
    model = DraftModel()
    with pytest.raises(InvalidInputError, match="shape"):
        model(np.zeros((1, 3), np.intc))
    with pytest.raises(InvalidInputError, match="float"):
        model(np.zeros(3))
    with pytest.raises(InvalidInputError, match="got -1"):
        model(np.array([3, -1], np.intc))
    assert len(model(np.empty(0, np.intc))) == 0
    assert len(model(np.array([1, 2], np.intc))) == 0
