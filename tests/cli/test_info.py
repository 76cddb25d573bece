"""``specrs info``: what can be done with a model, from its configuration alone (case B75)."""

import json

import numpy as np
import pytest
import torch
from tests.engine.conftest import configuration, tiny_model

import specrs
from specrs.cli import main
from specrs.methods import DRAFTERS
from specrs.verification.named import RULES


def facts_of(folder, capsys, *options):
    assert main(["info", str(folder), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gemma3-mixed", "gpt2"])
def test_facts_are_those_of_the_loaded_model(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    model = tiny_model(kind)
    model.save_pretrained(tmp_path)
    facts = facts_of(tmp_path, capsys)
    target = specrs.load(model)
    assert facts["architecture"] == type(model).__name__
    assert facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert (facts["vocab_size"], facts["max_context"]) == (target.vocab_size, target.max_context)
    assert facts["eos_token_ids"] == list(target.eos_token_ids)
    assert facts["accelerated"] == target.accelerated
    assert facts["row_invariant"] == (target.accelerated and kind != "gpt2")
    with monkeypatch.context() as uneven:
        uneven.setattr(torch, "get_num_threads", lambda: 5)
        assert not facts_of(tmp_path, capsys)["row_invariant"]
        assert facts_of(tmp_path, capsys, "--dtype", "bfloat16")["row_invariant"] == facts["row_invariant"]
    assert (facts["window"] is not None) == (kind in ("mistral-window", "gemma3-mixed"))
    sizes = []
    for capacity in (64, 128):
        state = target.new_state(capacity)
        target.prefill(state, np.arange(9, dtype=np.uint32))
        sizes.append(state.size_bytes())
    assert sizes[1] - sizes[0] == 64 * facts["memory_bytes_per_token"]


def test_b75_one_matrix_of_every_method(tmp_path, capsys):
    configuration("qwen2").save_pretrained(tmp_path)  # no weights: nothing is loaded
    assert main(["info", str(tmp_path), "--dtype", "bfloat16"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.split("\n\n")[1].splitlines()[1:]}
    assert set(rows) == set(DRAFTERS)
    assert rows["model"].split()[1] == "needed"
    assert all(f"{rule}=NUMBER" in text for rule in RULES)
    assert "Qwen2ForCausalLM" in text
    assert "bfloat16" in text


@pytest.mark.parametrize(("kind", "reason"), [("Mamba", "cannot be rolled back"), ("T5", "T5Config")])
def test_what_cannot_be_run_is_said_with_its_reason(kind, reason, tmp_path, capsys):
    import transformers

    small = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 30} if kind == "Mamba" else {}
    getattr(transformers, f"{kind}Config")(**small).save_pretrained(tmp_path)
    assert main(["info", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "is not supported: " in text
    assert reason in text


def test_what_is_not_there_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    assert main(["info", str(tmp_path / "nowhere")]) == 1
    assert "no model folder at" in capsys.readouterr().err
    assert main(["info", str(tmp_path)]) == 1
    assert "no model configuration" in capsys.readouterr().err
    assert main(["info", "smollm2-135m"]) == 1
    assert "`specrs models fetch smollm2-135m` gets it" in capsys.readouterr().err
    assert main(["info", "model.gguf"]) == 2
    assert "GGUF" in capsys.readouterr().err
