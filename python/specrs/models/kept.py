"""The target that belongs to a model object, kept with that object: what was measured once is not measured again."""

from __future__ import annotations

from typing import Any

from specrs.models.hf import TransformersTarget

#: The attribute of a model that holds its targets.
ATTRIBUTE = "_specrs_targets"


class _Targets:
    """Targets of one model object, by what they were made from.

    They live and die with the model (the two point at each other, which the garbage collector sees through). A copy or
    a pickle of the model is another model: it starts without any.
    """

    def __init__(self) -> None:
        self.by_settings: dict[Any, TransformersTarget] = {}

    def __deepcopy__(self, memo: Any) -> _Targets:
        return _Targets()

    def __reduce__(self) -> tuple[type[_Targets], tuple[()]]:
        return (_Targets, ())


def kept_target(model: Any, *, accelerate: bool, tokenizer: Any = None) -> TransformersTarget:
    """Return the target of a model object: the one made before, unless the model has changed since.

    Parameters
    ----------
    model : PreTrainedModel
    accelerate : bool
        Use our linear kernels where they are the better ones.
    tokenizer : object, optional

    Raises
    ------
    UnsupportedModelError
        As ``TransformersTarget``.
    """
    fresh = TransformersTarget(model, tokenizer)
    held = model.__dict__.setdefault(ATTRIBUTE, _Targets()).by_settings
    # What a target takes over from the model, or measures on it. A moved or converted model has other costs.
    settings = (
        id(tokenizer),
        accelerate,
        fresh.device,
        fresh.dtype,
        fresh.vocab_size,
        fresh.max_context,
        fresh.eos_token_ids,
        fresh.default_repetition_penalty,
        repr(sorted(fresh.unapplied_settings)),
        len(list(model.modules())),  # adapters come and go
    )
    if settings not in held:
        if accelerate:
            fresh.accelerate()
        held[settings] = fresh
    kept: TransformersTarget = held[settings]
    return kept
