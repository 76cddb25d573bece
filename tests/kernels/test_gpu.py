"""The kernels on a real device: the same results as on the host, repeatable bits, graph capture and replay.

The other tests of this folder with the fixture ``emulator`` run there, too. What a run on a GPU calls besides is
rehearsed on the stand-in driver, so that the first run finds no slip of the pen.
"""

import contextlib

import pytest
import torch
from benches import gpu_end_to_end
from tests.kernels import test_attention, test_caches, test_verify
from tests.kernels.emulator import guarded_launches, open_real_driver, poisoned, refuse_host_addresses
from tests.kernels.test_rows import sampling
from tests.kernels.test_torch_ops import NAMES, arguments

from specrs import _core
from specrs.ops import launch as launch_module
from specrs.ops import torch_ops


def on_a_gpu(test):
    test = pytest.mark.gpu(test)
    return pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")(test)


def to_device(value):
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return [to_device(item) for item in value] if isinstance(value, (list, tuple)) else value


#: Ops that find tensors by address: the argument that is their table, and those that it is of.
BY_ADDRESS = {"commit_cache": (1, [0]), "write_caches": (2, [0, 1]), "attend_caches": (3, [1, 2])}
#: Ops that change their arguments and return nothing.
IN_PLACE = [name for name, op in torch_ops.TABLE.items() if not op.results]


def on_device(name):
    """The arguments of an op on the device; addresses are those of the moved tensors."""
    given = to_device(arguments()[name][0])
    if name in BY_ADDRESS:
        table, tensors = BY_ADDRESS[name]
        given[table] = torch_ops.attention.cache_addresses([tensor for at in tensors for tensor in given[at]])
    return given


def flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@on_a_gpu
@pytest.mark.parametrize("name", [name for name in NAMES if name not in IN_PLACE])
def test_device_equals_host(name):
    host = flat(getattr(torch.ops.specrs, name)(*arguments()[name][0]))
    device = flat(getattr(torch.ops.specrs, name)(*on_device(name)))
    for a, b in zip(host, device, strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=2e-5, atol=2e-5, equal_nan=True)


def commit_equals_host(commit, dtype, paged, to=to_device):
    """A path of each of four requests moved by `commit`, on tensors that `to` moved, and by the host's op."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randperm(16, generator=generator).view(4, 4).int() if paged else None
    shape = (16, 3, 8, 72) if paged else (4, 3, 32, 72)
    host = [torch.randn(shape, generator=generator).to(dtype) for _ in range(4)]
    device = [to(tensor.clone()) for tensor in host]
    verdict, lengths = test_attention.verdict_of(test_attention.PATHS, 6), torch.tensor([4, 0, 29, 10])
    given, there = [*verdict[:3], table], to(lengths.clone())
    commit(device, torch_ops.attention.cache_addresses(device), there, *(x if x is None else to(x) for x in given))
    torch.ops.specrs.commit_cache(host, torch_ops.attention.cache_addresses(host), lengths, *given)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(host, device, strict=True))
    assert torch.equal(lengths, there.cpu())


COMMITS = [(torch.float32, False), (torch.bfloat16, False), (torch.float16, True)]


@on_a_gpu
@pytest.mark.parametrize(("dtype", "paged"), COMMITS)
def test_commit_on_the_device(dtype, paged):
    commit_equals_host(torch.ops.specrs.commit_cache, dtype, paged)


@pytest.mark.parametrize(("dtype", "paged"), COMMITS)
def test_a_commit_is_rehearsed(stand_in, dtype, paged):
    stand_in.open()
    commit_equals_host(torch_ops.OPS["commit_cache"][0], dtype, paged, to=lambda tensor: tensor)


def attention_equals_numpy(attend, dtype, dim, splits, to=to_device):
    """Trees behind 70, 0 and 5 tokens, by `attend` on tensors that `to` moved."""
    lengths, shapes = [70, 0, 5], test_attention.SHAPES
    given = test_attention.case(dtype, dim, 4, 2, lengths, shapes, 80)
    bits, masks = test_attention.visibility(shapes)
    out, lse = attend(*(to(x) for x in (*given, bits)), None, None, splits)
    arrays = [tensor.double().numpy() for tensor in given[:3]]
    expected = test_attention.expected_attention(*arrays, lengths, masks, lambda b, s: (b, s))
    test_attention.compare((out.cpu(), lse.cpu()), expected, dtype)


ATTENTION = [(torch.bfloat16, 64, 1), (torch.bfloat16, 128, 3), (torch.float16, 256, 3), (torch.float32, 64, 3)]


@on_a_gpu
@pytest.mark.parametrize(("dtype", "dim", "splits"), ATTENTION)
def test_attention_on_the_device(dtype, dim, splits):
    attention_equals_numpy(torch.ops.specrs.tree_attention, dtype, dim, splits)


@pytest.mark.parametrize(("dtype", "dim", "splits"), ATTENTION)
def test_attention_is_rehearsed(stand_in, dtype, dim, splits):
    stand_in.open()
    stand_in.configure()
    attention_equals_numpy(torch_ops.OPS["tree_attention"][0], dtype, dim, splits, to=lambda tensor: tensor)


def caches_equal_numpy(ops, dtype, dim, splits, to=to_device):
    """Rows written into three requests' own caches and attended from there, by `ops` on tensors that `to` moved."""
    given = test_caches.case(dtype, dim)
    keys, values = [[to(tensor) for tensor in tensors] for tensors in (given.keys, given.values)]
    new, places = to([given.new_keys, given.new_values]), [to(place) for place in given.owners(keys, values)]
    ops["write_caches"](keys, values, *places, *new)
    expected = test_caches.written(given)
    for made, wanted in zip([*keys, *values], [*expected[0], *expected[1]], strict=True):
        assert test_caches.same([made.cpu()], [wanted])
    out, lse = ops["attend_caches"](to(given.query), keys, values, *places, to(given.bits), None, splits)
    test_caches.compare_with_numpy((out.cpu(), lse.cpu()), given, *expected)


CACHES = [(torch.bfloat16, 64, 1), (torch.float16, 128, 3), (torch.bfloat16, 256, 3), (torch.float32, 64, 3)]


@on_a_gpu
@pytest.mark.parametrize(("dtype", "dim", "splits"), CACHES)
def test_own_caches_on_the_device(dtype, dim, splits):
    caches_equal_numpy({name: getattr(torch.ops.specrs, name) for name in BY_ADDRESS}, dtype, dim, splits)


@pytest.mark.parametrize(("dtype", "dim", "splits"), CACHES)
def test_own_caches_are_rehearsed(stand_in, dtype, dim, splits):
    stand_in.open()
    stand_in.configure()
    ops = {name: torch_ops.OPS[name][0] for name in BY_ADDRESS}
    caches_equal_numpy(ops, dtype, dim, splits, to=lambda value: value)


@on_a_gpu
@pytest.mark.parametrize("name", ["verify_chain", "verify_block", "verify_siblings", "tree_attention", "attend_caches"])
def test_repeats_bit_for_bit(name):
    given = on_device(name)
    first = flat(getattr(torch.ops.specrs, name)(*given))
    for _ in range(100):
        again = flat(getattr(torch.ops.specrs, name)(*given))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@on_a_gpu
def test_graph_replays_with_fresh_coins():
    given = on_device("verify_chain")
    *rest, accept, emit = given
    eager = [flat(torch.ops.specrs.verify_chain(*rest, accept * s, emit * s)) for s in (1.0, 0.5)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = flat(torch.ops.specrs.verify_chain(*rest, accept, emit))
    for replay, expected in enumerate(eager):
        if replay:
            accept.mul_(0.5)
            emit.mul_(0.5)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


#: Ops that a round is made of, one of them in the form that fills given tensors.
CAPTURED = ["verify_round", "tree_attention", "row_statistics", "verify_chain_out", "commit_cache"]
CAPTURED += ["write_caches", "attend_caches"]


def replay_equals_eager(name, run, given, graph, capture):
    """What an op makes or changes, called and then replayed twice from a graph, from the same state each time."""
    filled, named = [], {}
    if name in IN_PLACE:
        filled = [*given[0], given[2]] if name == "commit_cache" else [*given[0], *given[1]]
    elif name.endswith("_out"):
        filled = [torch.full_like(tensor, -7) for tensor in torch_ops.OPS[name.removesuffix("_out")][0](*given)]
        named = dict(zip(torch_ops.TABLE[name.removesuffix("_out")].results, filled, strict=True))
    before = [tensor.clone() for tensor in filled]
    made = run(*given, **named)
    eager = [tensor.clone() for tensor in filled or flat(made)]

    def reset():
        for tensor, was in zip(filled, before, strict=True):
            tensor.copy_(was)

    reset()
    with capture(graph):
        made = run(*given, **named)
    results = filled or flat(made)
    for _ in range(2):
        reset()
        if not filled:
            for tensor in results:
                tensor.zero_()
        graph.replay()
        for captured, expected in zip(results, eager, strict=True):
            torch.testing.assert_close(captured, expected, rtol=0, atol=0, equal_nan=True)


@on_a_gpu
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_launches_replay_as_eager_ones(name):
    given = on_device(name.removesuffix("_out"))
    torch.cuda.synchronize()
    replay_equals_eager(name, getattr(torch.ops.specrs, name), given, torch.cuda.CUDAGraph(), torch.cuda.graph)


class Launches:
    """A stand-in for a graph: launches that were noted instead of done."""

    def __init__(self):
        self.submit, self.noted = launch_module._submit, []

    @contextlib.contextmanager
    def noting(self):
        launch_module._submit = lambda *launch: self.noted.append(launch)
        try:
            yield
        finally:
            launch_module._submit = self.submit

    def replay(self):
        for launch in self.noted:
            self.submit(*launch)


# A round's words are put together by torch, which a graph records and a list of our launches does not.
@pytest.mark.parametrize("name", [name for name in CAPTURED if name != "verify_round"])
def test_a_capture_is_rehearsed(stand_in, name):
    """All that an op does to its results is in its launches: replayed alone they give what a call gives."""
    stand_in.open()
    stand_in.configure()
    given = arguments()[name.removesuffix("_out")][0]
    replay_equals_eager(name, torch_ops.OPS[name][0], given, Launches(), Launches.noting)


def last_of_many(rows, vocabulary, verify, to=to_device):
    """Chains of one node over a matrix of zeros, the last of which stands: its verdict is looked at."""
    logits = to(torch.zeros(1, 1, dtype=torch.float16)).expand(rows, vocabulary).contiguous()
    logits[-2, 5], logits[-1, 77] = 60.0, 60.0
    requests = rows // 2
    tokens, parents = torch.zeros(requests, dtype=torch.int64), torch.full((requests,), -1, dtype=torch.int32)
    tokens[-1] = 5
    laws, coins = sampling([(1.0, 0, 1.0, 0.0)] * requests), torch.full((rows,), 0.5, dtype=torch.float64)
    tree = [torch.arange(0, rows + 1, 2), tokens, parents]
    given = to([*tree, *laws, coins])
    made = verify(logits, *given[:3], 1, *given[3:7], None, None, None, given[7], given[7])
    assert bool((made[3] == 0).all())
    assert made[0][-1].tolist() == [0]
    assert int(made[2][-1]) == 77
    assert not bool(made[1][:-1].any())  # the others' tokens have one chance in a vocabulary


@on_a_gpu
def test_verification_beyond_32_bits_on_the_device():
    assert 14_200 * 151_936 > 2**31
    last_of_many(14_200, 151_936, torch.ops.specrs.verify_chain)


def test_verification_beyond_32_bits_is_rehearsed(stand_in):
    stand_in.open()
    stand_in.configure()
    last_of_many(20, 300, torch_ops.OPS["verify_chain"][0], to=lambda value: value)


@on_a_gpu
def test_offsets_beyond_32_bits_on_the_device():
    """The last of so many rows that a 32-bit product of row and vocabulary wraps, in a 4 GiB matrix."""
    rows, vocabulary = 14_200, 151_936
    logits = torch.zeros(rows, vocabulary, dtype=torch.float16, device="cuda")
    assert logits.numel() > 2**31
    logits[-1, 77] = 9.0
    statistics = torch.ops.specrs.row_statistics(logits)
    assert statistics[0][-2:].tolist() == [0, 77]
    assert statistics[0][:2].tolist() == [0, 0]


@on_a_gpu
def test_an_engines_round_stays_on_the_device():
    """Texts by kernels equal those by Rust rules on copies of the logits, at every temperature and way of drafting."""
    gpu_end_to_end.main(["--hidden", "64", "--layers", "2", "--tokens", "16"])


def test_a_gpu_test_opens_the_real_driver(monkeypatch):
    """In the place of a stand-in that an earlier test opened; without kernels it says how to build with them."""
    opened = []
    monkeypatch.setattr(_core, "gpu_open", lambda *given: opened.append(given))
    monkeypatch.setattr(_core, "GPU_FATBIN_BYTES", None)
    with pytest.raises(pytest.skip.Exception, match="nvcc"):
        open_real_driver()
    assert opened == []
    monkeypatch.setattr(_core, "GPU_FATBIN_BYTES", 1000)
    open_real_driver()
    assert opened == [()]


def test_the_run_of_a_test_on_a_device_is_rehearsed(stand_in, monkeypatch):
    """Host tensors become copies where the launches go, whose results come back; the launches ask where those lie."""
    stand_in.open()
    stand_in.configure()
    asked, where_of = [], launch_module._where

    def noted(tensors):
        asked.append([tensor.numel() for tensor in tensors])
        return where_of(tensors)

    monkeypatch.setattr(launch_module, "_where", noted)
    with poisoned(), guarded_launches("cpu"):
        test_verify.test_siblings("cpu", 1, torch.float16, False)
        test_attention.test_attention("cpu", torch.bfloat16, 128, False, 3)
        test_attention.test_attention_over_pages("cpu")
    assert asked
    assert not any(any(sizes) for sizes in asked)  # never the host's tensors themselves


def test_a_test_of_host_addresses_is_not_for_a_device():
    keys = torch.zeros(1, 3, dtype=torch.int64)
    refuse_host_addresses("lookup_cache", [keys, 1, keys, 1, keys])
    refuse_host_addresses("lookup_cache", [None, 0, keys, 1, keys])
    with pytest.raises(pytest.skip.Exception, match="host memory"):
        refuse_host_addresses("lookup_cache", [keys.data_ptr(), 1, keys, 1, keys])
    with pytest.raises(pytest.skip.Exception, match="host memory"):
        refuse_host_addresses("commit_cache", [keys] * 16)
    with pytest.raises(pytest.skip.Exception, match="host memory"):
        refuse_host_addresses("write_caches", [keys] * 14)
    with pytest.raises(pytest.skip.Exception, match="host memory"):
        refuse_host_addresses("tree_attention_bf16_64", [keys, None, *[keys] * 23])
    refuse_host_addresses("tree_attention_bf16_64", [keys] * 25)
