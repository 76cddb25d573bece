"""The same operations on host tensors: verification by the Rust rules, the rest in plain torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from specrs import _core
from specrs.errors import InvalidInputError
from specrs.ops.outcome import BestIds
from specrs.ops.rows import RowStatistics, Sampling, logits_suffix
from specrs.ops.verify import ChainRule, DraftLaw, DraftTree, Verdict, check_draft, check_tensor, check_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

#: The token that says "none" in the Rust rules.
NO_TOKEN = 2**32 - 1


def _bits(logits: torch.Tensor) -> tuple[npt.NDArray[np.generic], str]:
    """Return the logits as an array that numpy has a type for, and their format."""
    suffix = logits_suffix(logits)
    array = logits.detach()
    return (array if suffix == "f32" else array.view(torch.uint16)).numpy(), suffix


def verify(
    rule: str,
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    accept: torch.Tensor,
    emit: torch.Tensor,
    draft: DraftLaw,
    knobs: torch.Tensor | None = None,
) -> Verdict:
    """Verify with a Rust rule, a relaxed one if there are `knobs`; arguments as in :mod:`specrs.ops.verify`."""
    check_tree(logits, tree, sampling)
    check_draft(draft, tree.tokens.shape[0])
    for name, coins in (("accept", accept), ("emit", emit)):
        check_tensor(name, coins, torch.float64, (logits.shape[0],))
    array, dtype = _bits(logits)
    head: list[Any] = [
        array,
        dtype,
        tree.row_ptr.numpy(),
        tree.tokens.to(torch.uint32).numpy(),
        tree.parents.numpy(),
        rule,
    ]
    tail: list[Any] = [*(parameter.numpy() for parameter in sampling), accept.numpy(), emit.numpy()]
    if knobs is None:
        arguments = [*head, *tail]
        path_ptr, path, bonus, status = _core.verify(*arguments, **_law(draft))
    else:
        arguments = [*head, knobs.numpy(), *tail]
        (path_ptr, path, bonus, status), _ = _core.verify_relaxed(*arguments, **_law(draft))
    requests = len(bonus)
    pointers = torch.from_numpy(path_ptr)
    accepted = pointers.diff()
    padded = torch.full((requests, tree.longest), -1, dtype=torch.int32)
    if accepted.numel() and int(accepted.max()) > tree.longest:
        raise InvalidInputError(
            f"longest must not be below the longest path, {int(accepted.max())}, got {tree.longest}"
        )
    owner = torch.repeat_interleave(torch.arange(requests), accepted)
    padded[owner, torch.arange(len(path)) - pointers[owner]] = torch.from_numpy(path)
    token = torch.from_numpy(bonus).to(torch.int64)
    return Verdict(
        padded, accepted.to(torch.int32), token.where(token != NO_TOKEN, -1), torch.from_numpy(status).to(torch.int32)
    )


def verify_chain(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    rule: ChainRule,
) -> Verdict:
    """As :func:`specrs.ops.verify.verify_chain`. An ensemble and lenience at once have no Rust rule and are refused."""
    name, knobs = "chain", None
    if rule.kind == "typical":
        name, knobs = "typical", torch.tensor([rule.epsilon, rule.delta])
    elif rule.kind == "top_k":
        name, knobs = "top_k", torch.tensor([float(rule.k)])
    elif rule.target_weight is not None and rule.lenience != 1.0:
        raise InvalidInputError(f"either target_weight or lenience can be given, got both ({rule.lenience})")
    elif rule.target_weight is not None:
        name, knobs = "ensemble", rule.target_weight
    elif rule.lenience != 1.0:
        name, knobs = "lenience", torch.tensor([rule.lenience])
    return verify(name, logits, tree, sampling, accept, emit, draft, knobs)


def _law(draft: DraftLaw) -> dict[str, Any]:
    """Return the draft law as the extension takes it: sparse rows ascending, each id once."""
    if draft.probs is None:
        return {"one_hot": True}
    rows = {} if draft.row_of is None else {"draft_rows": draft.row_of.numpy()}
    if draft.ids is None:
        return {"draft_probs": draft.probs.numpy(), **rows}
    ids, probs, pointers = [], [], [0]
    for row_ids, row_probs in zip(draft.ids.tolist(), draft.probs.tolist(), strict=True):
        entries = dict(reversed([(i, p) for i, p in zip(row_ids, row_probs, strict=True) if i >= 0]))
        ids += sorted(entries)
        probs += [entries[i] for i in sorted(entries)]
        pointers.append(len(ids))
    sparse = {"draft_ids": torch.tensor(ids, dtype=torch.uint32), "draft_ptr": torch.tensor(pointers)}
    arrays = {"draft_probs": torch.tensor(probs, dtype=torch.float32), **sparse}
    return {name: tensor.numpy() for name, tensor in arrays.items()} | rows


def round_coins(
    seeds: torch.Tensor,
    samples: torch.Tensor,
    positions: torch.Tensor,
    row_ptr: torch.Tensor,
    parents: torch.Tensor,
    by_sibling: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`specrs.ops.verify.round_coins`."""
    depths: list[int] = []
    for b in range(row_ptr.shape[0] - 1):
        first = int(row_ptr[b]) - b
        for parent in parents[first : int(row_ptr[b + 1]) - b - 1].tolist():
            depths.append(1 if parent < 0 else depths[first + parent] + 1)
    accept, emit = _core.round_coins(
        seeds.view(torch.uint64).numpy(),
        samples.to(torch.uint32).numpy(),
        positions.to(torch.uint32).numpy(),
        row_ptr.numpy(),
        torch.tensor(depths, dtype=torch.int32).numpy(),
        parents.to(torch.int32).numpy() if by_sibling else None,
    )
    return torch.from_numpy(accept), torch.from_numpy(emit)


def row_statistics(
    logits: torch.Tensor, row_ptr: torch.Tensor | None, temperature: torch.Tensor | None, exclude: int
) -> RowStatistics:
    """As :func:`specrs.ops.rows.row_statistics`."""
    logits_suffix(logits)
    rows = logits.float()
    if exclude >= 0:
        rows = rows.clone()
        rows[:, exclude] = -math.inf
    unusable = rows.isnan().any(1) | (rows == math.inf).any(1) | (rows == -math.inf).all(1)
    divisor = torch.ones(rows.shape[0])
    if row_ptr is not None and temperature is not None:
        divisor = torch.repeat_interleave(torch.where(temperature > 0, temperature, 1.0), row_ptr.diff())
    safe = rows.masked_fill(unusable[:, None], 0.0)
    scaled = safe / divisor[:, None]
    log_sum_exp = scaled.logsumexp(1)
    log_probs = scaled - log_sum_exp[:, None]
    entropy = -(log_probs.exp() * log_probs.masked_fill(log_probs == -math.inf, 0.0)).sum(1)
    facts = [log_probs.amax(1).exp(), entropy.clamp(min=0), log_sum_exp]
    argmax = safe.argmax(1).masked_fill(unusable, -1)
    masked = [fact.masked_fill(unusable, math.nan) for fact in facts]
    return RowStatistics._make([argmax, *masked, torch.where(unusable, 2, 0).to(torch.int32)])


def best_ids(
    logits: torch.Tensor,
    statistics: RowStatistics,
    counts: torch.Tensor,
    exclude: torch.Tensor,
    offsets: torch.Tensor,
    total: int,
) -> BestIds:
    """Write the ``counts[r]`` best ids of each row from ``offsets[r]`` on, as the kernel ``row_top_k`` does."""
    ids = torch.full((total,), -1, dtype=torch.int64)
    probs = torch.full((total,), math.nan)
    for r in range(logits.shape[0]):
        if int(statistics.status[r]) != 0:
            continue
        order = logits[r].float().sort(descending=True, stable=True).indices
        order = order[order != exclude[r]][: int(counts[r])]
        where = slice(int(offsets[r]), int(offsets[r]) + len(order))
        ids[where] = order
        probs[where] = (logits[r, order].float() - statistics.log_sum_exp[r]).exp()
    return BestIds(ids, probs, statistics)


def lookup_cache(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """As :func:`specrs.ops.outcome.lookup_cache`."""
    check_tensor("keys", keys, torch.int64, (keys.shape[0], 3))
    check_tensor("queries", queries, torch.int64, (queries.shape[0], 3))
    same = (queries[:, None] == keys[None]).all(2) & (queries[:, :1] >= 0)
    if keys.shape[0] == 0:
        return torch.full((queries.shape[0],), -1, dtype=torch.int64)
    return torch.where(same.any(1), same.int().argmax(1), -1)


def select_lengths(
    confidence: torch.Tensor, row_ptr: torch.Tensor, cost: torch.Tensor, hysteresis: float
) -> torch.Tensor:
    """As :func:`specrs.ops.outcome.select_lengths`."""
    lengths, prices, first = [], cost.tolist(), 0
    for rows in row_ptr.diff().tolist():
        survival = expected = 1.0
        best, chosen = 1.0 / prices[0], 0
        for length in range(1, min(rows - 1, len(prices) - 1) + 1):
            promise = float(confidence[first + length - 1])
            survival *= min(promise, 1.0) if promise >= 0 else 0.0
            expected += survival
            if expected / prices[length] > best * hysteresis:
                best, chosen = expected / prices[length], length
        lengths.append(chosen)
        first += rows - 1
    return torch.tensor(lengths, dtype=torch.int32)


def accept_unmasked(
    drafts: torch.Tensor, outcomes: torch.Tensor, depths: torch.Tensor, mask: int, rule: str
) -> torch.Tensor:
    """As :func:`specrs.ops.outcome.accept_unmasked`."""
    if rule not in ("exact", "policy", "token"):
        raise InvalidInputError(f"rule must be 'exact', 'policy' or 'token', got '{rule}'")
    accepted = []
    for draft, outcome, depth in zip(drafts, outcomes, depths.tolist(), strict=True):
        best, deepest, moved = 0, max(0, min(depth, draft.shape[0] - 1)), True
        while moved:
            moved = False
            for j in range(min(best + 1, deepest) if rule == "token" else deepest, best, -1):
                counts = torch.ones_like(draft[j], dtype=torch.bool)
                if rule != "exact":
                    counts = draft[j] != mask if rule == "policy" else draft[j] != draft[j - 1]
                if not bool(((draft[j] != outcome[best]) & counts).any()):
                    best, moved = j, True
                    break
        accepted.append(best)
    return torch.tensor(accepted, dtype=torch.int32)


def tree_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    visibility: torch.Tensor,
    scale: float,
    block_table: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`specrs.ops.attention.tree_attention`."""
    group, page_size = query.shape[1] // keys.shape[1], keys.shape[2]
    outs, sums = [], []
    for b, prefix in enumerate(lengths.tolist()):
        first, end = int(row_ptr[b]), int(row_ptr[b + 1])
        count = end - first
        slots = torch.arange(prefix + count)
        pages = torch.full_like(slots, b) if block_table is None else block_table[b].long()[slots // page_size]
        k, v = (
            cache[pages, :, slots % page_size].float().repeat_interleave(group, 1) for cache in (keys, values)
        )  # (slots, Hq, D)
        nodes = torch.arange(count)
        seen = (visibility[first:end][:, nodes // 64] >> (nodes % 64)) & 1
        scores = torch.einsum("rhd,shd->rhs", query[first:end].float(), k) * scale
        scores[:, :, prefix:] = scores[:, :, prefix:].masked_fill((seen == 0)[:, None], -math.inf)
        outs.append(torch.einsum("rhs,shd->rhd", scores.softmax(2), v))
        sums.append(scores.logsumexp(2) * math.log2(math.e))
    return torch.cat(outs).to(query.dtype), torch.cat(sums)


def commit_cache(
    tensors: Sequence[torch.Tensor], lengths: torch.Tensor, verdict: Verdict, block_table: torch.Tensor | None
) -> None:
    """As :func:`specrs.ops.attention.commit_cache`."""
    page_size = tensors[0].shape[2]
    capacity = page_size * (1 if block_table is None else block_table.shape[1])
    for b, (count, start) in enumerate(zip(verdict.accepted.tolist(), lengths.tolist(), strict=True)):
        if start + 1 + count > capacity:
            continue
        for j, node in enumerate(verdict.path[b, :count].tolist()):
            if node < j or start + 1 + node >= capacity:
                break
            source, target = start + 1 + node, start + 1 + j
            if block_table is None:
                from_page = to_page = b
            else:
                from_page, to_page = (int(block_table[b, slot // page_size]) for slot in (source, target))
            for tensor in tensors:
                tensor[to_page, :, target % page_size] = tensor[from_page, :, source % page_size]
    lengths += torch.where(verdict.bonus >= 0, verdict.accepted + 1, 0)
