"""The emulator reports what it claims to report, and sanitizer builds of it pass over the real kernels."""

import pytest
import torch
from tests.kernels.emulator import CUDA, SHARED, Emulator, build, recorded_launches, replay
from tests.kernels.resources import stem
from tests.kernels.test_attention import case, verdict_of, visibility
from tests.kernels.test_rows import sampling
from tests.kernels.test_verify import chain_case

from specrs import _core
from specrs.ops.attention import cache_addresses, commit_cache, tree_attention
from specrs.ops.caches import write_caches
from specrs.ops.draft import DraftLaw
from specrs.ops.outcome import accept_unmasked, lookup_cache, select_lengths, top_k_rows
from specrs.ops.relaxed import RelaxedRule, verify_relaxed
from specrs.ops.rows import row_laws, row_probs
from specrs.ops.verify import round_coins, verify_block, verify_chain, verify_siblings, verify_walk


@pytest.fixture(scope="module")
def faulty():
    return Emulator(build(CUDA / "emulator" / "driver.cpp", *SHARED, '-DSPECRS_KERNELS="selftest.cu"'))


@pytest.mark.parametrize(
    ("kernel", "threads", "report"),
    [
        ("divergent_barrier", 64, "deadlock: divergent __syncthreads"),
        ("lane_leaves", 32, "deadlock"),
        ("lanes_disagree", 32, "different operations"),
        ("loads_misaligned", 32, "not aligned"),
    ],
)
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_faults_are_reported(faulty, kernel, threads, report, order):
    faulty.configure(order)
    out = torch.zeros(64, dtype=torch.int32)
    fault = faulty.run(kernel, 1, threads, out)
    assert report in fault


def test_unwritten_shared_memory_is_nan(faulty):
    out = torch.zeros(32)
    assert faulty.run("reads_unwritten", 1, 32, out) == ""
    assert torch.isnan(out).all()


def test_a_missing_barrier_shows_in_some_order(faulty):
    wrong = {}
    for order in ("forward", "reverse", "shuffle"):
        faulty.configure(order, seed=3)
        out = torch.zeros(64, dtype=torch.int32)
        assert faulty.run("missing_barrier", 1, 64, out) == ""
        wrong[order] = not torch.equal(out, torch.arange(64, dtype=torch.int32) ^ 32)
    assert any(wrong.values())


def test_blocks_run_in_the_order_asked_for(faulty):
    last = []
    for order in ("forward", "reverse", "shuffle"):
        faulty.configure("forward", order, seed=11)
        out = torch.zeros(1, dtype=torch.int32)
        assert faulty.run("blocks_collide", 9, 32, out) == ""
        last.append(int(out))
    assert last[:2] == [8, 0]


SANITIZERS = {"thread": "-fsanitize=thread", "address": "-fsanitize=address"}


def sanitizer_build(sanitizer, *flags):
    """The replay program; g++ warns about its own sanitizer at higher levels."""
    options = ["-O1", "-g", "-DEMU_OS_THREADS", SANITIZERS[sanitizer], "-w", "-Wno-error", *flags]
    return build(CUDA / "emulator" / "replay.cpp", *options)


def verify_by_every_rule(rows, tree, laws, law, accept, emit, relaxed):
    verify_walk(rows, tree, laws, emit)
    for verify in (verify_chain, verify_block, verify_siblings):
        verify(rows, tree, laws, law, accept, emit)
    verify_relaxed(rows, tree, laws, law, accept, emit, relaxed)


@pytest.fixture(scope="module")
def record(request):
    """A launch of every kernel, of attention with tensor cores at one head size."""
    stand_in = request.getfixturevalue("stand_in")
    stand_in.open()
    stand_in.configure()
    launches = []
    rows, tree, draft, accept, emit = chain_case(2, torch.float32, 33, counts=(2,))
    laws, law = sampling([(0.9, 5, 0.9, 0.01)]), DraftLaw(torch.tensor(draft))
    query, keys, values, prefix, row_ptr = case(torch.bfloat16, 64, 2, 1, [66], [[-1, 0]], 72)
    bits, _ = visibility([[-1, 0]], 1)
    tensors, ids = [torch.randn(2, 2, 8, 8) for _ in range(2)], torch.ones((1, 2, 3), dtype=torch.int64)
    with recorded_launches(launches, tensors):
        verify_by_every_rule(rows, tree, laws, law, accept, emit, RelaxedRule("top_k", (3.0,)))
        top_k_rows(rows[:1], 3)
        tree_attention(query, keys, values, prefix, row_ptr, bits)
        tree_attention(query, keys, values, prefix, row_ptr, bits, plain=True)
        row_probs(rows, row_laws(rows, tree.row_ptr, laws))
        round_coins(*[torch.tensor([5])] * 3, tree.row_ptr, tree.parents)
        select_lengths(torch.full((2,), 0.9), tree.row_ptr, torch.ones(3))
        lookup_cache(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3], [4, 5, 6]]))
        accept_unmasked(ids, ids, torch.tensor([1], dtype=torch.int32), 9)
        commit_cache(tensors, cache_addresses(tensors), torch.tensor([4, 2]), verdict_of([[0, 2], [1, 2, 3]], 3))
    owned = [torch.randn(1, 2, slots, 8) for slots in (8, 5, 8, 5)]
    with recorded_launches(launches, owned):
        places = [cache_addresses(owned), torch.tensor([8, 5]), torch.tensor([5, 4]), torch.tensor([0, 3, 4])]
        write_caches(owned[:2], owned[2:], *places, *(torch.randn(4, 2, 8) for _ in range(2)))
    seen, unique = set(), []
    for entry in launches:  # row laws are formed by each rule: once is enough
        if entry[0] not in seen:
            unique.append(entry)
        seen.add(entry[0])
    return unique


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers_are_silent(record, sanitizer, tmp_path):
    assert replay(sanitizer_build(sanitizer), record, tmp_path) == ""
    others = {"tree_attention_128", "tree_attention_256"}
    assert {stem(kernel) for kernel, *_ in record} == {stem(name) for name, *_ in _core.gpu_kernels()} - others


def test_row_pointers_do_not_lead_out_of_the_arrays(stand_in, tmp_path):
    """Pointers one row too far and a draft's row that there is not: no access behind a buffer."""
    stand_in.open()
    stand_in.configure()
    launches = []
    rows, tree, draft, accept, emit = chain_case(2, torch.float32, 33, counts=(2, 1))
    tree = tree._replace(row_ptr=torch.tensor([0, 3, 6]))
    laws, law = sampling([(0.9, 0, 1.0, 0.0)] * 2), DraftLaw(torch.tensor(draft), None, torch.tensor([0, 3, 2]))
    keys = [torch.tensor([7, 8]), *[torch.zeros(2, dtype=torch.int64)] * 2]
    query, cached, values, prefix, _ = case(torch.bfloat16, 64, 2, 1, [6, 5], [[-1, 0], [-1]], 9)
    bits, _ = visibility([[-1, 0], [-1]], 1)
    with recorded_launches(launches):
        verify_by_every_rule(rows, tree, laws, law, accept, emit, RelaxedRule("lenience", (0.5,)))
        round_coins(*keys, tree.row_ptr, tree.parents, True)
        select_lengths(torch.full((3,), 0.9), tree.row_ptr, torch.ones(3))
        tree_attention(query, cached, values, prefix, tree.row_ptr, bits)
    wanted = ("accept_", "block_", "verify_", "walk_", "relaxed_", "round_", "select_", "tree_", "merge_", "residual_")
    chosen = [entry for entry in launches if entry[0].startswith(wanted)]
    assert len({entry[0] for entry in chosen}) == 13
    assert replay(sanitizer_build("address"), chosen, tmp_path) == ""


@pytest.mark.parametrize(
    ("sanitizer", "kernel", "threads", "report"),
    [("thread", "missing_barrier", 64, "data race"), ("address", "writes_behind", 32, "heap-buffer-overflow")],
)
def test_sanitizers_have_teeth(sanitizer, kernel, threads, report, tmp_path):
    out = torch.zeros(threads, dtype=torch.int32)
    launches = [(kernel, (1, 1, 1), 0, [out], [out])]
    program = sanitizer_build(sanitizer, '-DSPECRS_KERNELS="selftest.cu"')
    try:
        complaint = replay(program, launches, tmp_path, {kernel: (threads, "P")})
    except AssertionError as error:
        complaint = str(error)
    assert report in complaint
