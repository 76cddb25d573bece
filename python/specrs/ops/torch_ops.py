"""Registers ``torch.ops.specrs.*``: schemas, CUDA kernels, CPU implementations and the shapes that the compiler needs.

Import this module to have the ops. Each op of :data:`TABLE` that returns something is functional and has an ``_out``
form, which takes the tensors to fill by the names of its results and returns nothing: where a captured graph's results
lie is the caller's choice. Their shape, type, device and contiguity are checked before any launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from specrs.ops import attention, caches, calls, cpu, drawing, outcome, rows, rust, verify
from specrs.ops.draft import (
    DraftLaw,
    DraftTree,
    Layout,
    Verdict,
    check_dense,
    check_draft,
    to_fill,
    verdict_layout,
)
from specrs.ops.drawing import Draws
from specrs.ops.relaxed import RelaxedRule, RelaxedVerdict, relaxed_layout, verify_relaxed
from specrs.ops.round import FACTS, TYPES, Round, buffer_bytes, on_host
from specrs.ops.rows import RowStatistics, Sampling, logits_suffix
from specrs.verification.logits import as_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Kept for the life of the module: its ops vanish with it. A fragment, since other modules add their own ops.
LIBRARY: Any = torch.library.Library("specrs", "FRAGMENT")

Tensor = torch.Tensor

_TREE = "Tensor logits, Tensor row_ptr, Tensor tokens, Tensor parents, int longest"
_SAMPLING = "Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p"
_WALK = f"{_TREE}, {_SAMPLING}, Tensor emit"
_CHAIN = f"{_TREE}, {_SAMPLING}, Tensor? draft_probs, Tensor? draft_ids, Tensor? draft_rows, Tensor accept, Tensor emit"
_PLACES = "Tensor addresses, Tensor slots, Tensor lengths, Tensor row_ptr"
_RULE = "str rule, float[] knobs, Tensor? target_weight=None, Tensor? budget=None, bool beyond_support=False"


class Op(NamedTuple):
    """One op: its schema's arguments, its results' names, its kernels, its CPU implementation, its results' layout.

    All three are called with the arguments, ``cuda`` also with ``out``: the tensor or the tensors to fill.
    """

    arguments: str
    results: Sequence[str]
    cuda: Callable[..., Any]
    host: Callable[..., Any]
    layout: Callable[..., Layout]


_ROUND_TYPES = [torch.int64] * 5 + [torch.float64] + [torch.int32] * 2 + [torch.float32, torch.int32]
_ROUND_TYPES += [torch.float32] * 3


def _unpacked(logits: Tensor, buffer: Tensor, requests: int, rule: str, types: list[Any], *, budgeted: bool) -> Round:
    """Return the parts of a round's buffer once its size fits the logits; arrays if `types` are NumPy's."""
    nodes, how = logits.shape[0] - requests, {"budgeted": budgeted, "weighted": rule == "ensemble"}
    check_dense("round", buffer, torch.uint8, (buffer_bytes(requests, nodes, **how),), logits)
    given: Any = buffer.numpy() if types is TYPES else buffer
    return Round.unpacked(given, requests, nodes, **how, types=types)


def verify_round_cuda(
    logits: Tensor,
    round: Tensor,  # noqa: A002  the schema's word
    draft_probs: Tensor | None,
    requests: int,
    longest: int,
    rule: str = "exact",
    knobs: Sequence[float] = (),
    budgeted: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Verify a round, packed as :class:`specrs.ops.round.Round` says, by the kernels."""
    given = _unpacked(logits, round, requests, rule, _ROUND_TYPES, budgeted=budgeted)
    if out is not None:
        to_fill(out, logits, round_layout(logits, round, draft_probs, requests, longest))
    tree = DraftTree(given.row_ptr, given.tokens, given.parents, longest)
    sampling = Sampling(given.temperature, given.top_k, given.top_p, given.min_p)
    accept, emit = verify.round_coins(given.seeds, given.samples, given.positions, given.row_ptr, given.parents)
    law = DraftLaw(draft_probs)
    bias = None
    if rule != "exact":
        weight, budget = given.target_weight if rule == "ensemble" else None, given.budget if budgeted else None
        relaxed = RelaxedRule(rule, tuple(knobs), weight, budget)  # type: ignore[arg-type]
        *made, bias = verify_relaxed(logits, tree, sampling, law, accept, emit, relaxed)
    elif draft_probs is None:
        made = list(verify.verify_walk(logits, tree, sampling, emit))
    else:
        made = list(verify.verify_chain(logits, tree, sampling, law, accept, emit))
    path, *facts = made
    facts.append(torch.zeros_like(facts[1]) if bias is None else bias.view(torch.int64))
    return torch.cat([path.to(torch.int64), *(fact.to(torch.int64)[:, None] for fact in facts)], dim=1, out=out)


def round_layout(logits: Tensor, packed: Tensor, probs: Tensor | None, requests: int, longest: int, *_: Any) -> Layout:
    """Return the layout of a round's words."""
    return {"words": (torch.int64, (requests, longest + FACTS))}


def verify_round_cpu(
    logits: Tensor,
    round: Tensor,  # noqa: A002  the schema's word
    draft_probs: Tensor | None,
    requests: int,
    longest: int,
    rule: str = "exact",
    knobs: Sequence[float] = (),
    budgeted: bool = False,
) -> Tensor:
    """Verify a round by the Rust rules."""
    given = _unpacked(logits, round, requests, rule, TYPES, budgeted=budgeted)
    check_draft(DraftLaw(draft_probs), logits.shape[0] - requests)
    logits_suffix(logits)
    probs = None if draft_probs is None else draft_probs.numpy()
    return torch.from_numpy(on_host(*as_rows(logits), given, probs, rule, knobs).words(longest))


def _draws(logits: Tensor, buffer: Tensor, types: list[Any]) -> Draws:
    """Return the parts of a step's buffer once its size fits the logits; arrays if `types` are NumPy's."""
    logits_suffix(logits)
    check_dense("draws", buffer, torch.uint8, (logits.shape[0] * drawing.ROW_BYTES,), logits)
    given: Any = buffer.numpy() if types is drawing.TYPES else buffer
    return Draws.unpacked(given, logits.shape[0], types)


def _draw_facts(logits: Tensor, drawn: Tensor, statistics: RowStatistics, out: Tensor | None = None) -> Tensor:
    """Return ``drawing.FACTS`` of tokens int64 (R,), as float64 (R, 4)."""
    own = logits.gather(1, drawn.clamp(min=0)[:, None])[:, 0].float()
    probs = (own - statistics.log_sum_exp).exp()
    facts = [drawn.double(), statistics.max_prob.double(), statistics.entropy.double(), probs.double()]
    return torch.stack(facts, 1, out=out)


def draw_tokens_cuda(
    logits: Tensor, draws: Tensor, with_probs: bool = False, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a token of each row, as :class:`specrs.ops.drawing.Draws` says, by the kernels."""
    given = _draws(logits, draws, [torch.float64, torch.float32, torch.int32, torch.float32, torch.float32])
    facts, probs = to_fill(out, logits, draw_layout(logits, draws, with_probs))
    row_ptr = torch.arange(logits.shape[0] + 1, device=logits.device)
    laws = rows.row_laws(logits, row_ptr, Sampling(*given[1:]))
    drawn = rows.draw_rows(logits, laws, given.coins)
    _draw_facts(logits, drawn, rows.row_statistics(logits), facts)
    return facts, rows.row_probs(logits, laws, probs) if with_probs else probs


def draw_tokens_cpu(logits: Tensor, draws: Tensor, with_probs: bool = False) -> tuple[Tensor, Tensor]:
    """Draw a token of each row by the Rust rule."""
    given = _draws(logits, draws, drawing.TYPES)
    tokens, laws = drawing.on_host(*as_rows(logits), given, with_probs=with_probs)
    drawn = torch.from_numpy(tokens.view(np.int32).astype(np.int64))  # the Rust rules' word for none becomes -1
    facts = _draw_facts(logits, drawn, cpu.row_statistics(logits))
    if laws is None:
        return facts, logits.new_empty((0, logits.shape[1]), dtype=torch.float32)
    return facts, torch.from_numpy(laws)


def draw_layout(logits: Tensor, draws: Tensor, with_probs: bool = False) -> Layout:
    """Return the layout of a draw: facts, and laws or none."""
    count, *vocabulary = logits.shape
    laws = (count if with_probs else 0, *vocabulary)
    return {"facts": (torch.float64, (count, len(drawing.FACTS))), "probs": (torch.float32, laws)}


def _without_statistics(run: Callable[..., outcome.BestIds]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return kernels that find ids with their probabilities, as an op that gives those two alone."""

    def best(*arguments: Any, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        return run(*arguments, out=out)[:2]

    return best


def _with_options(run: Callable[..., Any], tensors: int, *names: str) -> Callable[..., Any]:
    """Return `run` as called by a schema: the arguments behind the first `tensors` ones are options of these names."""

    def called(*arguments: Any, out: Any = None) -> Any:
        return run(*arguments[:tensors], **dict(zip(names, arguments[tensors:], strict=False)), out=out)

    return called


def _copying(run: Callable[..., Any], layout: Callable[..., Layout]) -> Callable[..., Any]:
    """Return `run`, which makes its results, so that it fills given tensors: checked before it, copied to behind it."""

    def filled(*arguments: Any, out: Any = None) -> Any:
        if out is None:
            return run(*arguments)
        given = to_fill(out, arguments[0], layout(*arguments))
        made = run(*arguments)
        for tensor, result in zip(given, (made,) if isinstance(made, Tensor) else made, strict=True):
            tensor.copy_(result)
        return out

    return filled


def _committing(commit: Callable[..., None]) -> Callable[..., None]:
    """Return the op that runs `commit` on a verdict's parts."""

    def run(tensors: list[Tensor], addresses: Tensor, lengths: Tensor, *rest: Any) -> None:
        path, accepted, bonus, *table = rest
        commit(tensors, addresses, lengths, Verdict(path, accepted, bonus, accepted), *(table or (None,)))

    return run


_VERDICT, _RELAXED = calls.on_tree(verdict_layout), calls.on_tree(relaxed_layout)

#: Every op by its name.
TABLE: dict[str, Op] = {
    "verify_walk": Op(_WALK, Verdict._fields, calls.walk_cuda, calls.walk_cpu, _VERDICT),
    "verify_chain": Op(_CHAIN, Verdict._fields, calls.with_law(verify.verify_chain), calls.by_rust("chain"), _VERDICT),
    "verify_block": Op(_CHAIN, Verdict._fields, calls.with_law(verify.verify_block), calls.by_rust("block"), _VERDICT),
    "verify_siblings": Op(
        f"{_CHAIN}, bool with_replacement=False",
        Verdict._fields,
        calls.siblings_cuda,
        calls.siblings_cpu,
        _VERDICT,
    ),
    "verify_relaxed": Op(f"{_CHAIN}, {_RULE}", RelaxedVerdict._fields, calls.relaxed_cuda, calls.relaxed_cpu, _RELAXED),
    "verify_round": Op(
        "Tensor logits, Tensor round, Tensor? draft_probs, int requests, int longest, str rule='exact', "
        "float[] knobs=[], bool budgeted=False",
        ("words",),
        verify_round_cuda,
        verify_round_cpu,
        round_layout,
    ),
    "row_statistics": Op(
        "Tensor logits, Tensor? row_ptr=None, Tensor? temperature=None, int exclude=-1",
        RowStatistics._fields,
        rows.row_statistics,
        cpu.row_statistics,
        rows.statistics_layout,
    ),
    "top_k_rows": Op(
        "Tensor logits, int k, int exclude=-1, float temperature=1.0",
        ("ids", "probs"),
        _without_statistics(outcome.top_k_rows),
        cpu.top_k_rows,
        outcome.top_k_layout,
    ),
    "fork_tokens": Op(
        "Tensor logits, Tensor exclude, Tensor counts, Tensor offsets, int total",
        ("ids", "probs"),
        _without_statistics(outcome.fork_tokens),
        cpu.fork_tokens,
        outcome.fork_layout,
    ),
    "lookup_cache": Op(
        "Tensor keys, Tensor queries", ("hits",), outcome.lookup_cache, cpu.lookup_cache, outcome.hits_layout
    ),
    "select_lengths": Op(
        "Tensor confidence, Tensor row_ptr, Tensor cost, float hysteresis=0.02",
        ("lengths",),
        outcome.select_lengths,
        rust.select_lengths,
        outcome.lengths_layout,
    ),
    "accept_unmasked": Op(
        "Tensor drafts, Tensor outcomes, Tensor depths, int mask, str rule='policy'",
        ("accepted",),
        outcome.accept_unmasked,
        cpu.accept_unmasked,
        outcome.unmasked_layout,
    ),
    "draw_tokens": Op(
        "Tensor logits, Tensor draws, bool with_probs=False",
        ("facts", "probs"),
        draw_tokens_cuda,
        draw_tokens_cpu,
        draw_layout,
    ),
    "round_coins": Op(
        "Tensor seeds, Tensor samples, Tensor positions, Tensor row_ptr, Tensor parents, bool by_sibling=False",
        ("accept", "emit"),
        verify.round_coins,
        rust.round_coins,
        verify.coins_layout,
    ),
    "tree_attention": Op(
        "Tensor query, Tensor keys, Tensor values, Tensor lengths, Tensor row_ptr, Tensor visibility, "
        "float? scale=None, Tensor? block_table=None, int splits=1, int? most_rows=None",
        ("out", "lse"),
        _with_options(attention.tree_attention, 6, "scale", "block_table", "splits", "most_rows"),
        cpu.tree_attention,
        attention.attention_layout,
    ),
    "attend_caches": Op(
        f"Tensor query, Tensor[] keys, Tensor[] values, {_PLACES}, Tensor visibility, float? scale=None, "
        "int splits=1, int least_part=1, int? most_rows=None",
        ("out", "lse"),
        _with_options(caches.attend_caches, 8, "scale", "splits", "least_part", "most_rows"),
        cpu.attend_caches,
        attention.attention_layout,
    ),
    "write_caches": Op(
        f"Tensor(a!)[] keys, Tensor(b!)[] values, {_PLACES}, Tensor new_keys, Tensor new_values",
        (),
        caches.write_caches,
        cpu.write_caches,
        lambda *_: {},
    ),
    "commit_cache": Op(
        "Tensor(a!)[] tensors, Tensor addresses, Tensor(b!) lengths, Tensor path, Tensor accepted, "
        "Tensor bonus, Tensor? block_table=None",
        (),
        _committing(attention.commit_cache),
        _committing(cpu.commit_cache),
        lambda *_: {},
    ),
}


def _filling(run: Callable[..., Any], results: Sequence[str]) -> Callable[..., None]:
    """Return the form of an implementation that fills the caller's tensors and returns nothing."""

    def fill(*arguments: Any, **given: Tensor) -> None:
        out = tuple(given[name] for name in results)
        run(*arguments, out=out if len(out) > 1 else out[0])

    return fill


def _fake(layout: Callable[..., Layout]) -> Callable[..., Any]:
    """Return what the compiler calls for an op: its results without their values."""

    def made(*arguments: Any) -> Any:
        tensors = to_fill(None, arguments[0], layout(*arguments))
        return tuple(tensors) if len(tensors) > 1 else tensors[0]

    return made


def _nothing(*_: Any, **__: Any) -> None:
    """Stand for an op that returns nothing."""


#: What is registered, by name: kernels, CPU implementation, what the compiler calls. :func:`_register_one` adds to it.
OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {}


def _register_one(
    name: str, signature: str, cuda: Callable[..., Any], host: Callable[..., Any], fake: Callable[..., Any]
) -> None:
    LIBRARY.define(f"{name}({signature}")
    LIBRARY.impl(name, cuda, "CUDA")
    LIBRARY.impl(name, host, "CPU")
    torch.library.register_fake(f"specrs::{name}", fake, lib=LIBRARY)
    OPS[name] = (cuda, host, fake)


def _register(name: str, op: Op) -> None:
    """Register an op; beside one that returns something its ``_out`` form."""
    returned = ", ".join(f"Tensor {result}" for result in op.results)
    fake = _fake(op.layout) if op.results else _nothing
    _register_one(name, f"{op.arguments}) -> ({returned})", op.cuda, op.host, fake)
    if op.results:
        filled = ", ".join(f"Tensor({letter}!) {result}" for letter, result in zip("abcde", op.results, strict=False))
        cuda, host = (_filling(run, op.results) for run in (op.cuda, _copying(op.host, op.layout)))
        _register_one(f"{name}_out", f"{op.arguments}, *, {filled}) -> ()", cuda, host, _nothing)


for _name, _op in TABLE.items():
    _register(_name, _op)

#: Where the engine finds the ops.
NAMESPACE: Any = torch.ops.specrs
