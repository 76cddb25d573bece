"""Verification on the device: verdicts of ragged drafts from the target's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from specrs.errors import InvalidInputError
from specrs.ops.launch import Argument, launch
from specrs.ops.rows import SITE_WORDS, RowLaws, Sampling, draw_rows, logits_suffix, row_laws

if TYPE_CHECKING:
    import torch


class Verdict(NamedTuple):
    """What stands of each request's draft.

    ``path`` int32 (B, S): accepted nodes from the anchor down, padded with -1. ``accepted`` int32 (B,): their number.
    ``bonus`` int64 (B,): the token behind the path, -1 where the target's row has no law. ``status`` int32 (B,): 0 as
    the rule says, 1 the residual was empty, 2 no law in a target row, 3 no law in a draft row, 4 an id out of range.
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


class ChainRule(NamedTuple):
    """How a chain's tokens are accepted; the default is exact rejection sampling.

    ``kind`` 'ratio': ``u * lenience * q < w * p + (1 - w) * q`` with the weight ``w`` of the target per node (1 without
    ``target_weight``, float32 (N,)). 'typical': ``p > min(epsilon, delta * exp(-H))``. 'top_k': among the ``k`` best.
    All but ratio with lenience 1 and weight 1 are relaxed. A request at temperature 0 accepts its argmax alone.
    """

    kind: Literal["ratio", "typical", "top_k"] = "ratio"
    target_weight: torch.Tensor | None = None
    lenience: float = 1.0
    epsilon: float = 0.3
    delta: float = 0.09
    k: int = 1


RULES = {"ratio": 0, "typical": 1, "top_k": 2}
EXACT = ChainRule()


def check_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another type or shape."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        message = f"{name} must be {dtype} of shape {shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}"
        raise InvalidInputError(message)


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
    if requests < 0 or logits.shape[0] != nodes + requests:
        message = f"logits must have one row per anchor and node, {nodes + requests}, got {logits.shape[0]}"
        raise InvalidInputError(message)


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


def _empty(like: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    import torch

    return torch.empty(shape, dtype=dtype, device=like.device)


def empty_verdict(like: torch.Tensor, requests: int, longest: int) -> Verdict:
    """Allocate a verdict on the device of `like`."""
    import torch

    return Verdict(
        _empty(like, (requests, longest), torch.int32),
        _empty(like, (requests,), torch.int32),
        _empty(like, (requests,), torch.int64),
        _empty(like, (requests,), torch.int32),
    )


def verdict_to_fill(out: Verdict | None, like: torch.Tensor, requests: int, longest: int) -> Verdict:
    """Return `out` once its shapes and types are right, or a new verdict."""
    import torch

    if out is None:
        return empty_verdict(like, requests, longest)
    check_tensor("path", out.path, torch.int32, (requests, longest))
    check_tensor("accepted", out.accepted, torch.int32, (requests,))
    check_tensor("bonus", out.bonus, torch.int64, (requests,))
    check_tensor("status", out.status, torch.int32, (requests,))
    return out


def verify_walk(
    logits: torch.Tensor, tree: DraftTree, sampling: Sampling, emit: torch.Tensor, out: Verdict | None = None
) -> Verdict:
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
    out : Verdict, optional
        Tensors to fill, of the shapes that :class:`Verdict` states.
    """
    import torch

    check_tree(logits, tree, sampling)
    check_tensor("emit", emit, torch.float64, (logits.shape[0],))
    drawn = draw_rows(logits, row_laws(logits, tree.row_ptr, sampling), emit)
    requests = tree.row_ptr.shape[0] - 1
    verdict = verdict_to_fill(out, logits, requests, tree.longest)
    arguments: list[Argument] = [drawn, tree.row_ptr, tree.tokens, tree.parents, requests, tree.longest, *verdict]
    launch("walk_tree", (requests + 7) // 8, arguments)
    return verdict


def _residual_masses(
    logits: torch.Tensor, laws: RowLaws, sites: torch.Tensor, draft: DraftLaw, masses: torch.Tensor
) -> None:
    vocabulary, count = logits.shape[1], sites.shape[0]
    launch(
        f"residual_masses_{logits_suffix(logits)}",
        count * laws.tiles,
        [logits, vocabulary, vocabulary, laws.laws, laws.masses, laws.tiles, sites, *draft.arguments(), masses],
    )


def _residual_draw(
    logits: torch.Tensor,
    laws: RowLaws,
    sites: torch.Tensor,
    site_of: torch.Tensor | None,
    draft: DraftLaw,
    masses: torch.Tensor,
    emit: torch.Tensor,
    verdict: Verdict,
) -> None:
    vocabulary = logits.shape[1]
    row: list[Argument] = [logits, vocabulary, vocabulary, laws.laws, laws.masses, laws.tiles]
    arguments: list[Argument] = [*row, sites, site_of, *draft.arguments(), masses, emit, verdict.bonus, verdict.status]
    launch(f"residual_draw_{logits_suffix(logits)}", verdict.bonus.shape[0], arguments)


def verify_chain(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    rule: ChainRule = EXACT,
    out: Verdict | None = None,
) -> Verdict:
    """Accept along a chain by `rule`; after the first rejection draw from the residual.

    Parameters
    ----------
    logits, tree, sampling
        As :func:`verify_walk`; the nodes of a request form a chain.
    draft : DraftLaw
        Exactly the law each token was drawn from.
    accept, emit : tensor, shape (R,)
        float64 coins in [0, 1), independent of each other and of the draft.
    rule : ChainRule
        Ratio test (exact), or a relaxed one.
    out : Verdict, optional
        Tensors to fill.
    """
    import torch

    check_tree(logits, tree, sampling)
    nodes, requests = tree.tokens.shape[0], tree.row_ptr.shape[0] - 1
    check_draft(draft, nodes)
    for name, coins in (("accept", accept), ("emit", emit)):
        check_tensor(name, coins, torch.float64, (logits.shape[0],))
    if draft.probs is None and rule.kind == "ratio" and (rule.target_weight is not None or rule.lenience != 1.0):
        raise InvalidInputError("an ensemble or a lenient rule needs the draft's probabilities, got none")
    if rule.target_weight is not None:
        check_tensor("target_weight", rule.target_weight, torch.float32, (nodes,))
    suffix, vocabulary = logits_suffix(logits), logits.shape[1]
    entropy = _empty(logits, (logits.shape[0],), torch.float32) if rule.kind == "typical" else None
    laws, rank = row_laws(logits, tree.row_ptr, sampling, entropy), None
    if rule.kind == "top_k":
        rank = _empty(logits, (nodes,), torch.int32)
        row: list[Argument] = [logits, vocabulary, vocabulary, tree.row_ptr, requests]
        if nodes:
            launch(f"token_rank_{suffix}", logits.shape[0], [*row, tree.tokens, tree.parents, rank])
    verdict = verdict_to_fill(out, logits, requests, tree.longest)
    sites = _empty(logits, (requests, SITE_WORDS), torch.int32)
    masses = _empty(logits, (requests, laws.tiles), torch.float64)
    head: list[Argument] = [logits, vocabulary, vocabulary, laws.laws, tree.row_ptr, tree.tokens, requests, draft.kind]
    test: list[Argument] = [
        accept,
        RULES[rule.kind],
        rule.target_weight,
        rule.lenience,
        rule.epsilon,
        rule.delta,
        entropy,
        rank,
        rule.k,
    ]
    tail: list[Argument] = [tree.longest, verdict.path, verdict.accepted, sites]
    launch(f"accept_chain_{suffix}", (requests + 7) // 8, [*head, *draft.arguments(), draft.row_of, *test, *tail])
    _residual_masses(logits, laws, sites, draft, masses)
    _residual_draw(logits, laws, sites, None, draft, masses, emit, verdict)
    return verdict


def verify_block(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    out: Verdict | None = None,
) -> Verdict:
    """Block verification of chains (Sun et al., arXiv 2403.10444): exact, and never fewer tokens than the ratio test.

    Parameters are those of :func:`verify_chain`; the draft law is dense or sparse.
    """
    import torch

    check_tree(logits, tree, sampling)
    nodes, requests = tree.tokens.shape[0], tree.row_ptr.shape[0] - 1
    check_draft(draft, nodes)
    if draft.probs is None:
        raise InvalidInputError("block verification needs the draft's probabilities; a one-hot draft is a walk")
    for name, coins in (("accept", accept), ("emit", emit)):
        check_tensor(name, coins, torch.float64, (logits.shape[0],))
    suffix, (rows, vocabulary) = logits_suffix(logits), logits.shape
    laws = row_laws(logits, tree.row_ptr, sampling)
    verdict = verdict_to_fill(out, logits, requests, tree.longest)
    sites = _empty(logits, (rows, SITE_WORDS), torch.int32)
    masses = _empty(logits, (rows, laws.tiles), torch.float64)
    site_of = _empty(logits, (requests,), torch.int32)
    head: list[Argument] = [logits, vocabulary, vocabulary, laws.laws, tree.row_ptr, tree.tokens, requests, draft.kind]
    launch(
        f"block_sites_{suffix}", (requests + 255) // 256, [*head, *draft.arguments(), draft.row_of, tree.longest, sites]
    )
    _residual_masses(logits, laws, sites, draft, masses)
    choice: list[Argument] = [tree.row_ptr, requests, masses, laws.tiles, accept, sites, tree.longest]
    launch("accept_block", (requests + 255) // 256, [*choice, verdict.path, verdict.accepted, site_of])
    _residual_draw(logits, laws, sites, site_of, draft, masses, emit, verdict)
    return verdict


def verify_siblings(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    *,
    with_replacement: bool = False,
    out: Verdict | None = None,
) -> Verdict:
    """Verify a tree whose siblings were drawn from one law, without or with replacement. Exact.

    Parameters are those of :func:`verify_chain`; all children of a node have the same draft row.
    """
    import torch

    check_tree(logits, tree, sampling)
    nodes, requests = tree.tokens.shape[0], tree.row_ptr.shape[0] - 1
    check_draft(draft, nodes)
    if draft.probs is None:
        raise InvalidInputError("sampled siblings need the draft's probabilities; one-hot candidates are a walk")
    for name, coins in (("accept", accept), ("emit", emit)):
        check_tensor(name, coins, torch.float64, (logits.shape[0],))
    vocabulary = logits.shape[1]
    laws = row_laws(logits, tree.row_ptr, sampling)
    verdict = verdict_to_fill(out, logits, requests, tree.longest)
    sites = _empty(logits, (requests, SITE_WORDS), torch.int32)
    masses = _empty(logits, (requests, laws.tiles), torch.float64)
    head: list[Argument] = [logits, vocabulary, vocabulary, laws.laws, laws.masses, laws.tiles]
    nodes_of: list[Argument] = [tree.row_ptr, tree.tokens, tree.parents, draft.kind, *draft.arguments(), draft.row_of]
    tail: list[Argument] = [accept, int(with_replacement), masses, tree.longest, verdict.path, verdict.accepted, sites]
    launch(f"verify_siblings_{logits_suffix(logits)}", requests, [*head, *nodes_of, *tail])
    _residual_draw(logits, laws, sites, None, draft, masses, emit, verdict)
    return verdict


def round_coins(
    seeds: torch.Tensor, samples: torch.Tensor, positions: torch.Tensor, tree: DraftTree, by_sibling: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the accept and emit coin of every row, keyed by (seed, sample, committed tokens + depth, purpose).

    A row's accept coin decides about the row's child. :func:`verify_siblings` tries several children in turn and needs
    ``by_sibling``: then a node's accept coin is its own, and the tries of siblings are independent.

    Parameters
    ----------
    seeds, samples, positions : tensor, shape (B,)
        int64: the request's seed, which sample of it this is, and its committed tokens.
    tree : DraftTree
        The drafts.
    by_sibling : bool
        Give every node an accept coin of its own, keyed by its rank among its siblings.
    """
    import torch

    requests = tree.row_ptr.shape[0] - 1
    for name, tensor in (("seeds", seeds), ("samples", samples), ("positions", positions)):
        check_tensor(name, tensor, torch.int64, (requests,))
    rows = tree.tokens.shape[0] + requests
    accept, emit = (_empty(seeds, (rows,), torch.float64) for _ in range(2))
    keys: list[Argument] = [seeds, samples, positions, tree.row_ptr, tree.parents, requests, rows, int(by_sibling)]
    launch("round_coins", (rows + 255) // 256, [*keys, accept, emit])
    return accept, emit
