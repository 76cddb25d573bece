"""The kernels on a real device: the same results as on the host, repeatable bits, graph capture and replay."""

import pytest
import torch
from tests.kernels.test_torch_ops import NAMES, arguments

from specrs.ops import torch_ops

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def to_device(value):
    if isinstance(value, torch.Tensor):
        return value.cuda()
    return [to_device(item) for item in value] if isinstance(value, list) else value


def on_device(name):
    """The arguments of an op on the device; addresses are those of the moved tensors."""
    given = to_device(arguments()[name][0])
    if name == "commit_cache":
        given[1] = torch_ops.attention.cache_addresses(given[0])
    return given


def flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "commit_cache"])
def test_device_equals_host(name):
    host = flat(getattr(torch.ops.specrs, name)(*arguments()[name][0]))
    device = flat(getattr(torch.ops.specrs, name)(*on_device(name)))
    for a, b in zip(host, device, strict=True):
        torch.testing.assert_close(a, b.cpu(), rtol=2e-5, atol=2e-5, equal_nan=True)


def test_commit_on_the_device():
    host, device = arguments()["commit_cache"][0], on_device("commit_cache")
    host[0] = [tensor.cpu().clone() for tensor in device[0]]
    torch.ops.specrs.commit_cache(*host)
    torch.ops.specrs.commit_cache(*device)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(host[0], device[0], strict=True))
    assert torch.equal(host[2], device[2].cpu())


@pytest.mark.parametrize("name", ["verify_chain", "verify_block", "verify_siblings", "tree_attention"])
def test_repeats_bit_for_bit(name):
    given = on_device(name)
    first = flat(getattr(torch.ops.specrs, name)(*given))
    for _ in range(100):
        again = flat(getattr(torch.ops.specrs, name)(*given))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


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
