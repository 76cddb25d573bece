"""The adaptive length never changes a text; what it decides is tested in tests/policy."""

import pytest
from tests.engine.conftest import VOCABULARY, hf_greedy, tiny_target
from tests.toys import TattleLM

import specrs
from specrs.drafters.model import ModelDrafter
from specrs.methods import make_policy

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


def test_reading_a_prompt_is_no_cost_of_drafting():
    """A draft model that meets a text late reads it first; the policy does not take that for a draft's price."""
    target, draft = tiny_target("llama"), tiny_target("llama")
    session = specrs.Session(target)
    prompt = [(5 * i) % VOCABULARY for i in range(40)]
    for _ in range(2):  # the second time the target has read the prompt, and the draft model has not
        session.forget_drafters()
        drafter = ModelDrafter(draft, VOCABULARY)
        policy = make_policy(target, drafter, "fixed", {"tokens": 3, "backoff": False})
        observed, observe = [], policy.observe
        policy.observe = lambda *round_, rounds=observed, observe=observe: (rounds.append(1), observe(*round_))
        made = specrs.generate(
            target, prompt, drafter=drafter, policy=policy, session=session, max_new_tokens=12, **FOREVER
        )
        assert made.report.accepted_by_source == {"model": made.report.accepted}
        assert len(observed) == made.report.target_passes - 1 > 1, "all but the first round, which read the prompt"
