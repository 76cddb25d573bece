"""Where the coins of a verifier decide: thresholds located by bisection in calls of the code that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specrs import _core
from specrs.reference import RULES

#: The largest coin below 1: rejects whatever can be rejected.
HIGH = 1.0 - 2.0**-53
#: Halvings of a coin's interval; what is left is below the thresholds' own float32 rounding.
HALVINGS = 24
#: Fractions with denominators up to this are told apart from each other and from rounding.
LARGEST_DENOMINATOR = 400
#: How far float32 may put a threshold from its fraction.
ROUNDING = 2.5e-6
#: Above every token.
ANY_TOKEN = 2**32

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calls:
    """Independent verifications of drafts with one tree shape: n of them, N nodes, R = N + 1 rows."""

    #: Shape (n, R, V).
    target_probs: Floats
    #: Shape (n, N, V).
    draft_probs: Floats
    #: Shape (n, N).
    tokens: Integers
    parents: Sequence[int]
    #: Shape (n, R).
    accept: Floats
    #: Shape (n, R).
    emit: Floats


@dataclass(frozen=True)
class Outcomes:
    """What each of n verifications emitted."""

    #: Accepted nodes, root first, then -1; shape (n, N).
    paths: Integers
    #: The token drawn at the end of each path; shape (n,).
    bonus: Integers

    @classmethod
    def ragged(cls, path_ptr: npt.ArrayLike, path: npt.ArrayLike, bonus: npt.ArrayLike, nodes: int) -> Outcomes:
        """Pad the paths of a verdict over drafts of ``nodes`` nodes."""
        lengths = np.diff(np.asarray(path_ptr))
        paths = np.full((len(lengths), nodes), -1)
        paths[np.arange(nodes) < lengths[:, None]] = path
        return cls(paths, np.asarray(bonus, np.int64))


Backend = Callable[[str, Calls], Outcomes]


def native(rule: str, calls: Calls, law: str = "dense") -> Outcomes:
    """Run the extension; ``law`` is the form in which the draft's law is handed over: dense, sparse or one_hot."""
    count, rows, vocabulary = calls.target_probs.shape
    nodes = rows - 1
    with np.errstate(divide="ignore"):
        logits = np.log(calls.target_probs).astype(np.float32).reshape(count * rows, vocabulary)
    draft: dict[str, Any] = {}
    if law == "one_hot":
        draft = {"one_hot": True}
    elif law == "sparse":
        flat = calls.draft_probs.reshape(count * nodes, vocabulary)
        draft = {
            "draft_ptr": np.concatenate([[0], np.cumsum((flat > 0).sum(1))]).astype(np.int64),
            "draft_ids": np.nonzero(flat)[1].astype(np.uint32),
            "draft_probs": flat[flat > 0].astype(np.float32),
        }
    elif rule != "greedy_or_fixed":
        draft = {"draft_probs": calls.draft_probs.astype(np.float32).reshape(count * nodes, vocabulary)}
    path_ptr, path, bonus, _ = _core.verify(
        logits,
        "f32",
        np.arange(count + 1, dtype=np.int64) * rows,
        calls.tokens.astype(np.uint32).ravel(),
        np.tile(np.asarray(calls.parents, np.int32), count),
        rule,
        np.ones(count, np.float32),
        np.zeros(count, np.int32),
        np.ones(count, np.float32),
        np.zeros(count, np.float32),
        calls.accept.ravel(),
        calls.emit.ravel(),
        **draft,
    )
    return Outcomes.ragged(path_ptr, path, bonus, nodes)


def oracle(rule: str, calls: Calls, rules: Mapping[str, Any] = RULES) -> Outcomes:
    """Run the reference implementation, or another one given in ``rules``."""
    function = rules[rule]
    emitted = [
        function(*arguments[:3], calls.parents, *arguments[3:])
        for arguments in zip(
            calls.target_probs.tolist(),
            calls.draft_probs.tolist(),
            calls.tokens.tolist(),
            calls.accept.tolist(),
            calls.emit.tolist(),
            strict=True,
        )
    ]
    path_ptr = np.cumsum([0, *(len(path) for path, _ in emitted)])
    joined = [node for path, _ in emitted for node in path]
    return Outcomes.ragged(path_ptr, joined, [token for _, token in emitted], len(calls.parents))


class Probe(NamedTuple):
    """One threshold to locate: the largest coin below which the outcome is in a set.

    The set: paths that begin with ``path``, with the next token, drafted or drawn, at most ``limit``; only ``path``
    itself unless it ``may_go_on``.
    """

    accept: tuple[float, ...]
    emit: tuple[float, ...]
    #: The coin to move: 'accept' or 'emit', and its row.
    varies: str
    row: int
    path: tuple[int, ...]
    limit: int = ANY_TOKEN
    may_go_on: bool = True


def thresholds(rule: str, backend: Backend, calls: Calls, probes: Sequence[tuple[int, Probe]]) -> list[Fraction]:
    """Locate every probe's threshold; ``probes`` name the draft (an index into ``calls``) that they belong to."""
    which = np.array([index for index, _ in probes])
    accept = np.array([probe.accept for _, probe in probes])
    emit = np.array([probe.emit for _, probe in probes])
    at = np.arange(len(probes))
    rows = np.array([probe.row for _, probe in probes])
    on_accept = np.array([probe.varies == "accept" for _, probe in probes])
    base = replace(
        calls,
        target_probs=calls.target_probs[which],
        draft_probs=calls.draft_probs[which],
        tokens=calls.tokens[which],
    )
    nodes = len(calls.parents)
    lengths = np.array([len(probe.path) for _, probe in probes])
    fixed = np.arange(nodes) < lengths[:, None]
    path = np.full((len(probes), nodes), -1)
    path[fixed] = [step for _, probe in probes for step in probe.path]
    limit = np.array([probe.limit for _, probe in probes])
    may_go_on = np.array([probe.may_go_on for _, probe in probes])

    def holds(coins: Floats) -> npt.NDArray[np.bool_]:
        accepts, emits = accept.copy(), emit.copy()
        accepts[at[on_accept], rows[on_accept]] = coins[on_accept]
        emits[at[~on_accept], rows[~on_accept]] = coins[~on_accept]
        outcomes = backend(rule, replace(base, accept=accepts, emit=emits))
        begins = ((outcomes.paths == path) | ~fixed).all(1)
        goes_on = (outcomes.paths >= 0).sum(1) > lengths
        behind = outcomes.bonus.copy()
        behind[goes_on] = base.tokens[goes_on, outcomes.paths[goes_on, lengths[goes_on]]]
        true: npt.NDArray[np.bool_] = begins & (behind <= limit) & (may_go_on | ~goes_on)
        return true

    low, high = np.zeros(len(probes)), np.ones(len(probes))
    never, always = ~holds(low), holds(np.full(len(probes), HIGH))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = np.where(true, middle, low), np.where(true, high, middle)
    found = np.where(never, 0.0, np.where(always, 1.0, (low + high) / 2))
    return [recognised(value) for value in found.tolist()]


@lru_cache(maxsize=4096)
def recognised(value: float) -> Fraction:
    """Return the fraction that ``value`` is a rounding of; ``value`` itself if there is none."""
    near = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    return near if abs(float(near) - value) < ROUNDING else Fraction(value)
