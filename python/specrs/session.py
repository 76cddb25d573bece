"""Memory that outlives a call: what a conversation's next turn does not read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from specrs.engine.request import Request
    from specrs.models.base import TargetModel
    from specrs.types import TokenArray


class Session:
    """Memory of a conversation: a later prompt that begins like the text so far does not read it again.

    Parameters
    ----------
    model : TargetModel

    Notes
    -----
    One session serves one text at a time; a batch of conversations takes one session each.
    """

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self._tokens: TokenArray = np.empty(0, np.uint32)
        self._state: Any = None

    def take(self, prompt: TokenArray, capacity: int) -> tuple[Any, int]:
        """Return the memory, cut to what it shares with ``prompt``, and how many tokens that is."""
        state, self._state = self._state, None
        if state is None:
            return self.model.new_state(capacity), 0
        known = self._tokens[: state.length]
        shared = min(len(known), len(prompt) - 1)
        different = np.flatnonzero(known[:shared] != prompt[:shared])
        shared = int(different[0]) if len(different) else shared
        state.truncate(shared)
        return state, shared

    def keep(self, request: Request) -> None:
        """Remember a request's text and memory."""
        self._tokens, self._state = request.tokens.copy(), request.state
