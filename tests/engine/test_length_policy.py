"""How much to draft: the adaptive policy pays its way and never changes a text (cases B66, B81)."""

import numpy as np
import pytest
from tests.engine.conftest import hf_greedy, tiny_target
from tests.toys import TattleLM

import specrs
from specrs.policies.base import RoundSeconds
from specrs.policies.cost import CostTable
from specrs.policies.goodput import Goodput
from specrs.types import Confidence, Draft, Verdict

FOREVER = {"eos_token_id": None}


class Clock:
    """Rounds of a machine with known costs and a drafter with known acceptance."""

    def __init__(self, policy, *, per_row, per_draft_token, batch=1, limit=8):
        self.policy, self.per_row, self.per_draft_token = policy, per_row, per_draft_token
        self.batch, self.limit = batch, limit
        self.rng = np.random.default_rng(0)

    def rounds(self, count, acceptance):
        """Return the lengths asked for, round by round."""
        asked = []
        requests = [None] * self.batch
        for _ in range(count):
            budgets = self.policy.budgets(requests, [self.limit] * self.batch)
            asked.append(budgets[0])
            chains = [[1] * b for b in budgets]
            draft = Draft.chains(chains)
            paths = []
            for b in budgets:
                n = 0
                while n < b and self.rng.random() < acceptance:
                    n += 1
                paths.append(np.arange(n, dtype=np.int32))
            path_ptr = np.concatenate([[0], np.cumsum([len(p) for p in paths])]).astype(np.int64)
            verdict = Verdict(
                path_ptr, np.concatenate(paths), np.zeros(self.batch, np.uint32), np.zeros(self.batch, np.uint8)
            )
            rows = self.batch + sum(budgets)
            score = 1.0 + self.per_row * (rows - 1)
            seconds = RoundSeconds(self.per_draft_token * max(budgets), 0.0, score, 0.0, 0.0)
            self.policy.observe(requests, draft, verdict, seconds)
        return asked


def table(per_row):
    rows = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])
    return CostTable(rows, 1.0 + per_row * (rows - 1))


def test_b66_a_drafter_that_does_not_pay_is_left_alone_and_comes_back():
    """B66: drafting costs 0.3 of a pass per token and one in five is accepted: no drafts within 30 rounds."""
    clock = Clock(Goodput(table(0.02), max_nodes=8, drawn=True), per_row=0.02, per_draft_token=0.3)
    asked = clock.rounds(60, 0.2)
    assert max(asked[:5]) > 0
    assert sum(asked[30:]) <= 2, "but for a probe now and then"
    later = clock.rounds(800, 1.0)
    assert np.mean(later[-100:]) > 1, "acceptance rose, so drafting came back"


def test_b81_the_batch_decides_and_not_the_acceptance():
    """B81: acceptance 0.85 throughout; scoring is nearly free for one request and costs by the row for 32."""
    one = Clock(Goodput(table(0.03), max_nodes=8, drawn=True), per_row=0.03, per_draft_token=0.05)
    assert np.mean(one.rounds(60, 0.85)[-20:]) >= 3
    many = Clock(Goodput(table(1.0), max_nodes=8, drawn=True), per_row=1.0, per_draft_token=0.5, batch=32)
    assert sum(many.rounds(60, 0.85)[-20:]) <= 1


def test_trim_keeps_what_pays_and_is_closed_under_parents():
    policy = Goodput(table(0.2), max_nodes=8, drawn=False)
    draft = Draft(
        tokens=np.arange(6, dtype=np.uint32),
        parents=np.array([-1, 0, -1, 2, 0, 4], np.int32),
        depths=np.array([1, 2, 1, 2, 2, 3], np.int32),
        node_ptr=np.array([0, 6], np.int64),
        confidence=np.array([0.9, 0.9, 0.05, 0.9, 0.05, 0.9], np.float32),
        confidence_kind=Confidence.COUNT_RATIO,
    )
    kept = policy.trim([None], draft)
    assert kept.tokens.tolist() == [0, 1]
    assert kept.parents.tolist() == [-1, 0]
    expensive = Goodput(table(5.0), max_nodes=8, drawn=False)
    assert len(expensive.trim([None], draft).tokens) == 0
    free = Goodput(table(0.0), max_nodes=8, drawn=False)
    assert len(free.trim([None], draft).tokens) == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_the_policy_changes_no_text(temperature, shape):
    prompts = [[7, 3, 9, 7, 3], [1], [2, 2, 2]]
    options = {"max_new_tokens": 60, "temperature": temperature, "seed": 3, **FOREVER}
    plain = specrs.generate(TattleLM(), prompts, drafter="none", **options)
    made = specrs.generate(TattleLM(), prompts, drafter="cache", draft_shape=shape, **options)
    assert [one.ids for one in made] == [one.ids for one in plain]
    assert made[0].report.method == "cache (goodput)"


def test_the_policy_changes_no_text_of_a_model(kind):
    prompt = [7, 3, 9, 11, 7, 3, 9]
    options = {"max_new_tokens": 20, **FOREVER}
    expected = hf_greedy(kind, prompt, 20)
    assert specrs.generate(tiny_target(kind), prompt, **options).ids == expected
    made = specrs.generate(tiny_target(kind), prompt, drafter="model", draft_model=tiny_target(kind), **options)
    assert made.ids == expected


@pytest.mark.parametrize("limit", [2, 3, 5, 20, 33, 80])
def test_the_cost_table_stays_within_the_context(limit):
    cost = CostTable.measure(TattleLM(max_context=limit))
    assert 0 < cost.seconds(1) <= cost.seconds(4) <= cost.seconds(1000)
