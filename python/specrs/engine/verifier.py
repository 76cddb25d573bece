"""The verify stage: one verdict per request, by the Rust rules on a host, by the kernels where the logits are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.types import Verdict
from specrs.verification.logits import as_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.engine.request import Request
    from specrs.types import Draft, Scores


def verify(requests: Sequence[Request], draft: Draft, scores: Scores, logits: Any) -> Verdict:
    """Decide which nodes stand and what comes behind them.

    Deterministic drafts are walked (draw from the target, follow while a child matches), drawn ones go through chain
    rejection sampling. Coins are keyed by (seed, sample, position, purpose): where the rule is evaluated does not
    change them.

    Parameters
    ----------
    requests : sequence of Request
        B requests: their seeds, samples, sampling parameters and committed lengths.
    draft : Draft
    scores : Scores
        Whose ``row_ptr`` says which rows are whose.
    logits : array or tensor, shape (B + N, V)
        Processed. On a CUDA device they stay there, and one small copy brings the verdict back.
    """
    if getattr(logits, "is_cuda", False):
        return on_device(requests, draft, scores, logits)
    return on_host(requests, draft, scores, logits)


def on_host(requests: Sequence[Request], draft: Draft, scores: Scores, logits: Any) -> Verdict:
    """Verify with the Rust rules; see :func:`verify`."""
    values, dtype = as_rows(logits)
    accept_coins, emit_coins = _core.round_coins(
        np.array([request.seed for request in requests], np.uint64),
        np.array([request.sample for request in requests], np.uint32),
        np.array([len(request.tokens) for request in requests], np.uint32),
        scores.row_ptr,
        draft.depths,
    )
    sampling = [request.sampling for request in requests]
    path_ptr, path, bonus, status = _core.verify(
        values,
        dtype,
        scores.row_ptr,
        draft.tokens,
        draft.parents,
        "greedy_or_fixed" if draft.draft_probs is None else "chain",
        np.array([s.temperature for s in sampling], np.float32),
        np.array([s.top_k for s in sampling], np.int32),
        np.array([s.top_p for s in sampling], np.float32),
        np.array([s.min_p for s in sampling], np.float32),
        accept_coins,
        emit_coins,
        draft.draft_probs,
    )
    return Verdict(path_ptr, path, bonus, status)


def on_device(requests: Sequence[Request], draft: Draft, scores: Scores, logits: Any) -> Verdict:
    """Verify with the kernels; see :func:`verify`. One copy comes to the host: B * (longest + 3) words."""
    import torch

    from specrs.ops import rows
    from specrs.ops import verify as ops

    device = logits.device

    def there(values: Any, dtype: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device, non_blocking=True)

    sampling = [request.sampling for request in requests]
    laws = rows.Sampling(
        there([s.temperature for s in sampling], torch.float32),
        there([s.top_k for s in sampling], torch.int32),
        there([s.top_p for s in sampling], torch.float32),
        there([s.min_p for s in sampling], torch.float32),
    )
    longest = int(draft.depths.max(initial=1))
    tree = ops.DraftTree(
        there(scores.row_ptr, torch.int64),
        there(draft.tokens.astype(np.int64), torch.int64),
        there(draft.parents, torch.int32),
        longest,
    )
    accept, emit = ops.round_coins(
        there(np.array([request.seed for request in requests], np.uint64).view(np.int64), torch.int64),
        there([request.sample for request in requests], torch.int64),
        there([len(request.tokens) for request in requests], torch.int64),
        tree,
    )
    logits = logits.contiguous()
    if draft.draft_probs is None:
        made = ops.verify_walk(logits, tree, laws, emit)
    else:
        law = ops.DraftLaw(there(draft.draft_probs, torch.float32))
        made = ops.verify_chain(logits, tree, laws, law, accept, emit)
    columns = (made.path, made.accepted[:, None], made.bonus[:, None], made.status[:, None])
    verdict = torch.cat([column.to(torch.int64) for column in columns], dim=1).cpu().numpy()
    accepted = verdict[:, longest]
    path = verdict[:, :longest][np.arange(longest) < accepted[:, None]]
    return Verdict(
        path_ptr=np.concatenate([[0], np.cumsum(accepted)]).astype(np.int64),
        path=path.astype(np.int32),
        bonus=np.where(verdict[:, longest + 1] < 0, 2**32 - 1, verdict[:, longest + 1]).astype(np.uint32),
        status=verdict[:, longest + 2].astype(np.uint8),
    )
