"""A round's verification as one op: what it reads besides the logits in one buffer, what it decides in another.

One copy takes the buffer to a device and one brings the verdict back. Nothing here needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specrs import _core
from specrs.errors import InvalidInputError
from specrs.ops.packing import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

#: Words of a verdict behind its path: accepted nodes, bonus, status, bias.
FACTS = 4


class Round(NamedTuple):
    """What a round's verification reads besides logits and draft law: arrays on a host, tensors on a device.

    B requests with N nodes. The first six have 8 bytes an entry and the others 4, so that in this order each is aligned
    in a buffer. ``seeds`` are bits of unsigned numbers; ``budget`` (B,) and ``target_weight`` (N,) belong to a relaxed
    rule and have length 0 where it has none.
    """

    row_ptr: Any
    tokens: Any
    seeds: Any
    samples: Any
    positions: Any
    budget: Any
    parents: Any
    depths: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    target_weight: Any

    def packed(self) -> npt.NDArray[np.uint8]:
        """Return the arrays one behind the other."""
        return packed(self, TYPES)

    @staticmethod
    def unpacked(
        buffer: Any, requests: int, nodes: int, *, budgeted: bool, weighted: bool, types: Sequence[Any]
    ) -> Round:
        """Return the parts of a buffer, an array or a tensor, as `types` of its library."""
        counts = _counts(requests, nodes, budgeted=budgeted, weighted=weighted)
        return Round(*unpacked(buffer, counts, _SIZES, types))


#: What each array of a round holds.
TYPES: list[Any] = [np.int64] * 5 + [np.float64] + [np.int32] * 2 + [np.float32, np.int32] + [np.float32] * 3
_SIZES = [np.dtype(kind).itemsize for kind in TYPES]


def _counts(requests: int, nodes: int, *, budgeted: bool, weighted: bool) -> list[int]:
    budget, weights = requests if budgeted else 0, nodes if weighted else 0
    return [requests + 1, nodes, *[requests] * 3, budget, nodes, nodes, *[requests] * 4, weights]


def buffer_bytes(requests: int, nodes: int, *, budgeted: bool, weighted: bool) -> int:
    """Return how many bytes :meth:`Round.packed` gives."""
    counts = _counts(requests, nodes, budgeted=budgeted, weighted=weighted)
    return sum(count * size for count, size in zip(counts, _SIZES, strict=True))


class Verdict(NamedTuple):
    """The Rust rules' verdict on a round (see :class:`specrs.types.Verdict`) and the bias of each request."""

    path_ptr: npt.NDArray[np.int64]
    path: npt.NDArray[np.int32]
    bonus: npt.NDArray[np.uint32]
    status: npt.NDArray[np.uint8]
    bias: npt.NDArray[np.float64]

    def words(self, longest: int) -> npt.NDArray[np.int64]:
        """Return it as an op does: int64 (B, longest + 4), paths padded with -1, bias as bits."""
        accepted = self.path_ptr[1:] - self.path_ptr[:-1]
        most = int(accepted.max(initial=0))
        if most > longest:
            raise InvalidInputError(f"longest must not be below the longest path, {most}, got {longest}")
        words = np.full((len(self.bonus), longest + FACTS), -1, np.int64)
        words[:, :longest][np.arange(longest) < accepted[:, None]] = self.path
        words[:, longest] = accepted
        words[:, longest + 1] = self.bonus.view(np.int32)  # the Rust rules' word for none becomes -1
        words[:, longest + 2] = self.status
        words[:, longest + 3] = self.bias.view(np.int64)
        return words

    @staticmethod
    def of_words(words: npt.NDArray[np.int64]) -> Verdict:
        """Read what an op returned."""
        longest = words.shape[1] - FACTS
        accepted = words[:, longest]
        return Verdict(
            path_ptr=np.concatenate([[0], accepted.cumsum()]),
            path=words[:, :longest][np.arange(longest) < accepted[:, None]].astype(np.int32),
            bonus=words[:, longest + 1].astype(np.uint32),  # -1 becomes the Rust rules' word for none
            status=words[:, longest + 2].astype(np.uint8),
            bias=words[:, longest + 3].view(np.float64),
        )


def on_host(
    logits: npt.NDArray[Any], dtype: str, given: Round, draft_probs: Any, rule: str, knobs: Sequence[float]
) -> Verdict:
    """Verify a round of arrays by the Rust rules.

    Parameters
    ----------
    logits : array, shape (R, V)
        As :func:`specrs.verification.logits.as_rows` gives them, with their `dtype`.
    given : Round
    draft_probs : array, shape (N, V), optional
        The law that the tokens were drawn from; without it they were chosen deterministically.
    rule : str
        'exact', or a relaxed rule of :mod:`specrs.verification.relaxed`.
    knobs : sequence of float
        Of a relaxed rule that is no ensemble.
    """
    tokens = given.tokens.astype(np.uint32)
    coins = _core.round_coins(
        given.seeds.view(np.uint64),
        given.samples.astype(np.uint32),
        given.positions.astype(np.uint32),
        given.row_ptr,
        given.depths,
    )
    tree: list[Any] = [logits, dtype, given.row_ptr, tokens, given.parents]
    rest: list[Any] = [given.temperature, given.top_k, given.top_p, given.min_p, *coins]
    if rule == "exact":
        name = "greedy_or_fixed" if draft_probs is None else "chain"
        verdict = _core.verify(*[*tree, name, *rest, draft_probs])
        return Verdict(*verdict, bias=np.zeros(len(verdict[2])))
    how = given.target_weight if rule == "ensemble" else np.array(knobs, np.float32)
    law: dict[str, Any] = {"one_hot": True} if draft_probs is None else {"draft_probs": draft_probs}
    law["budget"] = given.budget if len(given.budget) else None
    verdict, bias = _core.verify_relaxed(*[*tree, rule, how, *rest], **law)
    return Verdict(*verdict, bias=bias)
