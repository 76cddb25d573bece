"""EOS, stop tokens, stop strings and lengths: what is kept of an accepted run (cases B01 to B08)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.toys import PieceTokenizer, ScriptDrafter, TableLM, TattleLM, oracle, writer

import specrs
from specrs.errors import ContextLimitError

CASES = json.loads((Path(__file__).parents[1] / "cases" / "stop.json").read_text())
PROMPT = [3, 4]


def drafters(text):
    """One drafter of each shape, all of which know the whole text."""
    yield "none", "none", {}
    for depth in (1, 2, 3, 5, 8):
        propose = oracle({tuple(PROMPT): text}, "right", 16, depth=depth)
        yield f"chain of {depth}", ScriptDrafter(propose), {"draft_tokens": depth}
    yield "tree", ScriptDrafter(oracle({tuple(PROMPT): text}, "tree", 16)), {"draft_tokens": 30}
    yield "model", "model", {"draft_model": writer(16, text, len(PROMPT)), "draft_tokens": 5}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_stop_case(case):
    """B01, B02, B05, B07: the same tokens, reason and stream from every drafter; nothing after a stop goes anywhere."""
    for name, drafter, options in drafters(case["text"]):
        target = writer(16, case["text"], len(PROMPT))
        options = {**options, "drafter": drafter}
        running = specrs.stream(
            target,
            PROMPT,
            max_new_tokens=case["max"],
            min_new_tokens=case.get("min", 0),
            eos_token_id=case["eos"],
            stop_token_ids=case.get("stop_ids", ()),
            logprobs=0,
            **options,
        )
        streamed = [token for chunk in running for token in chunk.ids]
        made = running.generations[0]
        assert made.ids == case["ids"], name
        assert streamed == case["ids"], name
        assert (made.finish_reason, made.stopped_by) == (case["reason"], case["by"]), name
        assert [entry.token for entry in made.logprobs] == case["ids"], name
        assert made.report.new_tokens == len(case["ids"]), name
        report = made.report
        assert report.accepted <= report.drafted
        assert report.accepted + report.target_passes >= report.new_tokens, name
        if isinstance(drafter, ScriptDrafter):
            assert not drafter.active, "every request is let go"
            assert all(len(kept) <= len(case["ids"]) for kept in drafter.kept.values())


def test_b01_target_memory_holds_what_was_kept():
    target = writer(16, [5, 6, 9, 7, 8], 2)
    session = specrs.Session(target)
    drafter = ScriptDrafter.rounds([[5, 6, 9, 7, 8]])
    made = specrs.generate(
        target, PROMPT, drafter=drafter, draft_tokens=5, max_new_tokens=9, eos_token_id=9, session=session
    )
    assert made.ids == [5, 6, 9]
    # The last token is the anchor: its row is not in the memory, everything before it is, nothing else.
    _, state = session._kept[target]
    assert state.length == 4
    assert state.tokens[:4].tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("form", [9, [9], (9,), np.array([9]), torch.tensor([9]), torch.tensor(9), np.int64(9)])
def test_b02_forms_of_eos(form):
    made = specrs.generate(writer(16, [5, 9, 7], 2), PROMPT, drafter="cache", draft_tokens=3, eos_token_id=form)
    assert made.ids == [5, 9]


@pytest.mark.parametrize("form", [None, [], (), torch.tensor([], dtype=torch.int64)])
def test_b02_no_eos(form):
    prompt = [5, 6, 7, 8, 9, 10, 11, 7, 8]
    target = TattleLM(32, eos=(1,))
    made = specrs.generate(target, prompt, drafter="cache", draft_tokens=3, max_new_tokens=15, eos_token_id=form)
    assert len(made.ids) == 15
    assert made.finish_reason == "length"


def test_b02_eos_of_the_model_is_the_default():
    made = specrs.generate(writer(16, [5, 9, 7], 2, eos=(9,)), PROMPT, drafter="none")
    assert made.ids == [5, 9]


PIECES = ["<s>", "</s>", "h", "a", " ", "ha", " ha", "ha ", "b", "c", "\N{EURO SIGN}".encode()[:2]]
PIECES += ["\N{EURO SIGN}".encode()[2:], "x", "abc", "yz"]


def run_text(pieces, drafter="none", **options):
    tokenizer = PieceTokenizer(PIECES)
    text = [PIECES.index(p) for p in pieces]
    target = writer(len(PIECES), text, 1, tokenizer=tokenizer)
    if drafter == "script":
        drafter = ScriptDrafter(oracle({(2,): text}, "right", len(PIECES)))
        options["draft_tokens"] = 8
    running = specrs.stream(target, [2], drafter=drafter, logprobs=0, eos_token_id=None, **options)
    streamed = "".join(chunk.text for chunk in running)
    return running.generations[0], streamed, text


@pytest.mark.parametrize("drafter", ["none", "script"])
@pytest.mark.parametrize(
    ("pieces", "stop", "kept", "shown"),
    [
        (["ha", " ", "ha", "b", "c", "x"], ["ha ha"], 3, "ha ha"),
        (["h", "a", " ha", "b", "c", "x"], ["ha ha"], 3, "ha ha"),
        (["b", "ha ", "ha ", "b", "c"], ["ha ha"], 3, "bha ha "),
        (["abc", "b", "x"], ["bc", "abc"], 1, "abc"),
        (["b", "c", "b", "c"], ["zz"], 4, "bcbc"),
        (["b", PIECES[10], PIECES[11], "c"], ["\N{EURO SIGN}"], 3, "b\N{EURO SIGN}"),
    ],
)
def test_b03_stop_string_across_tokens(pieces, stop, kept, shown, drafter):
    """B03: ids, text, scores and stream end at the token that completes the stop string."""
    made, streamed, text = run_text(pieces, drafter, stop=stop, max_new_tokens=len(pieces))
    assert made.ids == text[:kept]
    assert made.text == streamed == shown
    assert len(made.logprobs) == kept
    if kept < len(pieces) or made.finish_reason == "stop":
        assert made.finish_reason == "stop"
        assert made.stopped_by in stop
    else:
        assert (made.finish_reason, made.stopped_by) == ("length", None)


def test_b03_stop_string_may_be_a_bare_string():
    assert run_text(["b", "c", "x"], stop="c", max_new_tokens=3)[0].text == "bc"


def test_b03_stop_string_in_the_prompt_does_not_count():
    target = writer(len(PIECES), [8, 9, 12], 1, tokenizer=PieceTokenizer(PIECES))
    made = specrs.generate(target, "h", stop=["hb"], drafter="none", max_new_tokens=3, eos_token_id=None)
    assert made.ids == [8, 9, 12]


@pytest.mark.parametrize("drafter", ["none", "script"])
def test_stop_string_completed_before_min_new_tokens_does_not_stop_later(drafter):
    """A short stop string still remembered because of a longer one must not end the text at a later token."""
    made, _, text = run_text(
        ["b", "c", "x", "x", "b", "c", "x"], drafter, stop=["bc", "hahaha"], min_new_tokens=3, max_new_tokens=7
    )
    assert made.ids == text[:6]
    assert made.stopped_by == "bc"


@pytest.mark.parametrize("drafter", ["none", "script"])
def test_unfinished_character_is_flushed_at_the_end(drafter):
    made, streamed, _ = run_text(["b", PIECES[10]], drafter, max_new_tokens=2)
    assert streamed == made.text == "b\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_b07_drafts_leave_room_for_the_bonus(limit):
    outputs = {tuple(PROMPT): [5, 6, 7, 8, 9, 10]}
    drafter = ScriptDrafter(oracle(outputs, "right", 16))
    target = writer(16, outputs[tuple(PROMPT)], 2)
    made = specrs.generate(target, PROMPT, drafter=drafter, draft_tokens=8, max_new_tokens=limit, eos_token_id=None)
    assert made.ids == [5, 6, 7][:limit]
    assert all(budget <= limit - 1 for row in drafter.budgets for budget in row)
    assert made.report.target_passes == min(limit, 1)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_b07_a_drafter_that_ignores_its_budget_is_cut(shape):
    """Nothing is written past the model's context, and the text is that of plain decoding."""
    plain = specrs.generate(TattleLM(max_context=12), [1, 2, 3], drafter="none", max_new_tokens=50, eos_token_id=None)
    outputs = {(1, 2, 3): plain.ids + [0] * 60}
    how = "right" if shape == "chain" else "tree"
    for draft_tokens in (0, 1, 4, 20):
        target = TattleLM(max_context=12)
        script = oracle(outputs, how, 32)
        drafter = ScriptDrafter(lambda request, budget, script=script: script(request, 40), obedient=False)
        made = specrs.generate(
            target, [1, 2, 3], drafter=drafter, draft_tokens=draft_tokens, max_new_tokens=50, eos_token_id=None
        )
        assert made.ids == plain.ids
        assert all(nodes <= draft_tokens for _, row in target.forwards for nodes in row)


def test_b08_target_context_ends_the_text():
    target = TattleLM(max_context=32)
    made = specrs.generate(target, [1] * 14, drafter="cache", draft_tokens=8, max_new_tokens=30, eos_token_id=None)
    assert (len(made.ids), made.finish_reason) == (18, "length")


@pytest.mark.parametrize("drafter", ["none", "cache"])
def test_b08_prompt_one_below_the_context_limit(drafter):
    options = {"draft_tokens": 8} if drafter == "cache" else {}
    made = specrs.generate(
        TattleLM(max_context=32), [1] * 31, drafter=drafter, max_new_tokens=30, eos_token_id=None, **options
    )
    assert (len(made.ids), made.finish_reason) == (1, "length")


def test_b08_prompt_at_the_context_limit_is_refused():
    with pytest.raises(ContextLimitError, match=r"prompt 1 has 32 tokens.*at most 32"):
        specrs.generate(TattleLM(max_context=32), [[1], [1] * 32], drafter="none")


@pytest.mark.parametrize("prompt_length", [3, 14, 15, 16, 17, 20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_b08_drafter_context_is_shorter(prompt_length, temperature):
    """Past the drafter's limit the text goes on without drafts, after one warning that names both limits."""
    prompt = [2] * prompt_length
    options = {"max_new_tokens": 30, "eos_token_id": None, "temperature": temperature, "seed": 3}
    plain = specrs.generate(TattleLM(max_context=32), prompt, drafter="none", **options)
    drafting = TattleLM(max_context=16)
    with pytest.warns(UserWarning, match=r"at most 16 tokens.*target reads 32") as caught:
        made = specrs.generate(
            TattleLM(max_context=32), prompt, drafter="model", draft_model=drafting, draft_tokens=8, **options
        )
    assert len(caught) == 1
    assert len(made.ids) == len(plain.ids)
    if temperature == 0:
        assert made.ids == plain.ids
    assert (made.report.drafted > 0) == (prompt_length < 16)


def test_b08_adaptive_length_on_a_small_context():
    """The cost table must not be measured beyond what the model can read."""
    made = specrs.generate(TattleLM(max_context=20), [1, 2, 3], max_new_tokens=40, eos_token_id=None)
    assert len(made.ids) == 17


def test_stop_position_independent_of_prefill_chunk():
    def table(prefix):
        logits = np.zeros(8)
        logits[len(prefix) % 8] = 3.0
        return logits

    for chunk in (1, 2, 3, 7, 100):
        target = TableLM(8, table, eos=(5,))
        target.prefill_chunk = chunk
        made = specrs.generate(target, [0] * 10, drafter="cache", draft_tokens=4)
        assert made.ids == [2, 3, 4, 5]
