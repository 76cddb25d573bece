"""Several threads on one model (case B87): a forward changes what the model object runs, so they must not meet."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.engine.conftest import hf_greedy, tiny_model

import specrs
from specrs.models.hf import TransformersTarget

PROMPTS = [[i, i + 1, i + 2, i, i + 1] for i in range(12)]


@pytest.mark.parametrize("accelerate", [False, True])
def test_b87_threads_share_a_model(accelerate):
    expected = [hf_greedy("qwen2", prompt, 12) for prompt in PROMPTS]

    def run(prompt):
        # Each thread wraps the one model object by itself, as callers of generate(model, ...) do.
        target = TransformersTarget(tiny_model("qwen2"))
        if accelerate:
            target.accelerate()
        return specrs.generate(
            target, prompt, drafter="cache", draft_tokens=3, max_new_tokens=12, eos_token_id=None
        ).ids

    before = tiny_model("qwen2").config._attn_implementation
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, PROMPTS)) == expected
    assert tiny_model("qwen2").config._attn_implementation == before


def test_a_forward_of_the_models_own_survives():
    """A module whose forward was replaced by its owner (a hook, say) has it back afterwards."""
    model = tiny_model("qwen2")
    module = model.model.layers[0].mlp.down_proj
    own = type(module).forward.__get__(module)
    module.forward = own
    try:
        target = TransformersTarget(model)
        target.accelerate()
        specrs.generate(target, [1, 2, 3], drafter="none", max_new_tokens=2, eos_token_id=None)
        assert module.__dict__.get("forward") is own
    finally:
        del module.__dict__["forward"]
    assert torch.isfinite(model(torch.tensor([[1, 2]])).logits).all()
