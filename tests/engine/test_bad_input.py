"""Bad input: each a clear result or an error that names what was found and what was expected, before any work."""

import re

import numpy as np
import pytest
import torch
from tests.engine.conftest import SHAPE, tiny_model
from tests.toys import PieceTokenizer, ScriptDrafter, TattleLM

import specrs
from specrs.errors import (
    ContextLimitError,
    InvalidInputError,
    ModelNotFoundError,
    SpecrsError,
    UnknownNameError,
    UnsupportedModelError,
)
from specrs.policies.named import NamedPolicy

FOREVER = {"eos_token_id": None}
LETTERS = PieceTokenizer(["<s>", "</s>", *(chr(97 + i) for i in range(30))])

REFUSED = [
    ("empty ids", {"prompt": []}, InvalidInputError, "prompt 0 is empty; expected at least one token"),
    ("empty text", {"prompt": ""}, InvalidInputError, "prompt 0 is empty"),
    ("one empty prompt of two", {"prompt": [[1], []]}, InvalidInputError, "prompt 1 is empty"),
    ("prompt of another kind", {"prompt": 5}, InvalidInputError, "got int"),
    ("a number among texts", {"prompt": ["a", 1.5]}, InvalidInputError, "prompt 1 has shape"),
    ("fractions for ids", {"prompt": np.array([1.5])}, InvalidInputError, "prompt 0 has entries of type float64"),
    ("masks for ids", {"prompt": torch.tensor([True])}, InvalidInputError, "prompt 0 has entries of type bool"),
    ("id beyond the vocabulary", {"prompt": [1, 40]}, InvalidInputError, "prompt 0 has id 40, the model has 32 ids"),
    ("negative id", {"prompt": [1, -2]}, InvalidInputError, "prompt 0 has ids from -2 to 1, expected ids >= 0"),
    ("messages without a template", {"prompt": [{"role": "user", "content": "a"}]}, InvalidInputError, "chat template"),
    ("prompt at the context limit", {"prompt": [1] * 64}, ContextLimitError, "prompt 0 has 64 tokens.*at most 64"),
    ("max_new_tokens below 0", {"max_new_tokens": -1}, InvalidInputError, "max_new_tokens must be >= 0, got -1"),
    ("a fraction of a token", {"max_new_tokens": 2.5}, InvalidInputError, "max_new_tokens must be a whole number"),
    (
        "min above max",
        {"max_new_tokens": 2, "min_new_tokens": 3},
        InvalidInputError,
        "min_new_tokens must be at most max_new_tokens = 2, got 3",
    ),
    ("temperature below 0", {"temperature": -0.1}, InvalidInputError, r"temperature must be >= 0, got -0\.1"),
    ("temperature NaN", {"temperature": float("nan")}, InvalidInputError, "temperature must be >= 0, got nan"),
    ("infinite temperature", {"temperature": float("inf")}, InvalidInputError, "temperature"),
    ("top_p of 0", {"top_p": 0.0}, InvalidInputError, r"top_p must be in \(0, 1\].*got 0\.0"),
    ("top_p above 1", {"top_p": 1.1}, InvalidInputError, "top_p"),
    ("top_k below 0", {"top_k": -1}, InvalidInputError, r"top_k must be >= 0 \(0 is off\), got -1"),
    ("top_k fraction", {"top_k": 1.5}, InvalidInputError, "top_k must be a whole number, got 1.5"),
    ("min_p above 1", {"min_p": 2}, InvalidInputError, r"min_p must be in \[0, 1\]"),
    ("repetition_penalty of 0", {"repetition_penalty": 0.0}, InvalidInputError, "repetition_penalty must be > 0"),
    ("frequency_penalty NaN", {"frequency_penalty": float("nan")}, InvalidInputError, "frequency_penalty"),
    ("bias for no id", {"logit_bias": {99: 1.0}}, InvalidInputError, "logit_bias names id 99, the model has 32 ids"),
    ("bias for a negative id", {"logit_bias": {-1: 1.0}}, InvalidInputError, "logit_bias"),
    ("infinite bias", {"logit_bias": {3: float("inf")}}, InvalidInputError, r"logit_bias\[3\].*got inf"),
    ("seed below 0", {"seed": -1}, InvalidInputError, "seed must be in"),
    ("seed too large", {"seed": 2**64}, InvalidInputError, "seed must be in"),
    ("too many seeds", {"seed": [1, 2]}, InvalidInputError, "seed has 2 values, expected one or one per prompt: 1"),
    ("too many switches", {"speculate": [True, False]}, InvalidInputError, "speculate has 2 values"),
    ("eos beyond the vocabulary", {"eos_token_id": 32}, InvalidInputError, "stop id 32 is not an id of the model"),
    ("negative stop id", {"stop_token_ids": [-1]}, InvalidInputError, "stop id -1 is not an id"),
    ("eos as text", {"eos_token_id": "</s>"}, InvalidInputError, r"eos_token_id must be ids.*got '</s>'"),
    ("empty stop string", {"stop": ["a", ""]}, InvalidInputError, "stop strings must not be empty"),
    ("logprobs below 0", {"logprobs": -1}, InvalidInputError, r"logprobs must be in \[0, 32\], got -1"),
    ("logprobs above the vocabulary", {"logprobs": 33}, InvalidInputError, "logprobs"),
    ("no samples", {"n": 0}, InvalidInputError, "n must be >= 1, got 0"),
    ("no batch", {"max_batch": 0}, InvalidInputError, "max_batch must be >= 1, got 0"),
    ("unknown drafter", {"drafter": "cahce"}, UnknownNameError, "'cahce'; did you mean 'cache'.*none, cache, model"),
    ("model drafter without a model", {"drafter": "model"}, InvalidInputError, "needs draft_model="),
    (
        "draft model for nobody",
        {"draft_model": TattleLM()},
        InvalidInputError,
        "draft_model is for drafter='model', 'hybrid' or 'ssd'",
    ),
    ("unknown shape", {"draft_shape": "star"}, InvalidInputError, "one of 'chain', 'tree', got 'star'"),
    ("shape of nothing", {"drafter": "none", "draft_shape": "tree"}, InvalidInputError, "draft_shape='tree' is for"),
    ("draft_tokens below 0", {"draft_tokens": -1}, InvalidInputError, "draft_tokens must be >= 0, got -1"),
    ("unknown option", {"temprature": 1.0}, UnknownNameError, "'temprature' .did you mean 'temperature'"),
    ("another unknown option", {"max_tokens": 5}, UnknownNameError, "did you mean 'max_new_tokens'"),
    ("an option like nothing", {"zzz": 5}, UnknownNameError, "unknown option 'zzz'; known: "),
    ("two unknown options", {"stopp": 5, "sead": 1}, UnknownNameError, "'stop'.*'seed'"),
    (
        "a draft model beside a drafter",
        {"drafter": ScriptDrafter(lambda r, b: []), "draft_model": TattleLM()},
        InvalidInputError,
        "'script' was given as an object",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_refused_before_any_work(options, error, message):
    target = TattleLM(32, max_context=64, tokenizer=LETTERS)
    options = {"prompt": [1, 2], "drafter": "cache", **options}
    with pytest.raises(error) as caught:
        specrs.generate(target, **options)
    assert isinstance(caught.value, SpecrsError)
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)
    assert target.forwards == []


def test_sessions_hold_one_text():
    target = TattleLM()
    session = specrs.Session(target)
    other = specrs.Session(target)
    for prompts, given, n, found in (
        ([[1], [2]], session, 1, "1 sessions for 2 prompts and n=1"),
        ([[1], [2]], [session, session], 1, "1 sessions for 2 prompts and n=1"),
        ([[1]], [session, other], 1, "2 sessions for 1 prompts and n=1"),
        ([1], session, 2, "1 sessions for 1 prompts and n=2"),
    ):
        with pytest.raises(InvalidInputError, match=f"a session continues one text: got {found}; expected n=1 and"):
            specrs.generate(target, prompts, session=given, n=n)


def test_text_without_a_tokenizer():
    with pytest.raises(InvalidInputError, match="toy was loaded without a tokenizer; pass token ids instead of text"):
        specrs.generate(TattleLM(), "hello")
    with pytest.raises(InvalidInputError, match="need a tokenizer, and the model has none"):
        specrs.generate(TattleLM(), [1], stop="x")


def test_max_new_tokens_of_zero_is_a_result():
    for prompt in ([1, 2], [[1], [2, 3]]):
        made = specrs.generate(TattleLM(), prompt, drafter="none", max_new_tokens=0)
        for one in made if isinstance(made, list) else [made]:
            assert (one.ids, one.finish_reason) == ([], "length")


def test_zero_tokens_at_the_context_limit_is_a_result():
    made = specrs.generate(TattleLM(max_context=4), [1] * 4, drafter="none", max_new_tokens=0)
    assert made.ids == []


def test_a_stop_string_that_never_comes():
    target = TattleLM(32, tokenizer=LETTERS)
    made = specrs.generate(
        target, "ab", stop=["never seen"], drafter="cache", draft_tokens=3, max_new_tokens=9, **FOREVER
    )
    assert (len(made.ids), made.finish_reason, made.stopped_by) == (9, "length", None)


def test_mixed_lengths_are_a_result():
    prompts = [[1], [2] * 30, [3] * 7]
    made = specrs.generate(TattleLM(), prompts, drafter="cache", draft_tokens=4, max_new_tokens=8, **FOREVER)
    assert [one.ids for one in made] == [
        specrs.generate(TattleLM(), p, drafter="none", max_new_tokens=8, **FOREVER).ids for p in prompts
    ]


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such-folder", "no-such.gguf"])
def test_a_model_that_is_not_there(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match=re.escape(name)):
        specrs.load(name)


def test_b20_mamba_is_refused_by_name():
    """B20: a recurrent state cannot be rolled back: refused before the first token."""
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*cannot be rolled back"):
        specrs.load(model)


def test_b20_hybrid_layers_are_refused_by_name():
    from transformers import Lfm2Config, Lfm2ForCausalLM

    config = Lfm2Config(**{**SHAPE, "num_hidden_layers": 2}, layer_types=["conv", "full_attention"])
    with pytest.raises(UnsupportedModelError, match=r"Lfm2ForCausalLM has layers of type conv.*full_attention"):
        specrs.load(Lfm2ForCausalLM(config))


def test_b20_generate_refuses_as_load_does():
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM"):
        specrs.generate(model, [1, 2])
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM"):
        specrs.generate(TattleLM(), [1, 2], drafter="model", draft_model=model)


def test_encoder_decoders_are_refused_by_name():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="T5ForConditionalGeneration is an encoder-decoder"):
        specrs.load(T5ForConditionalGeneration(config))


def test_models_without_our_attention_are_refused_by_name():
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(UnsupportedModelError, match="BloomForCausalLM does not use the attention interface"):
        specrs.load(model)


def test_things_that_are_no_models_are_refused():
    with pytest.raises(UnsupportedModelError, match="expected a transformers PreTrainedModel, got Linear"):
        specrs.load(torch.nn.Linear(2, 2))


def test_a_base_model_without_a_head_is_refused():
    from transformers import LlamaConfig, LlamaModel

    with pytest.raises(UnsupportedModelError, match="LlamaModel has no output head"):
        specrs.load(LlamaModel(LlamaConfig(**SHAPE)))


def test_a_loaded_model_keeps_its_own_ways():
    """The caller's object is as it was: attention, modules, and what it writes by itself."""
    model = tiny_model("llama")
    ids = torch.tensor([[7, 3, 9, 11]])
    before = (model.config._attn_implementation, model(ids).logits.detach().clone())
    specrs.generate(model, [7, 3, 9], max_new_tokens=5, draft_tokens=2)
    assert model.config._attn_implementation == before[0]
    assert torch.equal(model(ids).logits, before[1])


def test_policies_that_look_at_drawn_tokens_are_refused():
    from specrs.drafters.model import ModelDrafter
    from specrs.engine.engine import Engine
    from specrs.report.recorder import Recorder

    options = {"max_tokens": 8, "alpha": 2.2, "convention": "floor", "shrinks": "once"}
    peeking = NamedPolicy("libra_alpha", options, drawn=True, stepwise=True)
    with pytest.raises(InvalidInputError, match=r"'libra_alpha'.*'model'.*bias"):
        Engine(TattleLM(), ModelDrafter(TattleLM(), 32), peeking, Recorder())


def test_seeds_of_other_kinds():
    for seed in (np.int64(3), (3,), [3]):
        made = specrs.generate(TattleLM(), [1], drafter="none", seed=seed, temperature=1.0, max_new_tokens=6, **FOREVER)
        assert len(made.ids) == 6
