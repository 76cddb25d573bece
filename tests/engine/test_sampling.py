"""Seeds, samples and neighbours; drafts that are drawn (cases B10, B16, B27, B37, B77, B80)."""

import itertools

import pytest
from tests.engine.conftest import VOCABULARY, tiny_model, tiny_target
from tests.toys import ScriptDrafter, TattleLM, oracle

import specrs
from specrs.models.hf import TransformersTarget

PROMPTS = [[7, 3, 9, 11, 7, 3, 9], [5], [1, 2, 3, 1, 2], [4, 4, 4]]
FOREVER = {"eos_token_id": None}
SAMPLED = {"temperature": 0.8, "top_k": 12, "top_p": 0.95, **FOREVER}


def ids(made):
    return [one.ids for one in made]


@pytest.mark.parametrize("drafter", ["cache", "cache-tree", "right", "wrong", "tree"])
@pytest.mark.parametrize("draft_tokens", [1, 5])
def test_fixed_drafts_give_the_text_of_plain_decoding(drafter, draft_tokens):
    """The same seed gives the same text: drafts that are not drawn only decide how fast it comes."""
    options = {**SAMPLED, "seed": 11, "max_new_tokens": 60}
    plain = specrs.generate(TattleLM(), PROMPTS, drafter="none", **options)
    if drafter.startswith("cache"):
        drafting = {"drafter": "cache", "draft_shape": "tree" if drafter == "cache-tree" else "chain"}
    else:
        known = {tuple(p): one.ids for p, one in zip(PROMPTS, plain, strict=True)}
        drafting = {"drafter": ScriptDrafter(oracle(known, drafter, 32))}
    made = specrs.generate(TattleLM(), PROMPTS, draft_tokens=draft_tokens, **drafting, **options)
    assert ids(made) == ids(plain)
    if drafter == "right":
        assert all(one.report.acceptance_rate == 1.0 for one in made)
    if drafter in ("cache", "cache-tree"):
        assert sum(one.report.accepted for one in made) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("draft_tokens", [1, 6])
def test_self_draft_accepts_everything(kind, temperature, draft_tokens):
    """A model that drafts for itself draws from the very law that is verified."""
    made = specrs.generate(
        tiny_target(kind),
        PROMPTS,
        drafter="model",
        draft_model=tiny_target(kind),
        draft_tokens=draft_tokens,
        temperature=temperature,
        seed=2,
        max_new_tokens=24,
        **FOREVER,
    )
    for one in made:
        assert one.report.accepted == one.report.drafted > 0
        assert len(one.ids) == 24


@pytest.mark.parametrize("drafter", ["none", "cache", "model"])
def test_b16_a_row_is_what_it_is_alone(drafter):
    """B16: mixed seeded and unseeded rows, any order, any neighbours."""
    options = {**SAMPLED, "drafter": drafter, "max_new_tokens": 40}
    if drafter != "none":
        options["draft_tokens"] = 4
    if drafter == "model":
        options["draft_model"] = TattleLM(salt=0, habit=4.0)
    seeds = [1, None, 2, None]
    first = ids(specrs.generate(TattleLM(), PROMPTS, seed=seeds, **options))
    again = ids(specrs.generate(TattleLM(), PROMPTS, seed=seeds, **options))
    reverse = ids(specrs.generate(TattleLM(), PROMPTS[::-1], seed=seeds[::-1], **options))[::-1]
    for row, seed in enumerate(seeds):
        if seed is None:
            assert first[row] != again[row], "unseeded rows differ from run to run"
        else:
            alone = specrs.generate(TattleLM(), PROMPTS[row], seed=seed, **options).ids
            assert first[row] == again[row] == reverse[row] == alone


def test_b16_seeded_rows_in_tight_batches():
    options = {**SAMPLED, "drafter": "cache", "draft_tokens": 4, "max_new_tokens": 30, "seed": [3, 1, 4, 1]}
    expected = ids(specrs.generate(TattleLM(), PROMPTS, **options))
    for max_batch in (1, 2, 3):
        assert ids(specrs.generate(TattleLM(), PROMPTS, max_batch=max_batch, **options)) == expected


def test_b16_two_seeds_and_one_prompt():
    made = ids(
        specrs.generate(TattleLM(), [PROMPTS[0]] * 3, drafter="none", seed=[1, 2, 1], max_new_tokens=30, **SAMPLED)
    )
    assert made[0] == made[2] != made[1]


def test_b16_unseeded_twins_differ():
    made = ids(specrs.generate(TattleLM(), [PROMPTS[0]] * 2, drafter="none", max_new_tokens=30, **SAMPLED))
    assert made[0] != made[1]


@pytest.mark.parametrize("drafter", ["none", "cache"])
def test_samples_of_one_prompt(drafter):
    """n samples: a list, prompt by prompt, all different, repeatable, the first one that of n = 1."""
    options = {**SAMPLED, "drafter": drafter, "seed": 7, "max_new_tokens": 30}
    if drafter == "cache":
        options["draft_tokens"] = 4
    made = ids(specrs.generate(TattleLM(), PROMPTS[:2], n=3, **options))
    assert len(made) == 6
    assert len({tuple(text) for text in made}) == 6
    assert made == ids(specrs.generate(TattleLM(), PROMPTS[:2], n=3, **options))
    assert made[3] == specrs.generate(TattleLM(), PROMPTS[1], **options).ids
    assert ids(specrs.generate(TattleLM(), PROMPTS[0], n=2, **options)) == made[:2]


def test_b16_a_seed_repeats_whatever_the_clock_says():
    """Drawn drafts with the adaptive policy: a seeded text may not depend on measured times."""
    options = {**SAMPLED, "drafter": "model", "draft_model": TattleLM(habit=4.0), "seed": 5, "max_new_tokens": 60}
    texts = {tuple(specrs.generate(TattleLM(), PROMPTS[0], **options).ids) for _ in range(4)}
    assert len(texts) == 1


def test_large_seeds():
    for seed in (2**64 - 1, 2**63, 0):
        made = specrs.generate(TattleLM(), [1], drafter="cache", draft_tokens=3, seed=seed, max_new_tokens=8, **SAMPLED)
        assert len(made.ids) == 8


@pytest.mark.parametrize("switches", list(itertools.product([True, False], repeat=3)))
def test_b80_speculation_by_request(switches):
    """B80: rows without drafts cost a plain step and change no text, greedy or sampled."""
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "seed": 3, "max_new_tokens": 30, **FOREVER}
        plain = ids(specrs.generate(TattleLM(), PROMPTS[:3], drafter="none", **options))
        known = {tuple(p): text for p, text in zip(PROMPTS, plain, strict=False)}
        made = specrs.generate(
            TattleLM(),
            PROMPTS[:3],
            drafter=ScriptDrafter(oracle(known, 2, 32)),
            draft_tokens=4,
            speculate=list(switches),
            **options,
        )
        assert ids(made) == plain
        for one, on in zip(made, switches, strict=True):
            assert (one.report.drafted > 0) == on
            assert one.report.target_passes == 30 if not on else one.report.target_passes < 30


def test_b80_one_switch_for_all():
    made = specrs.generate(TattleLM(), PROMPTS, drafter="cache", draft_tokens=4, speculate=False, max_new_tokens=9)
    assert all(one.report.drafted == 0 for one in made)


def test_greedy_model_drafts():
    """A model that drafts greedily for a greedy text: accepted in part, and the text is plain decoding's."""
    options = {"draft_tokens": 4, "max_new_tokens": 30, **FOREVER}
    expected = specrs.generate(TattleLM(), PROMPTS, drafter="none", max_new_tokens=30, **FOREVER)
    made = specrs.generate(TattleLM(), PROMPTS, drafter="model", draft_model=TattleLM(habit=4.0), **options)
    assert ids(made) == ids(expected)
    assert sum(one.report.accepted for one in made) > 0


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e4])
def test_extreme_temperatures(temperature):
    options = {"seed": 1, "temperature": temperature, "max_new_tokens": 20, **FOREVER}
    made = specrs.generate(TattleLM(), PROMPTS[0], drafter="cache", draft_tokens=4, **options)
    assert made.ids == specrs.generate(TattleLM(), PROMPTS[0], drafter="none", **options).ids
    if temperature < 1e-3:
        assert made.ids == specrs.generate(TattleLM(), PROMPTS[0], drafter="none", max_new_tokens=20, **FOREVER).ids


def test_top_k_of_one_is_greedy():
    greedy = specrs.generate(TattleLM(), PROMPTS[2], drafter="none", max_new_tokens=20, **FOREVER).ids
    for name in ("none", "cache"):
        options = {"draft_tokens": 3} if name == "cache" else {}
        made = specrs.generate(
            TattleLM(), PROMPTS[2], drafter=name, temperature=1.0, top_k=1, max_new_tokens=20, **FOREVER, **options
        )
        assert made.ids == greedy


def test_vocabularies_agree():
    assert tiny_target("llama").vocab_size == VOCABULARY


@pytest.mark.parametrize("drafter", ["none", "cache", "model"])
def test_b27_equal_prompts_admitted_together(kind, drafter):
    """B27: two requests with one prompt in one step, and again after both are known: each is as it is alone."""
    target = tiny_target(kind)
    options = {"drafter": drafter, "max_new_tokens": 20, **FOREVER}
    if drafter == "model":
        options["draft_model"] = tiny_target(kind)
    prompt = PROMPTS[0] * 4
    expected = specrs.generate(target, prompt, drafter="none", max_new_tokens=20, **FOREVER).ids
    for _ in range(2):
        assert ids(specrs.generate(target, [prompt, prompt], **options)) == [expected] * 2


def test_b77_settings_of_neither_model_reach_the_other():
    """B77: what the draft model's generation configuration asks for is not applied, and no configuration changes."""
    target, draft = tiny_target("llama"), TransformersTarget(tiny_model("llama", seed=7))
    asked = {"temperature": 1.9, "do_sample": True, "suppress_tokens": [3, 5], "top_k": 7}
    configurations = [target.model.generation_config, draft.model.generation_config]
    before = [configuration.to_dict() for configuration in configurations]
    plain = specrs.generate(target, PROMPTS[0], drafter="none", max_new_tokens=24, **FOREVER)
    calm = specrs.generate(
        target, PROMPTS[0], drafter="model", draft_model=draft, draft_tokens=3, max_new_tokens=24, **FOREVER
    )
    try:
        for name, value in asked.items():
            setattr(draft.model.generation_config, name, value)
        set_before = draft.model.generation_config.to_dict()
        made = specrs.generate(
            target,
            PROMPTS[0],
            drafter="model",
            draft_model=TransformersTarget(draft.model),
            draft_tokens=3,
            max_new_tokens=24,
            **FOREVER,
        )
        assert draft.model.generation_config.to_dict() == set_before
    finally:
        for name in asked:
            setattr(draft.model.generation_config, name, before[1].get(name))
    assert made.ids == calm.ids == plain.ids
    assert (made.report.drafted, made.report.accepted) == (calm.report.drafted, calm.report.accepted)
    assert made.report.parameters["temperature"] == 0.0
    assert target.model.generation_config.to_dict() == before[0]
