"""Named edge cases shared with the Rust tests (``tests/cases/verify.json``), and how to run one."""

import json
from pathlib import Path

import numpy as np

from specrs import _core
from specrs.reference import RULES

NO_TOKEN = 4294967295
ALL = json.loads((Path(__file__).parent.parent / "cases" / "verify.json").read_text())["cases"]
#: Those whose rows are laws, so that the reference and the mutants can run them.
CASES = [case for case in ALL if "target_probs" in case and case.get("status", 0) == 0 and not case.get("native_only")]


def number(value):
    return {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}.get(value, value)


def matrix(rows):
    return [[number(value) for value in row] for row in rows]


def native_outcome(case):
    """Path, bonus and status of a case under the extension."""
    if "logits" in case:
        logits = np.array(matrix(case["logits"]), np.float32)
    else:
        with np.errstate(divide="ignore"):
            logits = np.log(np.array(case["target_probs"])).astype(np.float32)
    rows = len(logits)
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | case.get("sampling", {})
    draft = {}
    if case.get("one_hot"):
        draft = {"one_hot": True}
    elif "draft_probs" in case:
        probs = np.array(matrix(case["draft_probs"]), np.float32)
        draft = {"draft_probs": probs if probs.size else np.zeros((0, 1), np.float32)}
    path_ptr, path, bonus, status = _core.verify(
        logits,
        "f32",
        np.array([0, rows]),
        np.array(case["tokens"], np.uint32),
        np.array(case["parents"], np.int32),
        case["rule"],
        np.array([sampling["temperature"]], np.float32),
        np.array([sampling["top_k"]], np.int32),
        np.array([sampling["top_p"]], np.float32),
        np.array([sampling["min_p"]], np.float32),
        np.array(case["accept"], np.float64),
        np.array(case["emit"], np.float64),
        **draft,
    )
    assert path_ptr.tolist() == [0, len(path)]
    return tuple(path.tolist()), int(bonus[0]), int(status[0])


def oracle_outcome(case, rules=RULES):
    """Path and bonus of a case under a reference implementation."""
    draft = case.get("draft_probs") or [
        [float(index == token) for index in range(len(case["target_probs"][0]))] for token in case["tokens"]
    ]
    return rules[case["rule"]](
        case["target_probs"], draft, case["tokens"], case["parents"], case["accept"], case["emit"]
    )
