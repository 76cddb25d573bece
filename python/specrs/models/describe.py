"""What specrs can do with a model, told from its configuration: no weights are read."""

from __future__ import annotations

from collections import Counter
from typing import Any

from specrs.errors import InvalidInputError, ModelNotFoundError, UnsupportedModelError, VocabularyMismatchError
from specrs.methods import DRAFT_MODEL, DRAFTERS, SHAPES_OF
from specrs.models import cache
from specrs.models.catalog import CATALOG
from specrs.models.loading import check_dtype, require_folder, require_hf


def describe(name: str, *, dtype: str | None = None) -> dict[str, Any]:
    """Return the facts of a model that decide how specrs runs it, ready for JSON.

    Parameters
    ----------
    name : str
        An embedded model that is on this machine, a folder, or a hub name.
    dtype : {'float32', 'bfloat16', 'float16'}, optional
        Default: as the model was saved.

    Returns
    -------
    dict
        ``supported`` and, where it is False, ``reason``. Otherwise what the model is (``architecture``, ``parameters``,
        ``weight_bytes``, ``layers`` by kind, ``window``, ``max_context``, ``eos_token_ids``), what a token's keys and
        values take (``memory_bytes_per_token``), whether scored rows have the bits of plain decoding on this processor
        (``row_invariant``), the embedded ``draft_models`` of its vocabulary, and the ``drafters``.

    Raises
    ------
    ModelNotFoundError
        No configuration is there by that name.
    """
    require_hf()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from specrs.models.hf import TransformersTarget

    check_dtype(dtype)
    path = _folder(name)
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"no model configuration could be read from {name!r} ({error})") from error
    text = config.get_text_config(decoder=True)
    saved = getattr(text, "dtype", None) or torch.float32
    chosen = saved if dtype is None else getattr(torch, dtype)
    facts: dict[str, Any] = {"name": name, "dtype": str(chosen).removeprefix("torch.")}
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=chosen)
        _take_generation_config(model, path)
        target = TransformersTarget(model, name=name)
    except (ValueError, UnsupportedModelError) as error:
        return facts | {"supported": False, "reason": str(error)}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    heads = int(text.num_attention_heads)
    key_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    size = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    window = getattr(text, "sliding_window", None)
    everywhere = "full_attention" if window is None else "sliding_attention"
    kinds = getattr(text, "layer_types", None) or [everywhere] * int(text.num_hidden_layers)
    accelerated, invariant = _kernels(model, text, chosen, size)
    item = 4 if accelerated else chosen.itemsize
    return facts | {
        "supported": True,
        "architecture": type(model).__name__,
        "parameters": parameters,
        "weight_bytes": parameters * chosen.itemsize,
        "layers": dict(Counter(kinds)),
        "window": window if "sliding_attention" in kinds else None,
        "head_size": size,
        "vocab_size": target.vocab_size,
        "max_context": target.max_context,
        "eos_token_ids": list(target.eos_token_ids),
        "memory_bytes_per_token": 2 * len(kinds) * key_heads * size * item,
        "accelerated": accelerated,
        "row_invariant": invariant,
        "draft_models": _draft_models(path, parameters * chosen.itemsize),
        "drafters": {
            drafter: {
                "what": what,
                "draft_model": DRAFT_MODEL.get(drafter, "none"),
                "shapes": list(SHAPES_OF.get(drafter, ("chain",))),
            }
            for drafter, what in DRAFTERS.items()
        },
    }


def _folder(name: str) -> str:
    if name.endswith(".gguf"):
        raise InvalidInputError(f"expected a folder or a name, got the GGUF file {name!r}")
    if name in CATALOG:
        if not cache.is_ready(CATALOG[name]):
            raise ModelNotFoundError(f"{name} is not on this machine yet; `specrs models fetch {name}` gets it")
        return str(cache.dense_folder(CATALOG[name]))
    require_folder(name)
    return name


def _take_generation_config(model: Any, path: str) -> None:
    """Give the model what lies beside its configuration; a model without one has made its own."""
    from transformers import GenerationConfig

    try:
        model.generation_config = GenerationConfig.from_pretrained(path)
    except OSError:
        return


def _kernels(model: Any, config: Any, dtype: Any, head_size: int) -> tuple[bool, bool]:
    """Return whether our kernels run in its forward on this CPU, and whether they make it row-invariant."""
    import torch
    from transformers.pytorch_utils import Conv1D

    from specrs.ops.attend import takes
    from specrs.ops.linear import worthwhile

    accelerated = worthwhile(dtype) and any(isinstance(module, torch.nn.Linear) for module in model.modules())
    own_products = not any(isinstance(module, Conv1D) for module in model.modules())
    own_attention = takes(head_size, getattr(config, "attn_logit_softcapping", None))
    # torch's float32 activations finish a thread's share by another routine.
    share = 16 * torch.get_num_threads()
    even = dtype != torch.float32 or getattr(config, "intermediate_size", share) % share == 0
    return accelerated, accelerated and own_products and own_attention and even


def _draft_models(path: str, weight_bytes: int) -> list[str]:
    """Return the embedded models on this machine that are smaller and mean the same texts by the same ids."""
    from transformers import AutoTokenizer

    from specrs.models.vocabulary import require_same_vocabulary

    smaller = [m for m in CATALOG.values() if cache.is_ready(m) and m.dense_bytes < weight_bytes]
    smaller = [m for m in smaller if str(cache.dense_folder(m)) != path]
    if not smaller:
        return []
    try:
        own = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError):
        return []
    found = []
    for model in smaller:
        try:
            require_same_vocabulary(own, AutoTokenizer.from_pretrained(cache.dense_folder(model)))
        except VocabularyMismatchError:
            continue
        found.append(model.name)
    return found
