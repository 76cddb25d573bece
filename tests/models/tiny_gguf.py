"""Writes a tiny Qwen2 model with a byte-level vocabulary as a GGUF file."""

from pathlib import Path

import gguf
import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel

START, END = 1, 2
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "Ġi", "ok", "ĠĠ"]
_LAYERS = 2


def reference_network(*, tied: bool) -> transformers.Qwen2ForCausalLM:
    """The model that the file holds, made from a fixed seed."""
    config = transformers.Qwen2Config(
        vocab_size=len(_TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_theta=10000.0,
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = transformers.Qwen2ForCausalLM(config).eval()
        for weight in network.parameters():  # norms and biases too: a fresh model's are ones and zeros
            torch.nn.init.normal_(weight, std=0.3)
    return network


def write_gguf(path: Path, network: transformers.Qwen2ForCausalLM, architecture: str = "qwen2") -> None:
    config = network.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(_TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(_TOKENS) - 3))
    writer.add_token_merges(["Ġ i", "o k", "Ġ Ġ"])
    writer.add_eos_token_id(END)
    writer.add_bos_token_id(START)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, _LAYERS)
    for name, weight in network.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
