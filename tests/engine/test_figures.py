"""Log-probabilities, reports, compare (cases B45, B46, B68, B69, B72, B73, B83)."""

import json

import numpy as np
import pytest
import torch
from tests.engine.conftest import VOCABULARY, hf_greedy, tiny_model, tiny_target
from tests.toys import PieceTokenizer, ScriptDrafter, TableLM, TattleLM, oracle, writer

import specrs
from specrs.compare import check_shapes, compare
from specrs.errors import InvalidInputError
from specrs.types import Draft

PROMPT = [4, 9, 2, 7]
FOREVER = {"eos_token_id": None}


def right(text, prompt=PROMPT, vocab_size=32, **options):
    return ScriptDrafter(oracle({tuple(prompt): text}, "right", vocab_size, **options))


# --- log-probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["none", "cache", "right", "tree", 2])
def test_b68_logprobs_are_those_of_a_forward(kind, how):
    """B68: as many as tokens, equal to a log-softmax of one full forward, in every mode; none of rejected rows."""
    prompt = [7, 3, 9, 11, 7, 3, 9]
    text = hf_greedy(kind, prompt, 20)
    drafter = ScriptDrafter(oracle({tuple(prompt): text}, how, VOCABULARY)) if how not in ("none", "cache") else how
    options = {} if how == "none" else {"draft_tokens": 4}
    made = specrs.generate(
        tiny_target(kind), prompt, drafter=drafter, logprobs=3, max_new_tokens=20, **FOREVER, **options
    )
    with torch.no_grad():
        logits = tiny_model(kind)(torch.tensor([prompt + text[:-1]])).logits[0, len(prompt) - 1 :]
    expected = logits.double().log_softmax(-1)
    assert made.ids == text
    assert len(made.logprobs) == 20
    for entry, token, row in zip(made.logprobs, text, expected, strict=True):
        assert entry.token == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=2e-4)
        top = row.topk(3)
        assert [t for t, _ in entry.alternatives] == top.indices.tolist()
        assert [v for _, v in entry.alternatives] == pytest.approx(top.values.tolist(), abs=2e-4)
        assert entry.logprob == entry.alternatives[0][1]


def test_b68_logprobs_follow_penalties_and_bias():
    """They are of the law after bias and penalties, with drafts as without."""
    options = {
        "max_new_tokens": 20,
        "logprobs": 1,
        "repetition_penalty": 1.4,
        "logit_bias": {3: 2.0},
        "temperature": 0.7,
        "seed": 1,
        **FOREVER,
    }
    plain = specrs.generate(TattleLM(), PROMPT, drafter="none", **options)
    made = specrs.generate(TattleLM(), PROMPT, drafter=right(plain.ids), draft_tokens=5, **options)
    assert made.report.accepted > 0
    assert [e.token for e in made.logprobs] == plain.ids
    assert [e.logprob for e in made.logprobs] == pytest.approx([e.logprob for e in plain.logprobs], abs=1e-6)


def test_b68_logprobs_off_and_without_alternatives():
    assert specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=3).logprobs is None
    made = specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=3, logprobs=0, **FOREVER)
    assert [entry.alternatives for entry in made.logprobs] == [(), (), ()]
    every = specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=1, logprobs=32, **FOREVER)
    assert sum(np.exp([v for _, v in every.logprobs[0].alternatives])) == pytest.approx(1.0, abs=1e-5)


# --- reports ---------------------------------------------------------------------------------------------------------


def test_b72_exact_figures_of_known_drafts():
    """B72: rounds that accept 3 of 3, 0 of 3, 1 of 3 and nothing of none, in turn."""
    text = [(5 * i) % 15 + 1 for i in range(60)]
    turn = [0]

    def propose(request, budget):
        rest = text[request.generated :][:3]
        wrong = [(t + 1) % 16 for t in rest]
        turn[0] += 1
        return {1: rest, 2: wrong, 3: rest[:1] + wrong[1:], 0: []}[turn[0] % 4]

    target = writer(16, text, 2)
    made = specrs.generate(target, [3, 4], drafter=ScriptDrafter(propose), draft_tokens=3, max_new_tokens=41, **FOREVER)
    report = made.report
    assert made.ids == text[:41]
    # Four rounds bring 4 + 1 + 2 + 1 tokens: five turns of four rounds make 40; the last token is a plain step.
    assert report.target_passes == 21
    assert (report.drafted, report.accepted, report.new_tokens) == (45, 20, 41)
    assert report.accepted_lengths == {0: 11, 1: 5, 3: 5}
    assert report.tokens_per_pass == 41 / 21
    assert report.acceptance_rate == pytest.approx(20 / 45)
    # Position 1 was offered in 15 rounds and accepted in 10; position 2 was reached in 10 and accepted in 5.
    assert report.acceptance_by_position == [pytest.approx(10 / 15), 0.5, 1.0]
    assert report.accepted_by_source == {"script": 20}
    assert report.lossless is True
    assert json.loads(json.dumps(report.to_dict()))["accepted"] == 20
    assert "1.95 tokens per pass (bonus token included" in str(report)


def test_b72_an_empty_run_has_no_rates():
    report = specrs.generate(TattleLM(), PROMPT, drafter="cache", draft_tokens=4, max_new_tokens=0).report
    assert (report.acceptance_rate, report.tokens_per_pass, report.tokens_per_second, report.speedup) == (None,) * 4
    assert (report.drafted, report.target_passes, report.acceptance_by_position) == (0, 0, [])
    assert str(report)
    plain = specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=4, **FOREVER).report
    assert plain.acceptance_rate is None
    assert plain.tokens_per_pass == 1.0


def test_b73_what_a_stop_cuts_off_is_not_accepted():
    """B73: all five drafts match and the third is EOS: nothing behind it is scored, and nothing is missed."""
    text = [5, 6, 9, 7, 8]
    made = specrs.generate(
        writer(16, text, 2), [3, 4], drafter=right(text, [3, 4], 16), draft_tokens=5, max_new_tokens=9, eos_token_id=9
    )
    report = made.report
    assert (report.drafted, report.accepted, report.new_tokens, report.target_passes) == (3, 3, 3, 1)
    assert report.acceptance_by_position == [1.0, 1.0, 1.0]
    assert report.accepted_lengths == {3: 1}


def test_b73_tree_steps_count_nodes_and_depths_apart():
    """B73: a tree of two levels: six nodes drafted, two accepted, each depth counted once per round."""
    text = [5, 6, 7, 8, 9, 10, 11]
    target = writer(16, text, 2)
    # The accepted branch ends at depth 1 in the second round, though another goes deeper.
    trees = [([1, 5, 2, 6, 3, 1], [-1, -1, 1, 1, 0, 4]), ([8, 1, 2], [-1, -1, 1])]
    made = specrs.generate(
        target, [3, 4], drafter=ScriptDrafter.rounds(trees), draft_tokens=6, max_new_tokens=7, **FOREVER
    )
    assert made.ids == text
    assert made.report.accepted_lengths == {0: 2, 1: 1, 2: 1}
    assert made.report.drafted == 9
    # Depth 2 was offered below an accepted node in the first round alone.
    assert made.report.acceptance_by_position == [1.0, 1.0]


def test_b73_pooled_totals_of_a_batch():
    from specrs.engine.request import Request
    from specrs.report.recorder import Recorder
    from specrs.report.report import make_report
    from specrs.sampling import SamplingParams, StopRules

    requests = []
    for rounds, drafted, accepted in ((10, 5, 5), (1000, 5, 0)):
        request = Request(np.array([1], np.uint32), SamplingParams(), StopRules(2000), None)
        for _ in range(rounds):
            request.statistics.record(drafted, accepted, min(accepted + 1, 5), "script")
        requests.append(request)
    report = make_report(requests, Recorder(), method="script", plain_step_seconds=None)
    assert report.acceptance_rate == pytest.approx(50 / 5050), "of pooled totals, not the mean of 1 and 0"
    assert report.acceptance_by_position[0] == pytest.approx(10 / 1010)


def test_b83_effective_parameters_are_reported():
    made = specrs.generate(
        TattleLM(eos=(3,)), PROMPT, drafter="cache", draft_tokens=4, temperature=0.5, seed=6, max_new_tokens=4
    )
    parameters = made.report.parameters
    assert (parameters["temperature"], parameters["seed"], parameters["eos_token_ids"]) == (0.5, 6, [3])
    assert made.report.method == "cache (fixed)"
    again = specrs.generate(
        TattleLM(eos=(3,)), PROMPT, drafter="cache", draft_tokens=4, temperature=0.5, seed=6, max_new_tokens=4
    )
    assert (again.report.drafted, again.report.accepted) == (made.report.drafted, made.report.accepted)


def test_an_unseeded_run_reports_the_seed_that_repeats_it():
    made = specrs.generate(TattleLM(), PROMPT, drafter="none", temperature=1.0, max_new_tokens=20, **FOREVER)
    seed = made.report.parameters["seed"]
    again = specrs.generate(
        TattleLM(), PROMPT, drafter="none", temperature=1.0, max_new_tokens=20, seed=seed, **FOREVER
    )
    assert again.ids == made.ids


# --- ties, compare, configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b45_ties_go_to_the_lowest_id(dtype):
    """B45: two equal maxima, and maxima one unit apart in bfloat16: what torch.argmax says of the same row."""
    row = torch.zeros(300)
    row[[17, 200]] = 2.0
    row[120] = torch.nextafter(torch.tensor(2.0, dtype=torch.bfloat16), torch.tensor(0.0, dtype=torch.bfloat16)).float()

    class Half(TableLM):
        def score(self, states, pending, draft):
            scores = super().score(states, pending, draft)
            return type(scores)(scores.logits.to(dtype), scores.row_ptr)

    for drafter in ("none", ScriptDrafter(lambda request, budget: [200, 17]), ScriptDrafter(lambda r, b: [17, 17])):
        options = {} if drafter == "none" else {"draft_tokens": 2}
        made = specrs.generate(
            Half(300, lambda prefix: row.numpy()), [1], drafter=drafter, max_new_tokens=4, **FOREVER, **options
        )
        assert made.ids == [int(row.to(dtype).argmax())] * 4 == [17] * 4


def test_b46_the_models_configuration_counts_on_both_sides():
    """B46: a repetition penalty in the generation configuration reaches plain decoding, drafts and the report."""
    from specrs.models.hf import TransformersTarget

    model = tiny_model("llama")
    prompt = [7, 3, 9, 11, 7, 3]
    expected = hf_greedy("llama", prompt, 24, repetition_penalty=1.35)
    assert expected != hf_greedy("llama", prompt, 24)
    before = model.generation_config.repetition_penalty
    model.generation_config.repetition_penalty = 1.35
    try:
        target = TransformersTarget(model)
    finally:
        model.generation_config.repetition_penalty = before
    found = compare(target, prompt, drafter="cache", draft_tokens=4, max_new_tokens=24, **FOREVER)
    assert found.identical
    assert found.plain.ids == expected
    assert found.method.report.parameters["repetition_penalty"] == 1.35
    free = specrs.generate(target, prompt, drafter="none", repetition_penalty=1.0, max_new_tokens=24, **FOREVER)
    assert free.ids == hf_greedy("llama", prompt, 24)


class ShapeNoise(TattleLM):
    """Two leading tokens that are nearly tied; a wide forward rounds the other way, as half precision does."""

    gap = 2e-7

    def score(self, states, pending, draft):
        scores = super().score(states, pending, draft)
        logits = scores.logits.clone()
        logits[:, 10] = logits.amax(-1) + 1.0
        logits[:, 11] = logits[:, 10] + (self.gap if len(logits) > 1 else -self.gap)
        return type(scores)(logits, scores.row_ptr)


def test_b46_compare_explains_a_near_tie():
    target = ShapeNoise()
    target.gap = 1e-6
    found = compare(
        target, PROMPT, drafter=ScriptDrafter(lambda r, b: [1]), draft_tokens=1, max_new_tokens=5, **FOREVER
    )
    assert not found.identical
    difference = found.difference
    assert (difference.position, difference.plain_token, difference.method_token) == (1, 10, 11) or (
        difference.position == 0
    )
    assert difference.near_tie
    assert abs(difference.one_row[0] - difference.one_row[1]) <= difference.bound


def test_b46_compare_does_not_excuse_a_fault():
    target = ShapeNoise()
    target.gap = 0.5
    found = compare(
        target, PROMPT, drafter=ScriptDrafter(lambda r, b: [1]), draft_tokens=1, max_new_tokens=5, **FOREVER
    )
    assert not found.identical
    assert not found.difference.near_tie


@pytest.mark.parametrize("gap", [1e-6, 0.5])
def test_b48_shapes_and_speculation_are_told_apart(gap):
    """B48: forwards of one row and of several disagree everywhere; the text is one of the two at every position."""
    target = ShapeNoise()
    target.gap = gap
    drafter = ScriptDrafter(lambda r, b: [1])
    found = compare(target, PROMPT, drafter=drafter, draft_tokens=1, max_new_tokens=9, shape_check=True, **FOREVER)
    shapes = found.shapes
    # The last wide forward, of one left-over row, agrees.
    assert (shapes.positions, shapes.rows, shapes.by_shape) == (9, 8, 8)
    assert shapes.unlike_one_row == sum(token == 11 for token in found.method.ids) > 0
    assert shapes.unexplained == 0


def test_b48_a_fault_is_explained_by_no_shape():
    """A text that neither shape would write is counted as what it is; shapes that agree are not blamed."""
    text = specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=12, **FOREVER).ids
    right = check_shapes(TattleLM(), np.array(PROMPT, np.uint32), text)
    assert (right.positions, right.by_shape, right.unlike_one_row, right.unexplained) == (12, 0, 0, 0)
    text[5] = (text[5] + 1) % 32
    wrong = check_shapes(TattleLM(), np.array(PROMPT, np.uint32), text[:6])
    assert (wrong.by_shape, wrong.unlike_one_row, wrong.unexplained) == (0, 1, 1)


def test_shape_check_refuses_what_it_cannot_judge():
    with pytest.raises(InvalidInputError, match=r"judges greedy texts, got temperature=0\.7"):
        compare(TattleLM(), PROMPT, temperature=0.7, seed=1, shape_check=True)
    with pytest.raises(InvalidInputError, match="rows must be >= 2, got 1"):
        check_shapes(TattleLM(), np.array(PROMPT, np.uint32), [1], rows=1)


def test_compare_hands_the_same_parameters_to_both():
    found = compare(
        TattleLM(), PROMPT, drafter="cache", draft_tokens=3, temperature=0.9, seed=4, max_new_tokens=20, **FOREVER
    )
    assert found.identical
    assert found.plain.report.parameters == found.method.report.parameters


def test_text_and_chat_prompts():
    tokenizer = PieceTokenizer(["<s>", "</s>", "a", "b", "ab"])
    target = TattleLM(5, tokenizer=tokenizer)
    by_text = specrs.generate(target, "abb", drafter="none", max_new_tokens=6, **FOREVER)
    by_ids = specrs.generate(target, [4, 3], drafter="none", max_new_tokens=6, **FOREVER)
    assert by_text.ids == by_ids.ids
    assert by_text.text == tokenizer.decode(by_text.ids, skip_special_tokens=True)
    made = specrs.generate(target, ["abb", "a"], drafter="none", max_new_tokens=6, **FOREVER)
    assert made[0].ids == by_text.ids


@pytest.mark.parametrize("prompt", [np.array([4, 9]), torch.tensor([4, 9]), (4, 9), [np.int64(4), 9]])
def test_kinds_of_ids(prompt):
    expected = specrs.generate(TattleLM(), [4, 9], drafter="none", max_new_tokens=5).ids
    assert specrs.generate(TattleLM(), prompt, drafter="none", max_new_tokens=5).ids == expected


def test_a_matrix_of_ids_is_a_batch():
    made = specrs.generate(TattleLM(), torch.tensor([[4, 9], [1, 2]]), drafter="none", max_new_tokens=5)
    assert len(made) == 2


def test_the_toys_score_an_empty_draft():
    target = TattleLM()
    state = target.new_state(4)
    scores = target.score([state], [np.array([1], np.uint32)], Draft.empty(1))
    assert scores.logits.shape == (1, 32)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"disable_above_context": 0}, "drafted nothing in 12 passes: disable_above_batch or disable_above_context"),
        ({"disable_above_batch": 0}, "drafted nothing in 12 passes: disable_above_batch or disable_above_context"),
        ({"drafter": ScriptDrafter(lambda r, b: [])}, "drafted nothing in 12 passes: the drafter had nothing"),
        ({"speculate": False}, None),
        ({"drafter": "none", "draft_tokens": None}, None),
        ({"drafter": ScriptDrafter(lambda r, b: [1])}, None),
    ],
)
def test_b69_a_drafter_that_never_drafts_is_no_secret(options, says):
    """B69: a method that did nothing says so and why; one that was not asked for says nothing."""
    made = specrs.generate(TattleLM(), PROMPT, **{"draft_tokens": 4, "max_new_tokens": 12, **FOREVER, **options})
    found = [text for text in made.report.warnings if "drafted nothing" in text]
    assert (made.report.drafted > 0) == (says is None and "drafter" in options and options["drafter"] != "none")
    assert len(found) == (says is not None)
    if says is not None:
        assert says in found[0]
        assert found[0] in str(made.report)
