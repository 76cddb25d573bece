"""A difference between two texts is explained by the logits that both sides really drew from."""

import numpy as np
import pytest
from tests.hf.tiny import PROMPT, tiny

import specrs
from specrs.compare import _law_of, explain


def explained(**options):
    target = specrs.load(tiny())
    law = _law_of(target, options) if options else None
    return explain(target, np.array(PROMPT, np.uint32), [5, 40], [5, 41], 1, law=law)


def test_penalties_and_bias_are_in_the_logits_that_are_shown():
    raw = explained()
    biased = explained(logit_bias={40: 2.0, 41: -3.0})
    assert biased.one_row == pytest.approx((raw.one_row[0] + 2.0, raw.one_row[1] - 3.0), abs=1e-5)
    assert biased.many_rows == pytest.approx((raw.many_rows[0] + 2.0, raw.many_rows[1] - 3.0), abs=1e-5)
    once = explained(presence_penalty=1.5, logit_bias={5: 0.0})
    assert once.one_row == pytest.approx(raw.one_row, abs=1e-5)  # neither token was written before


def test_a_forbidden_token_is_no_near_tie():
    forbidden = explained(min_new_tokens=5, eos_token_id=41)
    assert forbidden.one_row[1] == -np.inf
    assert not forbidden.near_tie
    assert np.isfinite(forbidden.bound)
