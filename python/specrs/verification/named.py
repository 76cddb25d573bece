"""Relaxed rules by name, for the command line and for callers that hold a setting as text: ``lenience=0.5``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specrs.errors import InvalidInputError
from specrs.verification.relaxed import Cascade, Fuzzy, Lenience, StaticEnsemble, TopKAcceptance, Typical

if TYPE_CHECKING:
    from collections.abc import Callable

    from specrs.verification.base import Verifier

#: By name: what makes the rule of its number, and what the number is.
RULES: dict[str, tuple[Callable[[float], Verifier], str]] = {
    "ensemble": (StaticEnsemble, "the target's weight in (0, 1]"),
    "lenience": (Lenience, "the factor of the draft's probability in (0, 1]"),
    "typical": (lambda epsilon: Typical(epsilon, math.sqrt(epsilon)), "epsilon; delta is its root"),
    "top-k": (lambda count: TopKAcceptance(_whole(count)), "how many of the target's likeliest tokens stand"),
    "cascade": (Cascade, "alpha, the cost of deferring"),
    "fuzzy": (Fuzzy, "the divergence up to which a draft stands"),
}


def _whole(number: float) -> int:
    if number != int(number):
        raise InvalidInputError(f"top-k takes a whole number, got {number}")
    return int(number)


def named_rule(text: str) -> Verifier | None:
    """Return the rule that ``NAME=NUMBER`` names, or None where the text names none (a path, say).

    Raises
    ------
    InvalidInputError
        A rule's name without a number, or with one that the rule does not take.
    """
    name, _, value = text.partition("=")
    if name not in RULES:
        return None
    make, meaning = RULES[name]
    try:
        number = float(value)
    except ValueError:
        raise InvalidInputError(
            f"verification {name!r} takes a number, {name}=NUMBER: {meaning}; got {text!r}"
        ) from None
    return make(number)
