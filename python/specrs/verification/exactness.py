"""Proves a verifier exact, or says how far it is from exact: the output law of the code that runs, as fractions.

A verifier is a function of coins, and each coin decides by thresholds. For every possible draft of a small problem
(a handful of tokens, target and draft laws with small denominators) the thresholds of every coin are located by
bisection in calls of the verifier itself, recognised as the fractions they are, and multiplied out to the law of the
emitted text. Nothing is sampled. The law is compared with the target's term by term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from specrs.verification.problems import Problem, Text, distance, drafts, how_drawn, is_possible, path_to, tree_shapes
from specrs.verification.thresholds import HIGH, Backend, Calls, Outcomes, Probe, native, oracle, thresholds

__all__ = [
    "Calls",
    "Outcomes",
    "Probe",
    "Problem",
    "distance",
    "drafts",
    "emitted_laws",
    "how_drawn",
    "is_possible",
    "native",
    "oracle",
    "outcomes",
    "path_to",
    "thresholds",
    "tokens_per_round",
    "tree_shapes",
    "worst_distance",
]


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


def emitted_laws(
    rule: str, backend: Backend, problem: Problem, parents: Sequence[int], how: str
) -> list[dict[Text, Fraction]]:
    """Return the law of what a round emits: one, or one per draft if the drafts are 'given'."""
    laws: dict[int, dict[Text, Fraction]] = {}
    for index, text, weight in outcomes(rule, backend, problem, parents, how):
        law = laws.setdefault(index if how == "given" else 0, {})
        law[text] = law.get(text, Fraction(0)) + weight
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
        probes += [Probe(*coins, "accept", coin_row(c), (*path, c)) for c in children[node]]
        probes += [Probe(*coins, "emit", node + 1, path, token, may_go_on=False) for token in range(vocabulary - 1)]

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
    probes = [Probe(fall, middle, "accept", length - 1, tuple(range(length))) for length in range(1, count + 1)]
    for length in range(count + 1):
        accept = tuple(0.0 if row == length - 1 else HIGH for row in range(count + 1))
        path = tuple(range(length))
        probes += [
            Probe(accept, middle, "emit", length, path, token, may_go_on=False) for token in range(vocabulary - 1)
        ]

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
        probes += [Probe(*coins, "emit", node + 1, path, token) for token in range(vocabulary - 1)]

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


def worst_distance(
    rule: str, backend: Backend, problem: Problem, parents: Sequence[int], how: str | None = None
) -> Fraction:
    """Return how far the emitted text's law is from the target's, for the worst draft if drafts are given."""
    how = how_drawn(rule) if how is None else how
    return max(problem.distance_of(law) for law in emitted_laws(rule, backend, problem, parents, how))
