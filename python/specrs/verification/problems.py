"""Small problems for proofs of exactness: laws as fractions, tree shapes, drafts and their probabilities."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

Law = tuple[Fraction, ...]
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

    def distance_of(self, emitted: Mapping[Text, Fraction]) -> Fraction:
        """Return how far the law of ``emitted`` texts, continued by the target, is from the target's.

        Behind a text that no other one continues both laws are the target's, so the distance there is that of the two
        weights. The result is ``distance(extended, text_law)`` in far fewer terms.
        """
        continued = {text[:length] for text, weight in emitted.items() if weight for length in range(len(text))}

        def behind(text: Text, weight: Fraction, wanted: Fraction) -> Fraction:
            weight += emitted.get(text, 0)
            if text not in continued:
                return abs(weight - wanted)
            steps = enumerate(self.target[text])
            return sum((behind((*text, token), weight * p, wanted * p) for token, p in steps), Fraction(0))

        return behind((), Fraction(0), Fraction(1)) / 2


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


def is_possible(problem: Problem, parents: Sequence[int], how: str) -> bool:
    """Tell whether the drafter always fills the tree shape: siblings without replacement need support enough."""
    return how == "given" or sum(weight for _, weight in drafts(problem, parents, how)) == 1


def how_drawn(rule: str) -> str:
    """Return how ``drafts`` draws for a rule."""
    return {"greedy_or_fixed": "given", "without_replacement": "without_replacement"}.get(rule, "independent")


def distance(left: Mapping[Text, Fraction], right: Mapping[Text, Fraction]) -> Fraction:
    """Return the total-variation distance of two laws."""
    texts = left.keys() | right.keys()
    zero = Fraction(0)
    return sum((abs(left.get(text, zero) - right.get(text, zero)) for text in texts), zero) / 2


def tree_shapes(nodes: int, depth: int) -> Iterator[tuple[int, ...]]:
    """Yield the parents of every tree with ``nodes`` nodes in topological order and at most ``depth`` levels."""
    for parents in product(*(range(-1, node) for node in range(nodes))):
        if max((len(path_to(parents, node)) for node in range(nodes)), default=0) <= depth:
            yield parents
