"""A model object keeps its target: nothing is wrapped or measured twice, and nothing is kept alive."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from tests.hf.tiny import PROMPT, single, tiny

import specrs
import specrs.hf
from specrs.policies.cost import CostTable


@pytest.fixture
def model():
    return copy.deepcopy(tiny())


@pytest.fixture
def measured(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))  # where measured costs are stored
    targets = []
    measure = CostTable.measure.__func__
    monkeypatch.setattr(
        CostTable, "measure", classmethod(lambda cls, target: targets.append(target) or measure(cls, target))
    )
    return targets


def test_costs_are_measured_once_per_model(model, measured):
    for _ in range(2):
        specrs.generate(model, PROMPT, max_new_tokens=3)
        model.generate(**single(), max_new_tokens=3, pad_token_id=0, custom_generate=specrs.hf.generate)
    assert len(measured) == 1
    specrs.generate(tiny("llama", 3.0), PROMPT, max_new_tokens=3)
    assert specrs.load(model) is specrs.load(model)


def test_a_converted_model_is_measured_again(model):
    first = specrs.load(model)
    assert specrs.load(model.to(torch.float64)) is not first
    assert specrs.load(model.to(torch.float32)) is first


def test_a_changed_generation_configuration_is_seen(model):
    assert specrs.load(model).eos_token_ids == ()
    model.generation_config.eos_token_id = [4]
    assert specrs.load(model).eos_token_ids == (4,)


def test_copies_and_pickles_start_without_it(model):
    target = specrs.load(model)
    assert specrs.load(copy.deepcopy(model)) is not target
    assert specrs.load(pickle.loads(pickle.dumps(model))).model is not model


def test_model_and_target_die_together(model):
    kept = weakref.ref(specrs.load(model))
    own = copy.deepcopy(model)
    other = weakref.ref(specrs.load(own))
    del own
    gc.collect()
    assert other() is None
    assert kept() is not None


def test_settings_that_we_leave_out_are_named_once_and_honoured_inside_generate(model):
    model.generation_config.suppress_tokens = [3]
    out = model.generate(
        **single(), max_new_tokens=4, do_sample=False, pad_token_id=0, custom_generate=specrs.hf.generate
    )
    assert out.tolist() == model.generate(**single(), max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()
    with pytest.warns(UserWarning, match=r"suppress_tokens.*does not apply"):
        specrs.generate(model, PROMPT, max_new_tokens=2)
    specrs.generate(model, PROMPT, max_new_tokens=2)
