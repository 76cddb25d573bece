"""The exact rules: in exact arithmetic the text has the target's law, whatever the drafter proposes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt


class _WithoutKnobs:
    """An exact rule has nothing to turn."""

    lossless: ClassVar[bool] = True

    def knobs(self, nodes: int) -> npt.NDArray[np.float32] | None:
        """Return None."""
        del nodes
        return None


@dataclass(frozen=True)
class FixedCandidates(_WithoutKnobs):
    """Take what plain decoding takes and descend while the draft has it: greedy, and sampled with any tree.

    Needs no draft law, admits duplicates, and with the same emit coins writes token for token what plain decoding
    writes. The right rule for cache drafts, argmax chains and top-k trees.
    """

    needs_law: ClassVar[bool] = False
    takes_trees: ClassVar[bool] = True
    rule: ClassVar[str] = "greedy_or_fixed"


@dataclass(frozen=True)
class ChainRejection(_WithoutKnobs):
    """Rejection sampling along a chain (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318)."""

    needs_law: ClassVar[bool] = True
    takes_trees: ClassVar[bool] = False
    rule: ClassVar[str] = "chain"


@dataclass(frozen=True)
class BlockVerification(_WithoutKnobs):
    """One decision for a whole chain (Sun et al., arXiv 2403.10444); never shorter in expectation than rejection."""

    needs_law: ClassVar[bool] = True
    takes_trees: ClassVar[bool] = False
    rule: ClassVar[str] = "block"


@dataclass(frozen=True)
class IndependentSiblings(_WithoutKnobs):
    """Siblings drawn independently from one law, tried in turn (SpecInfer, arXiv 2305.09781)."""

    needs_law: ClassVar[bool] = True
    takes_trees: ClassVar[bool] = True
    rule: ClassVar[str] = "specinfer"


@dataclass(frozen=True)
class SiblingsWithoutReplacement(_WithoutKnobs):
    """Siblings drawn without replacement from one law, tried in turn (Sequoia, arXiv 2402.12374)."""

    needs_law: ClassVar[bool] = True
    takes_trees: ClassVar[bool] = True
    rule: ClassVar[str] = "without_replacement"


@dataclass(frozen=True)
class OptimalTransport(_WithoutKnobs):
    """Siblings drawn independently, tried against one scaled law (SpecTr, arXiv 2310.15141, k-sequential)."""

    needs_law: ClassVar[bool] = True
    takes_trees: ClassVar[bool] = True
    rule: ClassVar[str] = "spectr"
