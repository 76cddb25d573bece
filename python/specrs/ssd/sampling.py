"""Draft laws: temperature and truncation as everywhere, then Saguaro's weight on the tokens that are guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.drafters.drawing import NO_TOKEN, drawn
from specrs.ops.drawing import Draws

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.ssd.texts import Text
    from specrs.types import FloatArray, TokenArray


class DraftLaw:
    """Draws draft tokens, and hands over the very law that each was drawn from.

    Parameters
    ----------
    favoured : int
        How many of a row's most probable ids are weighed.
    weight : float
        C of Saguaro sampling (arXiv:2603.03251, definition 14): sigma(z)_t ~ C exp(z_t) for the ``favoured`` best,
        exp(z_t) for the others, after temperature and truncation; 1 is off.
    """

    def __init__(self, favoured: int, weight: float) -> None:
        self.favoured = favoured
        self.weight = weight

    def draw(
        self, logits: Any, texts: Sequence[Text], positions: Sequence[int]
    ) -> tuple[TokenArray, list[FloatArray | None]]:
        """Draw a token from each row.

        Parameters
        ----------
        logits : tensor, shape (R, V)
        texts : sequence of R texts
            Whose row it is.
        positions : sequence of R int
            Tokens before the one that is drawn: the key of its coin. Guesses at one position share it, and at most one
            of them comes true.

        Returns
        -------
        tokens : array of uint32, shape (R,)
            ``NO_TOKEN`` where the row holds no usable number.
        laws : list of R arrays of float32, shape (V,), or None at temperature 0
        """
        temperature = np.array([text.temperature for text in texts], np.float32)
        coins = np.array(
            [
                _core.coins(text.seed, np.array([position], np.uint32), "draft", text.sample)[0] if hot else 0.0
                for text, position, hot in zip(texts, positions, temperature > 0, strict=True)
            ]
        )
        given = Draws(
            coins,
            temperature,
            np.array([text.top_k for text in texts], np.int32),
            np.array([text.top_p for text in texts], np.float32),
            np.array([text.min_p for text in texts], np.float32),
        )
        tokens, laws = drawn(logits, given, with_laws=bool((temperature > 0).any()))
        if laws is None:
            return tokens, [None] * len(texts)
        weighed = np.flatnonzero((temperature > 0) & (tokens != NO_TOKEN) & (self.weight < 1))
        if len(weighed):
            tokens, laws = tokens.copy(), laws.copy()
            changed = _core.saguaro(laws[weighed], self.favoured, self.weight)
            with np.errstate(divide="ignore"):
                logs = np.log(changed)
            off = np.zeros(len(weighed), np.float32)
            # Drawn from and handed over as one array, so that both sides of the ratio are the same bits.
            tokens[weighed], redrawn = _core.draw(
                logs, "f32", off + 1, off.astype(np.int32), off + 1, off, coins[weighed], True
            )
            assert redrawn is not None
            laws[weighed] = redrawn
        return tokens, [laws[i] if hot else None for i, hot in enumerate(temperature > 0)]
