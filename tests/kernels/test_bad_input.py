"""Bad input of every op: refused by name before a launch, or answered by a status; never an unwritten output."""

import pytest
import torch
from tests.kernels.test_attention import case, verdict_of, visibility
from tests.kernels.test_rows import sampling
from tests.kernels.test_torch_ops import FILLING, NAMES, arguments, flat
from tests.kernels.test_verify import chain_case

from specrs import _core
from specrs.errors import GpuError, InvalidInputError
from specrs.ops import torch_ops
from specrs.ops.attention import cache_addresses, commit_cache, tree_attention
from specrs.ops.draft import DraftLaw
from specrs.ops.launch import launch
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
        with pytest.raises(InvalidInputError, match=r"on one device|must be on the host"):
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
        "draw_tokens": [rows, torch.zeros(0, dtype=torch.uint8), True],
        "round_coins": [offsets, offsets, offsets, row_ptr, counts],
        "tree_attention": [
            torch.zeros((0, 2, 64)),
            *[torch.zeros((1, 2, 8, 64))] * 2,
            offsets,
            row_ptr,
            torch.zeros((0, 1), dtype=torch.int64),
        ],
        "attend_caches": [
            torch.zeros((0, 2, 64)),
            [],
            [],
            offsets,
            offsets,
            offsets,
            row_ptr,
            torch.zeros((0, 1), dtype=torch.int64),
        ],
        "write_caches": [[], [], offsets, offsets, offsets, row_ptr, *[torch.zeros((0, 2, 64))] * 2],
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
        if name in FILLING:
            filled = dict(zip(torch_ops.TABLE[name].results, flat(torch_ops.OPS[name][1](*values)), strict=True))
            for fill in torch_ops.OPS[f"{name}_out"][:2]:
                fill(*values, **filled)
    assert stand_in.library.emu_launches() == before


KINDS = ["walk", "chain", "block", "siblings", "relaxed"]


def verified(kind, rows, tree, law, accept, emit):
    """What the kernels of one kind of verification make of four requests."""
    laws = sampling([(1.0, 0, 1.0, 0.0)] * 4)
    if kind == "walk":
        return verify_walk(rows, tree, laws, emit)
    if kind == "relaxed":
        rule = RelaxedRule("ensemble", (), torch.full((12,), 0.5))
        return verify_relaxed(rows, tree, laws, law, accept, emit, rule)
    rule = {"chain": verify_chain, "block": verify_block, "siblings": verify_siblings}[kind]
    return rule(rows, tree, laws, law, accept, emit)


@pytest.mark.parametrize("kind", KINDS)
def test_unusable_rows_and_ids_have_a_status(emulator, kind):
    """NaN in a target row, NaN in a draft row, an id of no vocabulary: a status each, and neighbours as without."""
    rows, tree, draft, accept, emit = chain_case(5, torch.float32, 64, counts=(3, 3, 3, 3))
    accept.fill_(0.999)

    def run():
        return verified(kind, rows, tree, DraftLaw(torch.tensor(draft)), accept, emit)

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


SAME, ANY = "same", "any"
#: Row pointers of four requests with three nodes each, and each request's status, or what else is known of it.
POINTERS = [
    ([0, 4, 8, 99, 16], [SAME, SAME, 5, 5]),
    ([0, 4, 8, 12, 17], [SAME, SAME, SAME, 5]),
    ([0, 4, -7, 12, 16], [ANY, 5, 5, ANY]),
    ([0, 4, 2, 12, 16], [ANY, 5, ANY, ANY]),
    ([2**62, -(2**62), 10**12, 10**12 + 3, -1], [5, 5, 5, 5]),
    ([0, 4, 8, 8, 8], [SAME, SAME, 0, 0]),
    ([0, 0, 0, 0, 0], [0, 0, 0, 0]),
]


@pytest.mark.parametrize("kind", KINDS)
def test_row_pointers_that_lead_out_of_the_arrays(emulator, kind):
    """A status for the request, nothing accepted, no bonus; neighbours in order as without; every output is written."""
    rows, tree, draft, accept, emit = chain_case(6, torch.float32, 64, counts=(3, 3, 3, 3))
    law = DraftLaw(torch.tensor(draft))
    healthy = verified(kind, rows, tree, law, accept, emit)
    for pointers, expected in POINTERS:
        made = verified(kind, rows, tree._replace(row_ptr=torch.tensor(pointers)), law, accept, emit)
        for b, outcome in enumerate(expected):
            if outcome == SAME:
                assert all(torch.equal(a[b], c[b]) for a, c in zip(made, healthy, strict=True)), (pointers, b)
            elif outcome != ANY:
                assert (int(made.status[b]), int(made.bonus[b]), int(made.accepted[b])) == (outcome, -1, 0)
            assert int(made.status[b]) in range(6)
            assert int(made.bonus[b]) in range(-1, 64)
            count = int(made.accepted[b])
            assert bool((made.path[b, count:] == -1).all())
            assert bool((made.path[b, :count] >= 0).all())


@pytest.mark.parametrize("pointers", [pointers for pointers, _ in POINTERS])
def test_a_host_refuses_row_pointers(pointers):
    row_ptr = torch.tensor(pointers)
    for name, at in (("verify_chain", 1), ("round_coins", 3), ("select_lengths", 1)):
        with pytest.raises(InvalidInputError, match="got"):
            getattr(torch.ops.specrs, name)(*changed(name, at, lambda _: row_ptr))
    with pytest.raises(InvalidInputError, match="row_ptr must run from 0 to 3"):
        torch.ops.specrs.row_statistics(torch.zeros(3, 5), row_ptr, torch.ones(4))


def test_row_pointers_of_coins_and_lengths(emulator):
    """Coins and lengths: what lies in the arrays as without, and something written everywhere."""
    confidence = torch.full((12,), 0.9)
    cost = torch.tensor([1.0, 1.1, 1.2, 1.3])
    keys = [torch.tensor([7, 8, 9, 10]), *[torch.zeros(4, dtype=torch.int64)] * 2]
    parents = torch.arange(-1, 2, dtype=torch.int32).repeat(4)
    right = torch.arange(5) * 4
    sound = torch_ops.OPS["round_coins"][0](*keys, right, parents)
    lengths = torch_ops.OPS["select_lengths"][0](confidence, right, cost)
    assert lengths.tolist() == [3] * 4
    for pointers, expected in POINTERS:
        row_ptr = torch.tensor(pointers)
        for by_sibling in (False, True):
            for coins in torch_ops.OPS["round_coins"][0](*keys, row_ptr, parents, by_sibling):
                assert bool(((coins >= 0) & (coins < 1)).all())
        accept, _ = torch_ops.OPS["round_coins"][0](*keys, row_ptr, parents)
        made = torch_ops.OPS["select_lengths"][0](confidence, row_ptr, cost).tolist()
        assert all(0 <= length < 4 for length in made)
        for b, outcome in enumerate(expected):
            assert outcome != SAME or (
                made[b] == 3 and torch.equal(accept[4 * b : 4 * b + 4], sound[0][4 * b : 4 * b + 4])
            )
            assert outcome in (SAME, ANY) or made[b] == 0


def test_paths_longer_than_the_result_has_room_for(stand_in):
    """A host refuses them; a device ends them there."""
    stand_in.open()
    stand_in.configure()
    for name, at in (("verify_round", 4), ("verify_chain", 4)):
        kernel, host, _ = torch_ops.OPS[name]
        for longest in (0, -1):
            given = changed(name, at, lambda _, longest=longest: longest)
            with pytest.raises(InvalidInputError, match=r"longest must not be (below the longest path|negative)"):
                host(*given)
        words = kernel(*changed(name, at, lambda _: 0))
        accepted = words[:, 0] if name == "verify_round" else words.accepted
        assert accepted.tolist() == [0, 0, 0, 0]


def test_draft_rows_out_of_range(emulator):
    """A node whose law is a row that there is not: status 3, as for a row that is no law. A host refuses it."""
    rows, tree, draft, accept, emit = chain_case(5, torch.float32, 64, counts=(3, 3, 3, 3))
    row_of = torch.arange(12)
    row_of[3], row_of[6] = 12, -(10**12)
    law = DraftLaw(torch.tensor(draft), None, row_of)
    accept.fill_(0.0)
    for kind in ("chain", "block", "siblings", "relaxed"):
        made = verified(kind, rows, tree, law, accept, emit)
        assert (made.status.tolist()[1:3], made.accepted.tolist()[1:3]) == ([3, 3], [0, 0])
        assert bool((made.bonus >= 0).all())
    greedy = sampling([(0.0, 0, 1.0, 0.0)] * 4)
    made = verify_relaxed(rows, tree, greedy, law, accept, emit, RelaxedRule("ensemble", (), torch.full((12,), 0.5)))
    assert made.status.tolist()[1:3] == [3, 3]
    with pytest.raises(InvalidInputError, match=r"draft_rows must be in 0\.\.12, got 12"):
        torch.ops.specrs.verify_chain(rows, *tree, *greedy, *law, accept, emit)


def test_fork_places_beyond_the_result(emulator):
    """Places that no row fills are empty, what passes the ends of the result is dropped, on both sides."""
    rows = torch.arange(12.0).view(3, 4)
    exclude, counts = torch.full((3,), -1), torch.tensor([2, 4, -5], dtype=torch.int32)
    offsets = torch.tensor([4, -2, 2**40])
    for run in torch_ops.OPS["fork_tokens"][:2]:
        ids, probs = run(rows, exclude, counts, offsets, 5)
        assert ids.tolist() == [1, 0, -1, -1, 3]
        assert torch.isnan(probs).tolist() == [False, False, True, True, False]
        assert run(rows, exclude, counts * 0, offsets, 0)[0].tolist() == []
        most, _ = run(
            torch.arange(300.0)[None], exclude[:1], torch.tensor([300], dtype=torch.int32), exclude[:1] + 1, 300
        )
        assert most.tolist() == [*range(299, 43, -1), *[-1] * 44]


def test_statistics_refuse_what_does_not_fit(stand_in):
    stand_in.open()
    rows, row_ptr, ones = torch.zeros(3, 5), torch.tensor([0, 1, 3]), torch.ones(2)
    for given in (
        (rows, row_ptr),
        (rows, None, ones),
        (rows, row_ptr.int(), ones),
        (rows, row_ptr, ones.double()),
        (rows, row_ptr, torch.ones(3)),
        (rows, row_ptr[:1], ones[:0]),
        (rows, None, None, 5),
        (rows, None, None, -2),
    ):
        for run in torch_ops.OPS["row_statistics"][:2]:
            with pytest.raises(InvalidInputError, match=r"must|got"):
                run(*given)
    for run in torch_ops.OPS["top_k_rows"][:2]:
        with pytest.raises(InvalidInputError, match="exclude must be an id below 5"):
            run(rows, 2, 5)


@pytest.mark.parametrize("plain", [False, True])
def test_attention_of_rows_that_nobody_owns(emulator, plain):
    """Padding, row pointers out of the rows, and rows beyond most_rows: 0 and -inf, and the others as without."""
    shapes = [[-1, 0], [-1], [-1]]
    query, keys, values, prefix, row_ptr = case(torch.bfloat16, 64, 4, 2, [5, 2, 3], shapes, 12)
    bits, _ = visibility(shapes, 1)
    keys, values = keys.nan_to_num(), values.nan_to_num()
    good, _ = tree_attention(query, keys, values, prefix, row_ptr, bits, plain=plain)
    for pointers, owned, nobodys in (
        ([0, 3, 5, 5], [0, 1, 2, 3, 4], [5, 6]),
        ([0, 3, 5, 8], [0, 1, 2, 3, 4], [5, 6]),
        ([0, 3, 2, 7], [0, 1], []),  # requests 0 and 2 share row 2
        ([0, -(10**12), 5, 7], [5, 6], [0, 1, 2, 3, 4]),
    ):
        out, lse = tree_attention(query, keys, values, prefix, torch.tensor(pointers), bits, plain=plain)
        assert torch.equal(out[owned], good[owned])
        assert torch.equal(out[nobodys], torch.zeros_like(out[nobodys]))
        assert bool((lse[nobodys] == -float("inf")).all())
        assert not bool(lse.isnan().any() | out.isnan().any())
    # What lies where nothing attended from is not read, whatever it is.
    partial, merged = torch.ones(2, 7, 4, 64), torch.ones(7, 4)
    owners = [torch.tensor([0, 3, 5, 5]), 3, 2]
    launch("merge_attention_bf16", 28, [partial, torch.zeros(2, 7, 4), 2, 7, 4, 64, *owners, out, merged])
    assert out[:, 0, 0].tolist() == [1, 1, 0, 1, 1, 0, 0]
    assert merged[:, 0].tolist() == [1, 1, -float("inf"), 1, 1, -float("inf"), -float("inf")]
    out, lse = tree_attention(query, keys, values, prefix, row_ptr, bits, plain=plain, most_rows=2)
    assert torch.equal(out[[0, 1, 3, 4, 5, 6]], good[[0, 1, 3, 4, 5, 6]])
    assert bool((lse[2] == -float("inf")).all())
    # Bits for fewer rows than a request has: the others are not seen.
    wide = [list(range(-1, 66))]
    query, keys, values, prefix, row_ptr = case(torch.bfloat16, 64, 2, 1, [3], wide, 80)
    bits, _ = visibility(wide)
    short, full = (
        tree_attention(query, keys, values, prefix, row_ptr, b, plain=plain)[0]
        for b in (bits[:, :1].contiguous(), bits)
    )
    assert torch.equal(short[:64], full[:64])


@pytest.mark.parametrize("plain", [False, True])
def test_pages_that_the_cache_does_not_have(emulator, plain):
    """Their slots are not seen and not moved on a device; a host refuses them."""
    keys, values = (torch.randn(3, 1, 8, 64).to(torch.bfloat16) for _ in range(2))
    query, bits = torch.randn(2, 1, 64).to(torch.bfloat16), torch.tensor([[1], [3]])
    row_ptr, prefix = torch.tensor([0, 2]), torch.tensor([14])
    table = torch.tensor([[2, 1]], dtype=torch.int32)
    good = tree_attention(query, keys, values, prefix, row_ptr, bits, block_table=table, plain=plain)
    for page in (3, -1, 2**31 - 1):
        broken = torch.tensor([[page, 1]], dtype=torch.int32)
        made = tree_attention(query, keys, values, prefix, row_ptr, bits, block_table=broken, plain=plain)
        # What is left is the second page: the same as a prefix that begins there.
        short = tree_attention(query, keys[1:2], values[1:2], prefix - 8, row_ptr, bits, plain=plain)
        for a, b in zip(made, short, strict=True):
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)
        assert not torch.equal(made[0], good[0])
        with pytest.raises(InvalidInputError, match="block_table must name pages below 3"):
            torch.ops.specrs.tree_attention(query, keys, values, prefix, row_ptr, bits, None, broken)
        tensors, lengths = [keys.clone()], torch.tensor([5])
        verdict = verdict_of([[1, 2, 3]], 3)  # slots 7, 8 and 9 to 6, 7 and 8
        commit_cache(tensors, cache_addresses(tensors), lengths, verdict, broken)
        assert torch.equal(tensors[0], keys)
        with pytest.raises(InvalidInputError, match="block_table must name pages below 3"):
            torch.ops.specrs.commit_cache(tensors, cache_addresses(tensors), torch.tensor([5]), *verdict[:3], broken)
    for wrong in (table.long(), table[0], torch.cat([table, table])):
        with pytest.raises(InvalidInputError, match="block_table must be"):
            tree_attention(query, keys, values, prefix, row_ptr, bits, block_table=wrong, plain=plain)
    with pytest.raises(InvalidInputError, match="need a page each"):
        tree_attention(query, keys[:0], values[:0], prefix, row_ptr, bits, plain=plain)


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
