"""What the kernels compute besides verification, on host tensors in plain torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from specrs.ops.attention import check_attention, check_commit, check_page, check_path
from specrs.ops.caches import check_attend, check_write
from specrs.ops.draft import Verdict, check_row_ptr, check_tensor
from specrs.ops.outcome import MOST_BEST, BestIds, check_fork, check_top_k, check_unmasked
from specrs.ops.rows import RowStatistics, check_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence


def row_statistics(
    logits: torch.Tensor,
    row_ptr: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    exclude: int = -1,
) -> RowStatistics:
    """As :func:`specrs.ops.rows.row_statistics`."""
    check_statistics(logits, row_ptr, temperature, exclude)
    rows = logits.float()
    if exclude >= 0:
        rows = rows.clone()
        rows[:, exclude] = -math.inf
    unusable = rows.isnan().any(1) | (rows == math.inf).any(1) | (rows == -math.inf).all(1)
    divisor = torch.ones(rows.shape[0])
    if row_ptr is not None and temperature is not None:
        check_row_ptr(row_ptr, rows.shape[0], least=0)
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
    temperature: float = 1.0,
) -> BestIds:
    """Write the ``counts[r]`` best ids of each row from ``offsets[r]`` on, as the kernel ``row_top_k`` does."""
    ids, probs = torch.full((total,), -1), torch.full((total,), math.nan)
    wanted, first = counts.clamp(0, MOST_BEST).tolist(), offsets.tolist()
    for r in range(logits.shape[0]):
        if int(statistics.status[r]) != 0:
            continue
        order = logits[r].float().sort(descending=True, stable=True).indices
        order = order[order != exclude[r]][: wanted[r]]
        places = torch.arange(len(order)) + first[r]
        inside = (places >= 0) & (places < total)
        order, places = order[inside], places[inside]
        ids[places] = order
        probs[places] = (logits[r, order].float() / temperature - statistics.log_sum_exp[r]).exp()
    return BestIds(ids, probs, statistics)


def top_k_rows(
    logits: torch.Tensor, k: int, exclude: int = -1, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the ids and probabilities of :func:`specrs.ops.outcome.top_k_rows`."""
    check_top_k(logits, k, temperature)
    rows = logits.shape[0]
    statistics = row_statistics(logits, torch.tensor([0, rows]), torch.tensor([float(temperature)]), exclude)
    counts, excluded = torch.full((rows,), k), torch.full((rows,), exclude)
    best = best_ids(logits, statistics, counts, excluded, torch.arange(rows) * k, rows * k, temperature)
    return best.ids.view(rows, k), best.probs.view(rows, k)


def fork_tokens(
    logits: torch.Tensor, exclude: torch.Tensor, counts: torch.Tensor, offsets: torch.Tensor, total: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the ids and probabilities of :func:`specrs.ops.outcome.fork_tokens`."""
    check_fork(logits, exclude, counts, offsets)
    return best_ids(logits, row_statistics(logits), counts, exclude, offsets, total)[:2]


def lookup_cache(keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """As :func:`specrs.ops.outcome.lookup_cache`."""
    check_tensor("keys", keys, torch.int64, (keys.shape[0], 3))
    check_tensor("queries", queries, torch.int64, (queries.shape[0], 3))
    same = (queries[:, None] == keys[None]).all(2) & (queries[:, :1] >= 0)
    if keys.shape[0] == 0:
        return torch.full((queries.shape[0],), -1, dtype=torch.int64)
    return torch.where(same.any(1), same.int().argmax(1), -1)


def accept_unmasked(
    drafts: torch.Tensor, outcomes: torch.Tensor, depths: torch.Tensor, mask: int, rule: str = "policy"
) -> torch.Tensor:
    """As :func:`specrs.ops.outcome.accept_unmasked`."""
    check_unmasked(drafts, outcomes, depths, rule)
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
    scale: float | None = None,
    block_table: torch.Tensor | None = None,
    splits: int = 1,
    most_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`specrs.ops.attention.tree_attention`; `splits` and `most_rows` only matter to a device."""
    check_attention(query, keys, values, lengths, row_ptr, visibility, block_table, splits, most_rows)
    check_row_ptr(row_ptr, query.shape[0], least=0)
    scale = 1 / math.sqrt(query.shape[2]) if scale is None else scale
    group, page_size = query.shape[1] // keys.shape[1], keys.shape[2]
    outs = [torch.zeros((0, *query.shape[1:]))]
    sums = [torch.zeros((0, query.shape[1]))]
    for b, prefix in enumerate(lengths.tolist()):
        first, end = int(row_ptr[b]), int(row_ptr[b + 1])
        count = end - first
        if not 0 <= prefix <= page_size * (1 if block_table is None else block_table.shape[1]) - count:
            outs.append(torch.zeros(count, *query.shape[1:]))
            sums.append(torch.full((count, query.shape[1]), -math.inf))
            continue
        slots = torch.arange(prefix + count)
        pages = torch.full_like(slots, b) if block_table is None else block_table[b].long()[slots // page_size]
        for page in pages.unique().tolist():
            check_page(page, keys.shape[0])
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


def write_caches(
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
) -> None:
    """As :func:`specrs.ops.caches.write_caches`."""
    check_write(keys, values, addresses, slots, lengths, row_ptr, new_keys, new_values)
    check_row_ptr(row_ptr, new_keys.shape[0], least=0)
    for b, start in enumerate(lengths.tolist()):
        first, end = row_ptr[b : b + 2].tolist()
        if 0 <= start <= keys[b].shape[2] - (end - first):
            for cache, new in ((keys[b], new_keys), (values[b], new_values)):
                cache[0, :, start : start + end - first] = new[first:end].transpose(0, 1)


def attend_caches(
    query: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    row_ptr: torch.Tensor,
    visibility: torch.Tensor,
    scale: float | None = None,
    splits: int = 1,
    least_part: int = 1,
    most_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`specrs.ops.caches.attend_caches`; how slots are cut and `most_rows` only matter to a device."""
    check_attend(query, keys, values, addresses, slots, lengths, row_ptr, visibility, splits, least_part, most_rows)
    check_row_ptr(row_ptr, query.shape[0], least=0)
    outs, sums = [query[:0]], [torch.zeros((0, query.shape[1]))]
    for b in range(len(keys)):
        rows = slice(*row_ptr[b : b + 2].tolist())
        own = keys[b], values[b], lengths[b : b + 1], row_ptr[b : b + 2] - row_ptr[b]
        out, lse = tree_attention(query[rows], *own, visibility[rows], scale)
        outs.append(out)
        sums.append(lse)
    return torch.cat(outs), torch.cat(sums)


def commit_cache(
    tensors: Sequence[torch.Tensor],
    addresses: torch.Tensor,
    lengths: torch.Tensor,
    verdict: Verdict,
    block_table: torch.Tensor | None,
) -> None:
    """As :func:`specrs.ops.attention.commit_cache`."""
    check_commit(tensors, addresses, lengths, verdict, block_table)
    page_size = tensors[0].shape[2]
    capacity = page_size * (1 if block_table is None else block_table.shape[1])
    for nodes, count in zip(verdict.path.tolist(), verdict.accepted.tolist(), strict=True):
        check_path(nodes, count)
    for b, (count, start) in enumerate(zip(verdict.accepted.tolist(), lengths.tolist(), strict=True)):
        if start < 0 or start + 1 + count > capacity:
            continue
        for j, node in enumerate(verdict.path[b, :count].tolist()):
            if start + 1 + node >= capacity:
                break
            source, target = start + 1 + node, start + 1 + j
            if block_table is None:
                from_page = to_page = b
            else:
                numbers = [int(block_table[b, slot // page_size]) for slot in (source, target)]
                from_page, to_page = (check_page(number, tensors[0].shape[0]) for number in numbers)
            for tensor in tensors:
                tensor[to_page, :, target % page_size] = tensor[from_page, :, source % page_size]
    lengths += torch.where(verdict.bonus >= 0, verdict.accepted + 1, 0)
