"""Drawing a draft token of each row: the token, what its row says of it, and the law that it was drawn from.

On a host by the Rust rule, lazily: a policy pays for the facts that it asks for. On a device by one op, whose few
numbers come to the host in one copy while logits and laws stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.ops import drawing, where
from specrs.verification.logits import as_float32, as_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from specrs.ops.drawing import Draws

#: What stands for the token of a row that is NaN, +inf or masked throughout.
NO_TOKEN = 2**32 - 1


class LogitFacts:
    """What a step's rows of logits say of the tokens drawn from them. See ``drafters.base.TokenFacts``."""

    def __init__(
        self,
        requests: Sequence[int],
        lengths: Sequence[int],
        tokens: Sequence[int],
        values: npt.NDArray[Any],
        dtype: str,
    ) -> None:
        self.requests = requests
        self.lengths = lengths
        self.tokens = tokens
        self._values, self._dtype = values, dtype
        _, highest = _core.top_log_probs(values, dtype, np.arange(len(tokens)), 1)
        self.confidence: list[float] = np.exp(highest[:, 0]).tolist()

    def of(self, kept: Sequence[int], lengths: Sequence[int]) -> LogitFacts:
        """Return the facts of some of the rows."""
        facts = object.__new__(LogitFacts)
        facts.requests = [self.requests[i] for i in kept]
        facts.lengths = lengths
        facts.tokens = [self.tokens[i] for i in kept]
        everything = list(kept) == list(range(len(self.tokens)))
        facts._values, facts._dtype = self._values if everything else self._values[list(kept)], self._dtype
        facts.confidence = [self.confidence[i] for i in kept]
        return facts

    def entropy(self) -> list[float]:
        """Return the entropy of each row in nats."""
        rows = as_float32(self._values, self._dtype)
        below = rows - rows.max(axis=1, keepdims=True)
        weights = np.exp(below)
        total = weights.sum(axis=1, dtype=np.float64)
        # A masked id has weight 0 and no logarithm.
        spread = np.where(weights > 0, weights * below, 0.0).sum(axis=1, dtype=np.float64)
        found: list[float] = (np.log(total) - spread / total).tolist()
        return found

    def token_probs(self) -> list[float]:
        """Return the probability of each token."""
        rows = np.arange(len(self.tokens))
        return np.exp(_core.log_probs(self._values, self._dtype, rows, np.array(self.tokens, np.uint32))).tolist()  # type: ignore[no-any-return]

    def top_probs(self, count: int) -> list[list[float]]:
        """Return the largest probabilities of each row."""
        rows, most = np.arange(len(self.tokens)), min(count, self._values.shape[1])
        _, highest = _core.top_log_probs(self._values, self._dtype, rows, most)
        found: list[list[float]] = np.exp(highest).tolist()
        return found


class DeviceFacts:
    """As :class:`LogitFacts`, of logits on a device: ``facts``, float64 (R, 4), came from there, the rest is asked."""

    def __init__(
        self,
        requests: Sequence[int],
        lengths: Sequence[int],
        logits: Any,
        facts: npt.NDArray[np.float64],
        rows: Sequence[int],
    ) -> None:
        self.requests = requests
        self.lengths = lengths
        self._logits, self._facts, self._rows = logits, facts, rows
        tokens, confidence, *_ = facts.T
        self.tokens: list[int] = np.where(tokens < 0, NO_TOKEN, tokens).astype(np.int64).tolist()
        self.confidence: list[float] = confidence.tolist()

    def of(self, kept: Sequence[int], lengths: Sequence[int]) -> DeviceFacts:
        """Return the facts of some of the rows."""
        rows = [self._rows[i] for i in kept]
        return DeviceFacts([self.requests[i] for i in kept], lengths, self._logits, self._facts[list(kept)], rows)

    def entropy(self) -> list[float]:
        """Return the entropy of each row in nats."""
        return self._facts[:, drawing.FACTS.index("entropy")].tolist()  # type: ignore[no-any-return]

    def token_probs(self) -> list[float]:
        """Return the probability of each token."""
        return self._facts[:, drawing.FACTS.index("token_prob")].tolist()  # type: ignore[no-any-return]

    def top_probs(self, count: int) -> list[list[float]]:
        """Return the largest probabilities of each row, up to 256."""
        from specrs.ops import torch_ops

        most = min(count, self._logits.shape[1])
        _, probs = torch_ops.NAMESPACE.top_k_rows(self._logits[self._rows], most)
        return probs.cpu().tolist()  # type: ignore[no-any-return]


def draw(
    requests: Sequence[int], logits: Any, given: Draws, *, with_laws: bool
) -> tuple[LogitFacts | DeviceFacts, Any]:
    """Draw a token of each row; return what the rows say of the tokens, and the laws where they are wanted.

    Parameters
    ----------
    requests : sequence of R int
        Whose rows they are, by index.
    logits : array or tensor, shape (R, V)
    given : Draws
    with_laws : bool
        Whether to return the laws, float32 (R, V), exactly as drawn from: an array, or a tensor on the logits' device.
    """
    if where.on_a_device(logits):
        rows = logits.detach().contiguous()
        facts, laws = _draw_there(rows, given, with_laws)
        return DeviceFacts(requests, [], rows, facts, list(range(len(requests)))), laws
    values, dtype = as_rows(logits)
    tokens, laws = drawing.on_host(values, dtype, given, with_probs=with_laws)
    return LogitFacts(requests, [], [int(token) for token in tokens], values, dtype), laws


def drawn(
    logits: Any, given: Draws, *, with_laws: bool
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]:
    """Draw a token of each row where it lies, for a drafter whose drafts leave the device.

    Parameters
    ----------
    logits : array or tensor, shape (R, V)
    given : Draws
    with_laws : bool
        Whether to return the laws.

    Returns
    -------
    tokens : array of uint32, shape (R,)
        ``NO_TOKEN`` where there is none.
    laws : array of float32, shape (R, V), or None
    """
    if not where.on_a_device(logits):
        return drawing.on_host(*as_rows(logits), given, with_probs=with_laws)
    facts, laws = _draw_there(logits.detach().contiguous(), given, with_laws)
    tokens = facts[:, drawing.FACTS.index("token")]
    return np.where(tokens < 0, NO_TOKEN, tokens).astype(np.uint32), laws.cpu().numpy() if with_laws else None


def _draw_there(rows: Any, given: Draws, with_laws: bool) -> tuple[npt.NDArray[np.float64], Any]:
    """Draw by the op; return the facts, which came to the host, and the laws, which stay."""
    from specrs.ops import torch_ops

    facts, laws = torch_ops.NAMESPACE.draw_tokens(rows, where.as_tensor(given.packed(), rows.device), with_laws)
    return facts.cpu().numpy(), laws if with_laws else None


def picked(laws: Sequence[Any], picks: Sequence[tuple[int, int]]) -> Any:
    """Return rows of several steps' laws, each named by step and row, as one array or tensor of shape (picks, V)."""
    if isinstance(laws[0], np.ndarray):
        return np.stack([laws[step][row] for step, row in picks])
    import torch

    first = np.cumsum([0, *map(len, laws)])
    order = [int(first[step]) + row for step, row in picks]
    rows = torch.cat(list(laws))
    return rows if order == list(range(len(rows))) else rows[order]
