"""Proves a verifier exact, or says how far it is from exact: the output law of the code that runs, as fractions.

A verifier is a function of coins, and each coin decides by thresholds. For every possible draft of a small problem
(a handful of tokens, target and draft laws with small denominators) the thresholds of every coin are located by
bisection in calls of the verifier itself, recognised as the fractions they are, and multiplied out to the law of the
emitted text. Nothing is sampled. The law is compared with the target's term by term.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from specrs import _core
from specrs.reference import RULES

#: The largest coin below 1: rejects whatever can be rejected.
HIGH = 1.0 - 2.0**-53
#: Halvings of a coin's interval; the thresholds' own float32 rounding is about as large as what is left.
HALVINGS = 26
#: Fractions with denominators up to this are told apart from each other and from rounding.
LARGEST_DENOMINATOR = 900
#: How far float32 may put a threshold from its fraction.
ROUNDING = 5e-7

Law = tuple[Fraction, ...]
Floats = npt.NDArray[np.float64]
Text = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """Target and draft laws behind every context of up to ``depth`` tokens."""

    vocabulary: int
    depth: int
    target: Mapping[Text, Law]
    draft: Mapping[Text, Law]

    @classmethod
    def random(cls, seed: int, vocabulary: int, depth: int, unit: int, kind: str = "positive") -> Problem:
        """Draw laws that are multiples of ``1 / unit``; ``kind`` is 'positive', 'zeros' or 'equal'."""
        generator = random.Random(f"{seed} {vocabulary} {depth} {unit} {kind}")

        def law() -> Law:
            floor = int(kind == "positive")
            counts = [floor] * vocabulary
            for _ in range(unit - floor * vocabulary):
                counts[generator.randrange(vocabulary)] += 1
            return tuple(Fraction(count, unit) for count in counts)

        contexts = [text for length in range(depth + 1) for text in product(range(vocabulary), repeat=length)]
        target = {text: law() for text in contexts}
        draft = target if kind == "equal" else {text: law() for text in contexts}
        return cls(vocabulary, depth, target, draft)

    def text_law(self, length: int) -> dict[Text, Fraction]:
        """Return the target's law of texts of ``length`` tokens."""
        laws: dict[Text, Fraction] = {}
        self.extend((), Fraction(1), length, laws)
        return laws

    def extend(self, text: Text, weight: Fraction, length: int, into: dict[Text, Fraction]) -> None:
        """Add ``weight`` to the texts of ``length`` that begin with ``text``, continued by the target's law."""
        if weight == 0:
            return
        if len(text) >= length:
            into[text[:length]] = into.get(text[:length], Fraction(0)) + weight
            return
        for token, prob in enumerate(self.target[text]):
            self.extend((*text, token), weight * prob, length, into)


@dataclass(frozen=True)
class Calls:
    """Independent verifications of drafts with one tree shape: n of them, N nodes, R = N + 1 rows."""

    #: Shape (n, R, V).
    target_probs: Floats
    #: Shape (n, N, V).
    draft_probs: Floats
    #: Shape (n, N).
    tokens: npt.NDArray[np.int64]
    parents: Sequence[int]
    #: Shape (n, R).
    accept: Floats
    #: Shape (n, R).
    emit: Floats


Outcome = tuple[tuple[int, ...], int]
Backend = Callable[[str, Calls], list[Outcome]]


def native(rule: str, calls: Calls, law: str = "dense") -> list[Outcome]:
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
    flat_path, ends = path.tolist(), path_ptr.tolist()
    return [
        (tuple(flat_path[begin:end]), token)
        for begin, end, token in zip(ends[:-1], ends[1:], bonus.tolist(), strict=True)
    ]


def oracle(rule: str, calls: Calls, rules: Mapping[str, Any] = RULES) -> list[Outcome]:
    """Run the reference implementation, or another one given in ``rules``."""
    function = rules[rule]
    return [
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


@dataclass(frozen=True)
class Probe:
    """One threshold to locate: the largest coin below which ``holds`` is true of the outcome."""

    accept: tuple[float, ...]
    emit: tuple[float, ...]
    varies: str
    row: int
    holds: Callable[[Outcome], bool]


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

    def holds(coins: Floats) -> npt.NDArray[np.bool_]:
        accepts, emits = accept.copy(), emit.copy()
        accepts[at[on_accept], rows[on_accept]] = coins[on_accept]
        emits[at[~on_accept], rows[~on_accept]] = coins[~on_accept]
        outcomes = backend(rule, replace(base, accept=accepts, emit=emits))
        return np.array([probe.holds(outcome) for (_, probe), outcome in zip(probes, outcomes, strict=True)])

    low, high = np.zeros(len(probes)), np.ones(len(probes))
    never, always = ~holds(low), holds(np.full(len(probes), HIGH))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = np.where(true, middle, low), np.where(true, high, middle)
    found = np.where(never, 0.0, np.where(always, 1.0, (low + high) / 2))
    return [recognised(value) for value in found.tolist()]


def recognised(value: float) -> Fraction:
    """Return the fraction that ``value`` is a rounding of; ``value`` itself if there is none."""
    near = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    return near if abs(float(near) - value) < ROUNDING else Fraction(value)


def _begins_with(path: tuple[int, ...]) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome[0][: len(path)] == path


def _at_least(length: int) -> Callable[[Outcome], bool]:
    return lambda outcome: len(outcome[0]) >= length


def _draws_up_to(path: tuple[int, ...], token: int) -> Callable[[Outcome], bool]:
    return lambda outcome: outcome[0] == path and outcome[1] <= token


def path_to(parents: Sequence[int], node: int) -> tuple[int, ...]:
    """Return the nodes from the anchor's child down to ``node``."""
    path: tuple[int, ...] = ()
    while node >= 0:
        path, node = (node, *path), parents[node]
    return path


def drafts(problem: Problem, parents: Sequence[int], how: str) -> Iterator[tuple[Text, Fraction]]:
    """Yield every draft of a tree shape with its probability.

    ``how`` is 'independent', 'without_replacement', or 'given': every assignment of tokens, each with weight 1.
    """
    for tokens in product(range(problem.vocabulary), repeat=len(parents)):
        weight = Fraction(1)
        for node, parent in enumerate(parents):
            if how == "given":
                continue
            law = problem.draft[tuple(tokens[step] for step in path_to(parents, parent))]
            earlier = [tokens[other] for other in range(node) if parents[other] == parent]
            if how == "without_replacement" and tokens[node] not in earlier:
                left = 1 - sum(law[token] for token in earlier)
                weight *= law[tokens[node]] / left if left else 0
            else:
                weight *= law[tokens[node]] if how == "independent" else 0
        if weight:
            yield tokens, weight


def outcomes(
    rule: str, backend: Backend, problem: Problem, parents: Sequence[int], how: str
) -> Iterator[tuple[int, Text, Fraction]]:
    """Yield every emitted text with its probability, and the number of the draft it came from."""
    chosen = list(drafts(problem, parents, how))
    contexts = [
        [tuple(tokens[step] for step in path_to(parents, node)) for node in range(-1, len(parents))]
        for tokens, _ in chosen
    ]
    calls = Calls(
        np.array([[problem.target[text] for text in texts] for texts in contexts], dtype=np.float64),
        np.array(
            [[problem.draft[texts[parent + 1]] for parent in parents] for texts in contexts], dtype=np.float64
        ).reshape(len(chosen), len(parents), problem.vocabulary),
        np.array([tokens for tokens, _ in chosen], dtype=np.int64).reshape(len(chosen), len(parents)),
        parents,
        np.zeros((0, 0)),
        np.zeros((0, 0)),
    )
    explorer = {"greedy_or_fixed": _fixed_probes, "block": _block_probes}.get(rule, _tree_probes)
    plans = [explorer(rule, problem, parents, tokens) for tokens, _ in chosen]
    probes = [(index, probe) for index, plan in enumerate(plans) for probe in plan[0]]
    values = iter(thresholds(rule, backend, calls, probes))
    for index, ((plan, assemble), (_, weight)) in enumerate(zip(plans, chosen, strict=True)):
        for text, part in assemble([next(values) for _ in plan]):
            yield index, text, weight * part


def output_laws(
    rule: str, backend: Backend, problem: Problem, parents: Sequence[int], how: str
) -> list[dict[Text, Fraction]]:
    """Return the law of the text, continued by the target: one, or one per draft if the drafts are 'given'."""
    laws: dict[int, dict[Text, Fraction]] = {}
    for index, text, weight in outcomes(rule, backend, problem, parents, how):
        problem.extend(text, weight, problem.depth + 1, laws.setdefault(index if how == "given" else 0, {}))
    return list(laws.values())


def tokens_per_round(rule: str, backend: Backend, problem: Problem, parents: Sequence[int]) -> Fraction:
    """Return the expected number of tokens that one round emits."""
    emitted = outcomes(rule, backend, problem, parents, how_drawn(rule))
    return sum((len(text) * weight for _, text, weight in emitted), Fraction(0))


Plan = tuple[list[Probe], Callable[[list[Fraction]], Iterator[tuple[Text, Fraction]]]]


def _steps(cumulative: Sequence[Fraction]) -> list[Fraction]:
    """Return the probabilities of a cumulative law whose last term, 1, is left out."""
    padded = [Fraction(0), *cumulative, Fraction(1)]
    return [after - before for before, after in pairwise(padded)]


def _tree_probes(rule: str, problem: Problem, parents: Sequence[int], tokens: Text) -> Plan:
    """Probe each child's acceptance given that its elder siblings fell, and the draw at each node where all fell."""
    rows, vocabulary = len(parents) + 1, problem.vocabulary
    one_coin_per_parent = rule == "chain"

    def coin_row(node: int) -> int:
        return parents[node] + 1 if one_coin_per_parent else node + 1

    probes: list[Probe] = []
    children = {node: [c for c, parent in enumerate(parents) if parent == node] for node in range(-1, len(parents))}
    for node in range(-1, len(parents)):
        path = path_to(parents, node)
        accept = [HIGH] * rows
        for step in path:
            accept[coin_row(step)] = 0.0
        coins = (tuple(accept), (0.5,) * rows)
        probes += [Probe(*coins, "accept", coin_row(c), _begins_with((*path, c))) for c in children[node]]
        probes += [Probe(*coins, "emit", node + 1, _draws_up_to(path, token)) for token in range(vocabulary - 1)]

    def assemble(values: list[Fraction]) -> Iterator[tuple[Text, Fraction]]:
        stream = iter(values)
        reach = {-1: Fraction(1)}
        for node in range(-1, len(parents)):
            left = reach[node]
            for child in children[node]:
                prob = next(stream)
                reach[child] = left * prob
                left *= 1 - prob
            text = tuple(tokens[step] for step in path_to(parents, node))
            for token, prob in enumerate(_steps([next(stream) for _ in range(vocabulary - 1)])):
                yield (*text, token), left * prob

    return probes, assemble


def _block_probes(rule: str, problem: Problem, parents: Sequence[int], tokens: Text) -> Plan:
    """Probe whether each prefix stands by its own coin, and the draw behind each prefix."""
    del rule
    count, vocabulary = len(parents), problem.vocabulary
    middle, fall = (0.5,) * (count + 1), (HIGH,) * (count + 1)
    probes = [Probe(fall, middle, "accept", length - 1, _at_least(length)) for length in range(1, count + 1)]
    for length in range(count + 1):
        accept = tuple(0.0 if row == length - 1 else HIGH for row in range(count + 1))
        path = tuple(range(length))
        probes += [Probe(accept, middle, "emit", length, _draws_up_to(path, token)) for token in range(vocabulary - 1)]

    def assemble(values: list[Fraction]) -> Iterator[tuple[Text, Fraction]]:
        stands, stream, left = [Fraction(1), *values[:count]], iter(values[count:]), Fraction(1)
        draws = [_steps([next(stream) for _ in range(vocabulary - 1)]) for _ in range(count + 1)]
        for length in range(count, -1, -1):
            for token, prob in enumerate(draws[length]):
                yield (*tokens[:length], token), left * stands[length] * prob
            left *= 1 - stands[length]

    return probes, assemble


def _fixed_probes(rule: str, problem: Problem, parents: Sequence[int], tokens: Text) -> Plan:
    """Probe the draw at each node, reached by coins in the middle of the ancestors' tokens."""
    del rule
    rows, vocabulary = len(parents) + 1, problem.vocabulary
    probes: list[Probe] = []
    reached: list[tuple[int, Text]] = []

    def draws_up_to(path: tuple[int, ...], token: int) -> Callable[[Outcome], bool]:
        def holds(outcome: Outcome) -> bool:
            if outcome[0][: len(path)] != path:
                return False
            return (tokens[outcome[0][len(path)]] if len(outcome[0]) > len(path) else outcome[1]) <= token

        return holds

    for node in range(-1, len(parents)):
        path = path_to(parents, node)
        emit, possible = [0.5] * rows, True
        text: Text = ()
        for step in path:
            law, token = problem.target[text], tokens[step]
            first = next(c for c in range(len(parents)) if parents[c] == parents[step] and tokens[c] == token)
            possible &= law[token] > 0 and first == step
            emit[parents[step] + 1] = float(sum(law[:token]) + law[token] / 2)
            text = (*text, token)
        if not possible:
            continue
        reached.append((node, text))
        coins = ((0.5,) * rows, tuple(emit))
        probes += [Probe(*coins, "emit", node + 1, draws_up_to(path, token)) for token in range(vocabulary - 1)]

    def assemble(values: list[Fraction]) -> Iterator[tuple[Text, Fraction]]:
        stream = iter(values)
        reach: dict[Text, Fraction] = {(): Fraction(1)}
        for node, text in reached:
            matching = {tokens[child] for child, parent in enumerate(parents) if parent == node}
            for token, prob in enumerate(_steps([next(stream) for _ in range(vocabulary - 1)])):
                if token in matching:
                    reach[(*text, token)] = reach[text] * prob
                else:
                    yield (*text, token), reach[text] * prob

    return probes, assemble


def distance(left: Mapping[Text, Fraction], right: Mapping[Text, Fraction]) -> Fraction:
    """Return the total-variation distance of two laws."""
    texts = left.keys() | right.keys()
    zero = Fraction(0)
    return sum((abs(left.get(text, zero) - right.get(text, zero)) for text in texts), zero) / 2


def is_possible(problem: Problem, parents: Sequence[int], how: str) -> bool:
    """Tell whether the drafter always fills the tree shape: siblings without replacement need support enough."""
    return how == "given" or sum(weight for _, weight in drafts(problem, parents, how)) == 1


def how_drawn(rule: str) -> str:
    """Return how ``drafts`` draws for a rule."""
    return {"greedy_or_fixed": "given", "without_replacement": "without_replacement"}.get(rule, "independent")


def worst_distance(
    rule: str, backend: Backend, problem: Problem, parents: Sequence[int], how: str | None = None
) -> Fraction:
    """Return how far the emitted text's law is from the target's, for the worst draft if drafts are given."""
    how = how_drawn(rule) if how is None else how
    wanted = problem.text_law(problem.depth + 1)
    return max(distance(law, wanted) for law in output_laws(rule, backend, problem, parents, how))


def tree_shapes(nodes: int, depth: int) -> Iterator[tuple[int, ...]]:
    """Yield the parents of every tree with ``nodes`` nodes in topological order and at most ``depth`` levels."""
    for parents in product(*(range(-1, node) for node in range(nodes))):
        if max((len(path_to(parents, node)) for node in range(nodes)), default=0) <= depth:
            yield parents
