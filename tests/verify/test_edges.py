"""The edge table: named cases with one right answer, and inputs that must be refused before any work."""

import numpy as np
import pytest
from tests.verify.edge_cases import ALL, CASES, native_outcome, oracle_outcome

from specrs import _core
from specrs.errors import InvalidInputError


@pytest.mark.parametrize("case", ALL, ids=lambda case: case["name"])
def test_case(case):
    assert native_outcome(case) == (tuple(case["path"]), case["token"], case.get("status", 0)), case["why"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_reference_agrees(case):
    assert oracle_outcome(case) == (tuple(case["path"]), case["token"])


def arguments(**changes):
    given = {
        "logits": np.zeros((3, 4), np.float32),
        "dtype": "f32",
        "row_ptr": np.array([0, 3]),
        "tokens": np.array([1, 2], np.uint32),
        "parents": np.array([-1, 0], np.int32),
        "rule": "chain",
        "temperature": np.array([1.0], np.float32),
        "top_k": np.array([0], np.int32),
        "top_p": np.array([1.0], np.float32),
        "min_p": np.array([0.0], np.float32),
        "accept_coins": np.array([0.5] * 3),
        "emit_coins": np.array([0.5] * 3),
        "draft_probs": np.full((2, 4), 0.25, np.float32),
    }
    return given | changes


def i32(*values):
    return np.array(values, np.int32)


def f32(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parents": i32(0, 0)}, "node 0 of request 0 must have a parent in -1..0, got 0"),
        ({"parents": i32(1, -1)}, "got 1"),
        ({"parents": i32(-2, 0)}, "got -2"),
        ({"parents": i32(-1, -1)}, "chain verifies chains"),
        ({"parents": i32(-1)}, "one entry per node, 2, got 2 and 1"),
        ({"row_ptr": np.array([0, 2])}, "number of logit rows, 3, got 0 to 2"),
        ({"row_ptr": np.array([0, 0, 3])}, "anchor's row"),
        ({"row_ptr": np.array([], np.int64)}, "got none"),
        ({"temperature": f32(-1)}, "temperature must be 0 or a positive number, got -1"),
        ({"temperature": f32(np.nan)}, "got NaN"),
        ({"temperature": f32(np.inf)}, "got inf"),
        ({"temperature": f32(1, 1)}, "one length"),
        ({"top_k": i32(-1)}, "top_k must be 0 \\(off\\) or positive, got -1"),
        ({"top_p": f32(1.5)}, "top_p must be in \\[0, 1\\], got 1.5"),
        ({"min_p": f32(np.nan)}, "min_p must be in"),
        ({"accept_coins": np.array([0.5, 1.0, 0.5])}, "coin must be in \\[0, 1\\), got 1 at row 1"),
        ({"emit_coins": np.array([0.5, 0.5, -0.1])}, "got -0.1 at row 2"),
        ({"emit_coins": np.array([0.5, np.nan, 0.1])}, "got NaN at row 1"),
        ({"emit_coins": np.array([0.5])}, "one entry per logit row, 3, got 1"),
        ({"draft_probs": None}, "needs the law"),
        ({"draft_probs": np.full((1, 4), 0.25, np.float32)}, "one row per node, 2, got 1"),
        ({"draft_probs": np.full((2, 4), 0.25)}, "float32"),
        ({"draft_probs": np.full((2, 8), 0.25, np.float32)[:, ::2]}, "contiguous"),
        ({"draft_rows": np.array([0, 2])}, "draft_rows must be in 0..2, got 2"),
        ({"logits": np.zeros((3, 8), np.float32)[:, ::2]}, "last axis of logits must be contiguous"),
        ({"logits": np.zeros((3, 4))}, "float32"),
        ({"logits": np.zeros(12, np.float32)}, "two-dimensional"),
        ({"logits": np.zeros((3, 0), np.float32)}, "1 to"),
        ({"dtype": "f64"}, "'f32', 'f16' or 'bf16'"),
        ({"rule": "vibes"}, "rule must be"),
        ({"emit_coins": np.zeros(6)[::2]}, "contiguous"),
    ],
)
def test_refused_before_any_work(changes, words):
    with pytest.raises(InvalidInputError, match=words):
        _core.verify(**arguments(**changes))


def test_misaligned_logits_are_refused():
    raw = np.zeros(3 * 4 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(3, 4)
    with pytest.raises(InvalidInputError, match="aligned"):
        _core.verify(**arguments(logits=raw))


def test_padded_rows_and_reversed_rows_are_read_in_place():
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((6, 40)).astype(np.float32)
    view = wide[::-2, 3:30]
    given = arguments(logits=view, draft_probs=None, rule="greedy_or_fixed")
    assert [a.tolist() for a in _core.verify(**given)] == [
        a.tolist() for a in _core.verify(**given | {"logits": np.ascontiguousarray(view)})
    ]


@pytest.mark.parametrize("nodes", [31, 32, 33, 63, 64, 65, 127, 128, 129, 1000])
def test_long_drafts(nodes):
    logits = np.zeros((nodes + 1, 300), np.float32)
    tokens = (np.arange(nodes) * 7 % 300).astype(np.uint32)
    logits[np.arange(nodes), tokens] = 50
    _, path, bonus, status = _core.verify(
        **arguments(
            logits=logits,
            row_ptr=np.array([0, nodes + 1]),
            tokens=tokens,
            parents=np.arange(-1, nodes - 1, dtype=np.int32),
            rule="greedy_or_fixed",
            draft_probs=None,
            accept_coins=np.zeros(nodes + 1),
            emit_coins=np.full(nodes + 1, 0.25),
        )
    )
    assert path.tolist() == list(range(nodes))
    assert bonus[0] in (74, 75)
    assert status.tolist() == [0]


@pytest.mark.parametrize("vocabulary", [8193, 10000, 151936])
def test_no_token_beyond_the_vocabulary(vocabulary):
    """vllm 44744: a tile's padding must not win, even if every logit is very negative."""
    logits = np.full((1, vocabulary), -1e30, np.float32)
    for coin in (0.0, 0.5, 1 - 2**-53):
        for top_p in (1.0, 0.5):
            bonus = _core.verify(
                logits, "f32", np.array([0, 1]), np.zeros(0, np.uint32), np.zeros(0, np.int32), "greedy_or_fixed",
                f32(1), i32(0), f32(top_p), f32(0), np.array([0.0]), np.array([coin]),
            )[2]  # fmt: skip
            assert bonus[0] < vocabulary
