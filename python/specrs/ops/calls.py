"""Verifications as their ops call them: a schema's arguments, one after the other, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from specrs.ops import rust, verify
from specrs.ops.draft import DraftLaw, DraftTree, Verdict
from specrs.ops.relaxed import RelaxedRule, RelaxedVerdict, verify_relaxed
from specrs.ops.rows import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from specrs.ops.draft import Layout


class Call(NamedTuple):
    """The arguments of a verification's schema, put together; `options` are what its form adds."""

    logits: torch.Tensor
    tree: DraftTree
    sampling: Sampling
    draft: DraftLaw
    accept: torch.Tensor
    emit: torch.Tensor
    options: tuple[Any, ...]

    @staticmethod
    def of(*arguments: Any) -> Call:
        """Read the arguments of a verification of drafts with a law."""
        tree, sampling, draft = DraftTree(*arguments[1:5]), Sampling(*arguments[5:9]), DraftLaw(*arguments[9:12])
        return Call(arguments[0], tree, sampling, draft, arguments[12], arguments[13], arguments[14:])

    @property
    def rule(self) -> RelaxedRule:
        """The rule of a relaxed verification."""
        kind, knobs, *rest = self.options
        return RelaxedRule(kind, tuple(knobs), *rest)

    @property
    def with_replacement(self) -> bool:
        """How siblings were drawn."""
        return bool(self.options and self.options[0])


def walk_cuda(*arguments: Any, out: Verdict | None = None) -> Verdict:
    """Walk by the kernels."""
    call = Call.of(*_as_chain(arguments))
    return verify.verify_walk(call.logits, call.tree, call.sampling, call.emit, out)


def walk_cpu(*arguments: Any) -> Verdict:
    """Walk by the Rust rule."""
    return by_rust("greedy_or_fixed")(*_as_chain(arguments))


def _as_chain(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a walk's arguments, which has no draft law and one coin per row, as those of a chain."""
    return (*arguments[:9], None, None, None, arguments[9], arguments[9])


def with_law(run: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """Return kernels of drafts with a law as they are called with a schema's arguments."""

    def filled(*arguments: Any, out: Verdict | None = None) -> Verdict:
        return run(*Call.of(*arguments)[:6], out=out)

    return filled


def siblings_cuda(*arguments: Any, out: Verdict | None = None) -> Verdict:
    """Verify sampled siblings by the kernels."""
    call = Call.of(*arguments)
    return verify.verify_siblings(*call[:6], with_replacement=call.with_replacement, out=out)


def relaxed_cuda(*arguments: Any, out: RelaxedVerdict | None = None) -> RelaxedVerdict:
    """Verify by a relaxed rule's kernels."""
    call = Call.of(*arguments)
    return verify_relaxed(*call[:6], call.rule, out)


def by_rust(rule: str) -> Callable[..., Verdict]:
    """Return an exact rule in Rust as it is called with a schema's arguments."""

    def run(*arguments: Any) -> Verdict:
        call = Call.of(*arguments)
        return rust.verify(rule, call.logits, call.tree, call.sampling, call.accept, call.emit, call.draft)

    return run


def siblings_cpu(*arguments: Any) -> Verdict:
    """Verify sampled siblings by the Rust rule."""
    return by_rust("specinfer" if Call.of(*arguments).with_replacement else "without_replacement")(*arguments)


def relaxed_cpu(*arguments: Any) -> RelaxedVerdict:
    """Verify by a relaxed rule in Rust."""
    call = Call.of(*arguments)
    return rust.verify_relaxed(*call[:6], call.rule)


def on_tree(layout: Callable[[DraftTree], Layout]) -> Callable[..., Layout]:
    """Return a layout as it is called with a verification's arguments."""
    return lambda *arguments: layout(DraftTree(*arguments[1:5]))
