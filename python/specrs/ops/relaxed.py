"""Relaxed verification on the device: a choice and its bias per row, then a walk that stays within the budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

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
    verdict_layout,
)
from specrs.ops.launch import Argument, launch
from specrs.ops.rows import RowLaws, Sampling, logits_suffix, row_laws, row_leaders
from specrs.ops.verify import accept_chain

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

#: Words of one row's choice (``Choice`` of ``cuda/include/specrs/choice.h``).
CHOICE_WORDS = 8
#: Words of the sums of one tile (``PairSums`` of ``cuda/kernels/relaxed_choice.cu``).
SUMS_WORDS = 8

Kind = Literal[
    "ensemble",
    "lenience",
    "typical",
    "top_k",
    "cascade",
    "fuzzy_total_variation",
    "fuzzy_jensen_shannon",
    "fuzzy_kullback_leibler",
]

#: The rules in the order of the kernel's ``RelaxedRule``, with the number of their knobs.
KNOBS: dict[str, int] = {
    "ensemble": 0,
    "lenience": 1,
    "typical": 2,
    "top_k": 1,
    "cascade": 1,
    "fuzzy_total_variation": 1,
    "fuzzy_jensen_shannon": 1,
    "fuzzy_kullback_leibler": 1,
}

#: Sums over a row that need another sum before them take a launch each; the other rules have one.
STEPS: dict[str, int] = {"lenience": 2, "typical": 3, "top_k": 2}


class RelaxedRule(NamedTuple):
    """A relaxed rule: more drafts stand, the output's law is not the target's. Chains only.

    ``kind`` and ``knobs`` are those of :mod:`specrs.verification.relaxed`: lenience, (epsilon, delta), count, alpha,
    threshold. An ensemble has none, but ``target_weight`` float32 (N,) in (0, 1]. Target and draft law never mix beyond
    the target's support unless ``beyond_support`` is set. ``budget`` float64 (B,): bias that each request may gather
    in the round; a position that would exceed it is verified exactly.
    """

    kind: Kind
    knobs: tuple[float, ...] = ()
    target_weight: torch.Tensor | None = None
    budget: torch.Tensor | None = None
    beyond_support: bool = False

    def check(self, nodes: int, requests: int, draft: DraftLaw) -> None:
        """Refuse knobs without a meaning, before any work."""
        import torch

        if self.kind not in KNOBS:
            raise InvalidInputError(f"rule must be one of {', '.join(KNOBS)}, got '{self.kind}'")
        if len(self.knobs) != KNOBS[self.kind]:
            raise InvalidInputError(f"rule '{self.kind}' has {KNOBS[self.kind]} knobs, got {list(self.knobs)}")
        if (self.target_weight is None) == (self.kind == "ensemble"):
            raise InvalidInputError(f"target_weight is for an ensemble, which needs it; got rule '{self.kind}'")
        if self.target_weight is not None:
            check_tensor("target_weight", self.target_weight, torch.float32, (nodes,))
        if self.budget is not None:
            check_tensor("budget", self.budget, torch.float64, (requests,))
        if self.kind not in ("typical", "top_k") and draft.probs is None and nodes:
            raise InvalidInputError(f"rule '{self.kind}' needs the law that the draft was drawn from, got none")
        sound: dict[str, Callable[[float], bool]] = {
            "lenience": lambda factor: 0 < factor <= 1,
            "top_k": lambda k: k >= 1 and k == int(k),
            "other": lambda knob: 0 <= knob < math.inf,
        }
        first = sound.get(self.kind, sound["other"])
        if self.kind == "typical" and not (0 < self.knobs[0] <= 1 and 0 < self.knobs[1] < math.inf):
            raise InvalidInputError(f"epsilon must be in (0, 1] and delta above 0, got {list(self.knobs)}")
        if self.knobs and not first(self.knobs[0]):
            raise InvalidInputError(f"the knob of '{self.kind}' is out of its range, got {self.knobs[0]}")


class RelaxedVerdict(NamedTuple):
    """A :class:`specrs.ops.draft.Verdict` and ``bias`` float64 (B,): what each request gathered in the round."""

    path: torch.Tensor
    accepted: torch.Tensor
    bonus: torch.Tensor
    status: torch.Tensor
    bias: torch.Tensor


def relaxed_layout(tree: DraftTree) -> Layout:
    """Return the layout of a :class:`RelaxedVerdict` on `tree`."""
    import torch

    return {**verdict_layout(tree), "bias": (torch.float64, (tree.requests,))}


def verify_relaxed(
    logits: torch.Tensor,
    tree: DraftTree,
    sampling: Sampling,
    draft: DraftLaw,
    accept: torch.Tensor,
    emit: torch.Tensor,
    rule: RelaxedRule,
    out: RelaxedVerdict | None = None,
) -> RelaxedVerdict:
    """Accept along a chain by a relaxed rule and meter the distance from the target's law.

    Parameters
    ----------
    logits, tree, sampling, draft, accept, emit
        As :func:`specrs.ops.verify.verify_chain`. A greedy request takes its argmax; under an ensemble that of the
        mixture at temperature 1.
    rule : RelaxedRule
    out : RelaxedVerdict, optional
        Tensors to fill.
    """
    check_tree(logits, tree, sampling)
    nodes = tree.tokens.shape[0]
    check_draft(draft, nodes)
    rule.check(nodes, tree.requests, draft)
    check_coins(logits, accept=accept, emit=emit)
    *parts, bias = to_fill(out, logits, relaxed_layout(tree))
    verdict = Verdict(*parts)
    laws = row_laws(logits, tree.row_ptr, sampling)
    choices = _choices(logits, tree, draft, laws, rule)
    accept_chain(logits, tree, laws, draft, accept, emit, [choices, rule.budget, bias], verdict)
    return RelaxedVerdict(*verdict, bias)


def _choices(logits: torch.Tensor, tree: DraftTree, draft: DraftLaw, laws: RowLaws, rule: RelaxedRule) -> torch.Tensor:
    """Return what the rule decides at each row, from sums over the tiles of its law and of its child's."""
    import torch

    (rows, vocabulary), suffix, kind = logits.shape, logits_suffix(logits), list(KNOBS).index(rule.kind)
    nodes_of: list[Argument] = [tree.row_ptr, tree.tokens, tree.requests, *draft.by_node()]
    how: list[Argument] = [kind, rule.target_weight, *rule.knobs, *(0.0,) * (2 - len(rule.knobs))]
    bounds = None
    if rule.kind == "top_k":
        bounds = empty(logits, (rows,), torch.float32)
        row: list[Argument] = [logits, vocabulary, vocabulary, laws.laws]
        launch(f"relaxed_bound_{suffix}", rows, [*row, *row_leaders(logits), rule.knobs[0], bounds])
    steps = STEPS.get(rule.kind, 1)
    sums = empty(logits, (steps, rows, laws.tiles, SUMS_WORDS), torch.int32)
    for step in range(steps):
        tiled: list[Argument] = [logits, vocabulary, vocabulary, laws.laws, laws.partials, laws.tiles]
        launch(f"relaxed_sums_{suffix}", rows * laws.tiles, [*tiled, *nodes_of, *how, bounds, step, sums])
    choices = empty(logits, (rows, CHOICE_WORDS), torch.int32)
    merged: list[Argument] = [laws.laws, laws.partials, laws.tiles, rows, *nodes_of, *how, int(rule.beyond_support)]
    launch("relaxed_choice", (rows + 7) // 8, [*merged, bounds, sums, choices])
    return choices
