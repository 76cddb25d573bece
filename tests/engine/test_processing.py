"""Penalties, bias, processors and grammars on every verified row (cases B14, B15, B42, B60, B76)."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.engine.conftest import VOCABULARY, hf_greedy, tiny_target
from tests.toys import ScriptDrafter, TableLM, TattleLM, oracle
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)

import specrs
from specrs.engine.request import is_stateless
from specrs.errors import InvalidInputError

PROMPT = [7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9]
FOREVER = {"eos_token_id": None}


def every_drafter(expected, prompt=PROMPT, vocab_size=VOCABULARY):
    """Drafters that know the processed text, so that processed rows are really accepted, and ones that do not."""
    yield "none", {"drafter": "none"}
    for k in (1, 4):
        yield f"cache {k}", {"drafter": "cache", "draft_tokens": k}
    yield "cache tree", {"drafter": "cache", "draft_shape": "tree", "draft_tokens": 8}
    for how in ("right", "alternate", 2, "tree"):
        drafter = ScriptDrafter(oracle({tuple(prompt): expected}, how, vocab_size))
        yield f"script {how}", {"drafter": drafter, "draft_tokens": 6}


def check(expected, kind="llama", count=24, **options):
    for name, drafting in every_drafter(expected):
        made = specrs.generate(tiny_target(kind), PROMPT, max_new_tokens=count, **FOREVER, **drafting, **options)
        assert made.ids == expected, name
        if name == "script right":
            assert made.report.acceptance_rate == 1.0


@pytest.mark.parametrize("penalty", [0.7, 1.3, 2.5])
def test_b14_repetition_penalty_is_that_of_transformers(penalty):
    expected = hf_greedy("llama", PROMPT, 24, repetition_penalty=penalty)
    assert expected != hf_greedy("llama", PROMPT, 24)
    check(expected, repetition_penalty=penalty)
    check(expected, logits_processor=[RepetitionPenaltyLogitsProcessor(penalty)])


class CountPenalty(LogitsProcessor):
    """Frequency and presence penalties, as their definitions say."""

    def __init__(self, frequency, presence, prompt_length):
        self.frequency, self.presence, self.prompt_length = frequency, presence, prompt_length

    def __call__(self, input_ids, scores):
        counts = torch.bincount(input_ids[0, self.prompt_length :], minlength=scores.shape[1])
        return scores - self.frequency * counts - self.presence * (counts > 0)


@pytest.mark.parametrize(
    ("frequency", "presence"), [(2.0, 0.0), (-2.0, 0.0), (0.0, 2.0), (0.0, -2.0), (0.7, 1.1), (8.0, 0.0)]
)
def test_b14_frequency_and_presence(frequency, presence):
    """B14: each row counts prompt-free history with the drafts above it; both signs change the text."""
    by_hand = [CountPenalty(frequency, presence, len(PROMPT))]
    expected = hf_greedy("llama", PROMPT, 24, logits_processor=LogitsProcessorList(by_hand))
    check(expected, frequency_penalty=frequency, presence_penalty=presence)


def test_b14_penalties_change_the_text():
    texts = {
        tuple(
            specrs.generate(
                tiny_target("llama"), PROMPT, drafter="none", max_new_tokens=24, frequency_penalty=value, **FOREVER
            ).ids
        )
        for value in (-2.0, 0.0, 2.0)
    }
    assert len(texts) == 3


@pytest.mark.parametrize("size", [1, 2, 3])
def test_b14_no_repeat_ngram(size):
    expected = hf_greedy("llama", PROMPT, 24, no_repeat_ngram_size=size)
    check(expected, logits_processor=LogitsProcessorList([NoRepeatNGramLogitsProcessor(size)]))


def test_b15_bias_changes_the_argmax_everywhere():
    free = hf_greedy("llama", PROMPT, 24)
    banned, wanted = free[0], (free[1] + 5) % VOCABULARY
    bias = {(banned,): -100.0, (wanted,): 3.0}
    expected = hf_greedy("llama", PROMPT, 24, sequence_bias=bias)
    assert expected != free
    check(expected, logit_bias={banned: -100.0, wanted: 3.0})
    check(expected, logits_processor=[SequenceBiasLogitsProcessor(bias)])


def test_b15_minus_infinity_bans():
    banned = hf_greedy("llama", PROMPT, 1)[0]
    made = specrs.generate(
        tiny_target("llama"), PROMPT, drafter="cache", draft_tokens=4, logit_bias={banned: -np.inf}, max_new_tokens=24
    )
    assert banned not in made.ids


def test_b15_bad_words_across_the_draft_border():
    """B15: bad words of one and two tokens; the two-token one begins in a draft and would end behind it."""
    free = hf_greedy("llama", PROMPT, 24)
    words = [[free[0]], *[[a, b] for a, b in pairwise(free[1:])]]
    expected = hf_greedy("llama", PROMPT, 24, bad_words_ids=words)
    check(expected, logits_processor=[NoBadWordsLogitsProcessor(words)])


def test_min_new_tokens_is_that_of_transformers():
    free = hf_greedy("llama", PROMPT, 24)
    eos = free[3]
    expected = hf_greedy("llama", PROMPT, 24, logits_processor=[MinNewTokensLengthLogitsProcessor(len(PROMPT), 9, eos)])
    expected = expected[: expected.index(eos, 9) + 1] if eos in expected[9:] else expected
    for name, drafting in every_drafter(expected):
        made = specrs.generate(
            tiny_target("llama"), PROMPT, max_new_tokens=24, min_new_tokens=9, eos_token_id=eos, **drafting
        )
        assert made.ids == expected, name
        assert eos not in made.ids[:9]


#: The toy grammar of B60: digits, then ``}``, then the end.
DIGITS, CLOSE, END = range(10), 10, 11


class Grammar(LogitsProcessor):
    """A matcher that is advanced by what it sees and refuses to be advanced by an illegal token."""

    def __init__(self):
        self.read = 1  # the prompt's one token
        self.state = "digits"

    def __call__(self, input_ids, scores):
        # It reads each committed token once: a matcher that followed a rejected draft would be ahead of its text.
        assert input_ids.shape[1] - self.read in (0, 1), f"{input_ids.shape[1]} tokens, {self.read} read"
        for token in input_ids[0, self.read :].tolist():
            assert token in self.allowed(), f"{token} is illegal after {self.state}"
            self.state = {CLOSE: "closed", END: "ended"}.get(token, "digits")
        self.read = input_ids.shape[1]
        out = torch.full_like(scores, -torch.inf)
        allowed = list(self.allowed())
        out[:, allowed] = scores[:, allowed]
        return out

    def allowed(self):
        return {"digits": [*DIGITS, CLOSE], "closed": [END], "ended": [END]}[self.state]


def grammar_text(prompt, count, salt=0, **options):
    target = TattleLM(13, habit=0.0, salt=salt)
    return specrs.generate(
        target, prompt, drafter="none", logits_processor=[Grammar()], max_new_tokens=count, eos_token_id=END, **options
    ).ids


def legal(ids):
    text = list(ids)
    body = text[: text.index(CLOSE)] if CLOSE in text else text
    return all(token in DIGITS for token in body) and (
        CLOSE not in text or text[len(body) :] in ([CLOSE], [CLOSE, END])
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("salt", range(4))
def test_b60_grammar(temperature, salt):
    """B60: row i is masked by the state after the drafts above it; illegal drafts stop there; always legal."""
    drafts = {
        "legal then illegal": lambda request, budget: [1, 12, 2],
        "ends inside": lambda request, budget: [1, CLOSE, END, 9],
        "all illegal": lambda request, budget: [12, 12, 12],
        "close at once": lambda request, budget: [CLOSE, END],
        "tree": lambda request, budget: ([1, CLOSE, 12, END, 2, CLOSE, 3], [-1, -1, -1, 1, 0, 0, 2]),
    }
    options = {"temperature": temperature, "seed": 3}
    expected = grammar_text([5], 30, salt, **options)
    assert legal(expected)
    drafts["right"] = oracle({(5,): expected}, "right", 13)
    drafts["right tree"] = oracle({(5,): expected}, "tree", 13)
    for name, propose in drafts.items():
        # The grammar asserts that no illegal token ever advances it, so illegal drafts must not reach it.
        target = TattleLM(13, habit=0.0, salt=salt)
        made = specrs.generate(
            target,
            [5],
            drafter=ScriptDrafter(propose),
            draft_tokens=8,
            logits_processor=[Grammar()],
            max_new_tokens=30,
            eos_token_id=END,
            **options,
        )
        assert made.ids == expected, name


def test_b60_thirty_grammars_at_once():
    prompts = [[i % 10] for i in range(30)]
    made = specrs.generate(
        TattleLM(13, habit=0.0),
        prompts,
        drafter=ScriptDrafter(lambda request, budget: [1, 2, CLOSE]),
        draft_tokens=3,
        logits_processor=[Grammar()],
        max_new_tokens=20,
        eos_token_id=END,
        max_batch=30,
    )
    assert [one.ids for one in made] == [grammar_text(p, 20) for p in prompts]


def test_b42_samples_do_not_share_a_processor():
    """B42: four samples of one prompt, one processor with a state."""
    processor = Grammar()
    made = specrs.generate(
        TattleLM(13, habit=0.0),
        [5],
        n=4,
        drafter="cache",
        draft_tokens=4,
        logits_processor=[processor],
        temperature=1.5,
        seed=9,
        max_new_tokens=20,
        eos_token_id=END,
    )
    assert len({tuple(one.ids) for one in made}) > 1
    assert all(legal(one.ids) for one in made)
    assert processor.read == 1, "the caller's own object is left alone"


class Uncopyable(Grammar):
    def __deepcopy__(self, memo):
        raise TypeError("holds a socket")


def test_b76_a_processor_that_cannot_be_copied_decodes_plainly():
    with pytest.warns(UserWarning, match="cannot be copied"):
        made = specrs.generate(
            TattleLM(13, habit=0.0),
            [5],
            drafter=ScriptDrafter(lambda request, budget: [1, 2]),
            draft_tokens=2,
            logits_processor=[Uncopyable()],
            max_new_tokens=20,
            eos_token_id=END,
        )
    assert made.ids == grammar_text([5], 20)
    assert made.report.drafted == 0


def test_b76_stateful_processors_of_transformers_are_known():
    assert is_stateless(NoRepeatNGramLogitsProcessor(2))
    watermark = SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3, keys=[1, 2], sampling_table_size=64, sampling_table_seed=1, context_history_size=16, device="cpu"
    )
    assert not is_stateless(watermark)


def test_b76_a_row_of_a_tree_sees_its_own_path():
    """Every call has the history of its row, prompt first, and float32 scores of shape (1, V)."""
    seen = []

    def spy(input_ids, scores):
        assert scores.dtype == torch.float32
        assert scores.shape == (1, 8)
        seen.append(tuple(input_ids[0].tolist()))
        return scores

    tree = ([1, 2, 3, 4], [-1, -1, 0, 2])
    specrs.generate(
        TableLM(8, lambda prefix: np.eye(8)[7]),
        [5, 6],
        drafter=ScriptDrafter.rounds([tree]),
        draft_tokens=4,
        logits_processor=[spy],
        max_new_tokens=5,
        **FOREVER,
    )
    assert seen[:5] == [(5, 6), (5, 6, 1), (5, 6, 2), (5, 6, 1, 3), (5, 6, 1, 3, 4)]
    assert seen[5:] == [(5, 6, 7), (5, 6, 7, 7), (5, 6, 7, 7, 7), (5, 6, 7, 7, 7, 7)]


def test_in_place_processors_touch_their_row_alone():
    def in_place(input_ids, scores):
        scores[:, int(input_ids[0, -1])] = -torch.inf
        return scores

    expected = specrs.generate(
        TattleLM(), [1, 2], drafter="none", logits_processor=[in_place], max_new_tokens=30, **FOREVER
    ).ids
    assert all(a != b for a, b in pairwise(expected))
    for name, drafting in every_drafter(expected, [1, 2], 32):
        made = specrs.generate(
            TattleLM(), [1, 2], logits_processor=[in_place], max_new_tokens=30, **FOREVER, **drafting
        )
        assert made.ids == expected, name


def test_a_processor_of_the_wrong_shape_is_named():
    def wide(input_ids, scores):
        return torch.cat([scores, scores], dim=1)

    with pytest.raises(InvalidInputError, match=r"function returned shape \(1, 64\), expected \(1, 32\)"):
        specrs.generate(TattleLM(), [1], drafter="none", logits_processor=[wide])


def test_an_exception_in_a_processor_keeps_what_was_made():
    def angry(input_ids, scores):
        if input_ids.shape[1] > 6:
            raise LookupError("no more")
        return scores

    drafter = ScriptDrafter(lambda request, budget: [])
    running = specrs.stream(
        TattleLM(), [1, 2], drafter=drafter, logits_processor=[angry], draft_tokens=3, max_new_tokens=30, **FOREVER
    )
    with pytest.raises(LookupError, match="no more"):
        list(running)
    assert len(running.generations[0].ids) == 5
    assert running.generations[0].finish_reason == "interrupted"
    assert not drafter.active
