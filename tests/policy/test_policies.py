"""What the policies decide: never slower, batches, learning, bad input; and that no text changes by them."""

import re

import numpy as np
import pytest
from tests.policy.rounds import Facts, Machine, chains, cost, policy, request, verdict
from tests.toys import TattleLM

import specrs
from specrs import _core
from specrs.drafters.drawing import LogitFacts
from specrs.errors import InvalidInputError, UnknownNameError
from specrs.policies.base import RoundSeconds
from specrs.policies.registry import POLICIES
from specrs.types import Confidence, Draft

FOREVER = {"eos_token_id": None}
NEEDS_STEPS = {"svip", "adaedl", "specdecpp", "disco"}
CLOCKED = [name for name in POLICIES if POLICIES[name].needs_cost]


@pytest.mark.parametrize("name", ["libra", "goodput"])
def test_b66_a_drafter_that_does_not_pay_is_left_alone_and_comes_back(name):
    """B66: drafting costs 0.3 of a pass per token and one in five is accepted: no drafts within 30 rounds."""
    made = policy(name, drawn=True, stepwise=True, table=cost(0.02), guarded=True)
    machine = Machine(made, per_row=0.02, per_draft_token=0.3)
    asked = machine.rounds(60, 0.2)
    assert max(asked[:5]) > 0
    assert sum(asked[30:]) <= 4, "but for a probe now and then"
    later = machine.rounds(800, 1.0)
    assert np.mean(later[-100:]) > 1, "acceptance rose, so drafting came back"


def test_what_other_texts_taught_does_not_silence_a_new_one():
    """A draft model that fails on one text is tried on the next, and goes on as long as it is right."""
    learned = _core.Learned("ratio", None)
    options = {"stepwise": True, "table": cost(0.02), "learned": learned}

    def text(number):
        machine = Machine(policy("libra", **options), per_row=0.02, per_draft_token=0.4)
        machine.requests = [request(number)]
        return machine

    assert sum(text(0).rounds(200, 0.1, confidence=0.5)[50:]) <= 10
    like_it = text(1)
    like_it.rounds(60, 0.0, confidence=0.5)
    assert like_it.seconds < 1.03 * like_it.tokens, "two drafts on trial and a probe, of 60 rounds"
    assert min(text(2).rounds(10, 1.0, confidence=0.95)) > 0


@pytest.mark.parametrize("name", ["svip", "dloop", None])
def test_requests_that_end_one_after_the_other_leave_the_last_rounds_without_drafts(name):
    """The last token of a text is written without a draft, by fewer requests than drafted before."""
    prompts = [[7, 3, 9, 7, 3], [1], [2, 2, 2, 5, 6, 5, 6, 5], [4, 4]]
    options = {"drafter": "model", "draft_model": TattleLM(), "policy": name, "temperature": 0.7, "seed": 3}
    for tokens in range(2, 30):
        made = specrs.generate(TattleLM(), prompts, max_new_tokens=tokens, **options, **FOREVER)
        assert [len(one.ids) for one in made] == [tokens] * len(prompts)


@pytest.mark.parametrize("name", ["libra", "goodput"])
def test_b81_the_batch_decides_and_not_the_acceptance(name):
    """B81: acceptance 0.85 throughout; scoring is nearly free for one request and costs by the row for 32."""
    one = Machine(policy(name, stepwise=True, table=cost(0.03)), per_row=0.03, per_draft_token=0.05)
    assert np.mean(one.rounds(60, 0.85)[-20:]) >= 3
    made = policy(name, stepwise=True, table=cost(1.0, rows=400))
    many = Machine(made, per_row=1.0, per_draft_token=0.5, batch=32)
    assert sum(many.rounds(60, 0.85)[-20:]) <= 2


@pytest.mark.parametrize("name", ["fixed", "hf_heuristic", "ema_tiers", "dloop", "libra_alpha", "hf_confidence"])
def test_any_policy_rests_while_plain_decoding_is_faster(name):
    """Never slower: whatever the policy, a drafter that misses costs little, and one that hits returns."""
    options = {"fixed": {"tokens": 8}}.get(name)
    made = policy(name, options, table=cost(0.2), guarded=True)
    machine = Machine(made, per_row=0.2, per_draft_token=0.0)
    machine.rounds(400, 0.05, confidence=0.9)
    plain = machine.tokens * 1.0
    assert machine.seconds < 1.12 * plain
    assert "drafting rested in" in made.message()
    scored = machine.rounds(600, 1.0, confidence=0.9)
    assert np.mean(scored[-50:]) > 0.5, "it came back"
    unguarded = Machine(policy(name, options, table=cost(0.2)), per_row=0.2, per_draft_token=0.0)
    unguarded.rounds(400, 0.05, confidence=0.9)
    assert unguarded.seconds / unguarded.tokens > machine.seconds / machine.tokens or name == "ema_tiers"


def test_a_request_that_does_not_pay_rests_alone():
    made = policy("fixed", {"tokens": 4}, table=cost(0.2), guarded=True)
    requests = [request(0), request(1)]
    drafted = np.zeros(2)
    for _ in range(60):
        lengths = made.budgets(requests, [4, 4])
        drafted += lengths
        draft = made.trim(requests, chains(lengths))
        made.observe(requests, draft, verdict([lengths[0], 0]), RoundSeconds(0, 0, 1 + 0.2 * sum(lengths), 0, 0))
    assert drafted[0] == 240
    assert drafted[1] < 60


def test_libra_keeps_what_pays_and_is_closed_under_parents():
    draft = Draft(
        tokens=np.arange(6, dtype=np.uint32),
        parents=np.array([-1, 0, -1, 2, 0, 4], np.int32),
        depths=np.array([1, 2, 1, 2, 2, 3], np.int32),
        node_ptr=np.array([0, 6], np.int64),
        confidence=np.array([0.9, 0.9, 0.05, 0.9, 0.05, 0.9], np.float32),
        confidence_kind=Confidence.COUNT_RATIO,
    )
    kept = policy("libra", table=cost(0.2)).trim([request()], draft)
    assert kept.tokens.tolist() == [0, 1]
    assert kept.parents.tolist() == [-1, 0]
    assert len(policy("libra", table=cost(5.0)).trim([request()], draft).tokens) == 0
    assert len(policy("libra", table=cost(0.0)).trim([request()], draft).tokens) == 6


def test_rows_go_to_the_surer_request():
    draft = chains([4, 4], [[0.95] * 4, [0.2] * 4])
    kept = policy("libra", table=cost(0.4)).trim([request(0), request(1)], draft)
    sizes = np.diff(kept.node_ptr)
    assert sizes[0] > sizes[1]


def test_a_stair_that_is_free_is_used_to_its_end():
    """The best length is at the end of a stair of costs, not where the rate first falls."""
    table = _core.CostTable(list(range(1, 17)), [1.0 + 0.3 * (m // 4) for m in range(16)])
    lengths = {len(policy("libra", table=table).trim([request()], chains([15], [[c] * 15])).tokens) for c in
               (0.5, 0.6, 0.7, 0.8, 0.85, 0.9)}  # fmt: skip
    assert lengths <= {3, 7, 11, 15}
    assert len(lengths) > 1


def test_overconfident_drafts_are_cut_once_they_were_seen_through():
    made = policy("libra", table=cost(0.1))
    requests = [request()]
    first = len(made.trim(requests, chains([8], [[0.95] * 8])).tokens)
    for _ in range(200):
        draft = made.trim(requests, chains([8], [[0.95] * 8]))
        made.observe(
            requests, draft, verdict([min(1, len(draft.tokens))]), RoundSeconds(0, 0, 1 + 0.1 * len(draft.tokens), 0, 0)
        )
    assert len(made.trim(requests, chains([8], [[0.95] * 8])).tokens) < first == 8


def test_names_and_options_that_are_not_there_are_refused_with_the_nearest():
    for call, message in [
        ({"policy": "libre"}, "did you mean 'libra'"),
        ({"policy": "ema_tier"}, "did you mean 'ema_tiers'"),
        ({"policy": "libra", "policy_options": {"hysterisis": 0.1}}, "did you mean 'hysteresis'"),
    ]:
        with pytest.raises(UnknownNameError, match=re.escape(message)):
            specrs.generate(TattleLM(), [1, 2], max_new_tokens=2, **call)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"policy": "libra", "draft_tokens": 3}, "draft_tokens=3 is a fixed length"),
        ({"draft_tokens": -1}, "draft_tokens must be >= 0, got -1"),
        ({"policy": "svip"}, "'svip' looks at the law .* 'cache' does not tell"),
        ({"policy": "libra_alpha", "policy_options": {"alpha": 0}}, "alpha must be above 0, got 0"),
        (
            {"policy": "libra_alpha", "policy_options": {"convention": "round"}},
            "must be 'strict' or 'floor', got 'round'",
        ),
        ({"policy": "libra", "policy_options": {"hysteresis": 2.0}}, r"hysteresis must be in \[0, 1\), got 2"),
        ({"policy": "dloop", "policy_options": {"block": 0}}, "blocks of at least 1 token, got -0.5 and 0"),
        ({"policy": "ucb", "policy_options": {"arms": ()}}, "at least one arm"),
        ({"policy": "ema_tiers", "policy_options": {"tiers": (3, 1)}}, "lengths that rise"),
        ({"policy": "libra", "policy_options": {"max_tokens": -1}}, "option max_tokens of policy 'libra' cannot be -1"),
        ({"policy_options": {"calibration": "none"}}, "calibration must be 'identity'"),
        ({"policy_options": {"calibration": "temperatures"}}, "needs temperatures="),
        ({"policy_options": {"head": 3}}, "takes no head"),
        ({"policy": "disco", "drafter": "model", "draft_model": TattleLM()}, "takes head="),
        ({"disable_above_batch": -1}, "disable_above_batch must be >= 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(call, message):
    target = TattleLM()
    with pytest.raises(InvalidInputError, match=message):
        specrs.generate(target, [1, 2], max_new_tokens=2, **call)


def test_a_seeded_sample_of_drawn_drafts_takes_no_policy_that_follows_the_clock():
    options = {"drafter": "model", "draft_model": TattleLM(salt=1), "temperature": 1.0, "max_new_tokens": 20, **FOREVER}
    with pytest.raises(InvalidInputError, match="'libra' follows measured times"):
        specrs.generate(TattleLM(), [1, 2], seed=3, policy="libra", **options)
    made = [specrs.generate(TattleLM(), [1, 2], seed=3, policy="svip", **options) for _ in range(2)]
    assert made[0].ids == made[1].ids
    unseeded = specrs.generate(TattleLM(), [1, 2], policy="libra", **options)
    assert unseeded.report.method == "model (libra_causal)", "the switch is visible"
    with pytest.raises(InvalidInputError, match=r"'libra_alpha'.*bias"):
        specrs.generate(TattleLM(), [1, 2], policy="libra_alpha", **options)


@pytest.mark.parametrize("name", [name for name in POLICIES if not POLICIES[name].needs_head])
@pytest.mark.parametrize("drafter", ["cache", "tree", "model"])
def test_no_policy_changes_a_greedy_text(name, drafter):
    if drafter != "model" and name in NEEDS_STEPS:
        pytest.skip("needs a drafter that writes token by token")
    prompts = [[7, 3, 9, 7, 3], [1], [2, 2, 2]]
    options = {"max_new_tokens": 40, **FOREVER}
    plain = specrs.generate(TattleLM(), prompts, drafter="none", **options)
    which = {"cache": {}, "tree": {"draft_shape": "tree"}, "model": {"drafter": "model", "draft_model": TattleLM()}}
    made = specrs.generate(
        TattleLM(), prompts, policy=name, policy_options={"backoff": False}, **which[drafter], **options
    )
    assert [one.ids for one in made] == [one.ids for one in plain]
    if drafter == "model" and name not in CLOCKED:
        assert sum(one.report.accepted for one in made) > 0


def test_b80_off_by_load_and_by_length_without_changing_a_text():
    prompts = [[7, 3, 9, 7, 3], [1, 2, 1, 2, 1], [2, 2, 2]]
    options = {"max_new_tokens": 30, "draft_tokens": 4, "drafter": "model", **FOREVER}
    full = specrs.generate(TattleLM(), prompts, draft_model=TattleLM(), **options)
    target = TattleLM()
    crowded = specrs.generate(target, prompts, draft_model=TattleLM(), disable_above_batch=2, **options)
    assert [one.ids for one in crowded] == [one.ids for one in full]
    assert all(sum(nodes) == 0 for _, nodes in target.forwards if len(nodes) > 2)
    assert sum(one.report.drafted for one in crowded) < sum(one.report.drafted for one in full)
    long = specrs.generate(TattleLM(), prompts, draft_model=TattleLM(), disable_above_context=0, **options)
    assert [one.ids for one in long] == [one.ids for one in full]
    assert sum(one.report.drafted for one in long) == 0


def test_nothing_is_drafted_behind_a_token_that_ends_the_text():
    target = TattleLM(eos=(3,))
    engine_nodes = []
    for salt in range(6):
        target = TattleLM(eos=(3,), salt=salt)
        made = specrs.generate(target, [7, 3, 9, 7, 3, 9, 7], max_new_tokens=60, draft_tokens=6)
        plain = specrs.generate(TattleLM(eos=(3,), salt=salt), [7, 3, 9, 7, 3, 9, 7], max_new_tokens=60, drafter="none")
        assert made.ids == plain.ids
        engine_nodes += [sum(nodes) for _, nodes in target.forwards]
    # The prompt copies "9 7 3 9 7": the draft after its end is "3", and no more although six were asked for.
    assert engine_nodes[0] == 1 or min(n for n in engine_nodes if n) >= 1


@pytest.mark.parametrize("name", [name for name in POLICIES if not POLICIES[name].needs_head])
def test_no_room_no_drafts_and_requests_that_leave(name):
    """Budget 0, K = 0, a request that leaves the batch mid-flight, and a clock that goes backwards."""
    made = policy(
        name, {"tokens": 0} if name == "fixed" else None, table=cost(), guarded=True, stepwise=name in NEEDS_STEPS
    )
    both = [request(0), request(1)]
    assert made.budgets(both, [0, 0]) == [0, 0]
    nothing = Draft.empty(2)
    assert made.trim(both, nothing) is nothing
    made.observe(both, nothing, verdict([0, 0]), RoundSeconds(0.0, 0.0, 1.0, 0.0, 0.0))
    lengths = made.budgets(both, [3, 3])
    draft = made.trim(both, chains(lengths, [[0.9] * n for n in lengths]))
    made.observe(both, draft, verdict([0] * 2), RoundSeconds(-1.0, 0.0, -5.0, float("nan"), 0.0))
    made.finish(both[0])
    made.finish(both[0])
    lengths = made.budgets(both[1:], [3])
    assert 0 <= lengths[0] <= 3
    draft = made.trim(both[1:], chains(lengths, [[0.9] * n for n in lengths]))
    assert len(draft.tokens) <= lengths[0]
    made.observe(both[1:], draft, verdict([len(draft.tokens)]), RoundSeconds(0.0, 0.0, 1.0, 0.0, 0.0))


@pytest.mark.parametrize("limit", [6, 7, 9, 20])
def test_a_context_that_is_nearly_full(limit):
    for name in ("libra", "fixed", "dloop"):
        made = specrs.generate(TattleLM(max_context=limit), [7, 3, 9, 7, 3], policy=name, max_new_tokens=30, **FOREVER)
        plain = specrs.generate(
            TattleLM(max_context=limit), [7, 3, 9, 7, 3], drafter="none", max_new_tokens=30, **FOREVER
        )
        assert made.ids == plain.ids


def test_a_policy_with_a_head_stops_where_the_head_says():
    asked = []

    def head(step):
        asked.append(list(step.lengths))
        return [0.9 if length < 3 else 0.1 for length in step.lengths]

    options = {"drafter": "model", "draft_model": TattleLM(), "max_new_tokens": 12, **FOREVER}
    target = TattleLM()
    specrs.generate(target, [1], policy="disco", policy_options={"head": head, "backoff": False}, **options)
    assert asked
    assert max(sum(nodes) for _, nodes in target.forwards) == 3


def test_what_was_learned_is_kept_from_call_to_call():
    target = TattleLM()
    for _ in range(2):
        specrs.generate(target, [7, 3, 9, 7, 3], max_new_tokens=40, policy="hf_heuristic", **FOREVER)
    kept = target._learned
    assert len(kept) == 1
    rate = next(iter(kept.values())).rate
    specrs.generate(target, [7, 3, 9, 7, 3], max_new_tokens=40, **FOREVER)
    assert next(iter(kept.values())).rate != rate


def test_step_facts_of_a_row_of_logits():
    logits = np.array([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]], np.float32)
    facts = LogitFacts([0, 1], [], [2, 0], logits, "f32").of([1, 0], [1, 4])
    law = np.exp([0.0, 1.0, 2.0]) / np.exp([0.0, 1.0, 2.0]).sum()
    np.testing.assert_allclose(facts.confidence, [1 / 3, law[2]], rtol=1e-5)
    np.testing.assert_allclose(facts.entropy(), [np.log(3), -(law * np.log(law)).sum()], rtol=1e-5)


def test_facts_keep_rows_and_tokens_together():
    logits = np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]], np.float32)
    facts = LogitFacts([0, 1], [], [2, 0], logits, "f32")
    np.testing.assert_allclose(facts.of([1], [1]).token_probs(), [facts.confidence[1]], rtol=1e-6)
    law = np.exp(logits[0]) / np.exp(logits[0]).sum()
    np.testing.assert_allclose(facts.of([0], [2]).top_probs(2)[0], [law[2], law[1]], rtol=1e-5)


def test_threshold_of_hf_confidence():
    probs = [0.9, 0.8, 0.7, 0.6, 0.3, 0.2]
    assert _core.best_threshold(probs, [True, True, False, True, False, False]) == pytest.approx(0.6)
    assert _core.best_threshold(probs[:5], [True, False, True, False, True]) is None
    assert Facts([0], [1], [[0.5, 0.5]], [0]).entropy()[0] == pytest.approx(np.log(2))
