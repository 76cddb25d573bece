"""The output's law, exactly: every coin of a lattice is tossed and the outputs counted (cases B10, B11, B13, B18, B30).

The toy laws have probabilities that are multiples of 1/4 and residuals that are uniform over one or two tokens, so
that four equally likely values of every coin enumerate each decision with its exact probability.
"""

import collections
import itertools

import numpy as np
import pytest
from tests.toys import ScriptDrafter, TableLM

import specrs
from specrs import _core
from specrs.drafters.model import ModelDrafter

CELLS = 4
STEPS = 3
PROMPT = [0]


@pytest.fixture
def lattice(monkeypatch):
    """Make a seed name a lattice point: its digits are the coins of (purpose, position of the output)."""

    def coin(seed, purpose, position):
        digit = seed // CELLS ** (3 * (position - len(PROMPT)) + purpose) % CELLS
        return (digit + 0.5) / CELLS

    def coins(seed, positions, purpose, request=0, index=0):
        assert purpose == "draft"
        return np.array([coin(int(seed), 0, int(p)) for p in positions])

    def round_coins(seeds, requests, positions, row_ptr, depths):
        accept, emit = [], []
        for b, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
            nodes = depths[row_ptr[b] - b : row_ptr[b + 1] - b - 1].tolist()
            for depth in [0, *nodes]:
                # Coins behind the output decide nothing that is kept.
                accept.append(coin(seed, 1, position + depth) if position + depth < len(PROMPT) + STEPS else 0.5)
                emit.append(coin(seed, 2, position + depth) if position + depth < len(PROMPT) + STEPS else 0.5)
        return np.array(accept), np.array(emit)

    monkeypatch.setattr(_core, "coins", coins)
    monkeypatch.setattr(_core, "round_coins", round_coins)


def points(purposes, steps=STEPS):
    """All lattice points over these purposes (0 draft, 1 accept, 2 emit) of every step."""
    places = [3 * step + purpose for step in range(steps) for purpose in purposes]
    for digits in itertools.product(range(CELLS), repeat=len(places)):
        yield sum(digit * CELLS**place for digit, place in zip(digits, places, strict=True))


def logits_of(probs, temperature=1.0, tail=()):
    with np.errstate(divide="ignore"):
        return np.concatenate([np.log(np.asarray(probs, float)) * temperature, np.asarray(tail, float)])


#: Target laws by parity of what was written; draft laws at distance 1/4 or 1/2 from them.
TARGET = [[0.5, 0.25, 0.25, 0.0], [0.0, 0.25, 0.5, 0.25], [0.25, 0.25, 0.25, 0.25], [0.75, 0.25, 0.0, 0.0]]
DRAFT = [[0.25, 0.25, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.25, 0.0], [0.75, 0.25, 0.0, 0.0]]


def kind_of(prefix):
    return (sum(prefix) + len(prefix)) % 4


def exact_law(laws=TARGET, steps=STEPS):
    law = collections.Counter()
    for text in itertools.product(range(4), repeat=steps):
        prob = 1.0
        for i, token in enumerate(text):
            prob *= laws[kind_of((*PROMPT, *text[:i]))][token]
        if prob:
            law[text] = prob
    return law


def counted(target, seeds, steps=STEPS, **options):
    """Return the share of every output over the lattice points. The batches are wide, the rows independent."""
    seeds = list(seeds)
    counts = collections.Counter()
    for start in range(0, len(seeds), 256):
        part = seeds[start : start + 256]
        made = specrs.generate(
            target,
            [PROMPT] * len(part),
            seed=part,
            max_new_tokens=steps,
            max_batch=256,
            eos_token_id=None,
            **{"temperature": 1.0, **options},
        )
        counts.update(tuple(one.ids) for one in made)
    return {text: count / len(seeds) for text, count in counts.items()}


def test_plain_decoding_has_the_exact_law(lattice):
    assert counted(TableLM(4, lambda p: logits_of(TARGET[kind_of(p)])), points([2]), drafter="none") == exact_law()


def fixed(rule):
    return ScriptDrafter(lambda request, budget: rule(request.tokens.tolist()))


FIXED = {
    "certain": lambda text: [0, 0, 0],
    "improbable": lambda text: [3, 3],
    "impossible": lambda text: [3 if text[-1] else 2, 0],
    "by_context": lambda text: [(text[-1] + 1) % 4, 1],
    "siblings": lambda text: ([0, 1, 2, 0, 1, 2], [-1, -1, -1, 1, 1, 0]),
    "duplicate_siblings": lambda text: ([1, 1, 0, 2], [-1, -1, 0, 1]),
    "empty": lambda text: [],
}


@pytest.mark.parametrize("name", FIXED)
def test_b11_b18_fixed_drafts(lattice, name):
    """B11, B18: deterministic drafts, chains and trees with siblings: exactly the target's law."""
    target = TableLM(4, lambda p: logits_of(TARGET[kind_of(p)]))
    law = counted(target, points([2]), drafter=fixed(FIXED[name]), draft_tokens=8)
    assert law == exact_law()


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_b11_cache_drafts(lattice, shape):
    target = TableLM(4, lambda p: logits_of(TARGET[kind_of(p)]))
    law = counted(target, points([2]), drafter="cache", draft_shape=shape, draft_tokens=4)
    assert law == exact_law()


@pytest.mark.parametrize(
    ("draft_tokens", "min_confidence"),
    [
        (1, 0.0),
        (1, 0.6),
        (2, 0.6),
        pytest.param(2, 0.4, marks=pytest.mark.slow),
        pytest.param(2, 0.0, marks=pytest.mark.slow),
    ],
)
def test_b10_model_drafter(lattice, draft_tokens, min_confidence):
    """B10: drafts that are drawn, from a law at distance 1/4 and 1/2, with every way of ending a chain early."""
    target = TableLM(4, lambda p: logits_of(TARGET[kind_of(p)]))
    drafting = TableLM(4, lambda p: logits_of(DRAFT[kind_of(p)]))
    drafter = ModelDrafter(drafting, 4, min_confidence=min_confidence)
    steps = 2 if draft_tokens == 1 else STEPS
    # The last token is never drafted: the bonus needs no draft.
    places = [3 * s + p for s in range(steps) for p in ((0, 1, 2) if s < steps - 1 else (2,))]
    seeds = (
        sum(digit * CELLS**place for digit, place in zip(digits, places, strict=True))
        for digits in itertools.product(range(CELLS), repeat=len(places))
    )
    law = counted(target, seeds, steps, drafter=drafter, draft_tokens=draft_tokens)
    assert law == exact_law(steps=steps)


def two_step(target, drafting, width, **options):
    drafter = ModelDrafter(drafting, width, min_confidence=0.0)
    seeds = [d + CELLS * a + CELLS**2 * e + CELLS**5 * f for d, a, e, f in itertools.product(range(CELLS), repeat=4)]
    return counted(target, seeds, 2, drafter=drafter, draft_tokens=1, **options)


def test_b10_temperature_and_top_k_on_both_sides(lattice):
    """B10: the law handed over is the one after temperature 0.7 and top-k, on the drafter's side as well."""
    tail = [-20.0] * 2  # cut by top-k; the scaled logits give the dyadic laws again
    target = TableLM(6, lambda p: logits_of(TARGET[kind_of(p)], 0.7, tail))
    drafting = TableLM(6, lambda p: logits_of(DRAFT[kind_of(p)], 0.7, tail))
    assert two_step(target, drafting, 6, temperature=0.7, top_k=4) == exact_law(steps=2)


@pytest.mark.parametrize("drafter_width", [4, 6])
@pytest.mark.parametrize("target_width", [4, 6])
def test_b30_heads_of_different_width(lattice, drafter_width, target_width):
    """B30: V = 4 against 6. Ids beyond the target's are never drawn, the rest renormalised; missing ones are 0."""
    more = [0.0, 1.0]  # the wider drafter likes its extra ids; the wider target forbids its own
    target = TableLM(target_width, lambda p: logits_of(TARGET[kind_of(p)], tail=[-np.inf] * (target_width - 4)))
    drafting = TableLM(drafter_width, lambda p: logits_of(DRAFT[kind_of(p)], tail=more[: drafter_width - 4]))
    if drafter_width > 4 and target_width > 4:
        # Both know the ids, the drafter alone believes in them: always rejected. Its law is no longer dyadic, so the
        # outputs are compared in kind and not in number.
        law = two_step(target, drafting, target_width)
        assert set(law) == set(exact_law(steps=2))
    else:
        assert two_step(target, drafting, target_width) == exact_law(steps=2)


class DrawnScript:
    """Chains with a law as given, honest or not."""

    name = "drawn-script"
    max_context = None
    tokens_are_drawn = True

    def __init__(self, token, law):
        self.token, self.law = token, np.asarray(law, np.float32)

    def start(self, request):
        pass

    def propose(self, requests, budgets):
        from specrs.types import Draft

        chains = [[self.token] if budget else [] for budget in budgets]
        rows = sum(len(c) for c in chains)
        return Draft.chains(chains, draft_probs=np.tile(self.law, (rows, 1)) if rows else None)

    def commit(self, request, kept):
        pass

    def finish(self, request):
        pass


@pytest.mark.parametrize(
    "law",
    [[np.nan] * 4, [0, 0, 0, 0], [0, np.inf, 0, 0], [np.nan, 1, 0, 0], [0, -1, 1, 1]],
    ids=["nan", "zero", "inf", "partly-nan", "negative"],
)
def test_b13_unusable_draft_rows(lattice, law):
    """B13: a draft row that is no law never makes an impossible token come out, and the run goes on."""
    target = TableLM(4, lambda p: logits_of([0.0, 0.25, 0.25, 0.5]))
    outputs = counted(target, range(CELLS**3), 2, drafter=DrawnScript(1, law), draft_tokens=1)
    assert all(0 not in text for text in outputs)


def test_b13_zero_residual_and_certain_tokens(lattice):
    """B13: target law equal to the draft's, and one-hot on the draft: nothing but the target's law comes out."""
    certain = TableLM(4, lambda p: logits_of([0, 1, 0, 0]))
    assert counted(certain, range(CELLS**3), 2, drafter=DrawnScript(1, [0, 1, 0, 0]), draft_tokens=1) == {(1, 1): 1.0}
    assert counted(certain, range(CELLS**3), 2, drafter=DrawnScript(2, [0, 0, 1, 0]), draft_tokens=1) == {(1, 1): 1.0}
    same = TableLM(4, lambda p: logits_of(DRAFT[kind_of(p)]))
    assert two_step(same, TableLM(4, lambda p: logits_of(DRAFT[kind_of(p)])), 4) == exact_law(DRAFT, 2)


def test_b15_min_p_and_bias_on_every_row(lattice):
    """B15: min_p and a bias apply to drafted rows and to the bonus alike."""

    def base(prefix):
        # min_p 0.2 drops the last of 8/16, 4/16, 4/16 and a sliver; the bias removes id 4.
        return np.concatenate([logits_of([0.5, 0.25, 0.25]), [np.log(0.05), 3.0]])

    exact = {
        text: float(np.prod([[0.5, 0.25, 0.25][t] for t in text])) for text in itertools.product(range(3), repeat=2)
    }
    options = {"min_p": 0.2, "logit_bias": {4: -100.0}}
    for drafter in ("none", fixed(lambda text: [0, 0]), fixed(lambda text: ([4, 3, 1, 0], [-1, -1, -1, 2]))):
        target = TableLM(5, base)
        assert counted(target, points([2], 2), 2, drafter=drafter, draft_tokens=4, **options) == exact
