"""The one registry of methods: drafter and length policy by name, for Python, the command line and the benches."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specrs.drafters.base import Drafter
    from specrs.drafters.model import ModelDrafter
    from specrs.models.base import TargetModel
    from specrs.policies.base import LengthPolicy
    from specrs.policies.cost import CostTable
    from specrs.policies.reading import Reading

#: Drafters by name, with what they are.
DRAFTERS = {
    "none": "plain decoding through the same loop; the baseline",
    "cache": "continues the longest suffix of the text that occurred before; no model",
    "model": "a smaller model of the same vocabulary (draft_model=)",
    "hybrid": "each round the cache's chain or tree, the model's draft (draft_model=), both or none, by what pays most",
    "ssd": "drafts while the target verifies, in a process of its own: a model (draft_model=), or text already seen",
}
#: Whether a drafter needs a ``draft_model`` or can do without; the others take none.
DRAFT_MODEL = {"model": "needed", "hybrid": "optional", "ssd": "optional"}
#: Shapes that the cache drafter draws its drafts in.
SHAPES = ("chain", "tree")
#: Shapes of a drafter's drafts, where they are not chains alone.
SHAPES_OF = {"none": (), "cache": SHAPES, "hybrid": SHAPES}
#: Longest draft that the adaptive policy considers, by drafter.
LONGEST = {"none": 0, "cache": 40, "model": 8, "ssd": 4}
#: Drafters that load ``draft_model`` themselves, in a process of their own.
LOADS_OWN_MODEL = frozenset({"ssd"})
#: What ``drafter='ssd'`` drafts ahead with when it is not told; see ``SsdOptions``.
SSD_DEFAULTS = {"fan_out": 3, "fallback": "auto", "saguaro": 1.0, "overlap": "process", "draft_cores": None}


def make_drafter(
    name: str,
    target: TargetModel,
    *,
    draft_model: Any = None,
    shape: str = "chain",
    draft_tokens: int | None = None,
    payoff: str | Path | None = None,
    ssd: Mapping[str, Any] | None = None,
) -> Drafter:
    """Return the drafter called ``name`` for ``target``.

    Parameters
    ----------
    name : {'none', 'cache', 'model', 'hybrid', 'ssd'}
    target : TargetModel
    draft_model : TargetModel, PreTrainedModel, str or Path, optional
        What ``model``, ``hybrid`` and ``ssd`` draft with: anything that :func:`specrs.load` takes. The last two do
        without.
    shape : {'chain', 'tree'}
        Shape of the cache drafter's drafts.
    draft_tokens : int, optional
        Longest draft of ``ssd``.
    payoff : str or Path, optional
        Predictor of the hybrid drafter, a file that ``specrs train payoff`` made.
    ssd : mapping of str to object, optional
        Settings of ``ssd`` that differ from ``SSD_DEFAULTS``.

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
    if draft_model is not None and name not in DRAFT_MODEL:
        raise InvalidInputError(f"draft_model is for drafter='model', 'hybrid' or 'ssd', got drafter={name!r}")
    if payoff is not None and name != "hybrid":
        raise InvalidInputError(f"payoff is for drafter='hybrid', got drafter={name!r}")
    if ssd and name != "ssd":
        raise InvalidInputError(f"{', '.join(ssd)} is for drafter='ssd', got drafter={name!r}")
    if name == "ssd":
        from specrs.ssd.making import make_ssd
        from specrs.ssd.texts import SsdOptions

        settings = {**SSD_DEFAULTS, **(ssd or {})}
        overlap, cores = settings.pop("overlap"), settings.pop("draft_cores")
        lookahead = LONGEST["ssd"] if draft_tokens is None else draft_tokens
        options = SsdOptions(lookahead=lookahead, **settings)
        return make_ssd(target, draft_model, options=options, overlap=overlap, cores=cores)
    if name == "none":
        from specrs.drafters.none import NoDrafter

        return NoDrafter()
    if name == "cache":
        from specrs.drafters.cache import CacheDrafter

        return CacheDrafter(target.vocab_size, shape=shape)
    if name == "hybrid":
        from specrs.drafters.hybrid import LEAST_CONFIDENCE, HybridDrafter, learned_router

        model = None if draft_model is None else _model_drafter(target, draft_model, min_confidence=LEAST_CONFIDENCE)
        # A predictor becomes part of its router, so that one with a predictor is the drafter's own.
        router = None if payoff is not None else learned_router(target, None if model is None else model.model)
        return HybridDrafter(
            target.vocab_size, model=model, router=router, predictor=payoff, tokenizer=target.tokenizer
        )
    if draft_model is None:
        raise InvalidInputError("drafter='model' needs draft_model=, a smaller model of the same vocabulary")
    return _model_drafter(target, draft_model)


def _model_drafter(target: TargetModel, draft_model: Any, *, min_confidence: float = 0.0) -> ModelDrafter:
    from specrs.drafters.model import ModelDrafter
    from specrs.models.loading import load
    from specrs.models.vocabulary import require_same_vocabulary

    loaded = draft_model
    if not hasattr(draft_model, "new_state"):
        loaded = load(draft_model, backend=getattr(target, "backend", "transformers"))
    if target.tokenizer is not None and loaded.tokenizer is not None:
        require_same_vocabulary(target.tokenizer, loaded.tokenizer)
    return ModelDrafter(loaded, target.vocab_size, min_confidence=min_confidence)


def make_policy(
    target: TargetModel,
    drafter: Drafter,
    name: str | None,
    options: Mapping[str, Any] | None = None,
    *,
    draft_tokens: int | None = None,
    sampled: bool = False,
    seeded: bool = False,
    cost_table: CostTable | str | Path | None = None,
) -> LengthPolicy:
    """Return the length policy for a drafter on a target.

    Parameters
    ----------
    target : TargetModel
        Its cost table is looked up, or measured, if the policy reads one.
    drafter : Drafter
    name : str, optional
        Of ``specrs.policies.registry.POLICIES``. Default: ``fixed`` with ``draft_tokens``, else ``libra``.
    options : mapping, optional
        The policy's.
    draft_tokens : int, optional
        Draft this many tokens each round.
    sampled, seeded : bool
        Some request has a temperature above 0, or a seed too. Which token a seed draws depends on the draft's length
        where drafts are drawn, so a seeded text takes a length that follows neither the clock nor its neighbours.
    cost_table : CostTable, str or Path, optional
        Instead of the target's own.

    Raises
    ------
    InvalidInputError, UnknownNameError
        Names, options or pairs that do not fit.
    """
    from specrs.policies import registry

    repeatable = drafter.tokens_are_drawn and sampled and seeded
    own = getattr(drafter, "length_policy", None)
    if own is not None:  # a drafter that weighs its own drafts
        if name is not None or options:
            raise InvalidInputError(f"drafter {drafter.name!r} decides on lengths itself, got policy={name!r}")
        cost = None if draft_tokens is not None or repeatable else _cost_of(target, cost_table)
        policy: LengthPolicy = own(draft_tokens, cost)
        return policy
    if draft_tokens is None and name is None:
        # A drafter that drafts ahead has a length of its own: guesses are drafted before a policy could be asked.
        draft_tokens = getattr(drafter, "lookahead", None)
    if draft_tokens is not None:
        if name not in (None, "fixed") or "tokens" in (options or {}):
            raise InvalidInputError(
                f"draft_tokens={draft_tokens} is a fixed length; it does not go with policy={name!r}"
            )
        if draft_tokens < 0:
            raise InvalidInputError(f"draft_tokens must be >= 0, got {draft_tokens}")
        name, options = "fixed", {"backoff": False, **(options or {}), "tokens": draft_tokens}
    longest = LONGEST.get(drafter.name, 16)
    if name is None and repeatable:
        name, options = "hf_confidence", {"adapts": False, "max_tokens": longest, "backoff": False, **(options or {})}
    asked = name or registry.DEFAULT
    checked = registry.check(asked, options)
    clocked = registry.POLICIES[asked].follows_clock and not (asked == "hf_confidence" and not checked["adapts"])
    if repeatable and (clocked or checked["backoff"]):
        if clocked:
            raise InvalidInputError(
                f"policy {asked!r} follows measured times or other requests, and a seeded sample of a drafter that "
                "draws must repeat; expected policy 'fixed', 'svip' or 'dloop', or no seed"
            )
        checked["backoff"] = False
    cost = None
    if drafter.name == "none":  # nothing to decide, and nothing to measure for it
        asked, checked = "fixed", registry.check("fixed", {"tokens": 0})
    elif registry.needs_cost(asked, checked):
        cost = _cost_of(target, cost_table)
        if cost is None and registry.POLICIES[asked].needs_cost:
            asked, checked = "fixed", registry.check("fixed", {"tokens": longest})
    learned, reading = None, None
    if cost is not None and checked["backoff"] and drafter.name == "model":
        reading = _reading(drafter, cost)
    if cost is not None and registry.POLICIES[asked].follows_clock:
        learned = _learned(target, drafter, checked, cost)
    return registry.make(
        asked, checked, drafter, longest=longest, cost=None if cost is None else cost.core, learned=learned,
        sampled=sampled, reading=reading,
    )  # fmt: skip


def _reading(drafter: Any, cost: CostTable) -> Reading:
    from specrs.engine.ranks import ONE_RANK
    from specrs.policies.cost import target_cost
    from specrs.policies.reading import Reading

    if getattr(drafter.model, "ranks", ONE_RANK).size > 1:
        # Its forwards are collective: all ranks measure now, because the policy is asked on one of them.
        target_cost(drafter.model)
    return Reading(drafter.unread, lambda: target_cost(drafter.model), cost)


def _cost_of(target: TargetModel, given: CostTable | str | Path | None) -> CostTable | None:
    from specrs.policies.cost import CostTable, fingerprint, target_cost
    from specrs.policies.registry import mismatch_message

    if given is None:
        return target_cost(target)
    table = given if isinstance(given, CostTable) else CostTable.load(given)
    differs = table.differs_from(fingerprint(target))
    if differs:
        mismatch_message(differs)
        return None
    target.plain_step_seconds = table.seconds(1)  # type: ignore[attr-defined]
    return table


def _learned(target: TargetModel, drafter: Drafter, options: Mapping[str, Any], cost: CostTable) -> Any:
    """Return what is known of the drafter on the target; kept with the target, so that a later call begins with it."""
    from specrs import _core

    kept = target.__dict__.setdefault("_learned", {})
    # Two draft models are two drafters, and so are two shapes of a cache.
    key = (getattr(drafter, "learned_key", drafter.name), options["calibration"], str(options["temperatures"]))
    if key not in kept:
        kept[key] = _core.Learned(options["calibration"], options["temperatures"])
        seconds = cost.step_seconds.get(drafter.name)
        if seconds is not None:
            kept[key].set_step_seconds(seconds)
    return kept[key]
