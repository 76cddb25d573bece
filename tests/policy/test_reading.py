"""A draft model reads a text only where what is left to write can pay for that."""

import itertools

import numpy as np
import pytest
from tests.toys import TattleLM

import specrs
from specrs.policies.cost import CostTable
from specrs.policies.reading import FEW, Reading

PROMPT = np.tile(np.arange(1, 21, dtype=np.uint32), 20)  # 400 tokens
FOREVER = {"eos_token_id": None}


def costs():
    """Rows are nearly free for the target; the draft model takes a tenth of it per token, drafting or reading."""
    return CostTable(range(1, 65), 1.0 + 0.001 * np.arange(64)), CostTable(range(1, 65), 0.1 * np.arange(1, 65))


def models():
    target, drafting = TattleLM(), TattleLM()
    target.cost_table, drafting.cost_table = costs()
    return target, drafting


def written(prompt, new_tokens, drafting=None, **options):
    target, own = models()
    options = {"drafter": "model", "draft_model": drafting or own, "max_new_tokens": new_tokens, **FOREVER, **options}
    made = specrs.generate(target, prompt, **options)
    plain = specrs.generate(models()[0], prompt, drafter="none", max_new_tokens=new_tokens, **FOREVER)
    assert made.ids == plain.ids
    return made.report


NUMBERS = itertools.count()


class Asked:
    """What ``Reading`` looks at."""

    def __init__(self, left, generated=0):
        self.id = next(NUMBERS)
        self.stop = type("Stop", (), {"max_new_tokens": left + generated})()
        self.generated = generated


@pytest.mark.parametrize("unread", [FEW + 1, 400, 4000])
def test_the_bound_is_what_drafts_save_that_are_all_accepted(unread):
    scoring, drafting = costs()
    best = min((k * 0.1 + scoring.seconds(k + 1)) / (k + 1) for k in range(48))
    enough = int(np.ceil(drafting.seconds(unread) / (1.0 - best)))
    reading = Reading(lambda request: unread, lambda: drafting, scoring)
    assert reading.message() is None
    assert reading.limits([Asked(enough), Asked(enough, generated=7)], [5, 3]) == [5, 3]
    assert reading.limits([Asked(enough - 1), Asked(enough)], [5, 3]) == [0, 3]
    assert f"{unread} tokens" in reading.message()


def test_a_refused_request_is_not_weighed_again_until_it_is_forgotten():
    scoring, drafting = costs()
    measured = []
    reading = Reading(lambda request: 400, lambda: measured.append(1) or drafting, scoring)
    request = Asked(5)
    assert [reading.limits([request], [4]) for _ in range(3)] == [[0]] * 3
    assert len(measured) == 1
    reading.forget(request)
    reading.limits([request], [4])
    assert len(measured) == 2


def test_short_stretches_are_read_without_measuring_the_draft_model():
    def measure():
        raise AssertionError("measured")

    scoring, _ = costs()
    assert Reading(lambda request: FEW, measure, scoring).limits([Asked(1)], [4]) == [4]
    assert Reading(lambda request: 4000, measure, scoring).limits([Asked(1)], [0]) == [0]


def test_a_short_answer_to_a_long_prompt_is_written_without_the_draft_model():
    _, drafting = models()
    report = written(PROMPT, 20, drafting)
    assert report.drafted == 0
    assert drafting.forwards == []
    (message,) = [text for text in report.warnings if "did not read" in text]
    assert "a text of 400 tokens" in message
    assert "20 tokens left" in message


def test_a_long_answer_a_read_prompt_or_a_wish_is_drafted_for():
    assert written(PROMPT, 200).accepted > 0
    assert written(PROMPT[:FEW], 20).accepted > 0
    assert written(PROMPT, 20, policy_options={"backoff": False}).accepted > 0
    assert written(PROMPT, 20, draft_tokens=4).accepted > 0


def test_what_a_session_has_read_is_drafted_for():
    target, drafting = models()
    session = specrs.Session(target)
    options = {"drafter": "model", "draft_model": drafting, "session": session, **FOREVER}
    first = specrs.generate(target, PROMPT, max_new_tokens=200, **options)
    later = specrs.generate(target, [*PROMPT.tolist(), *first.ids], max_new_tokens=8, **options)
    assert later.report.drafted > 0
    assert later.report.warnings == []
