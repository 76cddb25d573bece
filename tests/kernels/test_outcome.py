"""Best ids, fork tokens, speculation-cache lookup, draft lengths and diffusion acceptance against plain Python."""

import numpy as np
import pytest
import torch
from tests.kernels.test_rows import DTYPES, logits

from specrs.errors import InvalidInputError
from specrs.ops import torch_ops  # noqa: F401  registers the ops
from specrs.ops.outcome import accept_unmasked, fork_tokens, lookup_cache, select_lengths, top_k_rows


def best_ids(row, k, exclude=-1):
    order = sorted((i for i in range(len(row)) if i != exclude), key=lambda i: (-row[i], i))
    return order[:k]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocabulary", "k"), [(9, 2), (1000, 64), (8300, 256)])
def test_top_k(emulator, dtype, vocabulary, k):
    rows = logits(3, vocabulary, dtype, seed=k)
    rows[1] = (rows[1] * 2).round() / 2  # ties across the k-th place
    got = top_k_rows(rows, min(k, vocabulary), exclude=3)
    for r in range(3):
        row = rows[r].double().numpy()
        expected = best_ids(row, min(k, vocabulary), 3)
        expected += [-1] * (min(k, vocabulary) - len(expected))
        assert got.ids[r].tolist() == expected
        masked = np.where(np.arange(vocabulary) == 3, -np.inf, row)
        probs = np.exp(masked - masked.max()) / np.exp(masked - masked.max()).sum()
        assert got.probs[r].numpy() == pytest.approx([probs[i] for i in expected], rel=2e-5)


@pytest.mark.parametrize("k", [1, 3, 255, 256])
def test_the_best_where_the_leaders_end(emulator, k):
    """All of one tile, too many equals, and few finite ids: what the leaders do not hold comes from the row."""
    rows = logits(4, 9000, torch.float32, seed=k, scale=0.1)
    rows[0, :8000] += 5.0
    rows[1, [*range(100, 7000), 8990]] = 4.0
    rows[2] = -np.inf
    rows[2, [5, 8990]] = torch.tensor([1.0, 2.0])
    got = top_k_rows(rows, k)
    for r in range(4):
        assert got.ids[r].tolist() == best_ids(rows[r].double().numpy(), k)


def test_temperature_of_the_best(emulator):
    rows = logits(2, 8300, torch.bfloat16, seed=1)
    for run in (top_k_rows, torch.ops.specrs.top_k_rows):
        ids, probs, *_ = run(rows, 5, 2, 0.5)
        expected = torch.where(torch.arange(8300) == 2, -torch.inf, rows.float() / 0.5).softmax(1)
        torch.testing.assert_close(probs, expected.gather(1, ids), rtol=2e-5, atol=0)
    torch.testing.assert_close(top_k_rows(rows, 5, 2, 0.5).statistics.max_prob, expected.amax(1), rtol=2e-5, atol=0)


def test_top_k_of_unusable_rows_and_bad_k(emulator):
    rows = torch.zeros(2, 4)
    rows[0, 1] = float("nan")
    got = top_k_rows(rows, 4)
    assert got.ids.tolist() == [[-1] * 4, [0, 1, 2, 3]]
    assert torch.isnan(got.probs[0]).all()
    for k in (0, 257):
        with pytest.raises(InvalidInputError):
            top_k_rows(rows, k)
    for temperature in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidInputError, match="temperature must be above 0 and finite"):
            top_k_rows(rows, 2, temperature=temperature)


def test_fork_tokens(emulator):
    rows = logits(6, 500, torch.float32, seed=8)
    counts = torch.tensor([4, 0, 2, 3, 1, 5], dtype=torch.int32)
    offsets = torch.tensor([0, 4, 4, 6, 9, 10])
    exclude = torch.tensor([int(rows[0].argmax()), 1, int(rows[2].argmax()), -1, int(rows[4].argmax()), 2])
    got = fork_tokens(rows, exclude, counts, offsets, 15).ids.tolist()
    expected = [i for r in range(6) for i in best_ids(rows[r].numpy(), int(counts[r]), int(exclude[r]))]
    assert got == expected


def test_lookup(emulator):
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 4, size=(100, 3))
    keys[::7, 0] = -1
    queries = rng.integers(-1, 5, size=(40, 3))
    queries[0] = keys[99]
    expected = []
    for query in queries:
        same = [n for n, key in enumerate(keys) if query[0] >= 0 and (key == query).all()]
        expected.append(same[0] if same else -1)
    assert lookup_cache(torch.tensor(keys), torch.tensor(queries)).tolist() == expected
    empty = torch.zeros((0, 3), dtype=torch.int64)
    assert lookup_cache(empty, torch.tensor(queries[:2])).tolist() == [-1, -1]


def lengths_of_kernel_and_rust(hysteresis):
    """Chains with rising, falling, staircase and unusable promises: what the kernel and what the Rust rule choose."""
    rng = np.random.default_rng(2)
    counts = [0, 3, 12, 7, 15, 15] + [8] * 24
    row_ptr = torch.tensor(np.cumsum([0] + [count + 1 for count in counts]))
    confidence = torch.tensor(rng.random(sum(counts)), dtype=torch.float32) ** 0.3
    confidence[4], confidence[6], confidence[9] = float("nan"), -0.5, 1.7
    confidence[22:37] = 0.9
    confidence[37:52] = 1.0  # more than anything may promise
    stairs = 1 + 0.05 * np.arange(14) + 0.25 * (np.arange(14) // 4)
    made = []
    for cost in (torch.tensor(stairs, dtype=torch.float32), torch.ones(5), torch.arange(1, 10).float()):
        expected = torch.ops.specrs.select_lengths(confidence, row_ptr, cost, hysteresis)
        made.append((select_lengths(confidence, row_ptr, cost, hysteresis).tolist(), expected.tolist()))
    return made


@pytest.mark.parametrize("hysteresis", [0.0, 0.02, 0.3])
def test_lengths(emulator, hysteresis):
    made = lengths_of_kernel_and_rust(hysteresis)
    assert all(kernel == rust for kernel, rust in made)
    assert len({length for kernel, _ in made for length in kernel}) > 4
    assert made[1][0][5] == 4  # what costs nothing is scored to the end of the cost table
    assert set(made[2][0]) == {0}  # what costs as much as a token of its own is not


def test_the_margin_is_for_drafting_at_all(emulator):
    """Rates that rise by 1 % a step: the longest is the best, unless even that is within the margin of no draft."""
    promise, row_ptr = torch.full((5,), 0.9), torch.tensor([0, 6])
    expected = np.cumsum([1.0, *np.cumprod([0.9] * 5)])
    cost = torch.tensor(expected / 1.01 ** np.arange(6), dtype=torch.float32)
    for hysteresis, length in ((0.0, 5), (0.02, 5), (0.0505, 5), (0.052, 0)):
        assert select_lengths(promise, row_ptr, cost, hysteresis).tolist() == [length]
        assert torch.ops.specrs.select_lengths(promise, row_ptr, cost, hysteresis).tolist() == [length]


MASK = 99


@pytest.mark.parametrize("rule", ["exact", "policy", "token"])
def test_unmasked(emulator, rule):
    rng = np.random.default_rng(5)
    batch, depth, width = 40, 3, 6
    drafts = np.full((batch, depth + 1, width), MASK)
    outcomes = rng.integers(0, 2, size=(batch, depth + 1, width))
    for b in range(batch):
        order = rng.permutation(width)
        for j in range(depth + 1):
            drafts[b, j, order[: j + 2]] = 1
            follows = np.where(drafts[b, j] == MASK, np.where(rng.random(width) < 0.8, 1, MASK), 1)
            outcomes[b, j] = follows if rng.random() < 0.7 else outcomes[b, j]
    depths = rng.integers(0, depth + 2, size=batch)  # one more than there is room for is clamped

    def agrees(b, best, j):
        draft, outcome = drafts[b, j], outcomes[b, best]
        if rule == "exact":
            return (draft == outcome).all()
        where = draft != MASK if rule == "policy" else draft != drafts[b, j - 1]
        return (draft == outcome)[where].all()

    expected = []
    for b in range(batch):
        best, deepest = 0, min(depths[b], depth)
        while True:
            reach = range(best + 1, min(best + 1, deepest) + 1) if rule == "token" else range(deepest, best, -1)
            step = next((j for j in reach if agrees(b, best, j)), None)
            if step is None:
                break
            best = step
        expected.append(best)
    tensors = torch.tensor(drafts), torch.tensor(outcomes), torch.tensor(depths, dtype=torch.int32)
    assert accept_unmasked(*tensors, MASK, rule).tolist() == expected
    assert sum(expected) > 0
