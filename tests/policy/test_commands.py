"""Policies on the command line, and the replay of recorded traces."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from tests.toys import TattleLM

from specrs.cli import main
from specrs.cli.generation_options import policy_options
from specrs.cli.profile import _text, step_seconds
from specrs.errors import InvalidInputError
from specrs.policies.cost import CostTable


def test_policy_options_are_numbers_words_and_lists():
    words = ["hysteresis=0.1", "price=run", "tiers=1,3,7", "backoff=false", "max-tokens=4"]
    expected = {"hysteresis": 0.1, "price": "run", "tiers": [1, 3, 7], "backoff": False, "max_tokens": 4}
    assert policy_options(words) == expected
    for wrong in ("alpha", "=3"):
        with pytest.raises(InvalidInputError, match="NAME=VALUE"):
            policy_options([wrong])


def test_an_unknown_policy_is_refused_before_a_model_is_loaded(capsys):
    assert main(["generate", "hello", "--policy", "libre"]) == 2
    assert "did you mean 'libra'" in capsys.readouterr().err


def test_a_profile_is_shown_by_batch_and_context():
    table = CostTable.profile(TattleLM(), batches=(1, 2), contexts=(4,), rows=range(1, 5), repeats=1)
    table.step_seconds["model"] = step_seconds(TattleLM(), 4, repeats=3)
    text = _text(table, Path("table.json"))
    assert "1 rows" in text
    assert "a token of drafter model" in text
    assert table.step_seconds["model"] > 0


@pytest.fixture(scope="module")
def bench():
    path = Path(__file__).parents[2] / "benches" / "policies.py"
    spec = importlib.util.spec_from_file_location("benches_policies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def synthetic(drafter):
    """Texts that copy in stretches: sure drafts there, doubtful ones between, on a staircase of costs."""
    rng = np.random.default_rng(0)
    longest = 40 if drafter == "cache" else 8
    texts = []
    for number in range(8):
        drafts = []
        while len(drafts) < 96:
            stretch, copies = int(rng.integers(3, 30)), rng.random() < 0.5
            for left in range(stretch, 0, -1):
                n = longest if copies or drafter == "model" else int(rng.integers(0, 10))
                stated = rng.uniform(0.9, 1.0, n) if copies else rng.uniform(0.2, 0.7, n)
                accepted = min(left, n) if copies else int(np.append(rng.random(n) > stated, True).argmax())
                drafts.append([stated.round(3).tolist(), [0.5] * n, accepted])
        texts.append({"id": str(number), "set": "synthetic", "drafts": drafts})
    seconds = [0.1 * (1 + 0.01 * m + 0.2 * (m // 8)) for m in range(41)]
    return {
        "model": "synthetic",
        "drafter": drafter,
        "costs": {"seconds": seconds, "step_seconds": 0.01},
        "texts": texts,
    }


def test_libra_is_near_the_oracle_and_ahead_of_any_fixed_length(bench, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(synthetic("cache")))
    found = bench.report(path)
    libra, oracle = found["policies"]["libra"]["all"], {name: row["all"] for name, row in found["oracles"].items()}
    assert libra > 0.98 * oracle["confidences"]  # which knows the calibration that libra has to learn
    assert oracle["confidences"] < oracle["verdict"]
    assert libra > max(row["all"] for row in found["fixed"].values())
    assert libra >= max(found["policies"][name]["all"] for name in ("goodput", "ucb", "ema_tiers", "hf_heuristic"))
    assert found["policies"]["libra"]["synthetic"] == libra  # the only set is all


def test_a_model_drafter_is_replayed_token_by_token(bench, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(synthetic("model")))
    found = bench.report(path)
    assert found["policies"]["libra"]["all"] > 0.98 * max(row["all"] for row in found["fixed"].values())
    assert found["fixed"][0]["all"] == pytest.approx(1.0)
