"""Exact verification on the device: verdicts of ragged drafts from the target's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrs.errors import InvalidInputError
from specrs.ops.draft import (
    DraftLaw,
    DraftTree,
    Layout,
    Verdict,
    check_coins,
    check_draft,
    check_tensor,
    check_tree,
    empty,
    to_fill,
    verdict_to_fill,
)
from specrs.ops.launch import Argument, launch
from specrs.ops.rows import SITE_WORDS, RowLaws, Sampling, draw_rows, logits_suffix, row_laws

if TYPE_CHECKING:
    import torch


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
    check_tree(logits, tree, sampling)
    check_coins(logits, emit=emit)
    verdict = verdict_to_fill(out, logits, tree)
    drawn = draw_rows(logits, row_laws(logits, tree.row_ptr, sampling), emit)
    arguments: list[Argument] = [drawn, tree.row_ptr, tree.tokens, tree.parents, tree.requests, tree.rows, tree.longest]
    launch("walk_tree", (tree.requests + 7) // 8, [*arguments, *verdict])
    return verdict


def residual_masses(
    logits: torch.Tensor, laws: RowLaws, sites: torch.Tensor, draft: DraftLaw, masses: torch.Tensor
) -> None:
    """Sum the weights of each draw site by tile into `masses`, float64 of shape (sites, tiles)."""
    vocabulary, count = logits.shape[1], sites.shape[0]
    launch(
        f"residual_masses_{logits_suffix(logits)}",
        count * laws.tiles,
        [logits, vocabulary, vocabulary, laws.laws, laws.masses, laws.tiles, sites, *draft.arguments(), masses],
    )


def residual_draw(
    logits: torch.Tensor,
    laws: RowLaws,
    sites: torch.Tensor,
    site_of: torch.Tensor | None,
    draft: DraftLaw,
    masses: torch.Tensor,
    emit: torch.Tensor,
    verdict: Verdict,
) -> None:
    """Draw each request's bonus at its site."""
    vocabulary = logits.shape[1]
    row: list[Argument] = [logits, vocabulary, vocabulary, laws.laws, laws.masses, laws.tiles]
    arguments: list[Argument] = [*row, sites, site_of, *draft.arguments(), masses, emit, verdict.bonus, verdict.status]
    launch(f"residual_draw_{logits_suffix(logits)}", verdict.bonus.shape[0], arguments)


def accept_chain(
    logits: torch.Tensor,
    tree: DraftTree,
    laws: RowLaws,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    relaxation: list[Argument],
    verdict: Verdict,
) -> None:
    """Accept along checked chains and draw behind them. `relaxation`: choices, budget and bias of a relaxed rule."""
    import torch

    suffix, vocabulary = logits_suffix(logits), logits.shape[1]
    sites = empty(logits, (tree.requests, SITE_WORDS), torch.int32)
    masses = empty(logits, (tree.requests, laws.tiles), torch.float64)
    head: list[Argument] = [logits, vocabulary, vocabulary, laws.laws]
    nodes_of: list[Argument] = [tree.row_ptr, tree.tokens, tree.requests, tree.rows, *draft.by_node()]
    tail: list[Argument] = [accept, *relaxation, tree.longest, verdict.path, verdict.accepted, sites]
    launch(f"accept_chain_{suffix}", (tree.requests + 7) // 8, [*head, *nodes_of, *tail])
    residual_masses(logits, laws, sites, draft, masses)
    residual_draw(logits, laws, sites, None, draft, masses, emit, verdict)


def verify_chain(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    out: Verdict | None = None,
) -> Verdict:
    """Accept along a chain by rejection sampling; after the first rejection draw from the residual. Exact.

    Parameters
    ----------
    logits, tree, sampling
        As :func:`verify_walk`; the nodes of a request form a chain.
    draft : DraftLaw
        Exactly the law each token was drawn from.
    accept, emit : tensor, shape (R,)
        float64 coins in [0, 1), independent of each other and of the draft.
    out : Verdict, optional
        Tensors to fill.
    """
    _check(logits, tree, sampling, draft, accept, emit)
    verdict = verdict_to_fill(out, logits, tree)
    laws = row_laws(logits, tree.row_ptr, sampling)
    accept_chain(logits, tree, laws, draft, accept, emit, [None, None, None], verdict)
    return verdict


def _check(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    law_for: str | None = None,
) -> None:
    """Refuse arrays that do not belong together, and a one-hot draft where `law_for` needs the law."""
    check_tree(logits, tree, sampling)
    check_draft(draft, tree.tokens.shape[0])
    if law_for is not None and draft.probs is None:
        raise InvalidInputError(f"{law_for} needs the draft's probabilities; a one-hot draft is a walk")
    check_coins(logits, accept=accept, emit=emit)


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

    _check(logits, tree, sampling, draft, accept, emit, "block verification")
    verdict = verdict_to_fill(out, logits, tree)
    suffix, (rows, vocabulary) = logits_suffix(logits), logits.shape
    laws = row_laws(logits, tree.row_ptr, sampling)
    # Rows that no draft reaches, and those of a graph's padding, stay idle.
    sites = torch.full((rows, SITE_WORDS), -1, dtype=torch.int32, device=logits.device)
    masses = empty(logits, (rows, laws.tiles), torch.float64)
    site_of = empty(logits, (tree.requests,), torch.int32)
    blocks = (tree.requests + 255) // 256
    head: list[Argument] = [logits, vocabulary, vocabulary, laws.laws]
    nodes_of: list[Argument] = [tree.row_ptr, tree.tokens, tree.requests, tree.rows, *draft.by_node()]
    launch(f"block_sites_{suffix}", blocks, [*head, *nodes_of, tree.longest, sites])
    residual_masses(logits, laws, sites, draft, masses)
    choice: list[Argument] = [tree.row_ptr, tree.requests, tree.rows, masses, laws.tiles, accept, sites, tree.longest]
    launch("accept_block", blocks, [*choice, verdict.path, verdict.accepted, site_of])
    residual_draw(logits, laws, sites, site_of, draft, masses, emit, verdict)
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

    _check(logits, tree, sampling, draft, accept, emit, "a rule for sampled siblings")
    verdict = verdict_to_fill(out, logits, tree)
    vocabulary = logits.shape[1]
    laws = row_laws(logits, tree.row_ptr, sampling)
    sites = empty(logits, (tree.requests, SITE_WORDS), torch.int32)
    masses = empty(logits, (tree.requests, laws.tiles), torch.float64)
    head: list[Argument] = [logits, vocabulary, vocabulary, laws.laws, laws.masses, laws.tiles]
    nodes_of: list[Argument] = [tree.row_ptr, tree.rows, tree.tokens, tree.parents, *draft.by_node()]
    tail: list[Argument] = [accept, int(with_replacement), masses, tree.longest, verdict.path, verdict.accepted, sites]
    launch(f"verify_siblings_{logits_suffix(logits)}", tree.requests, [*head, *nodes_of, *tail])
    residual_draw(logits, laws, sites, None, draft, masses, emit, verdict)
    return verdict


def round_coins(
    seeds: torch.Tensor,
    samples: torch.Tensor,
    positions: torch.Tensor,
    row_ptr: torch.Tensor,
    parents: torch.Tensor,
    by_sibling: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the accept and emit coin of every row, keyed by (seed, sample, committed tokens + depth, purpose).

    A row's accept coin decides about the row's child. :func:`verify_siblings` tries several children in turn and needs
    ``by_sibling``: then a node's accept coin is its own, and the tries of siblings are independent.

    Parameters
    ----------
    seeds, samples, positions : tensor, shape (B,)
        int64: the request's seed, which sample of it this is, and its committed tokens.
    row_ptr, parents : tensor
        Of the drafts, as in :class:`specrs.ops.draft.DraftTree`.
    by_sibling : bool
        Give every node an accept coin of its own, keyed by its rank among its siblings.
    out : (tensor, tensor), optional
        Tensors to fill.
    """
    requests = check_keys(seeds, samples, positions, row_ptr, parents)
    rows = parents.shape[0] + requests
    accept, emit = to_fill(out, seeds, coins_layout(seeds, samples, positions, row_ptr, parents))
    keys: list[Argument] = [seeds, samples, positions, row_ptr, parents, requests, rows, int(by_sibling)]
    launch("round_coins", (rows + 255) // 256, [*keys, accept, emit])
    return accept, emit


def coins_layout(
    seeds: torch.Tensor,
    samples: torch.Tensor,
    positions: torch.Tensor,
    row_ptr: torch.Tensor,
    parents: torch.Tensor,
    *_: bool,
) -> Layout:
    """Return the layout of what :func:`round_coins` draws."""
    import torch

    rows = (parents.shape[0] + row_ptr.shape[0] - 1,)
    return {"accept": (torch.float64, rows), "emit": (torch.float64, rows)}


def check_keys(
    seeds: torch.Tensor, samples: torch.Tensor, positions: torch.Tensor, row_ptr: torch.Tensor, parents: torch.Tensor
) -> int:
    """Refuse keys that do not belong together; return the number of requests."""
    import torch

    requests = row_ptr.shape[0] - 1
    for name, tensor in (("seeds", seeds), ("samples", samples), ("positions", positions)):
        check_tensor(name, tensor, torch.int64, (requests,))
    check_tensor("row_ptr", row_ptr, torch.int64, (requests + 1,))
    check_tensor("parents", parents, torch.int32, (parents.shape[0],))
    return requests
