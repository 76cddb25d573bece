"""A step of drafting as one op: a token of each row, and the few numbers that a drafter and its policy ask of the law.

One copy takes to a device what drawing reads besides the logits, and one brings the facts back; the laws stay for the
verifier. Nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specrs import _core
from specrs.ops.packing import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

#: Facts of a drawn token, in their order: the token (-1 for none), the law's largest probability, its entropy in nats,
#: and the token's own probability; the last three at temperature 1.
FACTS = ("token", "max_prob", "entropy", "token_prob")


class Draws(NamedTuple):
    """How to draw a token of each of R rows: arrays on a host, tensors on a device. Coins lie in [0, 1)."""

    coins: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any

    def packed(self) -> npt.NDArray[np.uint8]:
        """Return the arrays one behind the other."""
        return packed(self, TYPES)

    @staticmethod
    def unpacked(buffer: Any, rows: int, types: Sequence[Any]) -> Draws:
        """Return the parts of a buffer, an array or a tensor, as `types` of its library."""
        return Draws(*unpacked(buffer, [rows] * len(types), _SIZES, types))


#: What each array of :class:`Draws` holds.
TYPES: list[Any] = [np.float64, np.float32, np.int32, np.float32, np.float32]
_SIZES = [np.dtype(kind).itemsize for kind in TYPES]
#: Bytes of a row's part of :meth:`Draws.packed`.
ROW_BYTES = sum(_SIZES)


def on_host(
    logits: npt.NDArray[Any], dtype: str, given: Draws, *, with_probs: bool
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]:
    """Draw a token of each row by the Rust rule.

    Parameters
    ----------
    logits : array, shape (R, V)
        As :func:`specrs.verification.logits.as_rows` gives them, with their `dtype`.
    given : Draws
    with_probs : bool
        Whether to return the laws, float32 (R, V), exactly as drawn from.
    """
    return _core.draw(logits, dtype, given.temperature, given.top_k, given.top_p, given.min_p, given.coins, with_probs)
