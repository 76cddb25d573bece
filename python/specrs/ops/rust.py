"""The Rust rules as the host's side of the ops: coins, verification, draft lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from specrs import _core
from specrs.errors import InvalidInputError
from specrs.ops.draft import (
    DraftLaw,
    DraftTree,
    Verdict,
    check_coins,
    check_draft,
    check_row_ptr,
    check_tensor,
    check_tree,
)
from specrs.ops.relaxed import RelaxedRule, RelaxedVerdict
from specrs.ops.rows import Sampling, logits_suffix
from specrs.ops.verify import check_keys

#: The token that says "none" in the Rust rules.
NO_TOKEN = 2**32 - 1


def _arguments(
    rule: str,
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    accept: torch.Tensor,
    emit: torch.Tensor,
    draft: DraftLaw,
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Return what the extension is called with: up to the rule, from the sampling parameters on, the draft's law."""
    check_tree(logits, tree, sampling)
    check_draft(draft, tree.tokens.shape[0])
    check_coins(logits, accept=accept, emit=emit)
    suffix, array = logits_suffix(logits), logits.detach()
    # NumPy has no bfloat16, and the extension takes the bits of it.
    rows = array.view(torch.uint16).numpy() if suffix == "bf16" else array.numpy()
    tokens = tree.tokens.numpy()
    ids = np.where((tokens < 0) | (tokens > NO_TOKEN), NO_TOKEN, tokens).astype(np.uint32)
    head = [rows, suffix, tree.row_ptr.numpy(), ids, tree.parents.numpy(), rule]
    return head, [*(parameter.numpy() for parameter in sampling), accept.numpy(), emit.numpy()], _law(draft)


def _verdict(made: Any, longest: int) -> Verdict:
    """Return the extension's verdict with paths side by side, padded with -1."""
    path_ptr, path, bonus, status = made
    accepted = np.diff(path_ptr)
    most = int(accepted.max(initial=0))
    if most > longest:
        raise InvalidInputError(f"longest must not be below the longest path, {most}, got {longest}")
    padded = np.full((len(bonus), longest), -1, np.int32)
    padded[np.arange(longest) < accepted[:, None]] = path
    token = np.where(bonus == NO_TOKEN, -1, bonus.astype(np.int64))
    arrays = (padded, accepted.astype(np.int32), token, status.astype(np.int32))
    return Verdict._make(torch.from_numpy(array) for array in arrays)


def verify(
    rule: str,
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    accept: torch.Tensor,
    emit: torch.Tensor,
    draft: DraftLaw,
) -> Verdict:
    """Verify with an exact rule; arguments as in :mod:`specrs.ops.verify`."""
    head, tail, law = _arguments(rule, logits, tree, sampling, accept, emit, draft)
    return _verdict(_core.verify(*head, *tail, **law), tree.longest)


def verify_relaxed(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    rule: RelaxedRule,
) -> RelaxedVerdict:
    """As :func:`specrs.ops.relaxed.verify_relaxed`."""
    head, tail, law = _arguments(rule.kind, logits, tree, sampling, accept, emit, draft)
    rule.check(tree.tokens.shape[0], tree.requests, draft)
    knobs = np.array(rule.knobs, np.float32) if rule.target_weight is None else rule.target_weight.numpy()
    budget = None if rule.budget is None else rule.budget.numpy()
    given: dict[str, Any] = {**law, "beyond_support": rule.beyond_support, "budget": budget}
    made, bias = _core.verify_relaxed(*[*head, knobs, *tail], **given)
    return RelaxedVerdict(*_verdict(made, tree.longest), torch.from_numpy(bias))


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
    arrays = {"draft_probs": np.array(probs, np.float32), "draft_ids": np.array(ids, np.uint32)}
    return arrays | {"draft_ptr": np.array(pointers, np.int64)} | rows


def round_coins(
    seeds: torch.Tensor,
    samples: torch.Tensor,
    positions: torch.Tensor,
    row_ptr: torch.Tensor,
    parents: torch.Tensor,
    by_sibling: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`specrs.ops.verify.round_coins`."""
    check_row_ptr(row_ptr, parents.shape[0] + check_keys(seeds, samples, positions, row_ptr, parents))
    pointers, above = row_ptr.tolist(), parents.tolist()
    depths: list[int] = []
    for b in range(len(pointers) - 1):
        first = pointers[b] - b
        for parent in above[first : pointers[b + 1] - b - 1]:
            depths.append(1 if parent < 0 else depths[first + parent] + 1)
    accept, emit = _core.round_coins(
        seeds.numpy().view(np.uint64),
        samples.numpy().astype(np.uint32),
        positions.numpy().astype(np.uint32),
        row_ptr.numpy(),
        np.array(depths, np.int32),
        parents.numpy() if by_sibling else None,
    )
    return torch.from_numpy(accept), torch.from_numpy(emit)


def select_lengths(
    confidence: torch.Tensor, row_ptr: torch.Tensor, cost: torch.Tensor, hysteresis: float = 0.02
) -> torch.Tensor:
    """As :func:`specrs.ops.outcome.select_lengths`."""
    nodes, requests = confidence.shape[0], row_ptr.shape[0] - 1
    check_tensor("confidence", confidence, torch.float32, (nodes,))
    check_tensor("row_ptr", row_ptr, torch.int64, (requests + 1,))
    check_tensor("cost", cost, torch.float32, (max(1, cost.shape[0]),))
    check_row_ptr(row_ptr, nodes + requests)
    prices, share = cost.tolist(), float(np.float32(hysteresis))  # as a kernel takes it
    chains = confidence.split((row_ptr.diff() - 1).tolist())
    lengths = [_core.best_length(chain.tolist(), prices, share) for chain in chains]
    return torch.tensor(lengths, dtype=torch.int32)
