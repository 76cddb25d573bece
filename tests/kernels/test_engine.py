"""The engine's verify stage on the kernels: the texts are those of the Rust rules, whatever is drafted and drawn."""

import pytest
from tests.engine.conftest import tiny_target
from tests.kernels.emulator import guarded_launches, poisoned

import specrs
from specrs.engine import verifier

PROMPTS = [[7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9], [5], list(range(20, 38))]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("how", ["none", "cache", "tree", "model"])
def test_a_device_gives_the_text_of_the_host(stand_in, monkeypatch, how, temperature):
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 5)
    options = {"drafter": "cache" if how == "tree" else how, "max_new_tokens": 12, "eos_token_id": None}
    options |= {"draft_tokens": 4, "temperature": temperature, "top_p": 0.95, "seed": 11}
    if how == "tree":
        options["draft_shape"] = "tree"
    if how == "model":
        options["draft_model"] = tiny_target("llama", seed=7)
    expected = specrs.generate(tiny_target("llama"), PROMPTS, **options)
    calls = []

    def on_device(*arguments):
        calls.append(len(arguments[0]))
        return verifier.on_device(*arguments)

    monkeypatch.setattr(verifier, "verify", on_device)
    with poisoned(), guarded_launches():
        made = specrs.generate(tiny_target("llama"), PROMPTS, **options)
    assert [one.ids for one in made] == [one.ids for one in expected]
    assert [one.report.accepted for one in made] == [one.report.accepted for one in expected]
    assert calls[0] == len(PROMPTS)
