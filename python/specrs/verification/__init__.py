"""Verification for engines and people: one entry, the verifiers, and the proof that they are what they say."""

from __future__ import annotations

from specrs.verification.base import (
    NO_TOKEN,
    STATUS,
    DenseLaw,
    DraftLaw,
    OneHotLaw,
    SparseLaw,
    Verdict,
    Verifier,
)
from specrs.verification.ensemble_head import EnsembleHead, Pair
from specrs.verification.entry import logit_view, verify
from specrs.verification.lossless import (
    BlockVerification,
    ChainRejection,
    FixedCandidates,
    IndependentSiblings,
    OptimalTransport,
    SiblingsWithoutReplacement,
)
from specrs.verification.relaxed import (
    Cascade,
    DynamicEnsemble,
    Fuzzy,
    Lenience,
    StaticEnsemble,
    TopKAcceptance,
    Typical,
)

__all__ = [
    "NO_TOKEN",
    "STATUS",
    "BlockVerification",
    "Cascade",
    "ChainRejection",
    "DenseLaw",
    "DraftLaw",
    "DynamicEnsemble",
    "EnsembleHead",
    "FixedCandidates",
    "Fuzzy",
    "IndependentSiblings",
    "Lenience",
    "OneHotLaw",
    "OptimalTransport",
    "Pair",
    "SiblingsWithoutReplacement",
    "SparseLaw",
    "StaticEnsemble",
    "TopKAcceptance",
    "Typical",
    "Verdict",
    "Verifier",
    "logit_view",
    "verify",
]
