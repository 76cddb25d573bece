"""Memory that outlives a call: what a conversation's next turn does not read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from specrs.models.base import TargetModel
    from specrs.types import TokenArray


class Session:
    """Memory of a conversation: a later prompt that begins like the text so far does not read it again.

    The target's memory is kept, and that of each model that drafted for it.

    Parameters
    ----------
    model : TargetModel

    Notes
    -----
    One session serves one text at a time; a batch of conversations takes one session each.
    """

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self._kept: dict[TargetModel, tuple[TokenArray, Any]] = {}

    def take(self, model: TargetModel, prompt: TokenArray, capacity: int) -> tuple[Any, int]:
        """Return a model's memory, cut to what it shares with ``prompt``, and how many tokens that is."""
        if model not in self._kept:
            return model.new_state(capacity), 0
        tokens, state = self._kept.pop(model)
        known = tokens[: state.length]
        shared = min(len(known), len(prompt) - 1)
        different = np.flatnonzero(known[:shared] != prompt[:shared])
        shared = int(different[0]) if len(different) else shared
        state.truncate(shared)
        return state, shared

    def keep(self, model: TargetModel, tokens: TokenArray, state: Any) -> None:
        """Remember a text and a model's memory of it (of the whole text or of its beginning)."""
        self._kept[model] = tokens.copy(), state

    def forget_drafters(self) -> None:
        """Let every memory but the target's go."""
        self._kept = {model: kept for model, kept in self._kept.items() if model is self.model}
