"""Losslessness by enumeration: two rounds of the drafter as it runs, every coin, in every mode.

The draft law's probabilities are multiples of 1/D, so drawing with the D coins in the middle of the D-ths enumerates a
draft exactly. For each draft the verifier's coins are located by bisection (``specrs.verification.exactness``). The
drafter is played anew for every combination of draft coins and first outcome, and the law of the text is compared with
the target's, term by term, as fractions.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import lcm

import numpy as np
import pytest
from tests.ssd.toys import PROMPT, LawLM, local, request, saguaro_law

from specrs import _core
from specrs.ssd.links import LocalLink
from specrs.ssd.texts import NOTHING, Answer, Chain, Origin
from specrs.verification import exactness
from specrs.verification.exactness import Calls, Problem

V, K = 3, 2
#: By text, draft and its laws: what verification emits.
VERIFIED = {}


class GridCoins:
    """Stands in for ``_core.coins`` of the drafter: coin number i at position ``first + i``."""

    def __init__(self, monkeypatch):
        self.at = {}
        monkeypatch.setattr(_core, "coins", self)

    def __call__(self, seed, positions, purpose, request=0, index=0):
        assert purpose == "draft"
        return np.array([self.at[int(position)] for position in positions])


def outcome_laws(problem, text, tokens, laws):
    """(emitted tokens, probability) of verifying one chain behind ``text``, and P as the verifier that runs has it."""
    parents = list(range(-1, len(tokens) - 1))
    contexts = [(*text, *tokens[:i]) for i in range(len(tokens) + 1)]
    plan, assemble = exactness._tree_probes("chain", problem, parents, tokens)
    calls = Calls(
        np.array([[problem.target[context] for context in contexts]], np.float64),
        np.array(laws, np.float64).reshape(1, len(tokens), V),
        np.array([tokens], np.int64).reshape(1, len(tokens)),
        parents,
        np.zeros((0, 0)),
        np.zeros((0, 0)),
    )
    values = exactness.thresholds("chain", exactness.native, calls, [(0, probe) for probe in plan])
    return [(emitted, prob) for emitted, prob in assemble(values) if prob]


def one_hot(tokens):
    return [tuple(Fraction(int(i == token)) for i in range(V)) for token in tokens]


def draft_of(drafter, asked, problem, text, weight, favoured, mutant=None):
    """The next draft as tokens and laws in fractions, the laws it states being those of the definition."""
    made = drafter.propose([asked], [K])
    tokens = tuple(made.tokens.tolist())
    if made.draft_probs is None:
        return tokens, one_hot(tokens)
    stated = [saguaro_law(problem.draft[(*text, *tokens[:i])], favoured, weight) for i in range(len(tokens))]
    certain = [set(np.unique(row)) <= {0.0, 1.0} for row in made.draft_probs]
    laws = [one_hot([t])[0] if sure else law for t, law, sure in zip(tokens, stated, certain, strict=True)]
    np.testing.assert_allclose(made.draft_probs, np.array(laws, np.float64), atol=1e-6)
    if mutant == "untransformed":
        laws = [problem.draft[(*text, *tokens[:i])] for i in range(len(tokens))]
    if mutant == "another-law-on-hit" and drafter.statistics.by_origin["hit"]:
        laws = [(Fraction(1, V),) * V for _ in tokens]
    return tokens, laws


def text_law(problem, coins, make, weight, favoured, mutant=None):
    """The law of texts of K + 2 tokens after two rounds of the drafter, by all coins; and the origins seen."""
    length = K + 2
    denominator = lcm(*(f.denominator for q in problem.draft.values() for f in saguaro_law(q, favoured, weight)))
    grid = [(i + 0.5) / denominator for i in range(denominator)]
    result, origins = {}, set()

    def verify(text, tokens, laws):
        key = (text, tokens, tuple(laws))
        if key not in VERIFIED:
            VERIFIED[key] = outcome_laws(problem, text, tokens, laws)
        return VERIFIED[key]

    first_at = len(PROMPT)
    cases = {}
    # The coins of the second draft that matter depend on the first outcome, so play only those: the last K positions.
    for first in product(grid, repeat=K):
        coins.at = {first_at + i: coin for i, coin in enumerate(first)}
        asked = request(temperature=1.0)
        drafter = make()
        drafter.start(asked)
        coins.at |= {first_at + K + i: grid[0] for i in range(2 * K + 2)}
        tokens, laws = draft_of(drafter, asked, problem, (), weight, favoured, mutant)
        for emitted, prob in verify((), tokens, laws):
            begin = first_at + len(emitted)
            free = [p for p in range(begin, begin + K) if p >= first_at + K]
            key = (first, emitted)
            cases[key] = (prob, free, tokens, laws)
    share = Fraction(1, denominator**K)
    for (first, emitted), (prob, free, *_) in cases.items():
        if len(emitted) >= length:
            problem.extend(emitted, share * prob, length, result)
            continue
        for second in product(grid, repeat=len(free)):
            coins.at = {first_at + K + i: grid[0] for i in range(2 * K + 2)}
            coins.at |= {first_at + i: coin for i, coin in enumerate(first)}
            coins.at |= dict(zip(free, second, strict=True))
            asked = request(temperature=1.0)
            drafter = make()
            drafter.start(asked)
            draft_of(drafter, asked, problem, (), weight, favoured)
            kept = np.array(emitted, np.uint32)
            asked.extend(kept)
            drafter.commit(asked, kept)
            tokens, laws = draft_of(drafter, asked, problem, emitted, weight, favoured, mutant)
            origins |= set(drafter.statistics.by_origin)
            for more, again in verify(emitted, tokens, laws):
                weight_of_all = share * prob * again / denominator ** len(free)
                problem.extend((*emitted, *more)[:length], weight_of_all, length, result)
    return result, origins


def small_problem():
    """One problem for all: the law of verifying a draft is located once (``VERIFIED``)."""
    problem = Problem.random(1, V, 2 * K + 2, 4, "zeros")
    return replace(problem, draft=Problem.random(51, V, 2 * K + 2, 2, "zeros").draft)


class Liar(LocalLink):
    """Answers with the draft of another outcome, and says so (as a wrong lookup would)."""

    def speculate(self, round_, queries):
        answer = super().speculate(round_, queries)
        replies = [
            replace(r, bonus=(r.bonus + 1) % V, origin=Origin.HIT, chain=Chain(np.zeros(1, np.uint32)))
            for r in answer.replies
        ]
        return Answer(round_, tuple(replies)) if round_ > 1 else answer


class Stale(LocalLink):
    """Answers the second question with the first one's draft."""

    def speculate(self, round_, queries):
        answer = super().speculate(round_, queries)
        self.first = getattr(self, "first", answer)
        return Answer(round_, self.first.replies)


class Forgetful(LocalLink):
    """Forgets every guess: all outcomes miss."""

    def speculate(self, round_, queries):
        self.drafter.cache.clear()
        return super().speculate(round_, queries)


#: Mode: how the drafter is made, and what the second round must be at least once.
MODES = {
    "synchronous": ({"fan_out": 0, "fallback": "slow"}, LocalLink, {"slow"}),
    "hit": ({"fan_out": 3, "fallback": "slow"}, LocalLink, {"hit"}),
    "hit-or-zero": ({"fan_out": 1, "fallback": "zero"}, LocalLink, {"hit", "zero"}),
    "miss-slow": ({"fan_out": 3, "fallback": "slow"}, Forgetful, {"slow"}),
    "miss-fast": ({"fan_out": 3, "fallback": "fast"}, Forgetful, {"fast"}),
    "miss-zero": ({"fan_out": 3, "fallback": "zero"}, Forgetful, {"zero"}),
    "late": ({"fan_out": 3, "fallback": "slow", "steps": lambda _: 1}, LocalLink, {"hit"}),
    "very-late": ({"fan_out": 3, "fallback": "slow", "steps": lambda _: 0}, LocalLink, {"slow"}),
    "lie": ({"fan_out": 3, "fallback": "slow"}, Liar, set()),
    "stale": ({"fan_out": 3, "fallback": "slow"}, Stale, set()),
}


@pytest.mark.filterwarnings("ignore:the drafter answered")
@pytest.mark.parametrize("weight", [Fraction(1), Fraction(1, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_exact(monkeypatch, mode, weight):
    options, link, wanted = MODES[mode]
    coins = GridCoins(monkeypatch)
    problem = small_problem()
    favoured = options["fan_out"] + 1 if weight < 1 else 0
    if weight < 1:  # few enough ids are favoured to make a difference among three
        favoured = 1
        monkeypatch.setattr("tests.ssd.toys.DraftLaw", lambda _, c: FavouringOne(c))

    def make():
        steps = options.get("steps", lambda _: None)
        rest = {k: v for k, v in options.items() if k != "steps"}
        drafter = local(LawLM(V, problem.draft), V, lookahead=K, saguaro=float(weight), **rest)
        # What would be guessed for a third round plays no part.
        drafter.link = link(drafter.link.drafter, lambda round_: steps(round_) if round_ == 1 else 0)
        return drafter

    law, origins = text_law(problem, coins, make, weight, favoured)
    assert sum(law.values()) == 1
    assert exactness.distance(law, problem.text_law(K + 2)) == 0
    assert wanted <= origins


def FavouringOne(weight):  # noqa: N802 - it makes one
    from specrs.ssd.sampling import DraftLaw

    return DraftLaw(1, weight)


@pytest.mark.parametrize(("mutant", "weight"), [("untransformed", Fraction(1, 2)), ("another-law-on-hit", Fraction(1))])
def test_wrong_laws_are_found_out(monkeypatch, mutant, weight):
    """Verifying against the law before Saguaro, or a guessed draft against another law, is not exact."""
    coins = GridCoins(monkeypatch)
    problem = small_problem()
    monkeypatch.setattr("tests.ssd.toys.DraftLaw", lambda _, c: FavouringOne(c))

    def make():
        return local(LawLM(V, problem.draft), V, lookahead=K, fan_out=3, fallback="slow", saguaro=float(weight))

    law, _ = text_law(problem, coins, make, weight, 1 if weight < 1 else 0, mutant)
    assert exactness.distance(law, problem.text_law(K + 2)) > Fraction(1, 200)


def test_nothing_is_a_chain():
    assert len(NOTHING.tokens) == 0
    assert NOTHING.first(3) is NOTHING
