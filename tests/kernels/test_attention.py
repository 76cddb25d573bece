"""Tree attention and cache commit against NumPy: grouped heads, pages, splits, branches, ragged requests."""

import numpy as np
import pytest
import torch
from benches import kernels
from tests.kernels.emulator import between_guards

from specrs.errors import InvalidInputError
from specrs.ops import torch_ops  # noqa: F401  registers the ops
from specrs.ops.attention import cache_addresses, commit_cache, tree_attention
from specrs.ops.verify import Verdict

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def visibility(shapes, words=2):
    """Bit sets of the ancestors of each row, and the same as matrices."""
    bits, masks = [], []
    for parents in shapes:
        mask = np.eye(len(parents) + 1, dtype=bool)
        for node, parent in enumerate(parents):
            mask[node + 1] |= mask[parent + 1]
        masks.append(mask)
        for row in mask:
            value = sum(1 << int(j) for j in np.flatnonzero(row))
            bits.append([np.uint64(value >> 64 * w & (2**64 - 1)).astype(np.int64) for w in range(words)])
    return torch.tensor(np.array(bits).reshape(-1, words)), masks


def expected_attention(query, keys, values, lengths, masks, slot):
    """Softmax attention in float64; `slot(b, s)` gives (page, place)."""
    heads, dim = query.shape[1:]
    group, row, out, lse = heads // keys.shape[1], 0, [], []
    for b, mask in enumerate(masks):
        places = [slot(b, s) for s in range(lengths[b] + len(mask))]
        k = np.stack([keys[page, :, place] for page, place in places], 1)
        v = np.stack([values[page, :, place] for page, place in places], 1)
        for i in range(len(mask)):
            seen = np.concatenate([np.ones(lengths[b], dtype=bool), mask[i]])
            for h in range(heads):
                scores = k[h // group][seen] @ query[row, h] / np.sqrt(dim)
                weights = np.exp(scores - scores.max())
                out.append(weights @ v[h // group][seen] / weights.sum())
                lse.append((scores.max() + np.log(weights.sum())) * np.log2(np.e))
            row += 1
    return np.array(out).reshape(query.shape), np.array(lse).reshape(query.shape[:2])


def case(dtype, dim, heads, kv_heads, lengths, shapes, slots, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = sum(len(shape) + 1 for shape in shapes)
    query = torch.randn(rows, heads, dim, generator=generator).to(dtype)
    keys, values = (torch.randn(len(shapes), kv_heads, slots, dim, generator=generator).to(dtype) for _ in range(2))
    for b, shape in enumerate(shapes):  # what lies behind a request's rows is not to be read
        keys[b, :, lengths[b] + len(shape) + 1 :] = float("nan")
        values[b, :, lengths[b] + len(shape) + 1 :] = float("nan")
    row_ptr = torch.tensor(np.cumsum([0] + [len(shape) + 1 for shape in shapes]))
    return query, keys, values, torch.tensor(lengths), row_ptr


def compare(got, expected, dtype):
    out, lse = got
    assert np.abs(out.double().numpy() - expected[0]).max() < TOLERANCE[dtype]
    assert np.abs(lse.double().numpy() - expected[1]).max() < 1e-3


SHAPES = [[-1, -1, 0, 0, 1, 3], [-1, 0, 1], []]
CASES = [
    (torch.bfloat16, 64, False),
    (torch.bfloat16, 128, False),
    (torch.bfloat16, 256, False),
    (torch.float16, 128, False),
    (torch.float16, 256, False),
    (torch.float16, 64, False),
    (torch.float32, 64, False),
    (torch.bfloat16, 96, False),
    (torch.float16, 64, True),
]


@pytest.mark.parametrize(("dtype", "dim", "plain"), CASES)
@pytest.mark.parametrize("splits", [1, 3])
def test_attention(emulator, dtype, dim, plain, splits):
    lengths = [70, 0, 5]
    query, keys, values, prefix, row_ptr = case(dtype, dim, 4, 2, lengths, SHAPES, 80)
    bits, masks = visibility(SHAPES)
    got = tree_attention(query, keys, values, prefix, row_ptr, bits, splits=splits, plain=plain)
    arrays = [tensor.double().numpy() for tensor in (query, keys, values)]
    compare(got, expected_attention(*arrays, lengths, masks, lambda b, s: (b, s)), dtype)


@pytest.mark.parametrize(("dtype", "plain"), [(torch.bfloat16, False), (torch.float16, True), (torch.float32, True)])
@pytest.mark.parametrize("splits", [1, 3])
def test_what_is_no_number_comes_through(emulator, dtype, plain, splits):
    """NaN where a row's query is, or a key that the row sees; the others have the bits of a sound cache."""
    lengths, shapes = [70, 3], [[-1, -1, 0], [-1]]
    query, keys, values, prefix, row_ptr = case(dtype, 64, 4, 2, lengths, shapes, 80)
    keys, values = keys.nan_to_num(), values.nan_to_num()
    bits, _ = visibility(shapes, 1)

    def attend():
        return tree_attention(query, keys, values, prefix, row_ptr, bits, splits=splits, plain=plain)

    good = attend()
    query[2, 1] = float("nan")
    keys[0, 1, 71, 5] = float("nan")  # of node 0, which rows 1 and 3 see, in the second group of heads
    expected = torch.zeros(6, 4, dtype=torch.bool)
    expected[2, 1] = expected[1, 2:] = expected[3, 2:] = True
    on_host = torch.ops.specrs.tree_attention(query, keys, values, prefix, row_ptr, bits)
    for made in (attend(), on_host):
        assert torch.equal(made[0].isnan().any(2), expected)
        assert torch.equal(made[0].isnan().all(2), expected)
        assert torch.equal(made[1].isnan(), expected)
    for made, sound in zip(attend(), good, strict=True):
        assert torch.equal(made[~expected], sound[~expected])
    keys[1, :, 0] = float("nan")  # of a prefix, which all rows of a request see
    for made in (attend(), torch.ops.specrs.tree_attention(query, keys, values, prefix, row_ptr, bits)):
        assert bool(made[0][4:].isnan().all() and made[1][4:].isnan().all())


def test_attention_over_pages(emulator):
    lengths, shapes, page = [37, 20], [[-1] * 4, [-1, 0]], 16
    rng = np.random.default_rng(3)
    table = rng.permutation(8).reshape(2, 4)
    keys, values = (torch.tensor(rng.standard_normal((8, 2, page, 64)), dtype=torch.bfloat16) for _ in range(2))
    query = torch.tensor(rng.standard_normal((8, 2, 64)), dtype=torch.bfloat16)
    bits, masks = visibility(shapes, 1)
    row_ptr, block_table = torch.tensor([0, 5, 8]), torch.tensor(table, dtype=torch.int32)
    got = tree_attention(query, keys, values, torch.tensor(lengths), row_ptr, bits, block_table=block_table)
    arrays = [tensor.double().numpy() for tensor in (query, keys, values)]
    expected = expected_attention(*arrays, lengths, masks, lambda b, s: (table[b, s // page], s % page))
    compare(got, expected, torch.bfloat16)


def test_attention_of_many_rows_and_branches(emulator):
    """More pairs than a block takes, ancestors beyond bit 63, and branches that share one prefix (a forest of bits)."""
    chain = list(range(-1, 69))
    shapes, lengths = [[*chain, -1, 70, 71]], [9]
    query, keys, values, prefix, row_ptr = case(torch.bfloat16, 64, 2, 1, lengths, shapes, 96)
    bits, masks = visibility(shapes)
    got = tree_attention(query, keys, values, prefix, row_ptr, bits)
    arrays = [tensor.double().numpy() for tensor in (query, keys, values)]
    compare(got, expected_attention(*arrays, lengths, masks, lambda b, s: (b, s)), torch.bfloat16)


def test_the_bench_notices_a_key_that_is_left_out():
    generator = torch.Generator().manual_seed(4)
    query, keys, values = (torch.randn(1, 8, n, 64, generator=generator) for n in (4, 4096, 4096))
    attend = torch.nn.functional.scaled_dot_product_attention
    exact = attend(query, keys, values)
    kernels.refuse_wrong_attention("sound", exact.bfloat16(), exact)
    with pytest.raises(SystemExit, match="a row differs from torch"):
        kernels.refuse_wrong_attention("short", attend(query, keys[:, :, 1:], values[:, :, 1:]), exact)


def test_attention_refuses_what_does_not_fit(stand_in):
    stand_in.open()
    query, keys, values, prefix, row_ptr = case(torch.bfloat16, 64, 4, 2, [3], [[-1]], 8)
    bits, _ = visibility([[-1]])
    for change in (
        {"keys": keys.float()},
        {"values": values[:, :, :4]},
        {"query": query[:, :3]},
        {"lengths": prefix.int()},
        {"visibility": bits[:1]},
        {"row_ptr": row_ptr[:1]},
        {"splits": 0},
    ):
        arguments = {"query": query, "keys": keys, "values": values, "lengths": prefix, "row_ptr": row_ptr}
        with pytest.raises(InvalidInputError):
            tree_attention(**{**arguments, "visibility": bits, **change})


def verdict_of(paths, longest):
    path = torch.tensor([row + [-1] * (longest - len(row)) for row in paths], dtype=torch.int32)
    accepted = torch.tensor([len(row) for row in paths], dtype=torch.int32)
    zeros = torch.zeros(len(paths), dtype=torch.int32)
    return Verdict(path, accepted, zeros.long(), zeros)


PATHS = [[0, 2, 5, 6, 9, 11], [], [1], [0, 1, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_commit(emulator, dtype):
    generator = torch.Generator().manual_seed(1)
    before = [torch.randn(4, 3, 32, 72, generator=generator).to(dtype) for _ in range(4)]
    start = [4, 0, 29, 10]
    lengths, verdict = torch.tensor(start), verdict_of(PATHS, 6)
    with between_guards(before) as tensors:
        commit_cache(tensors, cache_addresses(tensors), lengths, verdict)
    assert lengths.tolist() == [11, 1, 31, 14]
    for old, new in zip(before, tensors, strict=True):
        expected = old.clone()
        for b, path in enumerate(PATHS):
            for j, node in enumerate(path):
                if start[b] + 1 + node < 32:
                    expected[b, :, start[b] + 1 + j] = old[b, :, start[b] + 1 + node]
        assert torch.equal(new, expected)


def test_commit_over_pages(emulator):
    rng = np.random.default_rng(0)
    table = torch.tensor(rng.permutation(12).reshape(4, 3), dtype=torch.int32)
    before = [torch.tensor(rng.standard_normal((12, 2, 8, 16)), dtype=torch.float32) for _ in range(2)]
    start = [4, 0, 15, 10]
    with between_guards(before) as tensors:
        commit_cache(tensors, cache_addresses(tensors), torch.tensor(start), verdict_of(PATHS, 6), table)
    for old, new in zip(before, tensors, strict=True):
        expected = old.clone()
        for b, path in enumerate(PATHS):
            for j, node in enumerate(path):
                (p, s), (q, t) = divmod(start[b] + 1 + node, 8), divmod(start[b] + 1 + j, 8)
                expected[table[b, q], :, t] = old[table[b, p], :, s]
        assert torch.equal(new, expected)


def test_commit_drops_moves_beyond_the_cache(emulator):
    before = torch.randn(1, 1, 8, 16)
    with between_guards([before]) as tensors:
        commit_cache(tensors, cache_addresses(tensors), torch.tensor([6]), verdict_of([[1, 3]], 2))
    assert torch.equal(tensors[0], before)


def test_commit_to_the_last_slot(emulator):
    """A move from where a cache ends; what lies behind stays."""
    before = [torch.randn(1, 1, 8, 4) for _ in range(2)]
    with between_guards(before) as tensors:
        commit_cache(tensors, cache_addresses(tensors), torch.tensor([4]), verdict_of([[0, 2]], 2))
    for old, new in zip(before, tensors, strict=True):
        assert torch.equal(new[:, :, 6], old[:, :, 7])
        assert torch.equal(new[:, :, [0, 1, 2, 3, 4, 5, 7]], old[:, :, [0, 1, 2, 3, 4, 5, 7]])


def test_what_is_no_path_moves_nothing(emulator):
    """A device leaves the request's slots and length as they are, and serves the others; a host refuses it."""
    good = [0, 2, 3]
    for wrong, accepted in (([3, 1, 2], 3), ([1, 1, 2], 3), ([0, 2, 1], 3), ([-1, 0, 1], 3), (good, 4), (good, -1)):
        tensors, lengths = [torch.randn(2, 1, 16, 16) for _ in range(2)], torch.tensor([4, 5])
        before, verdict = [tensor.clone() for tensor in tensors], verdict_of([wrong, good], 3)
        verdict.accepted[0] = accepted
        with pytest.raises(InvalidInputError, match="an accepted path must rise"):
            torch.ops.specrs.commit_cache(tensors, cache_addresses(tensors), lengths, *verdict[:3])
        assert all(map(torch.equal, tensors, before))
        commit_cache(tensors, cache_addresses(tensors), lengths, verdict)
        assert lengths.tolist() == [4, 9]
        for old, new in zip(before, tensors, strict=True):
            assert torch.equal(new[0], old[0])
            assert torch.equal(new[1, :, 6:9], old[1, :, [6, 8, 9]])


def test_commit_refuses_tensors_off_a_16_byte_boundary(stand_in):
    """A slice of a cache: its strides are multiples of 16 bytes, its start is not."""
    stand_in.open()
    whole = torch.zeros(2 * 4 * 8 * 16 + 4)
    for start, found in ((0, None), (2, 1), (3, 1), (4, None)):
        tensors = [torch.zeros(2, 4, 8, 16), whole[start : start + 1024].view(2, 4, 8, 16)]
        given = (tensors, cache_addresses(tensors), torch.tensor([0, 0]), verdict_of([[], []], 1))
        if found is None:
            commit_cache(*given)
            continue
        with pytest.raises(InvalidInputError, match=rf"multiple of 16 bytes, got \d+ for tensor {found}"):
            commit_cache(*given)
