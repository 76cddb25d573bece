"""Tiny random transformers models, and the two references: plain decoding here and ``generate`` there."""

import functools
import warnings

import pytest
import torch

from specrs.models.hf import TransformersTarget

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = 8


def configuration(kind):
    import transformers as t

    if kind == "llama":
        return t.LlamaConfig(**SHAPE)
    if kind == "qwen2":
        return t.Qwen2Config(**SHAPE)
    if kind == "qwen3":
        return t.Qwen3Config(**SHAPE, head_dim=8)
    if kind == "mistral-window":
        return t.MistralConfig(**SHAPE, sliding_window=WINDOW)
    if kind == "gemma3-mixed":
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        return t.Gemma3TextConfig(
            **SHAPE, head_dim=8, sliding_window=WINDOW, layer_types=layers, tie_word_embeddings=False
        )
    if kind == "gpt2":
        return t.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=512, bos_token_id=None, eos_token_id=None
        )
    raise AssertionError(kind)


#: Weights are scaled up: a random model at its usual scale writes one token for ever.
SCALES = {"llama": 12.0, "qwen2": 12.0, "qwen3": 25.0, "mistral-window": 12.0, "gemma3-mixed": 12.0, "gpt2": 12.0}
KINDS = ("llama", "qwen2", "qwen3", "mistral-window", "gemma3-mixed", "gpt2")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tiny products are not worth a second thread, least of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def tiny_model(kind, seed=0):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(configuration(kind), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(SCALES[kind])
    model.generation_config.pad_token_id = 0
    return model


@functools.cache
def tiny_target(kind, seed=0):
    return TransformersTarget(tiny_model(kind, seed), name=f"tiny-{kind}")


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def hf_greedy(kind, prompt, count, seed=0, **options):
    """Greedy text of ``transformers`` itself."""
    out = tiny_model(kind, seed).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="session")
def smollm2_target(smollm2):
    """The demo model in float32, with its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    return TransformersTarget(model, AutoTokenizer.from_pretrained(smollm2), name="smollm2-135m")
