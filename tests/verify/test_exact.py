"""Exactness by enumeration: the emitted text's law, through the code that runs, is the target's as fractions."""

import random
from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest
from tests.mutants import MUTANTS
from tests.verify.edge_cases import CASES, oracle_outcome

from specrs import _core
from specrs.reference import RULES
from specrs.verification.exactness import (
    Problem,
    distance,
    how_drawn,
    is_possible,
    native,
    oracle,
    tokens_per_round,
    tree_shapes,
    worst_distance,
)

CHAINS = {"chain", "block"}
KINDS = ("positive", "zeros", "equal")


def shapes(rule, nodes, depth):
    return [tuple(range(-1, nodes - 1))] if rule in CHAINS else tree_shapes(nodes, depth)


def check(rule, backend, vocabulary, depth, nodes, unit, seeds, how=None):
    checked = 0
    for seed, kind, count in product(seeds, KINDS, nodes):
        problem = Problem.random(seed, vocabulary, depth, unit, kind)
        for parents in shapes(rule, count, depth):
            if not is_possible(problem, parents, how or how_drawn(rule)):
                continue
            found = worst_distance(rule, backend, problem, parents, how)
            # SpecTr's scale comes out of a bisection, so its thresholds are no small fractions.
            assert found == 0 if rule != "spectr" else found < 1e-5, (rule, seed, kind, parents, float(found))
            checked += 1
    return checked


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("vocabulary", [2, 3])
def test_every_shape_up_to_three_nodes(rule, vocabulary):
    assert check(rule, native, vocabulary, 3, (0, 1, 2, 3), 4, (0, 1)) >= 15


@pytest.mark.parametrize("rule", ["greedy_or_fixed", "specinfer", "without_replacement", "spectr"])
def test_every_shape_of_four_nodes(rule):
    assert check(rule, native, 3, 3, (4,), 3, (2,)) >= 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", ["greedy_or_fixed", "specinfer", "without_replacement", "spectr"])
def test_every_shape_of_four_nodes_over_four_tokens(rule):
    assert check(rule, native, 4, 3, (4,), 4, (2,)) >= 10


@pytest.mark.parametrize("rule", RULES)
def test_four_tokens(rule):
    assert check(rule, native, 4, 2, (1, 2), 5, (3,)) >= 3


@pytest.mark.parametrize("rule", sorted(CHAINS))
@pytest.mark.parametrize("law", ["dense", "sparse"])
def test_chains_of_depth_three(rule, law):
    assert check(rule, partial(native, law=law), 3, 3, (3,), 4, (4, 5, 6)) == 9


@pytest.mark.parametrize("rule", ["specinfer", "without_replacement", "spectr"])
def test_sparse_laws_of_siblings(rule):
    assert check(rule, partial(native, law="sparse"), 3, 2, (2, 3), 4, (7,)) >= 6


@pytest.mark.parametrize("rule", ["chain", "block", "specinfer"])
def test_drafts_chosen_with_certainty(rule):
    assert check(rule, partial(native, law="one_hot"), 3, 2, (1, 2), 4, (8,), how="given") >= 6


@pytest.mark.parametrize("rule", RULES)
def test_reference_is_exact(rule):
    assert check(rule, oracle, 3, 2, (0, 1, 2), 4, (9,)) >= 6


def test_all_coins_jointly_on_a_lattice():
    """No threshold search: every coin on every midpoint of a lattice that holds all thresholds, all combinations."""
    problem = Problem.random(11, 3, 2, 3, "zeros")
    steps = 6  # the least common multiple of the denominators of all ratios and residuals of multiples of 1/3
    grid = (np.arange(steps) + 0.5) / steps
    coins = np.array(list(product(grid, repeat=5)))
    law: dict = {}
    for first, second in product(range(3), repeat=2):
        weight = problem.draft[()][first] * problem.draft[(first,)][second]
        if not weight:
            continue
        n = len(coins)
        rows = [problem.target[()], problem.target[(first,)], problem.target[(first, second)]]
        with np.errstate(divide="ignore"):
            logits = np.log(np.array(rows, dtype=np.float64)).astype(np.float32)
        draft = np.array([problem.draft[()], problem.draft[(first,)]], dtype=np.float32)
        path_ptr, _, bonus, _ = _core.verify(
            np.tile(logits, (n, 1)),
            "f32",
            np.arange(n + 1) * 3,
            np.tile(np.array([first, second], np.uint32), n),
            np.tile(np.array([-1, 0], np.int32), n),
            "chain",
            np.ones(n, np.float32),
            np.zeros(n, np.int32),
            np.ones(n, np.float32),
            np.zeros(n, np.float32),
            np.column_stack([coins[:, 3:], np.zeros(n)]).ravel(),
            coins[:, :3].ravel(),
            np.tile(draft, (n, 1)),
        )
        for length, token in zip(np.diff(path_ptr).tolist(), bonus.tolist(), strict=True):
            problem.extend((*(first, second)[:length], token), weight * Fraction(1, n), 3, law)
    assert distance(law, problem.text_law(3)) == 0


def test_distance_of_emitted_texts_is_that_of_the_laws_written_out():
    away = 0
    for seed, kind in product(range(20), KINDS):
        problem = Problem.random(seed, 3, 2, 4, kind)
        generator = random.Random(seed)
        texts = [text for length in (1, 2, 3) for text in product(range(3), repeat=length)]
        counts = {text: generator.randrange(4) for text in generator.sample(texts, generator.randrange(1, 12))}
        emitted = {text: Fraction(count, sum(counts.values()) or 1) for text, count in counts.items()}
        law: dict = {}
        for text, weight in emitted.items():
            problem.extend(text, weight, 3, law)
        assert problem.distance_of(emitted) == distance(law, problem.text_law(3))
        away += problem.distance_of(emitted) > 0
    assert away > 30


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name):
    rule, function = MUTANTS[name]
    rules = {rule: function}
    for case in (case for case in CASES if case["rule"] == rule):
        if oracle_outcome(case, rules) != (tuple(case["path"]), case["token"]):
            return
    sizes = [(3, 2, 4, 2), (3, 1, 12, 2), (4, 2, 6, 2), (3, 3, 4, 3)]
    for (vocabulary, depth, unit, nodes), seed, kind in product(sizes, (0, 1), KINDS):
        problem = Problem.random(seed, vocabulary, depth, unit, kind)
        for parents in shapes(rule, min(nodes, depth) if rule in CHAINS else nodes, depth):
            if not is_possible(problem, parents, how_drawn(rule)):
                continue
            if worst_distance(rule, partial(oracle, rules=rules), problem, parents) > 1e-4:
                return
    pytest.fail(f"{name} passes for {rule}")


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 25


def test_block_emits_no_fewer_tokens_than_token_by_token():
    gained = 0
    for seed, kind in product(range(8), KINDS):
        problem = Problem.random(seed, 3, 3, 4, kind)
        block, chain = (tokens_per_round(rule, native, problem, (-1, 0, 1)) for rule in ("block", "chain"))
        assert block >= chain
        gained += block > chain
    assert gained > 5
