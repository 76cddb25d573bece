"""What callers give, brought into one form and checked before any work."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specrs.models.base import TargetModel
    from specrs.session import Session
    from specrs.types import TokenArray


def per_prompt(name: str, value: Any, prompts: int) -> list[Any]:
    """Return one value per prompt from one for all or one for each."""
    values = list(value) if isinstance(value, (list, tuple)) else [value] * prompts
    if len(values) != prompts:
        raise InvalidInputError(f"{name} has {len(values)} values, expected one or one per prompt: {prompts}")
    return values


def session_per_prompt(given: Session | Sequence[Session] | None, prompts: int, n: int) -> list[Session | None]:
    """Return one session, or None, per prompt; a session holds one text, so none is used twice."""
    if given is None:
        return [None] * prompts
    sessions: list[Session | None] = list(given) if isinstance(given, (list, tuple)) else [given]  # type: ignore[list-item]
    if n != 1 or len(sessions) != prompts or len({id(one) for one in sessions}) != prompts:
        raise InvalidInputError(
            f"a session continues one text: got {len({id(one) for one in sessions})} sessions for {prompts} prompts "
            f"and n={n}; expected n=1 and a session of its own per prompt"
        )
    return sessions


def token_ids(value: Any) -> tuple[int, ...]:
    """Return ids as a tuple, from one id, several, an array or None."""
    if value is None:
        return ()
    return tuple(int(i) for i in np.atleast_1d(np.asarray(value, dtype=object)).tolist())


def eos_ids(target: TargetModel, value: Any) -> tuple[int, ...]:
    """Return the ids of ``generate``'s ``eos_token_id``."""
    if isinstance(value, str):
        if value != "model":
            raise InvalidInputError(f"eos_token_id must be ids, None or 'model' (the model's own), got {value!r}")
        return target.eos_token_ids
    return token_ids(value)


def check_requests(
    target: TargetModel,
    prompts: Sequence[TokenArray],
    stops: Any,
    logprobs: int | None = None,
    bias: Mapping[int, float] = MappingProxyType({}),
) -> None:
    """Refuse, before any work, what cannot run."""
    from specrs.errors import ContextLimitError

    if stops.stop_strings and target.tokenizer is None:
        raise InvalidInputError(f"stop strings {list(stops.stop_strings)!r} need a tokenizer, and the model has none")
    if logprobs is not None and not 0 <= logprobs <= target.vocab_size:
        raise InvalidInputError(f"logprobs must be in [0, {target.vocab_size}], got {logprobs}")
    for token in stops.ending_ids:
        if not 0 <= token < target.vocab_size:
            raise InvalidInputError(f"stop id {token} is not an id of the model, which has {target.vocab_size}")
    for token in bias:
        if not 0 <= int(token) < target.vocab_size:
            raise InvalidInputError(f"logit_bias names id {token}, the model has {target.vocab_size} ids")
    for index, ids in enumerate(prompts):
        if not len(ids):
            raise InvalidInputError(f"prompt {index} is empty; expected at least one token")
        if int(ids.max()) >= target.vocab_size:
            raise InvalidInputError(f"prompt {index} has id {int(ids.max())}, the model has {target.vocab_size} ids")
        if target.max_context is not None and stops.max_new_tokens and len(ids) >= target.max_context:
            raise ContextLimitError(
                f"prompt {index} has {len(ids)} tokens and the model reads at most {target.max_context}: "
                "no room for a new one; expected a shorter prompt"
            )
