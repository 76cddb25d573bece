"""Greedy float32 on the demo model: token by token what transformers writes, on prompts of every set (B47)."""

import functools
import json
from pathlib import Path

import pytest
import torch

import specrs
from specrs.prompts import encode_prompts

SETS = sorted((Path(__file__).parents[2] / "benches" / "prompts").glob("*.jsonl"))
NEW_TOKENS = 32
#: Longest prompt taken here; the benches take them all.
LONGEST = 300

pytestmark = pytest.mark.model


def prompts_of(file, target, count=2):
    """The first prompts of a set, as ids; a long one from its end, so that the test stays short."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[:count]]
    return [encode_prompts(target, row["messages"])[0][-LONGEST:].tolist() for row in rows]


@functools.cache
def reference(target, prompt):
    made = target.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=0,
    )
    return made[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def all_cores():
    """The other tests of this folder run on one thread; a real model is worth more."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize("file", SETS, ids=lambda file: file.stem)
def test_b47_greedy_identity(file, smollm2_target):
    prompts = prompts_of(file, smollm2_target)
    expected = [reference(smollm2_target, tuple(prompt)) for prompt in prompts]
    for options in (
        {"drafter": "none"},
        {"drafter": "cache", "draft_tokens": 8},
        {"drafter": "cache", "draft_tokens": 16, "draft_shape": "tree"},
        {"drafter": "hybrid", "draft_model": smollm2_target},
    ):
        made = [specrs.generate(smollm2_target, p, max_new_tokens=NEW_TOKENS, **options) for p in prompts]
        assert [one.ids for one in made] == expected, options
    batch = specrs.generate(smollm2_target, prompts, drafter="cache", draft_tokens=4, max_new_tokens=NEW_TOKENS)
    assert [one.ids for one in batch] == expected
    for one, ids in zip(batch, expected, strict=True):
        assert one.text == smollm2_target.tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.usefixtures("all_cores")
def test_stop_strings_and_streamed_text(smollm2_target):
    """The pieces of a stream join to the text; a stop string ends it at the token that completes it."""
    messages = [
        {"role": "user", "content": "Write a haiku about \N{SNOWFLAKE} and caf\N{LATIN SMALL LETTER E WITH ACUTE}s."}
    ]
    free = specrs.generate(smollm2_target, messages, drafter="none", max_new_tokens=40)
    for options in ({"drafter": "none"}, {"drafter": "cache", "draft_tokens": 8}):
        running = specrs.stream(smollm2_target, messages, max_new_tokens=40, **options)
        assert "".join(chunk.text for chunk in running) == running.generations[0].text == free.text
        word = free.text.split()[4]
        made = specrs.generate(smollm2_target, messages, max_new_tokens=40, stop=word, **options)
        assert made.finish_reason == "stop"
        assert made.stopped_by == word
        assert made.ids == free.ids[: len(made.ids)]
        assert word in made.text
        assert word not in smollm2_target.tokenizer.decode(made.ids[:-1], skip_special_tokens=True)
