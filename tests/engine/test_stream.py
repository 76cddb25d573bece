"""Streaming, interruption, and rows that go wrong (case B71; bad input: Ctrl-C and NaN logits)."""

import numpy as np
import pytest
from tests.toys import ScriptDrafter, TableLM, TattleLM, oracle

import specrs
from specrs.errors import NonFiniteLogitsError

PROMPT = [4, 9, 2, 7]
FOREVER = {"eos_token_id": None}


def right(text, prompt=PROMPT, vocab_size=32, **options):
    return ScriptDrafter(oracle({tuple(prompt): text}, "right", vocab_size, **options))


def test_b71_chunks_come_in_order_and_none_is_retracted():
    expected = specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=40, **FOREVER).ids
    running = specrs.stream(TattleLM(), PROMPT, drafter="cache", draft_tokens=6, max_new_tokens=40, **FOREVER)
    seen = []
    for chunk in running:
        assert chunk.index == 0
        assert len(chunk.ids) >= 1
        seen += chunk.ids
        assert seen == expected[: len(seen)] == running.generations[0].ids
    assert seen == expected


def test_b71_a_batch_streams_each_text_under_its_index():
    prompts = [[i, i, 3] for i in range(5)]
    running = specrs.stream(
        TattleLM(), prompts, drafter="cache", draft_tokens=4, max_new_tokens=20, max_batch=2, **FOREVER
    )
    seen = {i: [] for i in range(5)}
    for chunk in running:
        seen[chunk.index] += chunk.ids
    assert [seen[i] for i in range(5)] == [one.ids for one in running.generations]
    assert all(len(text) == 20 for text in seen.values())


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_b71_the_consumer_leaves_early(taken):
    """Closing keeps what was made, lets the drafter go, and the next call starts from a clean slate."""
    drafter = ScriptDrafter(lambda request, budget: [1])
    target = TattleLM()
    running = specrs.stream(target, PROMPT, drafter=drafter, draft_tokens=1, max_new_tokens=40, **FOREVER)
    seen = [token for _ in range(taken) for token in next(running).ids]
    running.close()
    running.close()
    assert running.generations[0].ids == seen
    assert running.generations[0].finish_reason == "interrupted"
    assert not drafter.active
    assert list(running) == []
    again = specrs.generate(target, PROMPT, drafter=drafter, draft_tokens=1, max_new_tokens=40, **FOREVER)
    assert again.ids[:taken] == seen[:taken]


def test_b71_an_exception_in_the_consumer():
    drafter = ScriptDrafter(lambda request, budget: [1])
    running = specrs.stream(TattleLM(), PROMPT, drafter=drafter, draft_tokens=1, max_new_tokens=40, **FOREVER)

    def consume():
        for chunk in running:
            if len(chunk.ids):
                raise LookupError("the listener hung up")

    with pytest.raises(LookupError):
        consume()
    running.close()
    assert len(running.generations[0].ids) >= 1
    assert not drafter.active


class InterruptingDrafter(ScriptDrafter):
    """Presses Ctrl-C in the middle of a round."""

    def __init__(self, after):
        super().__init__(lambda request, budget: [])
        self.after = after

    def propose(self, requests, budgets):
        if len(self.budgets) >= self.after:
            raise KeyboardInterrupt
        return super().propose(requests, budgets)


@pytest.mark.parametrize("batch", [1, 2])
def test_interrupted_generation_keeps_what_was_made(batch):
    drafter = InterruptingDrafter(4)
    prompts = PROMPT if batch == 1 else [PROMPT, [1]]
    with pytest.raises(KeyboardInterrupt) as caught:
        specrs.generate(TattleLM(), prompts, drafter=drafter, draft_tokens=2, max_new_tokens=40, **FOREVER)
    partial = caught.value.partial
    made = [partial] if batch == 1 else partial
    assert [len(one.ids) for one in made] == [4] * batch
    assert all(one.finish_reason == "interrupted" for one in made)
    expected = specrs.generate(TattleLM(), PROMPT, drafter="none", max_new_tokens=4, **FOREVER).ids
    assert made[0].ids == expected
    assert not drafter.active


def test_unusable_logits_keep_what_was_made():
    """A row of NaN ends the run with a typed error; what stood before it is kept, drafts included."""
    text = [5, 6, 7, 8, 9, 10]

    def table(prefix):
        at = len(prefix) - 2
        return np.full(16, np.nan) if at == 4 else np.eye(16)[text[at]] * 9

    for drafter in ("none", right(text, [3, 4], 16), right(text, [3, 4], 16, depth=2)):
        options = {} if drafter == "none" else {"draft_tokens": 6}
        running = specrs.stream(TableLM(16, table), [3, 4], drafter=drafter, max_new_tokens=6, **FOREVER, **options)
        seen = []
        with pytest.raises(NonFiniteLogitsError, match="after 4 new tokens") as caught:
            seen.extend(token for chunk in running for token in chunk.ids)
        assert caught.value.partial.ids == text[:4]
        assert caught.value.partial.finish_reason == "error"
        assert seen == text[:4], "a stream shows what partial holds"


@pytest.mark.parametrize("row", ["nan", "one nan", "+inf", "all -inf"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_at_the_first_token(row, temperature):
    bad = {"nan": np.full(8, np.nan), "one nan": np.r_[np.nan, np.zeros(7)], "all -inf": np.full(8, -np.inf)}
    bad["+inf"] = np.r_[np.zeros(7), np.inf]
    with pytest.raises(NonFiniteLogitsError, match="after 0 new tokens") as caught:
        specrs.generate(TableLM(8, lambda prefix: bad[row]), [1, 2], drafter="none", temperature=temperature, seed=1)
    assert caught.value.partial.ids == []


def test_unusable_logits_in_a_batch_keep_all_rows():
    def table(prefix):
        return np.full(8, np.nan) if prefix[0] == 1 and len(prefix) > 3 else np.eye(8)[prefix[0]]

    with pytest.raises(NonFiniteLogitsError) as caught:
        specrs.generate(TableLM(8, table), [[0], [1], [2]], drafter="none", max_new_tokens=9, **FOREVER)
    made = caught.value.partial
    assert made[1].ids == [1, 1, 1]
    assert made[1].finish_reason == "error"
    # One request's fault is not its neighbours': they have run to their ends.
    assert (made[0].ids, made[0].finish_reason) == ([0] * 9, "length")
    assert made[2].ids == [2] * 9
