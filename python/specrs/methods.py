"""The one registry of methods: drafter and length policy by name, for Python, the command line and the benches."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from specrs.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from specrs.drafters.base import Drafter
    from specrs.drafters.model import ModelDrafter
    from specrs.models.base import TargetModel
    from specrs.policies.base import LengthPolicy
    from specrs.policies.cost import CostTable

#: Drafters by name, with what they are.
DRAFTERS = {
    "none": "plain decoding through the same loop; the baseline",
    "cache": "continues the longest suffix of the text that occurred before; no model",
    "model": "a smaller model of the same vocabulary (draft_model=)",
    "hybrid": "each round the cache's chain or tree, the model's draft (draft_model=), or none, by what pays most",
}
#: Shapes that the cache drafter draws its drafts in.
SHAPES = ("chain", "tree")
#: Longest draft that the adaptive policy considers, by drafter.
LONGEST = {"none": 0, "cache": 40, "model": 8}


def make_drafter(
    name: str, target: TargetModel, *, draft_model: Any = None, shape: str = "chain", payoff: Any = None
) -> Drafter:
    """Return the drafter called ``name`` for ``target``.

    Parameters
    ----------
    name : {'none', 'cache', 'model', 'hybrid'}
    target : TargetModel
    draft_model : TargetModel, PreTrainedModel, str or Path, optional
        What ``model`` and ``hybrid`` draft with: anything that :func:`specrs.load` takes. ``hybrid`` does without.
    shape : {'chain', 'tree'}
        Shape of the cache drafter's drafts.
    payoff : str or Path, optional
        Predictor of the hybrid drafter, a file that ``specrs train payoff`` made.

    Raises
    ------
    UnknownNameError
        No drafter has that name.
    VocabularyMismatchError
        The draft model's ids mean other texts than the target's.
    """
    if name not in DRAFTERS:
        near = difflib.get_close_matches(name, DRAFTERS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise UnknownNameError(f"no drafter is called {name!r}{hint} known: {', '.join(DRAFTERS)}")
    if shape not in SHAPES:
        raise InvalidInputError(f"draft_shape must be one of {', '.join(map(repr, SHAPES))}, got {shape!r}")
    if shape != "chain" and name != "cache":
        raise InvalidInputError(f"draft_shape={shape!r} is for drafter='cache', got drafter={name!r}")
    if draft_model is not None and name not in ("model", "hybrid"):
        raise InvalidInputError(f"draft_model is for drafter='model' and 'hybrid', got drafter={name!r}")
    if payoff is not None and name != "hybrid":
        raise InvalidInputError(f"payoff is for drafter='hybrid', got drafter={name!r}")
    if name == "none":
        from specrs.drafters.none import NoDrafter

        return NoDrafter()
    if name == "cache":
        from specrs.drafters.cache import CacheDrafter

        return CacheDrafter(target.vocab_size, shape=shape)
    model = None if draft_model is None else _model_drafter(target, draft_model)
    if name == "hybrid":
        from specrs.drafters.hybrid import HybridDrafter

        return HybridDrafter(target.vocab_size, model=model, predictor=payoff, tokenizer=target.tokenizer)
    if model is None:
        raise InvalidInputError("drafter='model' needs draft_model=, a smaller model of the same vocabulary")
    return model


def _model_drafter(target: TargetModel, draft_model: Any) -> ModelDrafter:
    from specrs.drafters.model import ModelDrafter
    from specrs.models.loading import load
    from specrs.models.vocabulary import require_same_vocabulary

    loaded = draft_model if hasattr(draft_model, "new_state") else load(draft_model)
    if target.tokenizer is not None and loaded.tokenizer is not None:
        require_same_vocabulary(target.tokenizer, loaded.tokenizer)
    return ModelDrafter(loaded, target.vocab_size)


def make_policy(drafter: Drafter, draft_tokens: int | None, cost: CostTable | None) -> LengthPolicy:
    """Return the length policy: ``draft_tokens`` nodes each round, or as many as pay when it is None."""
    own = getattr(drafter, "length_policy", None)
    if own is not None:  # a drafter that weighs its own drafts
        policy: LengthPolicy = own(draft_tokens, cost)
        return policy
    if draft_tokens is not None or cost is None:
        from specrs.policies.fixed import FixedLength

        return FixedLength(LONGEST.get(drafter.name, 8) if draft_tokens is None else draft_tokens)
    from specrs.policies.goodput import Goodput

    return Goodput(cost, max_nodes=LONGEST.get(drafter.name, 16), drawn=drafter.tokens_are_drawn)
