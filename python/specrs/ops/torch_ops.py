"""Registers ``torch.ops.specrs.*``: schemas, CUDA kernels, CPU implementations and the shapes that the compiler needs.

Import this module to have the ops; nothing else in the package needs them registered. Each op is functional; the
verifications, which an engine replays from a captured graph, also have an ``_out`` form that fills given tensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from specrs.errors import InvalidInputError
from specrs.ops import attention, cpu, outcome, rows, verify
from specrs.ops.rows import RowStatistics, Sampling
from specrs.ops.verify import ChainRule, DraftLaw, DraftTree, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

#: Kept for the life of the module: its ops vanish with it. A fragment, since other modules add their own ops.
LIBRARY: Any = torch.library.Library("specrs", "FRAGMENT")

Tensor = torch.Tensor

#: Logits, tree, sampling, draft law, accept and emit coins.
Sampled = tuple[Tensor, DraftTree, Sampling, DraftLaw, Tensor, Tensor]

_TREE = "Tensor logits, Tensor row_ptr, Tensor tokens, Tensor parents, int longest"
_SAMPLING = "Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p"
_DRAFT = "Tensor? draft_probs, Tensor? draft_ids, Tensor? draft_rows"
_VERDICT = "(Tensor path, Tensor accepted, Tensor bonus, Tensor status)"
_FILLED = "Tensor(a!) path, Tensor(b!) accepted, Tensor(c!) bonus, Tensor(d!) status"
_RULE = "str rule='ratio', Tensor? target_weight=None, float lenience=1.0, float epsilon=0.3, float delta=0.09, int k=1"
_CHAIN = f"{_TREE}, {_SAMPLING}, {_DRAFT}, Tensor accept, Tensor emit"

SCHEMAS = [
    f"verify_walk({_TREE}, {_SAMPLING}, Tensor emit) -> {_VERDICT}",
    f"verify_walk_out({_TREE}, {_SAMPLING}, Tensor emit, {_FILLED}) -> ()",
    f"verify_chain({_CHAIN}, {_RULE}) -> {_VERDICT}",
    f"verify_chain_out({_CHAIN}, {_FILLED}, {_RULE}) -> ()",
    f"verify_block({_CHAIN}) -> {_VERDICT}",
    f"verify_block_out({_CHAIN}, {_FILLED}) -> ()",
    f"verify_siblings({_CHAIN}, bool with_replacement=False) -> {_VERDICT}",
    f"verify_siblings_out({_CHAIN}, {_FILLED}, bool with_replacement=False) -> ()",
    "row_statistics(Tensor logits, Tensor? row_ptr=None, Tensor? temperature=None, int exclude=-1) -> "
    "(Tensor argmax, Tensor max_prob, Tensor entropy, Tensor log_sum_exp, Tensor status)",
    "top_k_rows(Tensor logits, int k, int exclude=-1) -> (Tensor ids, Tensor probs)",
    "fork_tokens(Tensor logits, Tensor exclude, Tensor counts, Tensor offsets, int total) -> "
    "(Tensor ids, Tensor probs)",
    "lookup_cache(Tensor keys, Tensor queries) -> Tensor",
    "select_lengths(Tensor confidence, Tensor row_ptr, Tensor cost, float hysteresis=1.02) -> Tensor",
    "accept_unmasked(Tensor drafts, Tensor outcomes, Tensor depths, int mask, str rule='policy') -> Tensor",
    "round_coins(Tensor seeds, Tensor samples, Tensor positions, Tensor row_ptr, Tensor parents, "
    "bool by_sibling=False) -> "
    "(Tensor accept, Tensor emit)",
    "tree_attention(Tensor query, Tensor keys, Tensor values, Tensor lengths, Tensor row_ptr, Tensor visibility, "
    "float? scale=None, Tensor? block_table=None, int splits=1, int? most_rows=None) -> (Tensor out, Tensor lse)",
    "commit_cache(Tensor(a!)[] tensors, Tensor addresses, Tensor(b!) lengths, Tensor path, Tensor accepted, "
    "Tensor bonus, Tensor? block_table=None) -> ()",
]


def walk_cuda(
    logits: Tensor,
    row_ptr: Tensor,
    tokens: Tensor,
    parents: Tensor,
    longest: int,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    emit: Tensor,
    *out: Tensor,
) -> Verdict:
    """Run :func:`specrs.ops.verify.verify_walk`, into `out` if it is given."""
    tree, sampling = DraftTree(row_ptr, tokens, parents, longest), Sampling(temperature, top_k, top_p, min_p)
    return verify.verify_walk(logits, tree, sampling, emit, Verdict(*out) if out else None)


def walk_cpu(
    logits: Tensor,
    row_ptr: Tensor,
    tokens: Tensor,
    parents: Tensor,
    longest: int,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    emit: Tensor,
    *out: Tensor,
) -> Verdict:
    """Run the Rust rule of the same name, into `out` if it is given."""
    tree, sampling = DraftTree(row_ptr, tokens, parents, longest), Sampling(temperature, top_k, top_p, min_p)
    return _fill(out, cpu.verify("greedy_or_fixed", logits, tree, sampling, emit, emit, DraftLaw()))


def _sampled(
    logits: Tensor,
    row_ptr: Tensor,
    tokens: Tensor,
    parents: Tensor,
    longest: int,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    draft_probs: Tensor | None,
    draft_ids: Tensor | None,
    draft_rows: Tensor | None,
    accept: Tensor,
    emit: Tensor,
    *rest: Any,
) -> tuple[Sampled, tuple[Tensor, ...], tuple[Any, ...]]:
    """Return what every rule with a draft law is called with, the tensors to fill if any, and what is left."""
    tree, sampling = DraftTree(row_ptr, tokens, parents, longest), Sampling(temperature, top_k, top_p, min_p)
    draft = DraftLaw(draft_probs, draft_ids, draft_rows)
    out = rest[:4] if len(rest) >= 4 and all(isinstance(item, Tensor) for item in rest[:4]) else ()
    return (logits, tree, sampling, draft, accept, emit), out, rest[len(out) :]


def _rule(options: tuple[Any, ...]) -> ChainRule:
    rule = ChainRule(*options)
    if rule.kind not in verify.RULES:
        raise InvalidInputError(f"rule must be one of {', '.join(verify.RULES)}, got '{rule.kind}'")
    return rule


def chain_cuda(*arguments: Any) -> Verdict:
    """Run :func:`specrs.ops.verify.verify_chain` on the arguments of either form's schema."""
    inputs, out, options = _sampled(*arguments)
    return verify.verify_chain(*inputs, _rule(options), Verdict(*out) if out else None)


def chain_cpu(*arguments: Any) -> Verdict:
    """Run the Rust rule of the same name on the arguments of either form's schema."""
    inputs, out, options = _sampled(*arguments)
    return _fill(out, cpu.verify_chain(*inputs, _rule(options)))


def block_cuda(*arguments: Any) -> Verdict:
    """Run :func:`specrs.ops.verify.verify_block` on the arguments of either form's schema."""
    inputs, out, _ = _sampled(*arguments)
    return verify.verify_block(*inputs, Verdict(*out) if out else None)


def block_cpu(*arguments: Any) -> Verdict:
    """Run the Rust rule of the same name on the arguments of either form's schema."""
    (logits, tree, sampling, draft, accept, emit), out, _ = _sampled(*arguments)
    return _fill(out, cpu.verify("block", logits, tree, sampling, accept, emit, draft))


def siblings_cuda(*arguments: Any) -> Verdict:
    """Run :func:`specrs.ops.verify.verify_siblings` on the arguments of either form's schema."""
    inputs, out, options = _sampled(*arguments)
    return verify.verify_siblings(
        *inputs, with_replacement=bool(options and options[0]), out=Verdict(*out) if out else None
    )


def siblings_cpu(*arguments: Any) -> Verdict:
    """Run the Rust rule of the same name on the arguments of either form's schema."""
    (logits, tree, sampling, draft, accept, emit), out, options = _sampled(*arguments)
    name = "specinfer" if options and options[0] else "without_replacement"
    return _fill(out, cpu.verify(name, logits, tree, sampling, accept, emit, draft))


def _fill(out: tuple[Tensor, ...], made: Verdict) -> Verdict:
    for filled, tensor in zip(out, made, strict=False):
        filled.copy_(tensor)
    return Verdict(*out) if out else made


def _without_result(function: Callable[..., Verdict]) -> Callable[..., None]:
    """Return the form of an op that fills the caller's tensors and returns nothing."""

    def fill(*arguments: Any) -> None:
        function(*arguments)

    return fill


def verdict_shape(
    logits: Tensor, row_ptr: Tensor, tokens: Tensor, parents: Tensor, longest: int, *rest: Any
) -> Verdict:
    """Return the tensors that a verification returns, without their values."""
    return verify.empty_verdict(logits, row_ptr.shape[0] - 1, longest)


def row_statistics_cpu(
    logits: Tensor, row_ptr: Tensor | None = None, temperature: Tensor | None = None, exclude: int = -1
) -> RowStatistics:
    """Compute the statistics in torch."""
    return cpu.row_statistics(logits, row_ptr, temperature, exclude)


def row_statistics_shape(logits: Tensor, *rest: Any) -> RowStatistics:
    """Return the tensors of the statistics, without their values."""
    kinds = (torch.int64, torch.float32, torch.float32, torch.float32, torch.int32)
    return RowStatistics._make(logits.new_empty(logits.shape[0], dtype=kind) for kind in kinds)


def top_k_cuda(logits: Tensor, k: int, exclude: int = -1) -> tuple[Tensor, Tensor]:
    """Run :func:`specrs.ops.outcome.top_k_rows`."""
    return outcome.top_k_rows(logits, k, exclude)[:2]


def top_k_cpu(logits: Tensor, k: int, exclude: int = -1) -> tuple[Tensor, Tensor]:
    """Compute the best ids in torch."""
    if not 1 <= k <= outcome.MOST_BEST:
        raise InvalidInputError(f"k must be in 1..={outcome.MOST_BEST}, got {k}")
    rows = logits.shape[0]
    statistics = cpu.row_statistics(logits, None, None, exclude)
    counts, excluded = torch.full((rows,), k), torch.full((rows,), exclude)
    best = cpu.best_ids(logits, statistics, counts, excluded, torch.arange(rows) * k, rows * k)
    return best.ids.view(rows, k), best.probs.view(rows, k)


def top_k_shape(logits: Tensor, k: int, exclude: int = -1) -> tuple[Tensor, Tensor]:
    """Return the tensors of the best ids, without their values."""
    shape = (logits.shape[0], k)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape, dtype=torch.float32)


def fork_cuda(logits: Tensor, exclude: Tensor, counts: Tensor, offsets: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Run :func:`specrs.ops.outcome.fork_tokens`."""
    return outcome.fork_tokens(logits, exclude, counts, offsets, total)[:2]


def fork_cpu(logits: Tensor, exclude: Tensor, counts: Tensor, offsets: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Compute the fork tokens in torch."""
    statistics = cpu.row_statistics(logits, None, None, -1)
    return cpu.best_ids(logits, statistics, counts, exclude, offsets, total)[:2]


def fork_shape(logits: Tensor, exclude: Tensor, counts: Tensor, offsets: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return the tensors of the fork tokens, without their values."""
    return logits.new_empty(total, dtype=torch.int64), logits.new_empty(total, dtype=torch.float32)


def select_lengths_cpu(confidence: Tensor, row_ptr: Tensor, cost: Tensor, hysteresis: float = 1.02) -> Tensor:
    """Choose the lengths in Python."""
    return cpu.select_lengths(confidence, row_ptr, cost, hysteresis)


def accept_unmasked_cpu(drafts: Tensor, outcomes: Tensor, depths: Tensor, mask: int, rule: str = "policy") -> Tensor:
    """Accept in torch."""
    return cpu.accept_unmasked(drafts, outcomes, depths, mask, rule)


def round_coins_cuda(
    seeds: Tensor,
    samples: Tensor,
    positions: Tensor,
    row_ptr: Tensor,
    parents: Tensor,
    by_sibling: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run :func:`specrs.ops.verify.round_coins`."""
    return verify.round_coins(seeds, samples, positions, DraftTree(row_ptr, parents, parents, 0), by_sibling)


def round_coins_cpu(
    seeds: Tensor,
    samples: Tensor,
    positions: Tensor,
    row_ptr: Tensor,
    parents: Tensor,
    by_sibling: bool = False,
) -> tuple[Tensor, Tensor]:
    """Draw the coins in Rust."""
    return cpu.round_coins(seeds, samples, positions, row_ptr, parents, by_sibling)


def round_coins_shape(
    seeds: Tensor,
    samples: Tensor,
    positions: Tensor,
    row_ptr: Tensor,
    parents: Tensor,
    by_sibling: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the tensors of the coins, without their values."""
    rows = row_ptr.shape[0] - 1 + parents.shape[0]
    return seeds.new_empty(rows, dtype=torch.float64), seeds.new_empty(rows, dtype=torch.float64)


def attention_cuda(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    row_ptr: Tensor,
    visibility: Tensor,
    scale: float | None = None,
    block_table: Tensor | None = None,
    splits: int = 1,
    most_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run :func:`specrs.ops.attention.tree_attention`."""
    prefix = [query, keys, values, lengths, row_ptr, visibility]
    return attention.tree_attention(*prefix, scale=scale, block_table=block_table, splits=splits, most_rows=most_rows)


def attention_cpu(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    row_ptr: Tensor,
    visibility: Tensor,
    scale: float | None = None,
    block_table: Tensor | None = None,
    splits: int = 1,
    most_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend in torch; `splits` and `most_rows` only matter to a device."""
    factor = 1 / math.sqrt(query.shape[2]) if scale is None else scale
    return cpu.tree_attention(query, keys, values, lengths, row_ptr, visibility, factor, block_table)


def attention_shape(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return the tensors of the attention, without their values."""
    return torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)


def commit_cuda(
    tensors: list[Tensor],
    addresses: Tensor,
    lengths: Tensor,
    path: Tensor,
    accepted: Tensor,
    bonus: Tensor,
    block_table: Tensor | None = None,
) -> None:
    """Run :func:`specrs.ops.attention.commit_cache`."""
    attention.commit_cache(tensors, addresses, lengths, Verdict(path, accepted, bonus, accepted), block_table)


def commit_cpu(
    tensors: list[Tensor],
    addresses: Tensor,
    lengths: Tensor,
    path: Tensor,
    accepted: Tensor,
    bonus: Tensor,
    block_table: Tensor | None = None,
) -> None:
    """Commit in torch."""
    cpu.commit_cache(tensors, lengths, Verdict(path, accepted, bonus, accepted), block_table)


def _nothing(*arguments: Any) -> None:
    """Stand for an op that returns nothing."""


#: Name: CUDA kernel, CPU implementation, shapes of the result.
OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "verify_walk": (walk_cuda, walk_cpu, verdict_shape),
    "verify_walk_out": (_without_result(walk_cuda), _without_result(walk_cpu), _nothing),
    "verify_chain": (chain_cuda, chain_cpu, verdict_shape),
    "verify_chain_out": (_without_result(chain_cuda), _without_result(chain_cpu), _nothing),
    "verify_block": (block_cuda, block_cpu, verdict_shape),
    "verify_block_out": (_without_result(block_cuda), _without_result(block_cpu), _nothing),
    "verify_siblings": (siblings_cuda, siblings_cpu, verdict_shape),
    "verify_siblings_out": (_without_result(siblings_cuda), _without_result(siblings_cpu), _nothing),
    "row_statistics": (rows.row_statistics, row_statistics_cpu, row_statistics_shape),
    "top_k_rows": (top_k_cuda, top_k_cpu, top_k_shape),
    "fork_tokens": (fork_cuda, fork_cpu, fork_shape),
    "lookup_cache": (outcome.lookup_cache, cpu.lookup_cache, lambda keys, queries: queries.new_empty(queries.shape[0])),
    "select_lengths": (
        outcome.select_lengths,
        select_lengths_cpu,
        lambda confidence, row_ptr, *rest: row_ptr.new_empty(row_ptr.shape[0] - 1, dtype=torch.int32),
    ),
    "accept_unmasked": (
        outcome.accept_unmasked,
        accept_unmasked_cpu,
        lambda drafts, *rest: drafts.new_empty(drafts.shape[0], dtype=torch.int32),
    ),
    "round_coins": (round_coins_cuda, round_coins_cpu, round_coins_shape),
    "tree_attention": (attention_cuda, attention_cpu, attention_shape),
    "commit_cache": (commit_cuda, commit_cpu, _nothing),
}


def _register() -> None:
    for schema in SCHEMAS:
        LIBRARY.define(schema)
    for name, (cuda, host, shape) in OPS.items():
        LIBRARY.impl(name, cuda, "CUDA")
        LIBRARY.impl(name, host, "CPU")
        torch.library.register_fake(f"specrs::{name}", shape, lib=LIBRARY)


_register()
