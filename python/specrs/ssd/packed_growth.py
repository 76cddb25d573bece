"""Guesses of a transformers drafter, grown in its own memory: each step runs the guesses' newest tokens alone.

Slots of a text's memory during a step (n committed tokens, L drafts in flight): ``[n committed | L trunk | newest
tokens of step 0 | of step 1 | ...]``. A guess behind k accepted drafts sees all n, the trunk up to slot k - 1, and its
own tokens; that is a closed form of the column, so no tree is built. A token's position is n + k plus its number within
the guess. When the outcome is known, the length moves back behind the trunk and the guesses' rows are never read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specrs.models.attention import Segment
from specrs.ssd.model_branches import TreeGrowth
from specrs.types import Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from specrs.models.sequence_cache import SequenceCache
    from specrs.ssd.branches import Branch, Job
    from specrs.ssd.model_branches import ModelBranches


@dataclass
class BranchSegment(Segment):
    """A segment whose rows see all of the first ``base`` slots and, of those behind, what ``seen`` says.

    Attributes
    ----------
    base : int
        Committed slots.
    seen : array of bool, shape (n, slots behind base, the new rows included)
    slot_positions : array of int64, shape (slots behind base,)
    """

    base: int = 0
    seen: npt.NDArray[np.bool_] = field(default_factory=lambda: np.ones((0, 0), np.bool_))
    slot_positions: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def is_tree(self) -> bool:
        """No: rows of earlier steps lie between the committed ones and the new ones."""
        return False

    def _make_mask(self, window: int | None, groups: int, dtype: torch.dtype) -> tuple[int, torch.Tensor | None]:
        first = 0
        if window is not None:
            first = min(max(0, int(self.positions.min()) - window + 1), self.base)
        rows = len(self.positions)
        seen = np.concatenate([np.ones((rows, self.base - first), np.bool_), self.seen], axis=1)
        if window is not None:
            key_positions = np.concatenate([np.arange(first, self.base), self.slot_positions])
            seen &= self.positions[:, None] - key_positions[None, :] < window
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), -torch.inf)
        return first, mask.repeat(groups, 1)


class _Slots:
    """What lies behind a text's committed slots: the trunk, then rows of guesses, each with its owner and position."""

    def __init__(self, cache: SequenceCache, trunk: int, committed: int) -> None:
        self.cache = cache
        self.trunk = trunk
        self.committed = committed
        self.owners = np.full(trunk, -1, np.int64)
        self.positions = committed + np.arange(trunk, dtype=np.int64)


class PackedGrowth(TreeGrowth):
    """As ``TreeGrowth``, with the guesses' keys and values kept from step to step."""

    def __init__(self, drafter: ModelBranches, jobs: Sequence[Job], lookahead: int) -> None:
        super().__init__(drafter, jobs, lookahead)
        self._slots: list[_Slots] = []
        self._numbers: dict[int, int] = {}

    def _glue(self) -> Any:
        pending = self._unread()
        trunks = Draft.chains([self._drafter.readable(job.trunk) for job in self._jobs])
        logits = self._drafter.model.score(self._states, pending, trunks).logits
        for job, state, read in zip(self._jobs, self._states, pending, strict=True):
            state.commit(np.arange(len(job.trunk), dtype=np.int32), len(read))
            self._slots.append(_Slots(state, len(job.trunk), len(job.text.tokens)))
        return logits

    def _rows(self, going: Sequence[Branch]) -> Any:
        segments, ids, ordered, at = [], [], [], 0
        for index, slots in enumerate(self._slots):
            mine = [branch for branch in going if branch.job == index]
            if not mine:
                continue
            numbers = np.array([self._numbers.setdefault(id(b), len(self._numbers)) for b in mine], np.int64)
            accepted = np.array([branch.accepted for branch in mine], np.int64)
            positions = slots.committed + accepted + np.array([len(branch.tokens) for branch in mine], np.int64)
            slots.owners = np.concatenate([slots.owners, numbers])
            slots.positions = np.concatenate([slots.positions, positions])
            column = np.arange(len(slots.owners))
            seen = np.where(column < slots.trunk, column < accepted[:, None], slots.owners == numbers[:, None])
            segments.append(
                BranchSegment(
                    at,
                    at + len(mine),
                    slots.cache,
                    positions,
                    None,
                    base=slots.committed,
                    seen=seen,
                    slot_positions=slots.positions,
                )
            )
            ids += [branch.tokens[-1] if branch.tokens else branch.bonus for branch in mine]
            ordered += mine
            at += len(mine)
        tokens = self._drafter.readable(np.array(ids, np.uint32)).astype(np.int64)
        logits = self._drafter.model.forward_segments(segments, tokens)  # type: ignore[attr-defined]
        for segment in segments:
            segment.cache.length += segment.end - segment.start
        where = {id(branch): row for row, branch in enumerate(ordered)}
        return logits[[where[id(branch)] for branch in going]]

    def close(self) -> None:
        """Move each memory's length back behind the trunk: what was accepted of it need not be read again."""
        for slots in self._slots:
            slots.cache.truncate(slots.committed + slots.trunk)
        self._slots = []
