"""Sampling through ``generate``: the law of transformers' warpers, and texts that a seed repeats."""

import numpy as np
import pytest
import torch
import transformers as t
from tests.hf.tiny import batch, single, tiny
from transformers.generation import logits_process as lp

import specrs.hf
from specrs import _core
from specrs.hf.law import split_processors

SAMPLED = {"max_new_tokens": 16, "do_sample": True, "pad_token_id": 0}


def draw(**options):
    return tiny("llama", 3.0).generate(**batch(), **{**SAMPLED, **options}, custom_generate=specrs.hf.generate).tolist()


def test_torchs_seed_repeats_a_text_and_another_gives_another():
    torch.manual_seed(5)
    first = draw()
    torch.manual_seed(5)
    assert draw() == first
    assert draw() != first  # the generator has moved on
    assert draw(seed=7) == draw(seed=7) != first


@pytest.mark.parametrize(
    "law", [{}, {"temperature": 0.7, "top_k": 20, "top_p": 0.8}, {"min_p": 0.05}, {"typical_p": 0.6}]
)
def test_a_seed_draws_the_same_text_with_drafts_and_without(law):
    plain = draw(seed=3, drafter="none", **law)
    assert draw(seed=3, draft_tokens=6, **law) == plain
    assert draw(seed=3, max_batch=1, **law) == plain


def test_samples_of_one_prompt_differ():
    out = tiny("llama", 3.0).generate(
        **single(), **SAMPLED, num_return_sequences=4, custom_generate=specrs.hf.generate, seed=1
    )
    assert len({tuple(row) for row in out.tolist()}) == 4


def test_greedy_draws_nothing_from_torchs_generator():
    before = torch.random.get_rng_state()
    tiny().generate(**single(), max_new_tokens=4, do_sample=False, pad_token_id=0, custom_generate=specrs.hf.generate)
    assert torch.equal(torch.random.get_rng_state(), before)


LAWS = {
    "temperature": [lp.TemperatureLogitsWarper(0.7)],
    "top_k": [lp.TopKLogitsWarper(5)],
    "top_p": [lp.TopPLogitsWarper(0.8)],
    "min_p": [lp.MinPLogitsWarper(0.1)],
    "all": [
        lp.TemperatureLogitsWarper(1.4),
        lp.TopKLogitsWarper(12),
        lp.TopPLogitsWarper(0.7),
        lp.MinPLogitsWarper(0.08),
        lp.LogitNormalization(),
    ],
}


@pytest.mark.parametrize("name", LAWS)
def test_the_verifiers_truncation_is_that_of_the_warpers(name):
    warpers = LAWS[name]
    rows, law, tail = split_processors([lp.RepetitionPenaltyLogitsProcessor(1.1), *warpers], sampled=True)
    assert len(rows) == 1
    assert tail == warpers
    logits = torch.randn(40, 61, generator=torch.Generator().manual_seed(0)) * 3
    scores = logits.clone()
    for warper in warpers:
        scores = warper(torch.zeros(40, 1, dtype=torch.long), scores)
    law = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **law}
    _, probs = _core.draw(
        logits.numpy(),
        "f32",
        *(
            np.full(40, law[n], np.int32 if n == "top_k" else np.float32)
            for n in ("temperature", "top_k", "top_p", "min_p")
        ),
        np.full(40, 0.5),
        True,
    )
    np.testing.assert_allclose(probs, scores.softmax(-1).numpy(), atol=2e-6)


@pytest.mark.parametrize(
    "unusual",
    [
        [lp.TopPLogitsWarper(0.5, min_tokens_to_keep=3)],
        [lp.TopPLogitsWarper(0.8), lp.TemperatureLogitsWarper(0.7)],
        [lp.TopPLogitsWarper(0.8), lp.TypicalLogitsWarper(0.7)],
    ],
    ids=["three kept", "other order", "another warper"],
)
def test_other_lists_of_warpers_run_as_they_are(unusual):
    rows, law, tail = split_processors(unusual, sampled=True)
    assert rows + tail == unusual
    assert type(rows[-1]) is not lp.MinPLogitsWarper
    if tail:  # only a temperature at the very end is ours
        assert law == {"temperature": 0.7}


def test_the_first_two_tokens_have_the_law_of_transformers():
    model = tiny("llama", 1.5)
    count, width = 400, 6
    options = {"do_sample": True, "pad_token_id": 0, "top_k": width, "temperature": 0.8, "repetition_penalty": 1.2}
    out = model.generate(
        **single(),
        **options,
        max_new_tokens=2,
        num_return_sequences=count,
        custom_generate=specrs.hf.generate,
        max_batch=count,
        draft_tokens=3,
        seed=11,
        return_dict_in_generate=True,
        output_scores=True,
    )
    first = out.scores[0].softmax(-1)
    torch.testing.assert_close(first, first[:1].expand(count, -1))  # one law for all samples of a prompt
    observed = torch.bincount(out.sequences[:, 15], minlength=61).double()
    assert _chi_square(observed, first[0].double() * count) < 30  # 5 degrees: 1e-5
    # Second tokens pooled: expected counts are the sum of each row's own law, given its first token.
    second = out.scores[1].softmax(-1).double().sum(0)
    assert _chi_square(torch.bincount(out.sequences[:, 16], minlength=61).double(), second) < 80
    # And that recorded law is what transformers computes for the same text.
    theirs = model.generate(
        out.sequences[:1, :16],
        attention_mask=torch.ones(1, 16, dtype=torch.long),
        **options,
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    torch.testing.assert_close(out.scores[1][:1].softmax(-1), theirs.scores[0].softmax(-1), atol=1e-5, rtol=1e-4)


def _chi_square(observed, expected):
    known = expected > 5
    assert float(observed[expected == 0].sum()) == 0
    return float((((observed - expected) ** 2)[known] / expected[known]).sum())


def test_watermarks_follow_the_row():
    config = t.WatermarkingConfig(bias=4.0, seeding_scheme="lefthash")
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, "watermarking_config": config}
    theirs = tiny().generate(**single(), **options)
    ours = tiny().generate(**single(), **options, custom_generate=specrs.hf.generate, draft_tokens=6)
    assert ours.tolist() == theirs.tolist()
