"""What we refuse, by name and all at once, before any work: requests whose answer would not be the one asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Settings of a generation configuration that stand for another way of decoding: name, and when it is set.
_OTHER_METHODS: tuple[tuple[str, Any], ...] = (
    ("num_beams", lambda value: value > 1),
    ("num_beam_groups", lambda value: value > 1),
    ("constraints", bool),
    ("force_words_ids", bool),
    ("penalty_alpha", lambda value: value > 0),
    ("dola_layers", bool),
    ("prompt_lookup_num_tokens", bool),
    ("assistant_early_exit", bool),
    ("use_mtp", bool),
    ("speculation_type", bool),
    ("assistant_ensemble_weight", bool),
    ("token_healing", bool),
)
#: Outputs that our packed forwards do not keep.
_OUTPUTS = ("output_attentions", "output_hidden_states")
#: Ways to keep keys and values that change the numbers, or that promise a place for them which ours does not keep to.
_CACHES = frozenset({"quantized", "offloaded", "offloaded_static", "offloaded_hybrid", "paged"})
#: What ``generate`` prepares for its own loop and ours has no use for.
_PREPARED = frozenset(
    {"attention_mask", "position_ids", "cache", "past_key_values", "cache_position", "logits_to_keep", "use_cache"}
)
#: A processor that runs the model itself, keeping keys and values of its own: it cannot follow a draft.
_RUNS_THE_MODEL = "UnbatchedClassifierFreeGuidanceLogitsProcessor"


def refuse_unsupported(
    config: Any,
    processors: Sequence[Any],
    input_ids: torch.Tensor,
    model_kwargs: Mapping[str, Any],
    dropped: Mapping[str, Any],
    synced_gpus: object,
) -> None:
    """Refuse what ``specrs.hf.generate`` cannot honour.

    Parameters
    ----------
    config : GenerationConfig
    processors : sequence of LogitsProcessor
    input_ids : tensor of int64, shape (B, L)
    model_kwargs : mapping
        What ``generate`` would pass to the model.
    dropped : mapping
        See ``specrs.hf.arguments``.
    synced_gpus : bool or None

    Raises
    ------
    InvalidInputError
        Naming every setting that is in the way.
    """
    found = [
        f"{name}={value!r}"
        for name, is_set in _OTHER_METHODS
        if (value := getattr(config, name, None)) is not None and is_set(value)
    ]
    found += [f"{name}=True" for name in _OUTPUTS if getattr(config, name, None)]
    if getattr(config, "cache_implementation", None) in _CACHES:
        found.append(f"cache_implementation={config.cache_implementation!r}")
    if any(type(processor).__name__ == _RUNS_THE_MODEL for processor in processors):
        found.append("guidance_scale (it runs the model once more per token)")
    if synced_gpus:
        found.append("synced_gpus=True")
    found += [f"{name} (a cache of your own)" for name in ("cache", "past_key_values") if name in dropped]
    if not input_ids.shape[1]:
        found.append("a prompt without tokens (inputs_embeds, say)")
    found += [f"{name} (an input of the model)" for name in _other_inputs(model_kwargs)]
    if found:
        raise InvalidInputError(
            f"specrs.hf.generate does not support {', '.join(found)}; it decodes text greedily or by sampling, from "
            "token ids, with keys and values of its own"
        )


def _other_inputs(model_kwargs: Mapping[str, Any]) -> list[str]:
    """Return the model inputs beyond ids, mask and positions. Token types of one kind say nothing."""
    others = []
    for name, value in model_kwargs.items():
        if name in _PREPARED or value is None or isinstance(value, bool):
            continue
        if name == "token_type_ids" and isinstance(value, torch.Tensor) and not value.any():
            continue
        others.append(name)
    return others


def left_padding(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[int]:
    """Return how many tokens of each row are padding on the left.

    Parameters
    ----------
    input_ids : tensor of int64, shape (B, L)
    model_kwargs : mapping
        ``attention_mask``, shape (B, L), or None for no padding; ``position_ids``, shape (B, L), if any.

    Raises
    ------
    InvalidInputError
        A mask with holes or padding on the right, a row of padding alone, or positions that do not count the row's own
        tokens from 0.
    """
    rows, length = input_ids.shape
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        mask = torch.ones(rows, length, dtype=torch.long)
    mask = mask.to("cpu", torch.long)
    if mask.shape != (rows, length):
        raise InvalidInputError(f"attention_mask has shape {tuple(mask.shape)}, expected {(rows, length)}")
    padding = [int(length - count) for count in mask.sum(dim=1)]
    for row, pad in enumerate(padding):
        if pad == length:
            raise InvalidInputError(f"row {row} of attention_mask is 0 throughout; expected at least one token")
        if not bool((mask[row, pad:] == 1).all()):
            raise InvalidInputError(
                f"row {row} of attention_mask has zeros after its first token; expected padding on the left alone "
                "(tokenizer.padding_side = 'left')"
            )
    positions = model_kwargs.get("position_ids")
    if positions is not None:
        expected = (mask.cumsum(dim=1) - 1).clamp(min=0)
        seen = positions.to("cpu").expand(rows, -1)
        if positions.ndim != 2 or seen.shape[1] != length or bool(((seen != expected) & (mask == 1)).any()):
            raise InvalidInputError(
                "position_ids must count each row's own tokens from 0, for keys are placed by position; got others"
            )
    return padding
