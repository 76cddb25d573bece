"""Tiny models for the tests of the transformers adapters, and a streamer that remembers."""

import functools

import torch
import transformers as t
from transformers.generation.streamers import BaseStreamer

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
#: Repeats itself, so that the cache has something to propose.
PROMPT = [5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10, 5, 6, 7]


@functools.cache
def tiny(kind="llama", scale=6.0, seed=0):
    config = t.LlamaConfig(**SHAPE) if kind == "llama" else t.MistralConfig(**SHAPE, sliding_window=8)
    with torch.random.fork_rng(), torch.no_grad():  # the tests' own seeds stay theirs
        torch.manual_seed(seed)
        model = t.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)  # a random model at its usual scale writes one token for ever
    return model


def batch():
    """Two prompts of different lengths, padded on the left."""
    ids = torch.tensor([[0, 0, 0, *PROMPT[:12]], PROMPT])
    return {"input_ids": ids, "attention_mask": (torch.arange(15) >= torch.tensor([[3], [0]])).long()}


def single():
    return {"input_ids": torch.tensor([PROMPT]), "attention_mask": torch.ones(1, len(PROMPT), dtype=torch.long)}


class Listener(BaseStreamer):
    def __init__(self):
        self.heard = []

    def put(self, value):
        self.heard.append(value.tolist())

    def end(self):
        self.heard.append("end")
