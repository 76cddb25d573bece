"""The engine under a relaxed rule: metered, budgeted, and refused where it has no meaning."""

import logging

import numpy as np
import pytest
from tests.engine.conftest import tiny_target

import specrs
from specrs.engine.relaxed import pair_of
from specrs.errors import InvalidInputError
from specrs.verification import (
    Cascade,
    ChainRejection,
    EnsembleHead,
    Fuzzy,
    Lenience,
    StaticEnsemble,
    TopKAcceptance,
    Typical,
)
from specrs.verification.named import named_rule

PROMPT = [7, 3, 9, 11, 7, 3, 9]


def run(target, draft, **options):
    settings = {"max_new_tokens": 24, "draft_tokens": 4, "temperature": 1.0, "seed": 5, "eos_token_id": None}
    return specrs.generate(target, PROMPT, drafter="model", draft_model=draft, **(settings | options))


@pytest.fixture
def pair():
    return tiny_target("llama"), tiny_target("llama", seed=7)


def test_weight_one_is_the_exact_text(pair):
    exact = run(*pair)
    relaxed = run(*pair, verification=StaticEnsemble(1.0))
    assert relaxed.ids == exact.ids
    assert (exact.report.lossless, exact.report.bias) == (True, None)
    assert (relaxed.report.lossless, relaxed.report.bias) == (False, 0)


def test_a_light_target_accepts_more_and_gathers_bias(pair):
    accepted = [
        sum(run(*pair, verification=StaticEnsemble(w), seed=s).report.accepted for s in range(6)) for w in (1.0, 0.05)
    ]
    assert accepted[1] > accepted[0]
    assert run(*pair, verification=StaticEnsemble(0.05)).report.bias > 0


def test_no_budget_left_is_exact(pair):
    made = run(*pair, verification=StaticEnsemble(0.05), bias_budget=0)
    assert made.ids == run(*pair).ids
    assert made.report.bias == 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("ensemble=0.3", StaticEnsemble(0.3)),
        ("lenience=0.5", Lenience(0.5)),
        ("typical=0.09", Typical()),
        ("top-k=4", TopKAcceptance(4)),
        ("cascade=0.2", Cascade(0.2)),
        ("fuzzy=0.1", Fuzzy(0.1)),
    ],
)
def test_a_rule_may_be_named(pair, text, rule):
    assert named_rule(text) == rule
    named, given = run(*pair, verification=text), run(*pair, verification=rule)
    assert named.ids == given.ids
    assert (named.report.lossless, named.report.bias) == (False, given.report.bias)


def test_names_that_are_none_and_numbers_that_do_not_fit(pair):
    assert named_rule("some/folder/head") is None
    for text in ("lenience", "lenience=much", "top-k=1.5", "ensemble=0"):
        with pytest.raises(InvalidInputError, match=r"takes a|must be in"):
            run(*pair, verification=text)


def head_of(target, draft, bias):
    pair = pair_of(target, draft)
    return EnsembleHead(np.zeros(pair.draft_size + pair.target_size, np.float32), bias, pair, "test")


def test_a_head_of_constant_weight_is_the_static_ensemble(pair, tmp_path, caplog):
    file = head_of(*pair, 0.0).save(tmp_path / "head")
    with caplog.at_level(logging.WARNING):
        dynamic = run(*pair, verification=file)
    static = run(*pair, verification=StaticEnsemble(0.5))
    assert dynamic.ids == static.ids
    assert dynamic.report.bias == pytest.approx(static.report.bias)


def test_hidden_states_are_those_of_the_rows(pair):
    torch = pytest.importorskip("torch")
    target = pair[0]
    target.keeps_hidden = True
    state = target.new_state(32)
    draft = specrs.types.Draft.chains([[4, 5, 6]])
    scores = target.score([state], [np.array(PROMPT, np.uint32)], draft)
    assert scores.hidden.shape == (4, target.model.config.hidden_size)
    head = target.model.get_output_embeddings()
    again = head(torch.from_numpy(scores.hidden)).detach()
    assert torch.allclose(again, scores.logits.float(), atol=1e-4)


def test_a_head_that_reads_states_weighs_each_token(pair):
    target, draft = pair
    sizes = pair_of(target, draft)
    weight = np.random.default_rng(0).standard_normal(sizes.draft_size + sizes.target_size).astype(np.float32)
    prompts = [PROMPT, [5, 6], [1, 2, 3, 4]]
    head = EnsembleHead(weight, 0.0, sizes, "test")
    options = {"drafter": "model", "draft_model": draft, "verification": head, "draft_tokens": 4}
    options |= {"max_new_tokens": 16, "temperature": 1.0, "seed": 3, "eos_token_id": None}
    together = specrs.generate(target, prompts, **options)
    for prompt, made in zip(prompts, together, strict=True):
        assert specrs.generate(target, prompt, **options).ids == made.ids


def test_bad_wishes_are_refused(pair, tmp_path):
    target, draft = pair
    with pytest.raises(InvalidInputError, match="temperature above 0"):
        run(*pair, verification=StaticEnsemble(0.5), temperature=0.0)
    with pytest.raises(InvalidInputError, match="bias_budget is for"):
        run(*pair, bias_budget=1.0)
    with pytest.raises(InvalidInputError, match="relaxed rule"):
        run(*pair, verification=ChainRejection())
    with pytest.raises(InvalidInputError, match="at least 0"):
        run(*pair, verification=StaticEnsemble(0.5), bias_budget=-1.0)
    file = EnsembleHead(np.zeros(4, np.float32), 0.0, specrs.verification.Pair("a", "b", 2, 2)).save(tmp_path / "other")
    with pytest.raises(InvalidInputError, match="was trained for"):
        run(*pair, verification=file)
    with pytest.raises(InvalidInputError, match="drafter='model'"):
        specrs.generate(target, PROMPT, temperature=1.0, verification=head_of(target, draft, 0.0))
