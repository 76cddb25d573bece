"""Greedy and seeded texts are the same in every mode; what guesses bring is counted."""

import itertools

import pytest
from tests.engine.conftest import VOCABULARY, tiny_target
from tests.ssd.toys import local
from tests.toys import TattleLM

import specrs
from specrs.ssd.links import ThreadLink

PROMPTS = [[7, 3, 9, 11, 7, 3, 9], [5], [1, 2, 3, 1, 2]]
FOREVER = {"eos_token_id": None}


def ids(made):
    return [one.ids for one in made]


def partner():
    return TattleLM(habit=4.0)


def run(drafter, prompts=PROMPTS, target=None, **options):
    return specrs.generate(
        TattleLM() if target is None else target,
        prompts,
        drafter=drafter,
        **{"max_new_tokens": 20, **FOREVER, **options},
    )


@pytest.fixture(scope="module")
def plain():
    return ids(run("none"))


@pytest.mark.parametrize("fallback", ["slow", "fast", "zero", "auto"])
@pytest.mark.parametrize(
    ("fan_out", "lookahead", "saguaro"), [(0, 3, 1.0), (1, 3, 0.3), (2, 1, 1.0), (3, 2, 0.3), (3, 4, 1.0), (3, 0, 1.0)]
)
def test_greedy_texts_are_plain_decodings(plain, fallback, fan_out, lookahead, saguaro):
    drafter = local(partner(), 32, fan_out=fan_out, lookahead=lookahead, fallback=fallback, saguaro=saguaro)
    made = run(drafter)
    assert ids(made) == plain
    statistics = drafter.statistics
    if lookahead:
        assert sum(one.report.accepted for one in made) > 0 or fallback == "zero"
        assert (statistics.hit_rate > 0) == (fan_out > 0)
    else:
        assert statistics.rounds == 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("fan_out", [0, 3])
def test_cache_drafts_ahead_too(temperature, fan_out):
    options = {"temperature": temperature, "seed": 4, "max_new_tokens": 40}
    drafter = local(None, 32, fan_out=fan_out, lookahead=4, fallback="slow")
    made = run(drafter, **options)
    assert ids(made) == ids(run("none", **options))
    assert sum(one.report.accepted for one in made) > 0
    assert (drafter.statistics.by_origin["hit"] > 0) == (fan_out > 0)


@pytest.mark.parametrize("saguaro", [1.0, 0.4])
@pytest.mark.parametrize("max_batch", [1, 3])
def test_a_seeded_text_does_not_depend_on_what_was_ready(saguaro, max_batch):
    """Synchronous, complete, interrupted or threaded drafting ahead, alone or in company: the same text."""
    options = {"temperature": 0.8, "top_p": 0.95, "seed": 11, "max_batch": max_batch}
    never = local(partner(), 32, fan_out=3, lookahead=3, saguaro=saguaro, steps=lambda _: 0)
    expected = ids(run(never, **options))
    assert expected != ids(run("none", **options)), "the drafts are drawn"
    for steps in (lambda _: None, lambda round_: round_ % 4):
        drafter = local(partner(), 32, fan_out=3, lookahead=3, saguaro=saguaro, steps=steps)
        assert ids(run(drafter, **options)) == expected
        assert drafter.statistics.by_origin["hit"] > 0
    alone = [
        run(local(partner(), 32, fan_out=3, lookahead=3, saguaro=saguaro), [prompt], **options)[0].ids
        for prompt in PROMPTS
    ]
    assert alone == expected


def test_a_thread_beside_the_target(plain):
    drafter = local(partner(), 32, fan_out=3, lookahead=3, link=ThreadLink)
    assert ids(run(drafter)) == plain
    drafter.close()
    sampled = {"temperature": 0.8, "seed": 2}
    beside = local(partner(), 32, fan_out=3, lookahead=3, link=ThreadLink)
    assert ids(run(beside, **sampled)) == ids(run(local(partner(), 32, fan_out=3, lookahead=3), **sampled))
    beside.close()


def test_unseeded_rows_differ_and_are_not_held_up():
    drafter = local(partner(), 32, fan_out=2, lookahead=3, steps=lambda _: 2)
    first, second = (ids(run(drafter, temperature=1.0)) for _ in range(2))
    assert first != second


@pytest.mark.parametrize("how", ["tree", "packed"])
@pytest.mark.parametrize("kind", ["llama", "gemma3-mixed", "gpt2"], indirect=True)
def test_guesses_of_real_layers(kind, how, monkeypatch):
    """Guesses kept in memory, or scored anew as a tree, are drafted as real text is, past a sliding window too."""
    model = tiny_target(kind, 1)
    if how == "tree":
        monkeypatch.setattr("specrs.ssd.packed_growth.PackedGrowth", _tree_growth())
    options = {"max_new_tokens": 30, **FOREVER}
    target = tiny_target(kind)
    expected = ids(specrs.generate(target, PROMPTS, drafter="none", **options))
    for draft_model in (model, target):  # the target itself: every draft is right, if positions and masks are
        drafter = local(draft_model, VOCABULARY, fan_out=2, lookahead=3, fallback="zero")
        made = specrs.generate(target, PROMPTS, drafter=drafter, **options)
        assert ids(made) == expected
    assert all(one.report.accepted == one.report.drafted > 0 for one in made)
    # Fully accepted drafts end in the drafter's own best token, which is always among the guesses.
    assert drafter.statistics.hit_rate == 1.0


def _tree_growth():
    from specrs.ssd.model_branches import TreeGrowth

    return TreeGrowth


@pytest.mark.parametrize("temperature", [0.7, 1.2])
@pytest.mark.parametrize("kind", ["qwen2", "mistral-window"], indirect=True)
def test_sampled_guesses_of_real_layers(kind, temperature):
    """A model that drafts for itself draws from the very law that is verified, guessed or not."""
    drafter = local(tiny_target(kind), VOCABULARY, fan_out=3, lookahead=3, fallback="slow")
    made = specrs.generate(
        tiny_target(kind), PROMPTS, drafter=drafter, max_new_tokens=24, temperature=temperature, seed=2, **FOREVER
    )
    assert all(one.report.accepted == one.report.drafted > 0 for one in made)
    assert drafter.statistics.by_origin["hit"] > 0


def test_requests_leave_and_come(plain):
    """Rows finish at different steps and others take their places; nothing of them stays behind."""
    prompts = [[i, i + 1, i + 2, i] for i in range(5)]
    limits = {"max_new_tokens": 18, "eos_token_id": list(range(0, 32, 11))}
    alone = [specrs.generate(TattleLM(), p, drafter="none", **limits).ids for p in prompts]
    for max_batch in (1, 2):
        drafter = local(partner(), 32, fan_out=3, lookahead=3, steps=lambda round_: round_ % 5)
        assert ids(specrs.generate(TattleLM(), prompts, drafter=drafter, max_batch=max_batch, **limits)) == alone
        side = drafter.link.drafter
        assert not side.texts
        assert not side.drafter.states
        assert len(side.cache) == 0
        assert side.cache.memory_bytes() == 0


def test_b56_the_report_shows_hits_stale_drafts_and_waits():
    """Of the run, not of the drafter's life; and none for other drafters."""
    drafter = local(partner(), 32, fan_out=3, lookahead=3, fallback="slow")
    first, second = (run(drafter, PROMPTS[:1], max_new_tokens=n)[0].report for n in (20, 8))
    for report in (first, second):
        assert 0 < report.ahead["rounds"] <= report.target_passes
        assert 0 < report.ahead["hit_rate"] <= 1
        assert report.ahead["stale_rate"] == 0
        assert 0 < report.ahead["wait_seconds"] < report.seconds
        assert f"{report.ahead['hit_rate']:.0%} of the outcomes guessed" in str(report)
        assert report.to_dict()["ahead"] == report.ahead
    assert first.ahead["rounds"] + second.ahead["rounds"] == drafter.statistics.rounds
    assert run("cache", PROMPTS[:1])[0].report.ahead is None


def test_speculation_by_request(plain):
    for switches in itertools.product([True, False], repeat=2):
        drafter = local(partner(), 32, fan_out=3, lookahead=3)
        made = run(drafter, PROMPTS[:2], speculate=list(switches))
        assert ids(made) == plain[:2]
        assert [one.report.drafted > 0 for one in made] == list(switches)
