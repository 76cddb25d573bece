"""Greedy texts of the demo model, drafted ahead by itself, by a part of it, by its text, and in a process."""

import copy
import functools

import pytest
import torch
from tests.engine.conftest import smollm2_target  # noqa: F401
from tests.ssd.toys import local

import specrs
from specrs.models.hf import TransformersTarget
from specrs.ssd import close_all

pytestmark = pytest.mark.model
PROMPT = "Repeat this list and add one line: apples and pears, apples and plums, apples and"
LIMIT = {"max_new_tokens": 20}


@functools.cache
def plain(target):
    return specrs.generate(target, PROMPT, drafter="none", **LIMIT).ids


def half(target):
    """The first half of the model's layers: a drafter that is wrong now and then."""
    model = copy.copy(target.model)
    model.config = copy.deepcopy(target.model.config)
    model._modules = dict(target.model._modules)
    model.model = copy.copy(target.model.model)
    model.model._modules = dict(target.model.model._modules)
    model.model.layers = torch.nn.ModuleList(list(target.model.model.layers)[:15])
    model.model.config = model.config
    model.config.num_hidden_layers = 15
    return TransformersTarget(model, target.tokenizer, name="half")


@pytest.mark.parametrize("who", ["itself", "half", "text"])
@pytest.mark.parametrize("fallback", ["slow", "fast", "zero"])
def test_greedy_texts(smollm2_target, who, fallback):  # noqa: F811
    model = {"itself": smollm2_target, "half": half(smollm2_target), "text": None}[who]
    drafter = local(model, smollm2_target.vocab_size, fan_out=2, lookahead=3, fallback=fallback)
    made = specrs.generate(smollm2_target, PROMPT, drafter=drafter, **LIMIT)
    assert made.ids == plain(smollm2_target)
    if who == "itself" and fallback != "fast":  # which continues seen text after a wrong guess
        assert made.report.acceptance_rate == 1.0
        assert drafter.statistics.hit_rate > 0.7


def test_by_name_in_a_process(smollm2_target, smollm2):  # noqa: F811
    """What a user calls: the drafter's process loads the model by its path, and a second call finds it running."""
    options = {"drafter": "ssd", "draft_model": str(smollm2), "fan_out": 2, "draft_tokens": 3, **LIMIT}
    try:
        for _ in range(2):
            made = specrs.generate(smollm2_target, PROMPT, **options)
            assert made.ids == plain(smollm2_target)
            assert made.report.accepted > 0
        assert made.report.method == "ssd (fixed)"
    finally:
        close_all()
