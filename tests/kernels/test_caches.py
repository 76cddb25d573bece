"""Requests with a cache each: written and attended by one launch for all, as one by one; all else stays as it is."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.kernels.emulator import between_guards, launched, recorded_launches, replay
from tests.kernels.test_attention import CASES, SHAPES, compare, expected_attention, visibility
from tests.kernels.test_emulator import sanitizer_build

from specrs.errors import InvalidInputError
from specrs.ops.attention import cache_addresses, tree_attention
from specrs.ops.caches import attend_caches, write_caches

#: Of the requests of a case: committed slots, and slots of the cache, of which the last has none to spare.
LENGTHS, SLOTS = [70, 0, 5], [96, 4, 6]


class Case(NamedTuple):
    """Requests whose new rows are still to be written; what lies behind their committed slots is NaN."""

    query: torch.Tensor
    new_keys: torch.Tensor
    new_values: torch.Tensor
    keys: list
    values: list
    lengths: torch.Tensor
    row_ptr: torch.Tensor
    bits: torch.Tensor

    def owners(self, keys, values):
        """What the ops take of caches that lie in `keys` and `values`."""
        slots = torch.tensor([tensor.shape[2] for tensor in keys])
        return cache_addresses([*keys, *values]), slots, self.lengths, self.row_ptr


def case(dtype, dim, heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(2)
    rows = np.cumsum([0] + [len(shape) + 1 for shape in SHAPES])

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    keys, values = ([normal(1, kv_heads, slots, dim) for slots in SLOTS] for _ in range(2))
    for length, *cached in zip(LENGTHS, keys, values, strict=True):
        for tensor in cached:
            tensor[:, :, length:] = float("nan")
    query = normal(rows[-1], heads, dim)
    new = [normal(rows[-1], kv_heads, dim) for _ in range(2)]
    return Case(query, *new, keys, values, torch.tensor(LENGTHS), torch.tensor(rows), visibility(SHAPES, 1)[0])


def written(given):
    """Copies of a case's caches with the new rows in them, one request after the other."""
    keys, values = ([tensor.clone() for tensor in tensors] for tensors in (given.keys, given.values))
    for b, length in enumerate(LENGTHS):
        first, end = given.row_ptr[b : b + 2].tolist()
        for cached, new in ((keys, given.new_keys), (values, given.new_values)):
            cached[b][0, :, length : length + end - first] = new[first:end].transpose(0, 1)
    return keys, values


def same(one, other):
    return all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(one, other, strict=True))


def strided(rows):
    """The same rows as a model has them: heads first, beside others."""
    wide = torch.cat([rows, rows + 1], dim=1).transpose(0, 1).contiguous()
    return wide[: rows.shape[1]].transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [torch.Tensor.contiguous, strided])
def test_rows_are_written_where_they_belong(emulator, dtype, how):
    """Behind each request's length, in its own cache; all else stays, and what lies around the tensors."""
    given, kernels = case(dtype, 72), set()
    expected = written(given)
    with between_guards([*given.keys, *given.values]) as tensors, launched(kernels):
        keys, values = tensors[:3], tensors[3:]
        write_caches(keys, values, *given.owners(keys, values), how(given.new_keys), how(given.new_values))
    assert kernels == {"write_caches"}
    assert same(keys, expected[0])
    assert same(values, expected[1])


def test_a_request_that_has_no_room_is_left_out(emulator):
    """A slot too far, lengths and row pointers out of all range, rows of nobody: the others as without."""
    given = case(torch.bfloat16, 32)  # a row as wide as the guards
    expected = written(given)
    for lengths, pointers, left_out in (
        ([90, 0, 5], [0, 7, 11, 12], [0]),
        ([70, 1, 5], [0, 7, 11, 12], [1]),
        ([70, 0, 6], [0, 7, 11, 12], [2]),
        ([-1, 0, 5], [0, 7, 11, 12], [0]),
        ([2**63 - 1, -(2**63), 2**62], [0, 7, 11, 12], [0, 1, 2]),
        ([70, 0, 5], [0, 7, 11, 13], [2]),
        ([70, 0, 5], [0, 7, 11, 11], [2]),
        ([70, 0, 5], [0, -(10**12), 11, 12], [0, 1]),
        ([70, 0, 5], [0, 7, 7, 2**62], [1, 2]),
    ):
        with between_guards([*given.keys, *given.values]) as tensors:
            keys, values = tensors[:3], tensors[3:]
            changed = given._replace(lengths=torch.tensor(lengths), row_ptr=torch.tensor(pointers))
            write_caches(keys, values, *changed.owners(keys, values), given.new_keys, given.new_values)
        for b in range(3):
            wanted = given if b in left_out else Case(*given[:3], *expected, *given[5:])
            assert same([keys[b], values[b]], [wanted.keys[b], wanted.values[b]]), (lengths, pointers, b)


def in_one(tensors):
    """The requests' caches as one tensor."""
    common = torch.zeros(3, 2, max(SLOTS), tensors[0].shape[3], dtype=tensors[0].dtype)
    for b, tensor in enumerate(tensors):
        common[b, :, : tensor.shape[2]] = tensor[0]
    return common


def compare_with_numpy(got, given, keys, values):
    arrays = [tensor.double().numpy() for tensor in (given.query, in_one(keys), in_one(values))]
    masks = visibility(SHAPES)[1]
    compare(got, expected_attention(*arrays, LENGTHS, masks, lambda b, s: (b, s)), given.query.dtype)


@pytest.mark.parametrize(("dtype", "dim", "plain"), CASES)
@pytest.mark.parametrize("splits", [1, 3])
def test_attention_over_each_requests_own_cache(emulator, dtype, dim, plain, splits):
    """Against NumPy; and the bits of the op on one tensor for all, where the slots are cut alike."""
    given = case(dtype, dim)
    keys, values = written(given)
    options = {"splits": splits, "plain": plain}
    got = attend_caches(given.query, keys, values, *given.owners(keys, values), given.bits, **options)
    compare_with_numpy(got, given, keys, values)
    common = [in_one(tensors) for tensors in (keys, values)]
    by_one = tree_attention(given.query, *common, given.lengths, given.row_ptr, given.bits, **options)
    assert all(torch.equal(a, b) for a, b in zip(got, by_one, strict=True))


@pytest.mark.parametrize("plain", [False, True])
def test_a_request_has_the_bits_that_it_has_alone(emulator, plain):
    """However long its neighbours are and into however many parts they are cut, and with others left out."""
    given, least = case(torch.bfloat16, 64), 16
    keys, values = written(given)

    def attend(bs, lengths=given.lengths):
        rows = torch.cat([torch.arange(*given.row_ptr[b : b + 2].tolist()) for b in bs])
        counts = [0, *(int(given.row_ptr[b + 1] - given.row_ptr[b]) for b in bs)]
        own = [[tensors[b] for b in bs] for tensors in (keys, values)]
        part = given._replace(lengths=lengths[bs], row_ptr=torch.tensor(np.cumsum(counts)))
        splits = max(1, max(int(part.lengths[at]) + counts[at + 1] for at in range(len(bs))) // least)
        cut = {"splits": splits, "least_part": least, "most_rows": max(counts), "plain": plain}
        out, lse = attend_caches(given.query[rows], *own, *part.owners(*own), given.bits[rows], **cut)
        return splits, dict(zip(rows.tolist(), zip(out, lse, strict=True), strict=True))

    splits, together = attend([0, 1, 2])
    assert splits == 4
    assert [attend([b])[0] for b in range(3)] == [4, 1, 1]
    without_first, left = attend([0, 1, 2], torch.tensor([-1, *LENGTHS[1:]]))
    assert without_first == 1
    for b in range(3):
        for row, made in attend([b])[1].items():
            assert all(torch.equal(x, y) for x, y in zip(made, together[row], strict=True)), row
            expected = made if b else (torch.zeros_like(made[0]), torch.full_like(made[1], -float("inf")))
            assert all(torch.equal(x, y) for x, y in zip(expected, left[row], strict=True)), row


def test_what_a_request_may_not_read_is_not_read(emulator):
    """Lengths that pass a cache: 0 and -inf, and the others as without."""
    given = case(torch.bfloat16, 64)
    keys, values = written(given)
    for plain in (False, True):

        def attend(given=given, plain=plain):
            return attend_caches(given.query, keys, values, *given.owners(keys, values), given.bits, plain=plain)

        good, _ = attend()
        for lengths, left_out in (
            ([90, 0, 5], [0]),
            ([70, 1, 5], [1]),
            ([70, 0, 6], [2]),
            ([2**63 - 1, -1, 5], [0, 1]),
        ):
            out, lse = attend(given._replace(lengths=torch.tensor(lengths)))
            for b in range(3):
                rows = slice(*given.row_ptr[b : b + 2].tolist())
                assert torch.equal(out[rows], torch.zeros_like(out[rows]) if b in left_out else good[rows])
                assert bool((lse[rows] == -float("inf")).all()) == (b in left_out)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_sanitizers_are_silent(stand_in, sanitizer, tmp_path):
    """Caches exactly as large as they are, one of them full, one passed by its length."""
    stand_in.open()
    stand_in.configure()
    given, launches = case(torch.bfloat16, 64), []
    for lengths in (LENGTHS, [90, 0, 6]):
        keys, values = ([tensor.nan_to_num() for tensor in tensors] for tensors in (given.keys, given.values))
        owners = given._replace(lengths=torch.tensor(lengths)).owners(keys, values)
        with recorded_launches(launches, [*keys, *values]):
            write_caches(keys, values, *owners, given.new_keys, given.new_values)
            for plain in (False, True):
                attend_caches(given.query, keys, values, *owners, given.bits, plain=plain, splits=2)
    assert [name for name, *_ in launches].count("write_caches") == 2
    assert replay(sanitizer_build(sanitizer), launches, tmp_path) == ""


def test_what_does_not_belong_together_is_refused(stand_in):
    """By name, with what was given, before anything is launched."""
    stand_in.open()
    given = case(torch.bfloat16, 64)
    keys, values = written(given)
    owners = given.owners(keys, values)
    addresses, slots, lengths, row_ptr = owners
    whole = torch.zeros(2 * 96 * 64 + 1, dtype=torch.bfloat16)
    shifted = whole[1:].view(1, 2, 96, 64)
    launches = stand_in.library.emu_launches()
    for change, message in (
        ({"keys": [keys[0].float(), *keys[1:]]}, r"keys\[0\] must be contiguous torch.bfloat16"),
        ({"keys": [*keys[:2], keys[2][:, :1]]}, r"keys\[2\] must be .* of shape \(1, 2, slots, 64\)"),
        ({"keys": keys[:2]}, "values for each request's keys, got 3 for 2"),
        ({"keys": keys[:2], "values": values[:2]}, "addresses must be"),
        ({"values": [values[0], values[0], values[2]]}, r"values\[1\] must be .* as its keys"),
        ({"values": [values[0][..., :32], *values[1:]]}, r"values\[0\] must be"),
        ({"keys": [shifted, *keys[1:]]}, r"keys\[0\] .* from a multiple of 16 bytes on"),
        ({"values": [values[0].transpose(1, 2).contiguous().transpose(1, 2), *values[1:]]}, "contiguous"),
        ({"keys": [keys[0].to("meta"), *keys[1:]]}, "on meta"),
        ({"addresses": addresses[:3]}, "addresses must be"),
        ({"slots": slots.int()}, "slots must be"),
        ({"lengths": lengths[:2]}, "must be"),
        ({"row_ptr": row_ptr[:3]}, "row_ptr must be"),
    ):
        both = {"keys": keys, "values": values} | dict(
            zip(("addresses", "slots", "lengths", "row_ptr"), owners, strict=True)
        )
        both |= change
        with pytest.raises(InvalidInputError, match=message):
            write_caches(*both.values(), given.new_keys, given.new_values)
        with pytest.raises(InvalidInputError, match=message):
            attend_caches(given.query, *both.values(), given.bits)
    for new_keys, message in (
        (given.new_keys[:-1], "new_values must be"),
        (given.new_keys[None], r"new_keys must be \(R, Hkv, D\)"),
        (given.new_keys.float(), "new_values must be"),
        (torch.stack([given.new_keys] * 2, dim=-1)[..., 0], "new_keys must have heads of a multiple of 16 bytes"),
        (shifted.view(-1)[: given.new_keys.numel()].view_as(given.new_keys), "at multiples of 16 bytes"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            write_caches(keys, values, *owners, new_keys, given.new_values)
    narrow = [[tensor[..., :4].contiguous() for tensor in tensors] for tensors in (keys, values)]
    with pytest.raises(InvalidInputError, match="new_keys must have heads of a multiple of 16 bytes"):
        write_caches(*narrow, *owners, *(new[..., :4].contiguous() for new in (given.new_keys, given.new_values)))
    for options, message in (
        ({"splits": 0}, "splits positive"),
        ({"least_part": 0}, "least_part must be positive"),
        ({"most_rows": 0}, "most_rows must be positive"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            attend_caches(given.query, keys, values, *owners, given.bits, **options)
    with pytest.raises(InvalidInputError, match="query heads must be a multiple"):
        attend_caches(given.query[:, :3].contiguous(), keys, values, *owners, given.bits)
    nobody = [torch.zeros(0, dtype=torch.int64)] * 3
    with pytest.raises(InvalidInputError, match="rows must have a request that owns them, got 12 rows of none"):
        attend_caches(given.query, [], [], *nobody, torch.tensor([0]), given.bits)
    assert stand_in.library.emu_launches() == launches
