"""The adaptive length never changes a text; what it decides is tested in tests/policy."""

import pytest
from tests.engine.conftest import hf_greedy, tiny_target
from tests.toys import TattleLM

import specrs

FOREVER = {"eos_token_id": None}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_the_policy_changes_no_text(temperature, shape):
    prompts = [[7, 3, 9, 7, 3], [1], [2, 2, 2]]
    options = {"max_new_tokens": 60, "temperature": temperature, "seed": 3, **FOREVER}
    plain = specrs.generate(TattleLM(), prompts, drafter="none", **options)
    made = specrs.generate(TattleLM(), prompts, drafter="cache", draft_shape=shape, **options)
    assert [one.ids for one in made] == [one.ids for one in plain]
    assert made[0].report.method == "cache (libra)"


def test_the_policy_changes_no_text_of_a_model(kind):
    prompt = [7, 3, 9, 11, 7, 3, 9]
    options = {"max_new_tokens": 20, **FOREVER}
    expected = hf_greedy(kind, prompt, 20)
    assert specrs.generate(tiny_target(kind), prompt, **options).ids == expected
    made = specrs.generate(tiny_target(kind), prompt, drafter="model", draft_model=tiny_target(kind), **options)
    assert made.ids == expected
