"""Hybrid drafting in the engine: who is asked when, what is learned, seeds, limits, laws."""

from __future__ import annotations

import gc
import itertools
import secrets
import weakref
from collections import Counter

import numpy as np
import pytest
from tests.toys import TattleLM

import specrs
from specrs._core import PayoffRouter
from specrs.drafters.hybrid import LEAST_CONFIDENCE, HybridDrafter
from specrs.drafters.model import ModelDrafter
from specrs.errors import UnsupportedModelError
from specrs.methods import make_drafter
from specrs.policies.payoff import Payoff

PROMPTS = [[7, 3, 9, 7, 3], [1], [2, 2, 2, 5, 6, 5, 6, 5]]
FOREVER = {"eos_token_id": None}


def unsure_stops(model):
    return ModelDrafter(model, model.vocab_size, min_confidence=LEAST_CONFIDENCE)


def hybrid(**options):
    target = TattleLM()
    return HybridDrafter(target.vocab_size, model=unsure_stops(TattleLM()), **options)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("draft_tokens", [None, 0, 1, 5])
@pytest.mark.parametrize("with_model", [True, False])
def test_greedy_text_is_that_of_plain_decoding(batch, draft_tokens, with_model):
    options = {"max_new_tokens": 60, **FOREVER}
    plain = specrs.generate(TattleLM(), PROMPTS[:batch], drafter="none", **options)
    made = specrs.generate(
        TattleLM(),
        PROMPTS[:batch],
        drafter="hybrid",
        draft_model=TattleLM() if with_model else None,
        draft_tokens=draft_tokens,
        **options,
    )
    assert [one.ids for one in made] == [one.ids for one in plain]
    assert made[0].report.method == "hybrid (payoff)"
    if draft_tokens == 0:
        assert all(one.report.drafted == 0 for one in made)


def test_each_arm_is_taken_where_it_pays():
    """B82: a router of cheap forwards asks the model for new text and the cache for old; a dear model is not asked."""
    taken = {}
    for cost in (0.01, 50.0):
        drafter = hybrid(router=PayoffRouter(model_cost=cost, token_cost=0.001, explore=0.0), clock=lambda: 0.0)
        made = specrs.generate(TattleLM(), PROMPTS[2], drafter=drafter, draft_tokens=8, max_new_tokens=200, **FOREVER)
        taken[cost] = made.report.accepted_by_source
    assert taken[0.01]["model"] > 0
    assert "model" not in taken[50.0]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_where_rows_are_cheap_greedy_texts_have_both_drafts_verified_together(batch, temperature, monkeypatch):
    """The draft model is right now and then and so is the cache; together they bring more, and the same text."""
    # The toy's rows are dear; here the router keeps to the costs that it is told.
    monkeypatch.setattr(Payoff, "observe", lambda *of_a_round: None)
    monkeypatch.setattr(HybridDrafter, "length_policy", lambda self, *measured: Payoff(self.router, 40))
    options = {"max_new_tokens": 120, "temperature": temperature, **FOREVER}
    target, prompts = TattleLM(habit=4.0), PROMPTS[-batch:]
    router = PayoffRouter(model_cost=0.02, token_cost=0.0005, explore=0.0)
    drafter = HybridDrafter(32, model=ModelDrafter(TattleLM(habit=6.0), 32), router=router, clock=lambda: 0.0)
    made = specrs.generate(target, prompts, drafter=drafter, **options)
    taken = sum((Counter(one.report.accepted_by_source) for one in made), Counter())
    together = taken["model+chain"] + taken["model+tree"]
    if temperature:
        assert not together, "the rule for drawn tokens knows chains alone"
        return
    assert together > 0, taken
    plain = specrs.generate(target, prompts, drafter="none", **options)
    assert [one.ids for one in made] == [one.ids for one in plain]


@pytest.mark.parametrize("shuffle", [0, 1])
def test_a_seeded_sample_follows_neither_clock_nor_neighbours(shuffle):
    """The same seed gives the same text, alone or beside others, whatever the clock says."""
    ticks = itertools.count()
    clocks = [lambda: 0.0, lambda: float(next(ticks) ** 2)]
    options = {"max_new_tokens": 50, "temperature": 0.8, **FOREVER}
    alone = [
        specrs.generate(TattleLM(), p, drafter=hybrid(clock=clocks[0]), seed=11 + i, **options).ids
        for i, p in enumerate(PROMPTS)
    ]
    order = [2, 0, 1] if shuffle else [0, 1, 2]
    together = specrs.generate(
        TattleLM(),
        [PROMPTS[i] for i in order],
        drafter=hybrid(clock=clocks[1]),
        seed=[11 + i for i in order],
        **options,
    )
    assert [one.ids for one in together] == [alone[i] for i in order]
    again = specrs.generate(TattleLM(), PROMPTS[0], drafter="hybrid", draft_model=TattleLM(), seed=11, **options)
    assert again.ids == alone[0]


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("batch", [2, 50])
def test_drawn_texts_have_the_targets_law(seed, batch, monkeypatch):
    """The first two tokens of many samples against their exact law, by chi-square, while every arm is taken."""
    source = np.random.default_rng(3)
    monkeypatch.setattr(secrets, "randbits", lambda bits: int(source.integers(1 << 63)))
    target, prompt, samples = TattleLM(4, habit=1.0), [0, 1, 2, 0, 1, 2, 0], 500
    positions = np.arange(len(prompt) + 1)
    rows = [target.row(np.array(prompt), positions[:-1])]
    rows += [target.row(np.array([*prompt, first]), positions) for first in range(4)]
    first, *second = [np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in rows]
    law = (first[:, None] * np.stack(second)).ravel()
    drafter = HybridDrafter(
        4, model=ModelDrafter(TattleLM(4, habit=1.0, salt=8), 4), router=PayoffRouter(explore=0.5), clock=lambda: 0.0
    )
    options = {"max_new_tokens": 4, "temperature": 1.0, "max_batch": batch, "n": samples, "seed": seed, **FOREVER}
    made = specrs.generate(target, prompt, drafter=drafter, draft_tokens=3, **options)
    counts = np.bincount([one.ids[0] * 4 + one.ids[1] for one in made], minlength=16)
    expected = law * samples
    assert ((counts - expected) ** 2 / expected).sum() < 45, "p < 1e-4"
    taken = sum((Counter(one.report.accepted_by_source) for one in made), Counter())
    assert taken["model"] > 0
    assert taken["chain"] + taken["tree"] > 0


def test_the_model_is_left_out_beyond_its_context():
    target, short = TattleLM(), TattleLM(max_context=24)
    options = {"max_new_tokens": 80, **FOREVER}
    made = specrs.generate(target, PROMPTS[0], drafter="hybrid", draft_model=short, **options)
    assert made.ids == specrs.generate(target, PROMPTS[0], drafter="none", **options).ids


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 4}])
def test_ids_that_the_target_lacks_are_not_proposed(options):
    cache = specrs.SuffixCache()
    cache.add([7, 3, 9, 7, 3, 9, 4000, 4001, 7, 3, 4000])
    made = specrs.generate(TattleLM(), PROMPTS[0], drafter=hybrid(cache=cache), max_new_tokens=30, **options, **FOREVER)
    assert max(made.ids) < 32
    assert made.finish_reason == "length"


def test_a_finished_request_leaves_nothing_behind():
    drafter = hybrid()
    specrs.generate(TattleLM(), PROMPTS, drafter=drafter, max_new_tokens=20, **FOREVER)
    running = specrs.stream(TattleLM(), PROMPTS, drafter=drafter, max_new_tokens=20, **FOREVER)
    next(running)
    running.close()
    assert not drafter._routers
    assert not drafter._proposed


def test_a_pair_of_models_goes_on_learning_from_call_to_call():
    """The next call's router is the last one's; another draft model, another target or none has its own."""
    target, draft, other = TattleLM(), TattleLM(), TattleLM()

    def router(target, draft_model, **options):
        return make_drafter("hybrid", target, draft_model=draft_model, **options).router

    first = router(target, draft)
    before = first.save()
    specrs.generate(target, PROMPTS[2], drafter="hybrid", draft_model=draft, max_new_tokens=60, **FOREVER)
    assert router(target, draft) is first
    assert first.save() != before
    apart = [router(target, other), router(target, None), router(other, draft), router(other, None)]
    assert len({id(one) for one in [first, *apart]}) == 5
    gone = weakref.ref(target)
    del target
    gc.collect()
    assert gone() is None


def test_a_sharded_draft_model_is_refused_before_any_forward():
    """Ranks that choose by their own clocks would wait for each other in the draft model's forward."""

    class TwoRanks:
        rank, size = 0, 2

    class Sharded(TattleLM):
        ranks = TwoRanks()

        def forward(self, *args, **options):
            raise AssertionError("a forward of a refused model")

    with pytest.raises(UnsupportedModelError, match="sharded over 2 ranks"):
        specrs.generate(TattleLM(), PROMPTS[0], drafter="hybrid", draft_model=Sharded(), max_new_tokens=4)
    drafted = specrs.generate(TattleLM(), PROMPTS[0], drafter="hybrid", draft_model=TattleLM(), max_new_tokens=4)
    assert len(drafted.ids) == 4
