"""Row statistics, laws and draws against NumPy, in three schedules, at odd sizes and alignments."""

import math
import mmap

import numpy as np
import pytest
import torch
from tests.kernels import oracle

from specrs.ops.launch import launch
from specrs.ops.rows import Sampling, draw_rows, row_laws, row_leaders, row_probs, row_statistics, tile_count

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def sampling(rows):
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    return Sampling(
        torch.tensor(temperature),
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p, dtype=torch.float32),
        torch.tensor(min_p, dtype=torch.float32),
    )


def logits(rows, vocabulary, dtype, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocabulary, generator=generator) * scale).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [1, 7, 1000, 8193])
def test_statistics(emulator, dtype, vocabulary):
    rows = logits(3, vocabulary, dtype)
    row_ptr, temperature = torch.tensor([0, 1, 3]), torch.tensor([0.7, 1.5])
    got = row_statistics(rows, row_ptr, temperature)
    for r, t in enumerate([0.7, 1.5, 1.5]):
        argmax, max_prob, entropy, log_sum_exp = oracle.statistics(rows[r].double().numpy(), t)
        assert int(got.argmax[r]) == argmax
        assert float(got.max_prob[r]) == pytest.approx(max_prob, rel=1e-5)
        assert float(got.entropy[r]) == pytest.approx(entropy, rel=1e-4, abs=1e-5)
        assert float(got.log_sum_exp[r]) == pytest.approx(log_sum_exp, rel=1e-5, abs=1e-5)
        assert int(got.status[r]) == 0


def test_statistics_of_unusable_and_masked_rows(emulator):
    rows = torch.full((5, 9000), -float("inf"))
    rows[1, 8999] = 2.0  # one finite logit, in the last tile
    rows[2] = 0.0
    rows[2, 8500] = float("nan")
    rows[3] = 0.0
    rows[3, 0] = float("inf")
    rows[4] = 1.0
    got = row_statistics(rows, exclude=0)
    assert got.status.tolist() == [2, 0, 2, 0, 0]  # the +inf of row 3 is the excluded id
    assert got.argmax.tolist() == [-1, 8999, -1, 1, 1]
    assert float(got.max_prob[1]) == 1.0
    assert float(got.entropy[1]) == 0.0
    assert float(got.entropy[4]) == pytest.approx(np.log(8999), rel=1e-5)
    assert torch.isnan(got.entropy[[0, 2]]).all()


#: temperature, top_k, top_p, min_p
LAWS = [
    (1.0, 0, 1.0, 0.0),
    (0.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.9, 40, 0.9, 0.02),
    (1.0, 1, 1.0, 0.0),
    (1e-6, 0, 1.0, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.0, 10**9, 1.0, 0.0),
]


@pytest.mark.parametrize(
    ("dtype", "vocabulary"),
    [
        (torch.float32, 5),
        (torch.float32, 8200),
        (torch.bfloat16, 1001),
        (torch.float16, 1001),
        (torch.bfloat16, 8200),
    ],
)
def test_draws_follow_the_law(emulator, dtype, vocabulary):
    rows = logits(2 * len(LAWS), vocabulary, dtype, seed=vocabulary)
    rows[1::2] = (rows[1::2] * 2).round() / 2  # many ties
    parameters = sampling(LAWS)
    row_ptr = torch.arange(0, len(rows) + 1, 2)
    laws = row_laws(rows, row_ptr, parameters)
    for coin in (0.0, 0.31, 0.77, 1 - 2**-53):
        drawn = draw_rows(rows, laws, torch.full((len(rows),), coin, dtype=torch.float64))
        for r in range(len(rows)):
            weights = oracle.law(rows[r].double().numpy(), *LAWS[r // 2])
            assert weights[int(drawn[r])] > 0, (r, LAWS[r // 2])
            if oracle.is_clear(weights, coin):
                assert int(drawn[r]) == oracle.draw(weights, coin), (r, LAWS[r // 2], coin)


@pytest.mark.parametrize(("dtype", "vocabulary"), [(torch.float32, 8200), (torch.bfloat16, 1001), (torch.float16, 5)])
def test_probabilities_are_the_weights_of_the_draws(emulator, dtype, vocabulary):
    rows = logits(2 * len(LAWS), vocabulary, dtype, seed=vocabulary)
    rows[1::2] = (rows[1::2] * 2).round() / 2  # many ties
    rows[-1] = math.nan
    laws = row_laws(rows, torch.arange(0, len(rows) + 1, 2), sampling(LAWS))
    probs = row_probs(rows, laws)
    assert probs[-1].isnan().all()
    for r in range(len(rows) - 1):
        weights = oracle.law(rows[r].double().numpy(), *LAWS[r // 2])
        expected = torch.from_numpy(weights / weights.sum())
        torch.testing.assert_close(probs[r].double(), expected, rtol=2e-5, atol=1e-30)
        assert torch.equal(probs[r] > 0, expected > 2.0**-100), LAWS[r // 2]  # law.h: nothing lighter has weight


def test_ties_at_the_cut(emulator):
    rows = torch.zeros(3, 12)
    rows[:, 3] = 1.0
    # top-k keeps every tie of the last; top-p keeps the highest ids among equals, as a stable ascending sort does.
    laws = row_laws(rows, torch.arange(4), sampling([(1.0, 2, 1.0, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 3, 0.25, 0.0)]))
    support = [set(), set(), set()]
    for coin in (np.arange(48) + 0.5) / 48:
        for r, token in enumerate(draw_rows(rows, laws, torch.full((3,), coin, dtype=torch.float64)).tolist()):
            support[r].add(token)
    expected = [
        set(np.flatnonzero(oracle.law(rows[r].numpy(), *law)))
        for r, law in enumerate([(1.0, 2, 1.0, 0.0), (1.0, 0, 0.5, 0.0), (1.0, 3, 0.25, 0.0)])
    ]
    assert support == expected


def laws_of(read, rows, parameters):
    """Laws and masses of the rows, each its own request, where the last kernel reads `read` in their place."""
    row_ptr, tiles = torch.arange(len(rows) + 1), tile_count(rows.shape[1])
    made = row_laws(rows, row_ptr, parameters)
    laws, masses = torch.empty_like(made.laws), torch.empty_like(made.masses)
    given = [made.partials, tiles, *row_leaders(rows, row_ptr, parameters), *parameters]
    launch("row_law_f32", len(rows), [read, *[rows.shape[1]] * 2, row_ptr, len(rows), *given, laws, masses])
    return laws, masses


#: Laws whose cut lies among a tile's leaders where logits have a standard deviation of 3.
NARROW = [(1.0, 40, 1.0, 0.0), (1.0, 0, 0.6, 0.0), (0.7, 50, 0.9, 0.0), (1.0, 0, 1.0, 0.05), (0.8, 20, 0.95, 0.1)]


def test_a_narrow_law_reads_no_row(emulator):
    rows = logits(len(NARROW), 20_000, torch.float32, seed=3)
    for found in (rows, (rows * 16).round() / 16):  # without ties, with ties
        expected = laws_of(found, found, sampling(NARROW))
        got = laws_of(torch.full_like(found, math.nan), found, sampling(NARROW))
        assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("vocabulary", [4000, 9000])
def test_a_wide_law_is_that_of_its_rows(emulator, vocabulary):
    """Cuts below the leaders, of one tile or of two, by each rule and by two."""
    wide = [(1.0, 3000, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (1.0, 0, 1.0, 0.9), (1.0, 700, 0.999, 0.0), (1.0, 250, 1.0, 0.0)]
    rows = logits(2 * len(wide), vocabulary, torch.float32, seed=4, scale=0.01)
    rows[1::2, :3500] += 3.0  # all that matters lies in one tile
    rows[-2] = (rows[-2] * 400).round() / 400  # ties where the leaders end
    rows[-1] = 0.0
    laws = row_laws(rows, torch.arange(0, len(rows) + 1, 2), sampling(wide))
    probs = row_probs(rows, laws)
    for r in range(len(rows)):
        weights = oracle.law(rows[r].double().numpy(), *wide[r // 2])
        kept, expected = probs[r].numpy() > 0, weights > 0
        assert abs(kept.sum() - expected.sum()) <= 1, wide[r // 2]  # sums of mass round otherwise in float64
        np.testing.assert_allclose(laws.masses[r].sum() * probs[r].max(), 1.0, rtol=1e-5)
        np.testing.assert_allclose(probs[r].double().numpy()[kept & expected], weights[kept & expected], rtol=1e-3)


def test_rows_without_a_law(emulator):
    rows = torch.zeros(4, 20)
    rows[0] = float("nan")
    rows[1] = -float("inf")
    rows[2, 5] = float("inf")
    parameters = sampling([(1.0, 3, 0.5, 0.1), (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0)])
    drawn = draw_rows(rows, row_laws(rows, torch.arange(5), parameters), torch.full((4,), 0.99, dtype=torch.float64))
    assert drawn.tolist() == [-1, -1, -1, 19]


def test_offsets_beyond_32_bits(emulator):
    """Rows so far apart that a 32-bit product of row and stride wraps; the room between them is never touched."""
    stride, vocabulary = 2**31 + 64, 100
    no_reserve = 0x4000  # MAP_NORESERVE of Linux
    room = mmap.mmap(-1, 2 * (2 * stride + vocabulary), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    far = torch.from_numpy(np.frombuffer(room, dtype=np.int16)).view(torch.bfloat16)
    far[2 * stride : 2 * stride + vocabulary] = torch.arange(vocabulary) / 10.0
    partials = torch.empty((3, 1, 4), dtype=torch.int32)
    # The address goes in as a number, so that the guard does not copy eight gigabytes.
    arguments = [far.data_ptr(), stride, vocabulary, 1, None, 0, None, -1, partials]
    launch("row_partials_bf16", 3, arguments)
    assert partials[:, 0, 3].tolist() == [0, 0, 99]
