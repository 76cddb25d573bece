"""Relaxed rules: the emitted law is the formula's, the bias meter is its distance, budgets and refusals hold."""

from fractions import Fraction

import numpy as np
import pytest

import specrs
from specrs.errors import InvalidInputError
from specrs.reference import RELAXED_RULES, emitted_law, total_variation
from specrs.verification import (
    Cascade,
    ChainRejection,
    DenseLaw,
    DynamicEnsemble,
    Fuzzy,
    Lenience,
    OneHotLaw,
    StaticEnsemble,
    TopKAcceptance,
    Typical,
)
from specrs.verification.exactness import Outcomes, Problem, outcomes

RULES = [
    (StaticEnsemble(0.75), "ensemble", (Fraction(3, 4),)),
    (StaticEnsemble(1.0), "ensemble", (1,)),
    (DynamicEnsemble(np.array([0.25], np.float32)), "ensemble", (Fraction(1, 4),)),
    (Lenience(0.5), "lenience", (Fraction(1, 2),)),
    (Lenience(1.0), "lenience", (1,)),
    (Typical(0.3, 0.6), "typical", (0.3, 0.6)),
    (Typical(0.05, 0.3), "typical", (0.05, 0.3)),
    (TopKAcceptance(1), "top_k", (1,)),
    (TopKAcceptance(2), "top_k", (2,)),
    (Cascade(0.3), "cascade", (0.3,)),
    (Cascade(1.0), "cascade", (1.0,)),
    (Fuzzy(0.3, "total_variation"), "fuzzy", (0.3, "total_variation")),
    (Fuzzy(0.1), "fuzzy", (0.1, "jensen_shannon")),
    (Fuzzy(0.4, "kullback_leibler"), "fuzzy", (0.4, "kullback_leibler")),
]


def random_laws(seed, vocabulary=4, unit=12):
    rng = np.random.default_rng(seed)
    target, draft = (rng.multinomial(unit, rng.dirichlet(np.ones(vocabulary))) for _ in range(2))
    return [Fraction(int(c), unit) for c in target], [Fraction(int(c), unit) for c in draft]


def measured(verifier, target, draft, **options):
    """The emitted law of one position as fractions, its thresholds located in the extension, and the bias reported."""
    reported = []

    def backend(rule, calls):
        n = len(calls.tokens)
        with np.errstate(divide="ignore"):
            logits = np.log(calls.target_probs).astype(np.float32).reshape(2 * n, -1)
        verdict = specrs.verify(
            logits,
            calls.tokens,
            np.full(n, -1),
            np.arange(n + 1) * 2,
            verifier=repeated(verifier, n) if isinstance(verifier, DynamicEnsemble) else verifier,
            draft_law=DenseLaw(calls.draft_probs.astype(np.float32).reshape(n, -1)),
            temperature=1.0,
            accept_coins=calls.accept.ravel(),
            emit_coins=calls.emit.ravel(),
            **options,
        )
        reported.append(verdict.bias)
        return Outcomes.ragged(verdict.path_ptr, verdict.path, verdict.bonus, nodes=1)

    vocabulary = len(target)
    target, draft = tuple(target), tuple(draft)
    contexts = [(), *((token,) for token in range(vocabulary))]
    problem = Problem(vocabulary, 1, dict.fromkeys(contexts, target), dict.fromkeys(contexts, draft))
    law = [Fraction(0)] * vocabulary
    for _, text, weight in outcomes("chain", backend, problem, (-1,), "independent"):
        law[text[0]] += weight
    return law, np.concatenate(reported)


def repeated(verifier, n):
    return DynamicEnsemble(np.tile(verifier.target_weights, n))


@pytest.mark.parametrize(("verifier", "name", "knobs"), RULES, ids=lambda value: str(value)[:40])
def test_emitted_law_and_bias(verifier, name, knobs):
    for seed in range(4):
        target, draft = random_laws(seed)
        wanted = emitted_law(RELAXED_RULES[name](target, draft, *knobs), draft)
        assert sum(wanted) == 1
        law, bias = measured(verifier, target, draft)
        assert law == wanted
        assert np.abs(bias - float(total_variation(wanted, target))).max() < 1e-6


def test_ensemble_law_is_the_mixture_and_its_bias_exact():
    target, draft = random_laws(5)
    for weight in (Fraction(1, 10), Fraction(1, 2), Fraction(9, 10), Fraction(1)):
        decision = RELAXED_RULES["ensemble"](target, draft, weight, beyond_support=True)
        law = emitted_law(decision, draft)
        assert law == [weight * p + (1 - weight) * q for p, q in zip(target, draft, strict=True)]
        assert total_variation(law, target) == (1 - weight) * total_variation(target, draft)
        rejected = 1 - sum(a * q for a, q in zip(decision.accept_prob, draft, strict=True))
        assert rejected + total_variation(law, target) == total_variation(target, draft)


def test_support_beyond_the_targets_is_refused_by_default():
    target, draft = [Fraction(1), Fraction(0)], [Fraction(1, 2), Fraction(1, 2)]
    assert measured(StaticEnsemble(0.1), target, draft)[0] == [1, 0]
    law, bias = measured(StaticEnsemble(0.1), target, draft, beyond_support=True)
    assert law == [Fraction(11, 20), Fraction(9, 20)]
    assert np.abs(bias - 0.45).max() < 1e-6


def one_position(verifier, weight_budget, n=1, **changes):
    logits = np.log(np.array([[0.7, 0.2, 0.1]] * 4, np.float32))
    draft = np.array([[0.1, 0.2, 0.7]] * 3, np.float32)
    return specrs.verify(
        logits,
        [2, 2, 2],
        [-1, 0, 1],
        verifier=verifier,
        draft_law=DenseLaw(draft),
        temperature=1.0,
        accept_coins=np.full(4, 0.5),
        emit_coins=np.full(4, 0.5),
        budget=weight_budget,
        **changes,
    )


def test_budget_returns_the_request_to_exact():
    free = one_position(StaticEnsemble(0.1), None)
    assert free.accepted.tolist() == [3]
    assert abs(free.bias[0] - 3 * 0.9 * 0.6) < 1e-6
    once = one_position(StaticEnsemble(0.1), [0.6])
    assert once.accepted.tolist() == [1]
    assert abs(once.bias[0] - 0.54) < 1e-6
    none = one_position(StaticEnsemble(0.1), [0.0])
    exact = one_position(ChainRejection(), None)
    assert none.bonus.tolist() == exact.bonus.tolist()
    assert none.accepted.tolist() == exact.accepted.tolist() == [0]
    assert none.bias.tolist() == [0.0]


def test_weight_one_is_rejection_sampling_coin_by_coin():
    rng = np.random.default_rng(3)
    for _ in range(200):
        logits = rng.standard_normal((5, 50)).astype(np.float32) * 2
        draft = rng.dirichlet(np.ones(50), 4).astype(np.float32)
        given = {
            "logits": logits,
            "tokens": rng.integers(0, 50, 4),
            "parents": np.arange(-1, 3),
            "draft_law": DenseLaw(draft),
            "temperature": 0.9,
            "accept_coins": rng.random(5),
            "emit_coins": rng.random(5),
        }
        exact = specrs.verify(**given, verifier=ChainRejection())
        for verifier in (StaticEnsemble(1.0), Lenience(1.0), Fuzzy(0.0)):
            relaxed = specrs.verify(**given, verifier=verifier)
            assert relaxed.path.tolist() == exact.path.tolist()
            assert relaxed.bonus.tolist() == exact.bonus.tolist()


def test_greedy_ensemble_follows_the_mixtures_argmax():
    logits = np.log(np.array([[0.5, 0.49, 0.01], [0.1, 0.1, 0.8]], np.float32))
    law = DenseLaw(np.array([[0.1, 0.89, 0.01]], np.float32))
    relaxed = specrs.verify(logits, [1], [-1], verifier=StaticEnsemble(0.5), draft_law=law)
    assert (relaxed.path.tolist(), relaxed.bonus.tolist(), relaxed.bias.tolist()) == ([0], [2], [1.0])
    exact = specrs.verify(logits, [1], [-1], verifier=StaticEnsemble(1.0), draft_law=law)
    assert (exact.path.tolist(), exact.bonus.tolist(), exact.bias.tolist()) == ([], [0], [0.0])


def test_greedy_ensemble_orders_near_ties_by_their_logits():
    """Logits one float apart have one rounded probability: the larger is taken, as by greedy decoding."""
    near = np.nextafter(np.float32(0.1), np.float32(1))
    logits = np.array([[0.1, near, -3.0, 0.1], [near, 0.1, -3.0, near]], np.float32)
    law = DenseLaw(np.array([[0.4, 0.4, 0.1, 0.1]], np.float32))
    for weight in (0.25, 1.0):
        verdict = specrs.verify(logits, [1], [-1], verifier=StaticEnsemble(weight), draft_law=law)
        assert (verdict.path.tolist(), verdict.bonus.tolist(), verdict.bias.tolist()) == ([0], [0], [0.0])
        rejected = specrs.verify(logits, [0], [-1], verifier=StaticEnsemble(weight), draft_law=law)
        assert (rejected.path.tolist(), rejected.bonus.tolist(), rejected.bias.tolist()) == ([], [1], [0.0])
    preferred = DenseLaw(np.array([[0.41, 0.4, 0.1, 0.09]], np.float32))
    verdict = specrs.verify(logits, [0], [-1], verifier=StaticEnsemble(0.25), draft_law=preferred)
    assert (verdict.path.tolist(), verdict.bias.tolist()) == ([0], [1.0])


def test_vectors_from_transformers_own_tests():
    logits = np.log(np.array([[0.4, 0.6], [0.5, 0.5]], np.float32))
    law = DenseLaw(np.array([[0.8, 0.2]], np.float32))
    for weight, accepted in ((1.0, 0), (0.7, 1)):
        verdict = specrs.verify(
            logits, [0], [-1], verifier=StaticEnsemble(weight), draft_law=law, temperature=1.0,
            accept_coins=np.array([0.6, 0.6]), emit_coins=np.array([0.5, 0.5]),
        )  # fmt: skip
        assert verdict.accepted.tolist() == [accepted]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: StaticEnsemble(0.0), "target_weight must be in \\(0, 1\\], got 0.0"),
        (lambda: StaticEnsemble(1.5), "got 1.5"),
        (lambda: StaticEnsemble(float("nan")), "got nan"),
        (lambda: DynamicEnsemble(np.array([0.5, -1.0])), "target_weights must be a vector in"),
        (lambda: Lenience(0.0), "lenience factor"),
        (lambda: Typical(0.0), "epsilon"),
        (lambda: Typical(0.3, -1.0), "delta"),
        (lambda: TopKAcceptance(0), "count must be at least 1, got 0"),
        (lambda: Cascade(-0.1), "alpha"),
        (lambda: Fuzzy(-1.0), "threshold"),
        (lambda: Fuzzy(0.1, "vibes"), "divergence must be one of"),
        (lambda: one_position(DynamicEnsemble(np.array([0.5])), None), "target_weights must be 3 long, got 1"),
        (lambda: one_position(StaticEnsemble(0.5), [-1.0]), "bias budget must be at least 0, got -1"),
        (
            lambda: specrs.verify(
                np.zeros((2, 3), np.float32), [0], [-1], verifier=StaticEnsemble(0.5), draft_law=OneHotLaw()
            ),
            "needs the law",
        ),
    ],
)
def test_knobs_are_checked(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()
