"""Small device steps around verification: fork tokens, speculation cache, draft lengths, diffusion acceptance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from specrs.errors import InvalidInputError
from specrs.ops.draft import Layout, check_tensor, to_fill
from specrs.ops.launch import Argument, launch
from specrs.ops.rows import RowStatistics, logits_suffix, row_leaders, row_statistics

if TYPE_CHECKING:
    import torch

#: Most ids that one row can return.
MOST_BEST = 256
#: Rules of acceptance for diffusion models, in the kernel's order.
UNMASK_RULES = ("exact", "policy", "token")


class BestIds(NamedTuple):
    """The best ids of each row: ``ids`` int64 and ``probs`` float32, flat by row; -1 and NaN where there is none."""

    ids: torch.Tensor
    probs: torch.Tensor
    statistics: RowStatistics


def top_k_rows(
    logits: torch.Tensor,
    k: int,
    exclude: int = -1,
    temperature: float = 1.0,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> BestIds:
    """Return statistics and the `k` best ids of each row, larger logit first, smaller id first among equals.

    This is the score of a diffusion model: argmax, confidence, entropy and, with k of 2, the margin.

    Parameters
    ----------
    logits : tensor, shape (R, V)
        float32, bfloat16 or float16.
    k : int
        1 to 256; ids and probs have shape (R, k).
    exclude : int
        An id that no row may predict (the mask token), or -1.
    temperature : float
        Of the probabilities and statistics, above 0.
    out : (tensor, tensor), optional
        ids and probs to fill.
    """
    import torch

    check_top_k(logits, k, temperature)
    rows, device = logits.shape[0], logits.device
    excluded = torch.full((rows,), exclude, dtype=torch.int64, device=device) if exclude >= 0 else None
    one_request = torch.arange(2, device=device) * rows
    its_temperature = torch.full((1,), temperature, dtype=torch.float32, device=device)
    ids, probs = to_fill(out, logits, top_k_layout(logits, k))
    best = BestIds(ids, probs, row_statistics(logits, one_request, its_temperature, exclude))
    return _fill(logits, best, None, k, excluded, None, temperature)


def check_top_k(logits: torch.Tensor, k: int, temperature: float) -> None:
    """Refuse a number of ids that no row can return, and a temperature that is none."""
    logits_suffix(logits)
    if not 1 <= k <= MOST_BEST:
        raise InvalidInputError(f"k must be in 1..={MOST_BEST}, got {k}")
    if not 0 < temperature < math.inf:
        raise InvalidInputError(f"temperature must be above 0 and finite, got {temperature}")


def top_k_layout(logits: torch.Tensor, k: int, *_: float) -> Layout:
    """Return the layout of the ids and probs of :func:`top_k_rows`."""
    return _best_layout((logits.shape[0], k))


def _best_layout(shape: tuple[int, ...]) -> Layout:
    import torch

    return {"ids": (torch.int64, shape), "probs": (torch.float32, shape)}


def fork_tokens(
    logits: torch.Tensor,
    exclude: torch.Tensor,
    counts: torch.Tensor,
    offsets: torch.Tensor,
    total: int,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> BestIds:
    """Return the most likely bonus tokens behind each number of accepted drafts (SSD).

    Parameters
    ----------
    logits : tensor, shape (R, V)
        The drafter's rows, one per number of accepted drafts.
    exclude : tensor, shape (R,)
        int64: the draft token that follows the row, which a rejection there excludes; -1 for the last row.
    counts, offsets : tensor, shape (R,)
        int32 and int64: how many tokens to fork at a row (256 at most) and where they go; what passes the ends of the
        result is dropped.
    total : int
        Length of the result; places that no row fills hold -1 and NaN.
    out : (tensor, tensor), optional
        ids and probs to fill.
    """
    check_fork(logits, exclude, counts, offsets)
    ids, probs = to_fill(out, logits, fork_layout(logits, exclude, counts, offsets, total))
    best = BestIds(ids.fill_(-1), probs.fill_(math.nan), row_statistics(logits))
    return _fill(logits, best, counts, 0, exclude, offsets)


def fork_layout(
    logits: torch.Tensor, exclude: torch.Tensor, counts: torch.Tensor, offsets: torch.Tensor, total: int
) -> Layout:
    """Return the layout of the ids and probs of :func:`fork_tokens`."""
    return _best_layout((total,))


def check_fork(logits: torch.Tensor, exclude: torch.Tensor, counts: torch.Tensor, offsets: torch.Tensor) -> None:
    """Refuse what is not one entry per row, in its type."""
    import torch

    rows = logits.shape[0]
    logits_suffix(logits)
    check_tensor("exclude", exclude, torch.int64, (rows,))
    check_tensor("counts", counts, torch.int32, (rows,))
    check_tensor("offsets", offsets, torch.int64, (rows,))


def _fill(
    logits: torch.Tensor,
    best: BestIds,
    counts: torch.Tensor | None,
    k: int,
    exclude: torch.Tensor | None,
    offsets: torch.Tensor | None,
    temperature: float = 1.0,
) -> BestIds:
    (rows, vocabulary), (ids, probs, statistics) = logits.shape, best
    if ids.numel():
        row: list[Argument] = [logits, vocabulary, vocabulary, *row_leaders(logits), counts, k, exclude, offsets]
        facts: list[Argument] = [statistics.log_sum_exp, statistics.status, 1 / temperature]
        launch(f"row_top_k_{logits_suffix(logits)}", rows, [*row, *facts, ids.numel(), ids, probs])
    return best


def lookup_cache(keys: torch.Tensor, queries: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return which entry of a speculation cache matches each outcome: int64 (B,), -1 for a miss.

    Parameters
    ----------
    keys, queries : tensor, shapes (N, 3) and (B, 3)
        int64 (sequence, accepted drafts, bonus token); a negative sequence never hits.
    out : tensor, optional
        What to fill.
    """
    import torch

    check_tensor("keys", keys, torch.int64, (keys.shape[0], 3))
    check_tensor("queries", queries, torch.int64, (queries.shape[0], 3))
    (hits,) = to_fill(out, queries, hits_layout(keys, queries))
    launch("lookup_cache", (len(queries) + 7) // 8, [keys, keys.shape[0], queries, queries.shape[0], hits])
    return hits


def hits_layout(keys: torch.Tensor, queries: torch.Tensor) -> Layout:
    """Return the layout of what :func:`lookup_cache` finds."""
    import torch

    return {"hits": (torch.int64, (queries.shape[0],))}


def select_lengths(
    confidence: torch.Tensor,
    row_ptr: torch.Tensor,
    cost: torch.Tensor,
    hysteresis: float = 0.02,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return how many drafts of each chain to score: int32 (B,), the length of most expected tokens per cost.

    A request without rows scores none, and so does one that ``row_ptr`` leads out of the arrays on a device.

    Parameters
    ----------
    confidence : tensor, shape (N,)
        float32 P(accepted given its parent is), in chain order.
    row_ptr : tensor, shape (B + 1,)
        int64, as in a draft tree.
    cost : tensor, shape (C,)
        float32: ``cost[L]`` of scoring L drafts; lengths stay below C.
    hysteresis : float
        The share by which drafting at all must beat drafting nothing.
    out : tensor, optional
        What to fill.
    """
    import torch

    requests = row_ptr.shape[0] - 1
    check_tensor("confidence", confidence, torch.float32, (confidence.shape[0],))
    check_tensor("row_ptr", row_ptr, torch.int64, (requests + 1,))
    check_tensor("cost", cost, torch.float32, (max(1, cost.shape[0]),))
    (lengths,) = to_fill(out, row_ptr, lengths_layout(confidence, row_ptr))
    rows = confidence.shape[0] + requests
    arguments: list[Argument] = [confidence, row_ptr, requests, rows, cost, cost.shape[0], hysteresis, lengths]
    launch("select_lengths", (requests + 255) // 256, arguments)
    return lengths


def lengths_layout(confidence: torch.Tensor, row_ptr: torch.Tensor, *_: torch.Tensor | float) -> Layout:
    """Return the layout of what :func:`select_lengths` selects."""
    import torch

    return {"lengths": (torch.int32, (row_ptr.shape[0] - 1,))}


def accept_unmasked(
    drafts: torch.Tensor,
    outcomes: torch.Tensor,
    depths: torch.Tensor,
    mask: int,
    rule: Literal["exact", "policy", "token"] = "policy",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the deepest draft of a diffusion model that its predictions support: int32 (B,), 0 for none.

    Parameters
    ----------
    drafts, outcomes : tensor, shape (B, d + 1, W)
        int64: what each depth fills in, and what follows from scoring it.
    depths : tensor, shape (B,)
        int32: depths in use.
    mask : int
        The id of an undecided position.
    rule : {'exact', 'policy', 'token'}
        Equal everywhere; equal where the draft is decided; only the added tokens, in order (relaxed).
    out : tensor, optional
        What to fill.
    """
    number = check_unmasked(drafts, outcomes, depths, rule)
    batch, levels, width = drafts.shape
    (accepted,) = to_fill(out, drafts, unmasked_layout(drafts))
    launch("accept_unmasked", batch, [drafts, outcomes, depths, levels - 1, width, number, mask, accepted])
    return accepted


def unmasked_layout(drafts: torch.Tensor, *_: torch.Tensor | int | str) -> Layout:
    """Return the layout of what :func:`accept_unmasked` accepts."""
    import torch

    return {"accepted": (torch.int32, (drafts.shape[0],))}


def check_unmasked(drafts: torch.Tensor, outcomes: torch.Tensor, depths: torch.Tensor, rule: str) -> int:
    """Refuse drafts that do not belong together and unknown rules; return the rule's number."""
    import torch

    if rule not in UNMASK_RULES:
        raise InvalidInputError(f"rule must be one of {', '.join(UNMASK_RULES)}, got '{rule}'")
    if drafts.dim() != 3:
        raise InvalidInputError(f"drafts must be of shape (B, d + 1, W), got {tuple(drafts.shape)}")
    check_tensor("drafts", drafts, torch.int64, tuple(drafts.shape))
    check_tensor("outcomes", outcomes, torch.int64, tuple(drafts.shape))
    check_tensor("depths", depths, torch.int32, (drafts.shape[0],))
    return UNMASK_RULES.index(rule)
