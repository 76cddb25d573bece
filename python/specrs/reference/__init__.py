"""The readable oracle: every acceptance rule as a short loop, slow, in any number type.

With floats it is what the fast paths are compared with; with ``fractions.Fraction`` it is exact, and the proofs in
``docs/lossless.md`` run on it. It needs neither numpy's speed nor the extension.
"""

from __future__ import annotations

from specrs.reference.law import row_law
from specrs.reference.relaxed import (
    RELAXED_RULES,
    cascade,
    emitted_law,
    ensemble,
    fuzzy,
    lenience,
    top_k,
    total_variation,
    typical,
)
from specrs.reference.rules import RULES, block, chain, fixed, siblings, specinfer, spectr, without_replacement

__all__ = [
    "RELAXED_RULES",
    "RULES",
    "block",
    "cascade",
    "chain",
    "emitted_law",
    "ensemble",
    "fixed",
    "fuzzy",
    "lenience",
    "row_law",
    "siblings",
    "specinfer",
    "spectr",
    "top_k",
    "total_variation",
    "typical",
    "without_replacement",
]
