"""The one registry of length policies: names, options with their defaults, and what each needs of a drafter."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specrs import _core
from specrs.errors import InvalidInputError, UnknownNameError
from specrs.policies.named import ENTROPY_POLICIES, NamedPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specrs.drafters.base import Drafter
    from specrs.policies.reading import Reading

#: The policy of an engine that is told nothing.
DEFAULT = "libra"


@dataclass(frozen=True)
class Policy:
    """What the registry knows of a policy.

    Attributes
    ----------
    summary : str
    options : dict
        Defaults by option; ``max_tokens`` None is the drafter's own longest draft.
    needs_cost : bool
        Decides by the measured cost table.
    follows_clock : bool
        Its lengths depend on measured times or on other requests, so a seeded drawn text would not repeat.
    needs_head : bool
        Takes a trained ``head``.
    """

    summary: str
    options: dict[str, Any] = field(default_factory=dict)
    needs_cost: bool = False
    follows_clock: bool = False
    needs_head: bool = False


_LIBRA = {"max_tokens": None, "hysteresis": 0.01, "probe_every": 16, "price": "round"}

#: Length policies by name.
POLICIES: dict[str, Policy] = {
    "libra": Policy("as many tokens as pay: largest E(L)/C(L) by calibrated confidences and measured costs", _LIBRA,
                    needs_cost=True, follows_clock=True),
    "libra_causal": Policy("the same, deciding on each token by what is known before it", _LIBRA,
                           needs_cost=True, follows_clock=True),
    "libra_alpha": Policy("LibraSpec's iteration with a constant alpha",
                          {"max_tokens": None, "alpha": 2.2, "convention": "floor", "shrinks": "once"}),
    "fixed": Policy("the same number of tokens every round", {"tokens": 5}),
    "hf_heuristic": Policy("two more after a round that accepted all, else one less; kept from call to call",
                           {"tokens": 20, "max_tokens": None}, follows_clock=True),
    "hf_heuristic_transient": Policy("the same, starting anew with each call", {"tokens": 20, "max_tokens": None},
                                     follows_clock=True),
    "hf_confidence": Policy("stop behind a token of low probability; the threshold follows the ROC curve",
                            {"max_tokens": 20, "threshold": 0.4, "adapts": True}, follows_clock=True),
    "svip": Policy("stop behind a token whose law has a high entropy", {"max_tokens": 40, "threshold": 0.3}),
    "adaedl": Policy("stop before a token whose entropy promises little acceptance",
                     {"max_tokens": None, "threshold": 0.5}, follows_clock=True),
    "specdecpp": Policy("stop when a trained head expects a rejection among the tokens so far",
                        {"max_tokens": 20, "min_tokens": 2, "threshold": 0.3}, needs_head=True),
    "disco": Policy("stop behind a token that a trained classifier expects to be rejected",
                    {"max_tokens": 20, "threshold": 0.5}, needs_head=True),
    "dloop": Policy("whole blocks while the last block's log-probabilities sum to the gate or more",
                    {"block": 4, "max_loops": 4, "gate": -0.5}),
    "ema_tiers": Policy("a running mean of accepted lengths selects a tier",
                        {"tiers": (1, 3, 7), "weight": 0.2, "up": 0.0, "down": -0.25}, follows_clock=True),
    "goodput": Policy("most expected tokens per second by the running acceptance of each position",
                      {"max_tokens": None}, needs_cost=True, follows_clock=True),
    "ucb": Policy("a bandit over lengths, rewarded by tokens per second",
                  {"arms": (0, 1, 2, 4, 8), "discount": 0.99, "compat": False}, follows_clock=True),
}  # fmt: skip

#: Options that every policy takes: whether drafting rests while plain decoding is faster; how confidences are
#: calibrated (``temperatures`` with one per position); a trained head.
COMMON = {"backoff": True, "calibration": "ratio", "temperatures": None, "head": None}


def check(name: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all options of policy ``name`` with defaults filled in.

    Raises
    ------
    UnknownNameError
        No policy or option has that name; the message suggests the nearest.
    """
    if name not in POLICIES:
        raise UnknownNameError.among("policy", name, POLICIES)
    known = {**POLICIES[name].options, **COMMON}
    for option in options or {}:
        if option not in known:
            raise UnknownNameError.among(f"option of policy {name!r}", option, known)
    checked = {**known, **(options or {})}
    if checked["temperatures"] is None and checked["calibration"] == "temperatures":
        raise InvalidInputError("calibration='temperatures' needs temperatures=, one per position, got None")
    return checked


def needs_cost(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether the policy, with these checked options, reads the cost table."""
    return POLICIES[name].needs_cost or bool(options["backoff"])


def make(
    name: str,
    options: Mapping[str, Any],
    drafter: Drafter,
    *,
    longest: int,
    cost: _core.CostTable | None = None,
    learned: _core.Learned | None = None,
    sampled: bool = False,
    reading: Reading | None = None,
) -> NamedPolicy:
    """Return the policy for a drafter.

    Where the drafter draws its tokens and some request is sampled, ``libra`` becomes ``libra_causal``, which the name
    in the report shows; other policies that look at the whole draft are refused.

    Parameters
    ----------
    name, options
        As ``check`` returned them.
    drafter : Drafter
    longest : int
        Longest draft of the drafter, where ``max_tokens`` is None.
    cost, learned, reading
        See ``NamedPolicy``.
    sampled : bool
        Some request has a temperature above 0.

    Raises
    ------
    InvalidInputError
        The policy needs what the drafter does not tell, or a head that is not given.
    """
    policy, stepwise = POLICIES[name], getattr(drafter, "asks_to_go_on", False)
    values = {option: options[option] for option in policy.options}
    if values.get("max_tokens", 0) is None:
        values["max_tokens"] = longest
    if name in ENTROPY_POLICIES | {"specdecpp", "disco"} and not stepwise:
        raise InvalidInputError(
            f"policy {name!r} looks at the law of each drafted token, which drafter {drafter.name!r} does not tell; "
            f"expected a drafter that writes token by token, as 'model'"
        )
    head = options["head"]
    if policy.needs_head != (head is not None):
        expected = "head=, a trained head (specrs.policies.heads)" if policy.needs_head else "no head"
        raise InvalidInputError(f"policy {name!r} takes {expected}, got head={head!r}")
    drawn = drafter.tokens_are_drawn
    if name == "libra" and drawn and sampled:
        name = "libra_causal"
    return NamedPolicy(
        name,
        values,
        drawn=drawn,
        stepwise=stepwise,
        sampled=sampled,
        cost=cost,
        learned=learned,
        guarded=bool(options["backoff"]) and cost is not None,
        head=head,
        reading=reading,
    )


def mismatch_message(differs: str) -> None:
    """Warn, once per place, that a cost table is of another machine or setting."""
    warnings.warn(
        f"the cost table is of another machine or setting ({differs}): drafts are neither trimmed nor rested by it. "
        "`specrs profile` measures one for this setting",
        stacklevel=3,
    )
