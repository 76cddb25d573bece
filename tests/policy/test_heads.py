"""Trained heads: they learn what decides acceptance, are saved and loaded, and drive a policy."""

import numpy as np
import pytest
import torch
from tests.policy.rounds import Facts, policy, request
from tests.toys import TattleLM

import specrs
from specrs.errors import CorruptFileError, FileAccessError, InvalidInputError
from specrs.policies.heads import FEATURES, AcceptanceHead, features, train


def laws(rng, count):
    sharp = rng.uniform(0, 1, count)
    rest = rng.dirichlet(np.ones(4), count) * (1 - sharp)[:, None]
    return np.concatenate([sharp[:, None], rest], 1), sharp


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tiny products are not worth a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    rows, sharp = laws(rng, 1200)
    facts = Facts(range(1200), [1] * 1200, rows.tolist(), [0] * 1200)
    return features(facts), (rng.random(1200) < sharp).astype(float), sharp


@pytest.mark.parametrize("kind", ["disco", "specdecpp"])
def test_a_head_learns_what_decides_acceptance(kind, data, tmp_path):
    x, accepted, sharp = data
    head = train(kind, x, accepted, epochs=8)
    found = head.predict(x)
    assert np.corrcoef(found, sharp)[0, 1] > 0.85
    if kind == "disco":
        assert abs(found.mean() - accepted.mean()) < 0.05
    else:
        assert found.mean() < accepted.mean() - 0.1, "rejections weigh six times"
    head.save(tmp_path / "head.npz")
    again = AcceptanceHead.load(tmp_path / "head.npz")
    np.testing.assert_array_equal(again.predict(x), found)
    assert again.kind == kind
    np.testing.assert_array_equal(
        train(kind, x, accepted, epochs=1).predict(x), train(kind, x, accepted, epochs=1).predict(x)
    )


def test_a_trained_head_drives_its_policy(data):
    head = train("disco", data[0], data[1], epochs=8)
    made = policy("disco", {"threshold": 0.5}, stepwise=True, head=head)
    requests = [request()]
    made.budgets(requests, [8])
    go_on = made.go_on(requests)
    assert go_on(Facts([0], [1], [[0.97, 0.01, 0.01, 0.01, 0.0]], [0])) == [True]
    assert go_on(Facts([0], [1], [[0.05, 0.35, 0.3, 0.2, 0.1]], [0])) == [False]
    options = {"max_new_tokens": 20, "eos_token_id": None}
    options["policy_options"] = {"head": head}
    text = specrs.generate(TattleLM(), [1], drafter="model", draft_model=TattleLM(), policy="disco", **options)
    plain = specrs.generate(TattleLM(), [1], drafter="none", max_new_tokens=20, eos_token_id=None)
    assert text.ids == plain.ids


def test_wrong_heads_and_data_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="specdecpp, disco"):
        AcceptanceHead("disko", {})
    with pytest.raises(InvalidInputError, match="weight 'mean'"):
        AcceptanceHead("disco", {})
    with pytest.raises(InvalidInputError, match=rf"\(N, {FEATURES}\)"):
        train("disco", np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(InvalidInputError, match=r"labels in \[0, 1\]"):
        train("disco", np.zeros((3, FEATURES)), [0, 1, 2])
    with pytest.raises(FileAccessError):
        AcceptanceHead.load(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises((CorruptFileError, FileAccessError)):
        AcceptanceHead.load(tmp_path / "bad.npz")
