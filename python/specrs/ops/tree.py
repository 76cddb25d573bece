"""Verification on the device: verdicts of ragged drafts from the target's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from specrs.errors import InvalidInputError
from specrs.ops.launch import launch
from specrs.ops.rows import Sampling, draw_rows, row_laws

if TYPE_CHECKING:
    import torch


class Verdict(NamedTuple):
    """What stands of each request's draft.

    ``path`` int32 (B, S): accepted nodes from the anchor down, padded with -1. ``accepted`` int32 (B,): their number.
    ``bonus`` int64 (B,): the token behind the path, -1 where the target's row has no law. ``status`` int32 (B,).
    """

    path: torch.Tensor
    accepted: torch.Tensor
    bonus: torch.Tensor
    status: torch.Tensor


class DraftTree(NamedTuple):
    """Drafts of B requests, ragged: request ``b`` has ``row_ptr[b + 1] - row_ptr[b] - 1`` nodes behind its anchor.

    ``row_ptr`` int64 (B + 1,), ``tokens`` int64 (N,), ``parents`` int32 (N,), -1 for the anchor and always below the
    node's own number; ``longest`` is the most nodes that a path can have.
    """

    row_ptr: torch.Tensor
    tokens: torch.Tensor
    parents: torch.Tensor
    longest: int


def check_tree(logits: torch.Tensor, tree: DraftTree, sampling: Sampling) -> None:
    """Refuse arrays whose shapes or types do not belong together. Values stay on the device and are not looked at."""
    import torch

    requests, nodes = tree.row_ptr.shape[0] - 1, tree.tokens.shape[0]
    wanted = [
        ("row_ptr", tree.row_ptr, torch.int64, (requests + 1,)),
        ("tokens", tree.tokens, torch.int64, (nodes,)),
        ("parents", tree.parents, torch.int32, (nodes,)),
        ("temperature", sampling.temperature, torch.float32, (requests,)),
        ("top_k", sampling.top_k, torch.int32, (requests,)),
        ("top_p", sampling.top_p, torch.float32, (requests,)),
        ("min_p", sampling.min_p, torch.float32, (requests,)),
    ]
    for name, tensor, dtype, shape in wanted:
        check_tensor(name, tensor, dtype, shape)
    if logits.shape[0] != nodes + requests:
        message = f"logits must have one row per anchor and node, {nodes + requests}, got {logits.shape[0]}"
        raise InvalidInputError(message)


def check_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another type or shape."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        message = f"{name} must be {dtype} of shape {shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}"
        raise InvalidInputError(message)


def empty_verdict(like: torch.Tensor, requests: int, longest: int) -> Verdict:
    """Allocate a verdict on the device of `like`."""
    import torch

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=like.device)

    return Verdict(
        empty((requests, longest), torch.int32),
        empty((requests,), torch.int32),
        empty((requests,), torch.int64),
        empty((requests,), torch.int32),
    )


def verify_walk(logits: torch.Tensor, tree: DraftTree, sampling: Sampling, emit: torch.Tensor) -> Verdict:
    """Take what plain decoding takes at each row and descend while the draft has it. Exact for any tree.

    Parameters
    ----------
    logits : tensor, shape (R, V)
        Rows of the anchors and nodes, R = N + B.
    tree : DraftTree
        The drafts.
    sampling : Sampling
        One entry per request; temperature 0 is greedy.
    emit : tensor, shape (R,)
        float64 coins in [0, 1).
    """
    import torch

    check_tree(logits, tree, sampling)
    check_tensor("emit", emit, torch.float64, (logits.shape[0],))
    drawn = draw_rows(logits, row_laws(logits, tree.row_ptr, sampling), emit)
    requests = tree.row_ptr.shape[0] - 1
    verdict = empty_verdict(logits, requests, tree.longest)
    arguments = [drawn, tree.row_ptr, tree.tokens, tree.parents, requests, tree.longest, *verdict]
    launch("walk_tree", (requests + 7) // 8, arguments)
    return verdict
