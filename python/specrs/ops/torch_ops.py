"""Registers ``torch.ops.specrs.*``: schemas, CUDA kernels, CPU implementations and the shapes that the compiler needs.

Import this module to have the ops. Each op is functional; the verifications, which an engine replays from a captured
graph, also have an ``_out`` form that fills given tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from specrs.errors import InvalidInputError
from specrs.ops import attention, cpu, drawing, outcome, rows, rust, verify
from specrs.ops.draft import DraftLaw, DraftTree, Verdict, check_draft, check_tensor, verdict_to_fill
from specrs.ops.drawing import Draws
from specrs.ops.relaxed import RelaxedRule, RelaxedVerdict, verify_relaxed
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
_RULE = "str rule, float[] knobs, Tensor? target_weight=None, Tensor? budget=None, bool beyond_support=False"
_VERDICT = "Tensor path, Tensor accepted, Tensor bonus, Tensor status"
_FILLED = "Tensor(a!) path, Tensor(b!) accepted, Tensor(c!) bonus, Tensor(d!) status"

SCHEMAS = [
    f"verify_walk({_WALK}) -> ({_VERDICT})",
    f"verify_walk_out({_WALK}, {_FILLED}) -> ()",
    f"verify_chain({_CHAIN}) -> ({_VERDICT})",
    f"verify_chain_out({_CHAIN}, {_FILLED}) -> ()",
    f"verify_block({_CHAIN}) -> ({_VERDICT})",
    f"verify_block_out({_CHAIN}, {_FILLED}) -> ()",
    f"verify_siblings({_CHAIN}, bool with_replacement=False) -> ({_VERDICT})",
    f"verify_siblings_out({_CHAIN}, {_FILLED}, bool with_replacement=False) -> ()",
    f"verify_relaxed({_CHAIN}, {_RULE}) -> ({_VERDICT}, Tensor bias)",
    f"verify_relaxed_out({_CHAIN}, {_FILLED}, Tensor(e!) bias, {_RULE}) -> ()",
    "verify_round(Tensor logits, Tensor round, Tensor? draft_probs, int requests, int longest, str rule='exact', "
    "float[] knobs=[], bool budgeted=False) -> Tensor",
    "row_statistics(Tensor logits, Tensor? row_ptr=None, Tensor? temperature=None, int exclude=-1) -> "
    "(Tensor argmax, Tensor max_prob, Tensor entropy, Tensor log_sum_exp, Tensor status)",
    "top_k_rows(Tensor logits, int k, int exclude=-1) -> (Tensor ids, Tensor probs)",
    "fork_tokens(Tensor logits, Tensor exclude, Tensor counts, Tensor offsets, int total) -> "
    "(Tensor ids, Tensor probs)",
    "lookup_cache(Tensor keys, Tensor queries) -> Tensor",
    "select_lengths(Tensor confidence, Tensor row_ptr, Tensor cost, float hysteresis=0.02) -> Tensor",
    "accept_unmasked(Tensor drafts, Tensor outcomes, Tensor depths, int mask, str rule='policy') -> Tensor",
    "round_coins(Tensor seeds, Tensor samples, Tensor positions, Tensor row_ptr, Tensor parents, "
    "bool by_sibling=False) -> (Tensor accept, Tensor emit)",
    "draw_tokens(Tensor logits, Tensor draws, bool with_probs=False) -> (Tensor facts, Tensor probs)",
    "tree_attention(Tensor query, Tensor keys, Tensor values, Tensor lengths, Tensor row_ptr, Tensor visibility, "
    "float? scale=None, Tensor? block_table=None, int splits=1, int? most_rows=None) -> (Tensor out, Tensor lse)",
    "commit_cache(Tensor(a!)[] tensors, Tensor addresses, Tensor(b!) lengths, Tensor path, Tensor accepted, "
    "Tensor bonus, Tensor? block_table=None) -> ()",
]


class Call(NamedTuple):
    """The arguments of a verification's schema, put together; `out` and `options` are what its form adds."""

    logits: Tensor
    tree: DraftTree
    sampling: Sampling
    draft: DraftLaw
    accept: Tensor
    emit: Tensor
    out: tuple[Tensor, ...]
    options: tuple[Any, ...]

    @staticmethod
    def of(arguments: tuple[Any, ...], *, walk: bool, filled: int) -> Call:
        """Read `arguments`, of which `filled` are tensors to fill."""
        logits, tree, sampling = arguments[0], DraftTree(*arguments[1:5]), Sampling(*arguments[5:9])
        draft, accept, emit, rest = DraftLaw(), arguments[9], arguments[9], arguments[10:]
        if not walk:
            draft, accept, emit, rest = DraftLaw(*arguments[9:12]), arguments[12], arguments[13], arguments[14:]
        return Call(logits, tree, sampling, draft, accept, emit, rest[:filled], rest[filled:])

    @property
    def verdict(self) -> Verdict | None:
        """The verdict to fill, if there is one."""
        return Verdict(*self.out[:4]) if self.out else None


def _relaxed_rule(call: Call) -> RelaxedRule:
    kind, knobs, *rest = call.options
    return RelaxedRule(kind, tuple(knobs), *rest)


def _with_replacement(call: Call) -> bool:
    return bool(call.options and call.options[0])


def _walk_cuda(call: Call) -> tuple[Tensor, ...]:
    return verify.verify_walk(call.logits, call.tree, call.sampling, call.emit, call.verdict)


def _chain_cuda(call: Call) -> tuple[Tensor, ...]:
    return verify.verify_chain(*call[:6], call.verdict)


def _block_cuda(call: Call) -> tuple[Tensor, ...]:
    return verify.verify_block(*call[:6], call.verdict)


def _siblings_cuda(call: Call) -> tuple[Tensor, ...]:
    return verify.verify_siblings(*call[:6], with_replacement=_with_replacement(call), out=call.verdict)


def _relaxed_cuda(call: Call) -> tuple[Tensor, ...]:
    return verify_relaxed(*call[:6], _relaxed_rule(call), RelaxedVerdict(*call.out) if call.out else None)


def _rust(rule: str) -> Callable[[Call], tuple[Tensor, ...]]:
    def run(call: Call) -> tuple[Tensor, ...]:
        return rust.verify(rule, call.logits, call.tree, call.sampling, call.accept, call.emit, call.draft)

    return run


def _siblings_cpu(call: Call) -> tuple[Tensor, ...]:
    return _rust("specinfer" if _with_replacement(call) else "without_replacement")(call)


def _relaxed_cpu(call: Call) -> tuple[Tensor, ...]:
    return rust.verify_relaxed(*call[:6], _relaxed_rule(call))


#: Name: kernels, Rust rule.
VERIFICATIONS: dict[str, tuple[Callable[[Call], tuple[Tensor, ...]], Callable[[Call], tuple[Tensor, ...]]]] = {
    "verify_walk": (_walk_cuda, _rust("greedy_or_fixed")),
    "verify_chain": (_chain_cuda, _rust("chain")),
    "verify_block": (_block_cuda, _rust("block")),
    "verify_siblings": (_siblings_cuda, _siblings_cpu),
    "verify_relaxed": (_relaxed_cuda, _relaxed_cpu),
}


def verdict_shape(logits: Tensor, *arguments: Any) -> Verdict:
    """Return the tensors that a verification returns, without their values."""
    return verdict_to_fill(None, logits, DraftTree(*arguments[:4]))


def relaxed_shape(logits: Tensor, *arguments: Any) -> RelaxedVerdict:
    """Return the tensors that a relaxed verification returns, without their values."""
    verdict = verdict_shape(logits, *arguments)
    return RelaxedVerdict(*verdict, verdict.bonus.new_empty(verdict.bonus.shape, dtype=torch.float64))


def _functional(name: str, run: Callable[[Call], tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    def call(*arguments: Any) -> tuple[Tensor, ...]:
        return run(Call.of(arguments, walk=name == "verify_walk", filled=0))

    return call


def _filling(name: str, run: Callable[[Call], tuple[Tensor, ...]]) -> Callable[..., None]:
    """Return the form of a verification that fills the caller's tensors and returns nothing."""

    def fill(*arguments: Any) -> None:
        given = Call.of(arguments, walk=name == "verify_walk", filled=5 if name == "verify_relaxed" else 4)
        for filled, made in zip(given.out, run(given), strict=True):
            if filled is not made:  # the Rust rules return tensors of their own
                filled.copy_(made)

    return fill


_ROUND_TYPES = [torch.int64] * 5 + [torch.float64] + [torch.int32] * 2 + [torch.float32, torch.int32]
_ROUND_TYPES += [torch.float32] * 3


def _check_buffer(name: str, buffer: Tensor, logits: Tensor, size: int) -> None:
    check_tensor(name, buffer, torch.uint8, (size,))
    if not buffer.is_contiguous():
        raise InvalidInputError(f"{name} must be contiguous, got strides {buffer.stride()}")
    if buffer.device != logits.device:
        raise InvalidInputError(f"{name} and logits must be on one device, got {buffer.device} and {logits.device}")


def _unpacked(logits: Tensor, buffer: Tensor, requests: int, rule: str, types: list[Any], *, budgeted: bool) -> Round:
    """Return the parts of a round's buffer once its size fits the logits; arrays if `types` are NumPy's."""
    nodes, how = logits.shape[0] - requests, {"budgeted": budgeted, "weighted": rule == "ensemble"}
    _check_buffer("round", buffer, logits, buffer_bytes(requests, nodes, **how))
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
) -> Tensor:
    """Verify a round, packed as :class:`specrs.ops.round.Round` says, by the kernels."""
    given = _unpacked(logits, round, requests, rule, _ROUND_TYPES, budgeted=budgeted)
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
    return torch.cat([path.to(torch.int64), *(fact.to(torch.int64)[:, None] for fact in facts)], dim=1)


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
    _check_buffer("draws", buffer, logits, logits.shape[0] * drawing.ROW_BYTES)
    given: Any = buffer.numpy() if types is drawing.TYPES else buffer
    return Draws.unpacked(given, logits.shape[0], types)


def _draw_facts(logits: Tensor, drawn: Tensor, statistics: RowStatistics) -> Tensor:
    """Return ``drawing.FACTS`` of tokens int64 (R,), as float64 (R, 4)."""
    own = logits.gather(1, drawn.clamp(min=0)[:, None])[:, 0].float()
    probs = (own - statistics.log_sum_exp).exp()
    return torch.stack([drawn.double(), statistics.max_prob.double(), statistics.entropy.double(), probs.double()], 1)


def draw_tokens_cuda(logits: Tensor, draws: Tensor, with_probs: bool = False) -> tuple[Tensor, Tensor]:
    """Draw a token of each row, as :class:`specrs.ops.drawing.Draws` says, by the kernels."""
    given = _draws(logits, draws, [torch.float64, torch.float32, torch.int32, torch.float32, torch.float32])
    row_ptr = torch.arange(logits.shape[0] + 1, device=logits.device)
    laws = rows.row_laws(logits, row_ptr, Sampling(*given[1:]))
    drawn = rows.draw_rows(logits, laws, given.coins)
    facts = _draw_facts(logits, drawn, rows.row_statistics(logits))
    return facts, rows.row_probs(logits, laws) if with_probs else _no_probs(logits)


def draw_tokens_cpu(logits: Tensor, draws: Tensor, with_probs: bool = False) -> tuple[Tensor, Tensor]:
    """Draw a token of each row by the Rust rule."""
    given = _draws(logits, draws, drawing.TYPES)
    tokens, laws = drawing.on_host(*as_rows(logits), given, with_probs=with_probs)
    drawn = torch.from_numpy(tokens.view(np.int32).astype(np.int64))  # the Rust rules' word for none becomes -1
    facts = _draw_facts(logits, drawn, cpu.row_statistics(logits))
    return facts, _no_probs(logits) if laws is None else torch.from_numpy(laws)


def _no_probs(logits: Tensor) -> Tensor:
    return logits.new_empty((0, logits.shape[1]), dtype=torch.float32)


def draw_tokens_shape(logits: Tensor, draws: Tensor, with_probs: bool = False) -> tuple[Tensor, Tensor]:
    """Return the tensors of a draw, without their values."""
    laws = logits.new_empty(logits.shape, dtype=torch.float32) if with_probs else _no_probs(logits)
    return logits.new_empty((logits.shape[0], len(drawing.FACTS)), dtype=torch.float64), laws


def row_statistics_shape(logits: Tensor, *rest: Any) -> RowStatistics:
    """Return the tensors of the statistics, without their values."""
    kinds = (torch.int64, torch.float32, torch.float32, torch.float32, torch.int32)
    return RowStatistics._make(logits.new_empty(logits.shape[0], dtype=kind) for kind in kinds)


def top_k_cuda(logits: Tensor, k: int, exclude: int = -1) -> tuple[Tensor, Tensor]:
    """Run :func:`specrs.ops.outcome.top_k_rows`."""
    return outcome.top_k_rows(logits, k, exclude)[:2]


def _best_shape(logits: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape, dtype=torch.float32)


def fork_cuda(logits: Tensor, exclude: Tensor, counts: Tensor, offsets: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Run :func:`specrs.ops.outcome.fork_tokens`."""
    return outcome.fork_tokens(logits, exclude, counts, offsets, total)[:2]


def round_coins_shape(
    seeds: Tensor, samples: Tensor, positions: Tensor, row_ptr: Tensor, parents: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    """Return the tensors of the coins, without their values."""
    rows = row_ptr.shape[0] - 1 + parents.shape[0]
    return seeds.new_empty(rows, dtype=torch.float64), seeds.new_empty(rows, dtype=torch.float64)


def attention_cuda(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Run :func:`specrs.ops.attention.tree_attention` on the arguments of the schema."""
    named = dict(zip(("scale", "block_table", "splits", "most_rows"), arguments[6:], strict=False))
    return attention.tree_attention(*arguments[:6], **named)


def attention_shape(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return the tensors of the attention, without their values."""
    return torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)


def _committing(commit: Callable[..., None]) -> Callable[..., None]:
    """Return the op that runs `commit` on a verdict's parts."""

    def run(tensors: list[Tensor], addresses: Tensor, lengths: Tensor, *rest: Any) -> None:
        path, accepted, bonus, *table = rest
        commit(tensors, addresses, lengths, Verdict(path, accepted, bonus, accepted), *(table or (None,)))

    return run


def _nothing(*arguments: Any) -> None:
    """Stand for an op that returns nothing."""


#: Name: CUDA kernel, CPU implementation, shapes of the result.
OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "verify_round": (
        verify_round_cuda,
        verify_round_cpu,
        lambda logits, packed, probs, requests, longest, *rest: packed.new_empty(
            (requests, longest + FACTS), dtype=torch.int64
        ),
    ),
    "row_statistics": (rows.row_statistics, cpu.row_statistics, row_statistics_shape),
    "top_k_rows": (
        top_k_cuda,
        cpu.top_k_rows,
        lambda logits, k, *rest: _best_shape(logits, (logits.shape[0], k)),
    ),
    "fork_tokens": (
        fork_cuda,
        cpu.fork_tokens,
        lambda logits, exclude, counts, offsets, total: _best_shape(logits, (total,)),
    ),
    "lookup_cache": (outcome.lookup_cache, cpu.lookup_cache, lambda keys, queries: queries.new_empty(queries.shape[0])),
    "select_lengths": (
        outcome.select_lengths,
        rust.select_lengths,
        lambda confidence, row_ptr, *rest: row_ptr.new_empty(row_ptr.shape[0] - 1, dtype=torch.int32),
    ),
    "accept_unmasked": (
        outcome.accept_unmasked,
        cpu.accept_unmasked,
        lambda drafts, *rest: drafts.new_empty(drafts.shape[0], dtype=torch.int32),
    ),
    "draw_tokens": (draw_tokens_cuda, draw_tokens_cpu, draw_tokens_shape),
    "round_coins": (verify.round_coins, rust.round_coins, round_coins_shape),
    "tree_attention": (attention_cuda, cpu.tree_attention, attention_shape),
    "commit_cache": (_committing(attention.commit_cache), _committing(cpu.commit_cache), _nothing),
}
for _name, _runs in VERIFICATIONS.items():
    _shape = relaxed_shape if _name == "verify_relaxed" else verdict_shape
    OPS[_name] = (_functional(_name, _runs[0]), _functional(_name, _runs[1]), _shape)
    OPS[f"{_name}_out"] = (_filling(_name, _runs[0]), _filling(_name, _runs[1]), _nothing)


def _register() -> None:
    for schema in SCHEMAS:
        LIBRARY.define(schema)
    for name, (cuda, host, shape) in OPS.items():
        LIBRARY.impl(name, cuda, "CUDA")
        LIBRARY.impl(name, host, "CPU")
        torch.library.register_fake(f"specrs::{name}", shape, lib=LIBRARY)


_register()

#: Where the engine finds the ops.
NAMESPACE: Any = torch.ops.specrs
