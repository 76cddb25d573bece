"""The row law is that of transformers' processors; the drafter's law is to the bit the verifier's."""

import numpy as np
import pytest

from specrs import _core

torch = pytest.importorskip("torch")
logits_process = pytest.importorskip("transformers.generation.logits_process")

SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.8, 0, 0.95, 0.0),
    (0.7, 20, 1.0, 0.0),
    (1.3, 50, 0.9, 0.0),
    (0.6, 0, 1.0, 0.1),
    (1.5, 40, 0.83, 0.05),
    (2.0, 1, 0.5, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.0, 100_000, 0.3, 1.0),
    (0.9, 0, 0.999, 0.02),
]


def processed_law(logits, temperature, top_k, top_p, min_p):
    """Float64 softmax over what transformers' own processors keep."""
    scores = torch.from_numpy(logits.astype(np.float32))
    scores = logits_process.TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = logits_process.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = logits_process.TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = logits_process.MinPLogitsWarper(min_p)(None, scores)
    return scores.double().softmax(-1).numpy()


def draw_laws(logits, dtype, setting, coins=None):
    rows = logits.shape[0]
    temperature, top_k, top_p, min_p = setting
    return _core.draw(
        logits,
        dtype,
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, top_p, np.float32),
        np.full(rows, min_p, np.float32),
        np.random.default_rng(0).random(rows) if coins is None else coins,
        True,
    )


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("vocabulary", [1, 5, 127, 128, 129, 1000, 20_011])
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_law_equals_transformers(setting, vocabulary, spread):
    rng = np.random.default_rng(vocabulary)
    logits = (rng.standard_normal((6, vocabulary)) * spread).astype(np.float32)
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    logits[:, 0] = 1.0
    tokens, probs = draw_laws(logits, "f32", setting)
    expected = processed_law(logits, *setting)
    assert np.abs(probs - expected).sum(-1).max() < 5e-6
    assert np.array_equal(probs > 0, expected > 1e-30)
    assert (probs[np.arange(6), tokens] > 0).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_ties_are_kept_as_a_stable_sort_keeps_them(setting, monkeypatch):
    # torch.sort promises no order among equals, so the processor's own choice changes with shape and processor.
    # Ours is that of the stable sort.
    sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda scores, descending: sort(scores, descending=descending, stable=True))
    rng = np.random.default_rng(5)
    logits = rng.integers(0, 4, (20, 300)).astype(np.float32) / 2
    probs = draw_laws(logits, "f32", setting)[1]
    expected = processed_law(logits, *setting)
    assert np.array_equal(probs > 0, expected > 0)
    assert np.abs(probs - expected).max() < 1e-6


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_formats_are_read_exactly(dtype):
    values = torch.randn(8, 5000, generator=torch.Generator().manual_seed(1)) * 5
    values = values.to(torch.float16 if dtype == "f16" else torch.bfloat16)
    array = values.numpy() if dtype == "f16" else values.view(torch.uint16).numpy()
    for setting in SETTINGS:
        coins = np.random.default_rng(3).random(8)
        half = draw_laws(array, dtype, setting, coins)
        full = draw_laws(values.float().numpy(), "f32", setting, coins)
        assert np.array_equal(half[0], full[0])
        assert np.array_equal(half[1], full[1])


def test_greedy_is_torch_argmax():
    rng = np.random.default_rng(2)
    logits = rng.integers(-3, 3, (50, 700)).astype(np.float32)
    logits[0] = -0.0
    logits[0, 5] = 0.0
    tokens, probs = draw_laws(logits, "f32", (0.0, 7, 0.5, 0.1))
    assert np.array_equal(tokens, torch.from_numpy(logits).argmax(-1).numpy())
    assert np.array_equal(probs.argmax(-1), tokens)
    assert np.array_equal(probs.sum(-1), np.ones(50))


def test_log_probs_are_log_softmax():
    rng = np.random.default_rng(9)
    logits = (rng.standard_normal((5, 3001)) * 6).astype(np.float32)
    expected = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    rows = np.array([0, 4, 4, 2])
    tokens = np.array([0, 3000, 17, 128], np.uint32)
    assert np.abs(_core.log_probs(logits, "f32", rows, tokens) - expected[rows, tokens]).max() < 2e-6
    ids, values = _core.top_log_probs(logits, "f32", rows, 30)
    order = np.argsort(-logits[rows], axis=-1, kind="stable")[:, :30]
    assert np.array_equal(ids, order)
    assert np.abs(values - np.take_along_axis(expected[rows], order, -1)).max() < 2e-6
