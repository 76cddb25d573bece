"""Generation on the llama.cpp adapter: drafts change no text; law options, ends, sessions, threads, cost."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.models.llama_trees import PROMPTS, generate
from tests.models.toy_llama import VOCABULARY, law
from tests.toys import TableLM

import specrs
from specrs.models.llama_cpp import LlamaCppTarget


@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "cache", "draft_tokens": 7},
        {"drafter": "cache", "draft_tokens": 12, "draft_shape": "tree"},
        {"drafter": "model", "draft_tokens": 4},
    ],
    ids=["cache", "tree", "model"],
)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rounds_write_what_plain_decoding_writes(target, library, gguf, options, temperature):
    if options["drafter"] == "model":
        if temperature:
            pytest.skip("drawn drafts keep the law, not the very text")
        options = {**options, "draft_model": LlamaCppTarget(gguf, threads=1)}
    law_options = {"temperature": temperature, "seed": 3, "max_new_tokens": 40, "frequency_penalty": 0.01}
    plain = [generate(target, prompt, drafter="none", **law_options) for prompt in PROMPTS]
    one_by_one = [generate(target, prompt, **law_options, **options) for prompt in PROMPTS]
    assert one_by_one == plain
    assert generate(target, PROMPTS, **law_options, **options) == plain
    report = specrs.generate(target, PROMPTS[1], eos_token_id=None, **law_options, **options).report
    assert report.accepted > 0


@pytest.mark.parametrize("drafter", ["model", "hybrid"])
def test_llama_cpp_drafts_for_a_target_of_another_backend(target, drafter):
    elsewhere = TableLM(VOCABULARY, law)
    plain = generate(elsewhere, PROMPTS, drafter="none", max_new_tokens=40)
    made = specrs.generate(
        elsewhere, PROMPTS, eos_token_id=None, drafter=drafter, draft_model=target, draft_tokens=6, max_new_tokens=40
    )
    assert [one.ids for one in made] == plain
    assert sum(one.report.accepted_by_source.get("model", 0) for one in made) > 0
    drawn = {"temperature": 0.7, "seed": 3, "max_new_tokens": 40, "drafter": drafter, "draft_model": target}
    assert generate(elsewhere, PROMPTS, **drawn) == [generate(elsewhere, prompt, **drawn) for prompt in PROMPTS]


def test_the_toy_text_is_the_law_of_the_toy(target):
    text = list(PROMPTS[0])
    for token in generate(target, PROMPTS[0], drafter="cache", max_new_tokens=30):
        assert token == int(law(text).argmax())
        text.append(token)


def test_logprobs_penalties_bias_and_processors(target):
    """Everything that the law takes works on arrays: the same for a draft's rows as for plain steps."""

    def ban_five(ids, scores):
        scores = scores.clone()
        scores[:, 5] = -np.inf
        return scores

    options = {
        "max_new_tokens": 24,
        "logprobs": 2,
        "repetition_penalty": 1.1,
        "logit_bias": {3: -2.0},
        "min_new_tokens": 4,
        "logits_processor": [ban_five],
    }
    plain = specrs.generate(target, PROMPTS[0], drafter="none", **options)
    drafted = specrs.generate(target, PROMPTS[0], drafter="cache", draft_tokens=6, **options)
    assert drafted.ids == plain.ids
    assert 5 not in plain.ids
    assert drafted.report.accepted > 0
    for a, b in zip(plain.logprobs, drafted.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-6)
        assert [i for i, _ in a.alternatives] == [i for i, _ in b.alternatives]


def test_text_stop_strings_and_ends(target):
    made = specrs.generate(target, "ABCAB", max_new_tokens=30, drafter="cache", stop_token_ids=())
    assert made.text == "".join(chr(ord("A") + i) for i in made.ids if i < 59)
    stop = made.text[3:5]
    cut = specrs.generate(target, "ABCAB", max_new_tokens=30, drafter="cache", stop=stop)
    assert cut.finish_reason == "stop"
    assert cut.ids == made.ids[: len(cut.ids)]
    ended = specrs.generate(target, "ABCAB", max_new_tokens=30, logit_bias={60: 50.0})
    assert ended.ids == [60]
    assert ended.stopped_by == 60
    assert ended.text == ""


def test_a_session_reads_only_what_is_new(target, library):
    session = specrs.Session(target)
    first = specrs.generate(target, PROMPTS[1], max_new_tokens=8, session=session, eos_token_id=None)
    longer = [*PROMPTS[1], *first.ids, 4, 5]
    again = specrs.generate(target, longer, max_new_tokens=8, session=session, eos_token_id=None)
    assert again.report.reused_tokens >= len(PROMPTS[1]) + 6
    assert again.ids == generate(target, longer, max_new_tokens=8)


def test_threads_share_one_context(target):
    expected = [generate(target, prompt, drafter="none", max_new_tokens=20) for prompt in PROMPTS * 3]
    with ThreadPoolExecutor(6) as pool:
        found = list(
            pool.map(lambda p: generate(target, p, drafter="cache", draft_tokens=5, max_new_tokens=20), PROMPTS * 3)
        )
    assert found == expected


def test_cost_is_measured_at_this_targets_rows(target):
    table = target.cost_table
    assert 0 < table.seconds(1) <= table.seconds(16) <= table.seconds(64)
    assert target.plain_step_seconds == table.seconds(1)
    assert target.cost_table is table
