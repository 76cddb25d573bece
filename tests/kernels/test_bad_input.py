"""Bad input of every op: refused by name before a launch, or answered by a status; never an unwritten output."""

import pytest
import torch
from tests.kernels.test_attention import case, visibility
from tests.kernels.test_rows import sampling
from tests.kernels.test_torch_ops import NAMES, arguments
from tests.kernels.test_verify import chain_case

from specrs import _core
from specrs.errors import GpuError, InvalidInputError
from specrs.ops import torch_ops
from specrs.ops.attention import tree_attention
from specrs.ops.draft import DraftLaw
from specrs.ops.relaxed import RelaxedRule, verify_relaxed
from specrs.ops.verify import verify_block, verify_chain, verify_siblings, verify_walk

#: Arguments whose first axis is free: another number of rows, keys or slots is another question.
FREE = {
    ("row_statistics", 0),
    ("top_k_rows", 0),
    ("lookup_cache", 0),
    ("lookup_cache", 1),
    ("select_lengths", 0),
    ("select_lengths", 1),
    ("select_lengths", 2),
    ("round_coins", 4),
}


def tensors_of(name):
    given, _ = arguments()[name]
    return [(name, at) for at, value in enumerate(given) if isinstance(value, torch.Tensor)]


PLACES = [place for name in NAMES for place in tensors_of(name)]


def changed(name, at, change):
    given = list(arguments()[name][0])
    given[at] = change(given[at])
    return given


def other_dtype(tensor):
    return tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.float32)


def strided(tensor):
    wide = torch.stack([tensor, tensor], dim=-1)
    return wide[..., 0]


@pytest.mark.parametrize(("name", "at"), PLACES)
def test_types_strides_and_devices(stand_in, name, at):
    """Another type, gaps between the elements, another device: an error that says so, from the kernel's side."""
    stand_in.open()
    kernel, host, _ = torch_ops.OPS[name]
    for run in (kernel, host):
        with pytest.raises(InvalidInputError, match=r"must be|got"):
            run(*changed(name, at, other_dtype))
    if arguments()[name][0][at].numel() > 1:
        with pytest.raises(InvalidInputError, match="contiguous"):
            kernel(*changed(name, at, strided))
    if len(tensors_of(name)) > 1:
        with pytest.raises(InvalidInputError, match=r"on one device|must not be null"):
            kernel(*changed(name, at, lambda tensor: tensor.to("meta")))


@pytest.mark.parametrize(("name", "at"), [place for place in PLACES if place not in FREE])
def test_shapes(stand_in, name, at):
    stand_in.open()
    kernel, host, _ = torch_ops.OPS[name]
    for run in (kernel, host):
        with pytest.raises(InvalidInputError, match=r"must|got"):
            run(*changed(name, at, lambda tensor: tensor[:-1].contiguous()))


def test_zero_rows(stand_in):
    """No request at all: empty results, no launch."""
    stand_in.open()
    before = stand_in.library.emu_launches()
    nothing = torch.zeros(0)
    counts, offsets = nothing.int(), nothing.long()
    rows = torch.zeros((0, 50))
    row_ptr, coins = torch.zeros(1, dtype=torch.int64), nothing.double()
    tree = [row_ptr, offsets, counts, 1, nothing, counts, nothing, nothing]
    law = [torch.zeros((0, 50)), None, None, coins, coins]
    given = {
        "verify_walk": [rows, *tree, coins],
        "verify_chain": [rows, *tree, *law],
        "verify_block": [rows, *tree, *law],
        "verify_siblings": [rows, *tree, *law],
        "verify_relaxed": [rows, *tree, *law, "lenience", [0.5]],
        "verify_round": [rows, torch.zeros(8, dtype=torch.uint8), None, 0, 1],
        "row_statistics": [rows],
        "top_k_rows": [rows, 3],
        "fork_tokens": [rows, offsets, counts, offsets, 0],
        "lookup_cache": [torch.zeros((2, 3), dtype=torch.int64), torch.zeros((0, 3), dtype=torch.int64)],
        "select_lengths": [nothing, row_ptr, torch.ones(3)],
        "accept_unmasked": [torch.zeros((0, 2, 4), dtype=torch.int64)] * 2 + [counts, 9],
        "round_coins": [offsets, offsets, offsets, row_ptr, counts],
        "tree_attention": [
            torch.zeros((0, 2, 64)),
            *[torch.zeros((1, 2, 8, 64))] * 2,
            offsets,
            row_ptr,
            torch.zeros((0, 1), dtype=torch.int64),
        ],
        "commit_cache": [
            [torch.ones((1, 2, 8, 64))] * 2,
            torch.zeros(2, dtype=torch.int64),
            offsets,
            torch.zeros((0, 2), dtype=torch.int32),
            counts,
            offsets,
        ],
    }
    assert set(given) == set(NAMES)
    for name, values in given.items():
        for run in torch_ops.OPS[name][:2]:
            made = run(*values)
            for tensor in made if isinstance(made, tuple) else [] if made is None else [made]:
                assert tensor.numel() == 0, name
    assert stand_in.library.emu_launches() == before


@pytest.mark.parametrize("kind", ["walk", "chain", "block", "siblings", "relaxed"])
def test_unusable_rows_and_ids_have_a_status(emulator, kind):
    """NaN in a target row, NaN in a draft row, an id of no vocabulary: a status each, and neighbours as without."""
    rows, tree, draft, accept, emit = chain_case(5, torch.float32, 64, counts=(3, 3, 3, 3))
    laws = sampling([(1.0, 0, 1.0, 0.0)] * 4)
    accept.fill_(0.999)

    def run():
        law = DraftLaw(torch.tensor(draft))
        if kind == "walk":
            return verify_walk(rows, tree, laws, emit)
        if kind == "relaxed":
            rule = RelaxedRule("ensemble", (), torch.full((12,), 0.5))
            return verify_relaxed(rows, tree, laws, law, accept, emit, rule)
        rule = {"chain": verify_chain, "block": verify_block, "siblings": verify_siblings}[kind]
        return rule(rows, tree, laws, law, accept, emit)

    healthy = run()
    rows[4] = float("nan")  # request 1
    draft[6] = float("nan")  # request 2
    tree.tokens[9] = 10**9  # request 3
    made = run()
    expected = [0, 2, 0, 0] if kind == "walk" else [0, 2, 3, 4]
    assert made.status.tolist() == [int(healthy.status[0]), *expected[1:]]
    assert made.bonus[1] == -1
    assert made.accepted[1] == 0
    assert bool(((made.bonus[[0, 2, 3]] >= 0) & (made.bonus[[0, 2, 3]] < 64)).all())
    for a, b in zip(made, healthy, strict=True):
        assert torch.equal(a[0], b[0])


def test_lengths_beyond_the_cache_read_nothing(emulator):
    query, keys, values, prefix, row_ptr = case(torch.bfloat16, 64, 4, 2, [5, 2], [[-1, 0], [-1]], 12)
    bits, _ = visibility([[-1, 0], [-1]], 1)
    good, _ = tree_attention(query, keys, values, prefix, row_ptr, bits)
    for beyond in (keys.shape[2] - 2, 10**12, -1):
        for plain in (False, True):
            prefix = torch.tensor([beyond, 2])
            out, lse = tree_attention(query, keys, values, prefix, row_ptr, bits, plain=plain)
            assert torch.equal(out[:3], torch.zeros_like(out[:3]))
            assert bool((lse[:3] == -float("inf")).all())
            torch.testing.assert_close(out[3:], good[3:], rtol=0.02, atol=0.02)
            on_host = torch.ops.specrs.tree_attention(
                query, keys.nan_to_num(), values.nan_to_num(), prefix, row_ptr, bits
            )
            assert torch.equal(on_host[0][:3], out[:3])


def test_devices_and_drivers(stand_in):
    """No code for the device, no memory: the driver's error by name, at the launch and at loading."""
    stand_in.open()
    walk, _ = arguments()["verify_walk"]
    for code, words in ((2, "CUDA_ERROR_OUT_OF_MEMORY"), (209, "no code for this device")):
        stand_in.refuse_next(code)
        with pytest.raises(GpuError, match=words):
            torch_ops.OPS["verify_walk"][0](*walk)
    stand_in.open()
    stand_in.refuse_next(2)
    with pytest.raises(GpuError, match=r"cuDevicePrimaryCtxRetain failed with CUDA_ERROR_OUT_OF_MEMORY"):
        _core.gpu_prepare(0)
    _core.gpu_prepare(0)
    made = torch_ops.OPS["verify_walk"][0](*walk)
    assert torch.equal(made.path, torch.ops.specrs.verify_walk(*walk)[0])
