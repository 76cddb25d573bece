"""What every verification takes and gives back on tensors: drafts, their laws, verdicts, and the checks of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from specrs.ops.launch import Argument
    from specrs.ops.rows import Sampling

#: Type and shape of each tensor that an op gives back, by its name and in its order.
Layout: TypeAlias = "dict[str, tuple[torch.dtype, tuple[int, ...]]]"


class Verdict(NamedTuple):
    """What stands of each request's draft.

    ``path`` int32 (B, S): accepted nodes from the anchor down, padded with -1. ``accepted`` int32 (B,): their number.
    ``bonus`` int64 (B,): the token behind the path, -1 where the target's row has no law. ``status`` int32 (B,): 0 as
    the rule says, 1 the residual was empty, 2 no law in a target row, 3 no law in a draft row, 4 an id out of range,
    5 (on a device; a host refuses it) ``row_ptr`` runs backwards or out of the arrays: nothing of the request was read.
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

    @property
    def requests(self) -> int:
        """B."""
        return self.row_ptr.shape[0] - 1

    @property
    def rows(self) -> int:
        """R: rows of logits that the arrays have room for."""
        return self.tokens.shape[0] + self.requests


class DraftLaw(NamedTuple):
    """The law each node's token was drawn from, float32 rows.

    Dense: ``probs`` (L, V'), ids beyond V' have probability 0. Sparse: ``ids`` int64 (L, S), padded with -1, and
    ``probs`` (L, S). One-hot (argmax, cache, fixed candidates): neither. ``row_of`` int64 (N,) is the row of each
    node's law; without it every node has its own and L is N.
    """

    probs: torch.Tensor | None = None
    ids: torch.Tensor | None = None
    row_of: torch.Tensor | None = None

    @property
    def kind(self) -> int:
        """0 one-hot, 1 dense, 2 sparse, as the kernels count."""
        return 0 if self.probs is None else 1 if self.ids is None else 2

    def arguments(self) -> list[Argument]:
        """Dense rows, sparse ids, sparse probabilities, entries per row."""
        if self.probs is None:
            return [None, None, None, 0]
        if self.ids is None:
            return [self.probs, None, None, self.probs.shape[1]]
        return [None, self.ids, self.probs, self.probs.shape[1]]

    def by_node(self) -> list[Argument]:
        """Kind, :meth:`arguments`, the row of each node and how many rows there are: what a walk over nodes takes."""
        rows = 0 if self.probs is None else self.probs.shape[0]
        return [self.kind, *self.arguments(), self.row_of, rows]


def check_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another type or shape."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        message = f"{name} must be {dtype} of shape {shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}"
        raise InvalidInputError(message)


def check_device(like: torch.Tensor, **tensors: torch.Tensor | None) -> None:
    """Refuse tensors on another device than that of `like`."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != like.device:
            raise InvalidInputError(
                f"all tensors must be on one device, got {name} on {tensor.device} and {like.device}"
            )


def check_dense(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], like: torch.Tensor
) -> None:
    """Refuse a tensor of another type or shape, on another device than that of `like`, or with gaps."""
    check_tensor(name, tensor, dtype, shape)
    if tensor.device != like.device:
        raise InvalidInputError(f"{name} must be on one device with the others, got {tensor.device} and {like.device}")
    if not tensor.is_contiguous():
        raise InvalidInputError(f"{name} must be contiguous, got strides {tensor.stride()}")


def check_row_ptr(row_ptr: torch.Tensor, rows: int, least: int = 1) -> None:
    """Refuse row pointers, on a host, that do not run from 0 to `rows` with at least `least` rows for each request."""
    pointers = row_ptr.tolist()
    short = any(end - first < least for first, end in itertools.pairwise(pointers))
    if short or pointers[:1] != [0] or pointers[-1] != rows:
        message = f"row_ptr must run from 0 to {rows} in steps of at least {least}, got {pointers}"
        raise InvalidInputError(message)


def check_tree(logits: torch.Tensor, tree: DraftTree, sampling: Sampling) -> None:
    """Refuse arrays whose shapes or types do not belong together. Values stay on the device and are not looked at."""
    import torch

    requests, nodes = tree.requests, tree.tokens.shape[0]
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
        check_dense(name, tensor, dtype, shape, logits)
    if requests < 0 or logits.shape[0] != tree.rows:
        raise InvalidInputError(f"logits must have one row per anchor and node, {tree.rows}, got {logits.shape[0]}")
    if tree.longest < 0:
        raise InvalidInputError(f"longest must not be negative, got {tree.longest}")


def check_draft(draft: DraftLaw, nodes: int) -> None:
    """Refuse a draft law that does not have one row per node."""
    import torch

    if draft.probs is None:
        if draft.ids is not None:
            raise InvalidInputError("a sparse draft law needs probs beside its ids, got ids alone")
        return
    rows, width = draft.probs.shape if draft.probs.dim() == 2 else (-1, -1)
    check_tensor("draft probs", draft.probs, torch.float32, (nodes if draft.row_of is None else rows, width))
    if draft.ids is not None:
        check_tensor("draft ids", draft.ids, torch.int64, (rows, width))
    if draft.row_of is not None:
        check_tensor("draft row_of", draft.row_of, torch.int64, (nodes,))


def check_coins(logits: torch.Tensor, **coins: torch.Tensor) -> None:
    """Refuse coins that are not one float64 per row. Their values stay on the device and are not looked at."""
    import torch

    for name, tensor in coins.items():
        check_tensor(name, tensor, torch.float64, (logits.shape[0],))


def empty(like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocate on the device of `like`."""
    import torch

    return torch.empty(shape, dtype=dtype, device=like.device)


def to_fill(
    out: torch.Tensor | Sequence[torch.Tensor] | None, like: torch.Tensor, layout: Layout
) -> list[torch.Tensor]:
    """Return the tensors of `out` once they are as `layout` says, or new ones; either on the device of `like`."""
    import torch

    if out is None:
        return [empty(like, shape, dtype) for dtype, shape in layout.values()]
    given = [out] if isinstance(out, torch.Tensor) else list(out)
    for (name, (dtype, shape)), tensor in zip(layout.items(), given, strict=True):
        check_dense(name, tensor, dtype, shape, like)
    return given


def verdict_layout(tree: DraftTree) -> Layout:
    """Return the layout of a :class:`Verdict` on `tree`."""
    import torch

    each = (tree.requests,)
    kinds = (torch.int32, torch.int32, torch.int64, torch.int32)
    shapes = ((tree.requests, tree.longest), each, each, each)
    return dict(zip(Verdict._fields, zip(kinds, shapes, strict=True), strict=True))


def verdict_to_fill(out: Verdict | None, like: torch.Tensor, tree: DraftTree) -> Verdict:
    """Return `out` once its shapes and types are right, or a new verdict on the device of `like`."""
    return Verdict(*to_fill(out, like, verdict_layout(tree)))
