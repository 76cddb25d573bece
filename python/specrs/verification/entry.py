"""One entry for engines: verify a batch of drafts on numpy or CPU torch logits, without copies."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specrs import _core
from specrs.errors import InvalidInputError
from specrs.verification.base import NO_TOKEN, DenseLaw, DraftLaw, OneHotLaw, SparseLaw, Verdict, Verifier
from specrs.verification.lossless import FixedCandidates

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
_warned: set[str] = set()

#: The names that ``specrs._core`` has for the formats of logits.
_FORMATS: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "f32",
    np.dtype(np.float16): "f16",
    np.dtype(np.uint16): "bf16",
}


def logit_view(logits: npt.NDArray[Any] | torch.Tensor) -> tuple[npt.NDArray[Any], str]:
    """Return logits as a numpy view and its format for ``specrs._core``.

    Parameters
    ----------
    logits : array or CPU tensor, shape (R, V)
        float32, float16, or bfloat16 (numpy has no such type: its bits as uint16, or a torch tensor).

    Returns
    -------
    array, shape (R, V)
        Shares memory with ``logits``.
    str
        'f32', 'f16' or 'bf16'.
    """
    array: Any = logits
    if not isinstance(array, np.ndarray):
        if not hasattr(array, "detach"):
            raise InvalidInputError(f"logits must be a numpy array or a torch tensor, got {type(array).__name__}")
        if array.device.type != "cpu":
            raise InvalidInputError(f"logits must be on the CPU, got a tensor on {array.device}")
        array = array.detach()
        if str(array.dtype) == "torch.bfloat16":
            import torch

            array = array.view(torch.uint16)
        array = array.numpy()
    found = _FORMATS.get(array.dtype)
    if array.ndim != 2 or found is None:
        raise InvalidInputError(
            f"logits must have shape (R, V) and be float32, float16 or bfloat16, got {array.shape} of {array.dtype}"
        )
    return array, found


def verify(
    logits: npt.NDArray[Any] | torch.Tensor,
    tokens: npt.ArrayLike,
    parents: npt.ArrayLike,
    row_ptr: npt.ArrayLike | None = None,
    *,
    verifier: Verifier | None = None,
    draft_law: DraftLaw | None = None,
    temperature: float | Sequence[float] | npt.NDArray[Any] = 0.0,
    top_k: int | Sequence[int] | npt.NDArray[Any] = 0,
    top_p: float | Sequence[float] | npt.NDArray[Any] = 1.0,
    min_p: float | Sequence[float] | npt.NDArray[Any] = 0.0,
    accept_coins: npt.NDArray[np.float64] | None = None,
    emit_coins: npt.NDArray[np.float64] | None = None,
    beyond_support: bool = False,
    budget: npt.ArrayLike | None = None,
) -> Verdict:
    """Tell which draft tokens stand, and which token follows them.

    A pure function: nothing is modified, no state is kept, a request's result does not depend on its neighbours.

    Parameters
    ----------
    logits : array or CPU tensor, shape (R, V)
        Target logits, processed (penalties, bias, grammar) but not truncated; read where they lie. Request b owns rows
        ``row_ptr[b] .. row_ptr[b + 1]``: its anchor's row, then one per node. R = B + N.
    tokens : array of int, shape (N,)
        Draft tokens of all requests. A negative id is padding that nothing matches.
    parents : array of int, shape (N,)
        Parent of each node within its request, -1 for the anchor; parents come before children.
    row_ptr : array of int, shape (B + 1,), optional
        Default: one request.
    verifier : Verifier, optional
        Default ``FixedCandidates()``, exact for every draft.
    draft_law : OneHotLaw, DenseLaw or SparseLaw, optional
        The law that the tokens were drawn from, for rules that need it.
    temperature, top_k, top_p, min_p : number or array, shape (B,)
        Sampling of each request, as transformers' processors in this order; temperature 0 is greedy.
    accept_coins, emit_coins : array of float64, shape (R,)
        In [0, 1), independent of each other and of the draft; ``specrs._core.round_coins`` makes them. Needed unless
        every request is greedy.
    beyond_support : bool
        Whether a relaxed rule may emit what the target's law excludes (top-p, grammar).
    budget : array of float, shape (B,), optional
        Bias that each request may still gather under a relaxed rule; beyond it the rule is exact.

    Returns
    -------
    Verdict

    Raises
    ------
    InvalidInputError
        Before any work, for shapes, trees, parameters or coins outside what is documented here.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.array([[0, 1, 3], [2, 1, 0], [0, 0, 9]], np.float32)
    >>> verdict = verify(logits, tokens=[2, 1], parents=[-1, 0])
    >>> verdict.path.tolist(), verdict.bonus.tolist()
    ([0], [0])
    """
    verifier = FixedCandidates() if verifier is None else verifier
    array, dtype = logit_view(logits)
    ids = _token_ids(tokens)
    pointers = np.array([0, len(array)]) if row_ptr is None else np.ascontiguousarray(row_ptr, dtype=np.int64)
    count = max(len(pointers) - 1, 0)
    temperatures = _per_request("temperature", temperature, np.float32, count)
    arguments: tuple[Any, ...] = (
        temperatures,
        _per_request("top_k", top_k, np.int32, count),
        _per_request("top_p", top_p, np.float32, count),
        _per_request("min_p", min_p, np.float32, count),
        _coins("accept_coins", accept_coins, temperatures, len(array)),
        _coins("emit_coins", emit_coins, temperatures, len(array)),
    )
    draft: tuple[Any, ...] = (
        array,
        dtype,
        pointers,
        ids,
        np.ascontiguousarray(parents, dtype=np.int32).reshape(-1),
        verifier.rule,
    )
    knobs = verifier.knobs(len(ids))
    law = law_arguments(draft_law)
    if knobs is None:
        return Verdict(*_core.verify(*draft, *arguments, **law), bias=np.zeros(count))
    warn_once(verifier)
    left = None if budget is None else _per_request("budget", budget, np.float64, count)
    law |= {"beyond_support": beyond_support, "budget": left}
    verdict, bias = _core.verify_relaxed(*(*draft, knobs, *arguments), **law)
    return Verdict(*verdict, bias=bias)


def _token_ids(tokens: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Return the tokens as the extension takes them; what is no id becomes one that nothing matches."""
    given = np.asarray(tokens).reshape(-1)
    if given.dtype == np.uint32:
        return np.ascontiguousarray(given)
    ids = given.astype(np.int64, casting="unsafe")
    return np.where((ids < 0) | (ids > NO_TOKEN), NO_TOKEN, ids).astype(np.uint32)


def _per_request(name: str, value: Any, kind: type, count: int) -> npt.NDArray[Any]:
    """Return a parameter as one entry per request."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**31):
        return np.full(count, value, kind)
    given = np.asarray(value)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
        raise InvalidInputError(f"{name} must be a number or have one entry per request, {count}, got {given.shape}")
    return np.ascontiguousarray(np.broadcast_to(given, (count,)), dtype=kind)


def _coins(name: str, given: Any, temperatures: npt.NDArray[np.float32], rows: int) -> npt.NDArray[np.float64]:
    """Return the coins of every row; requests that are all greedy need none."""
    if given is not None:
        return np.ascontiguousarray(given, dtype=np.float64)
    if bool((temperatures != 0).any()):
        raise InvalidInputError(f"{name} are needed for requests with a temperature above 0, got none")
    return np.zeros(rows)


def law_arguments(law: DraftLaw | None) -> dict[str, Any]:
    """Return a draft law as keyword arguments of ``specrs._core.verify``."""
    if law is None:
        return {}
    if isinstance(law, OneHotLaw):
        return {"one_hot": True}
    rows = None if law.rows is None else np.ascontiguousarray(law.rows, dtype=np.int64)
    if isinstance(law, DenseLaw):
        probs: Any = law.probs.detach().numpy() if hasattr(law.probs, "detach") else law.probs
        return {"draft_probs": probs, "draft_rows": rows}
    if isinstance(law, SparseLaw):
        return {"draft_probs": law.probs, "draft_ids": law.ids, "draft_ptr": law.ptr, "draft_rows": rows}
    raise InvalidInputError(f"draft_law must be OneHotLaw, DenseLaw or SparseLaw, got {type(law).__name__}")


def warn_once(verifier: Verifier) -> None:
    """Log, once per rule, that the output law is not the target's."""
    if verifier.rule not in _warned:
        _warned.add(verifier.rule)
        logger.warning("%s is a relaxed rule: the output law is not the target's; see Verdict.bias", verifier)
