"""From what a caller passes as a prompt to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from specrs.models.base import TargetModel
    from specrs.types import TokenArray


def is_batch(prompt: Any) -> bool:
    """Return whether ``prompt`` is a list of prompts: of texts, of id sequences, or of message lists."""
    if isinstance(prompt, (str, Mapping)):
        return False
    if hasattr(prompt, "ndim"):
        return bool(prompt.ndim > 1)
    if not isinstance(prompt, Sequence):
        raise InvalidInputError(
            f"a prompt is a text, token ids or chat messages, or a list of these; got {type(prompt).__name__}"
        )
    if not prompt:
        return False
    return not _is_id(prompt[0]) and not isinstance(prompt[0], Mapping)


def _is_id(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def encode_prompts(target: TargetModel, prompt: Any) -> list[TokenArray]:
    """Return the token ids of one prompt or of each of a batch.

    Raises
    ------
    InvalidInputError
        A kind of prompt that cannot be told, or text for a model without a tokenizer.
    """
    prompts = list(prompt) if is_batch(prompt) else [prompt]
    if not prompts:
        raise InvalidInputError("no prompt was given; expected at least one")
    return [_encode(target, one, index) for index, one in enumerate(prompts)]


def _encode(target: TargetModel, prompt: Any, index: int) -> TokenArray:
    if isinstance(prompt, str):
        return _as_ids(_tokenizer(target, "text").encode(prompt), index)
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        tokenizer = _tokenizer(target, "chat messages")
        if not getattr(tokenizer, "chat_template", None):
            raise InvalidInputError(f"{target.name} has no chat template; pass text instead of messages")
        text = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, tokenize=False)
        return _as_ids(tokenizer.encode(text, add_special_tokens=False), index)
    return _as_ids(prompt, index)


def _tokenizer(target: TargetModel, what: str) -> Any:
    if target.tokenizer is None:
        raise InvalidInputError(f"{target.name} was loaded without a tokenizer; pass token ids instead of {what}")
    return target.tokenizer


def _as_ids(values: Any, index: int) -> TokenArray:
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    try:
        ids = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"prompt {index} is neither text, messages nor token ids: {error}") from error
    if ids.ndim != 1:
        raise InvalidInputError(f"prompt {index} has shape {ids.shape}, expected one row of token ids")
    if len(ids) and ids.dtype.kind not in "iu":
        raise InvalidInputError(f"prompt {index} has entries of type {ids.dtype}, expected whole numbers")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < 2**32 - 1:
        raise InvalidInputError(f"prompt {index} has ids from {ids.min()} to {ids.max()}, expected ids >= 0")
    return ids.astype(np.uint32)
