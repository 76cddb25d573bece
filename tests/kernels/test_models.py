"""A transformers model's memory by ops: the rows and texts of torch's own operations."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.engine.conftest import tiny_target

import specrs
from specrs.models.sequence_cache import SequenceCache
from specrs.ops import torch_ops, where

KERNELS = SimpleNamespace(**{name: kernel for name, (kernel, _, _) in torch_ops.OPS.items()})


@pytest.fixture
def called(stand_in, monkeypatch):
    """Take every tensor for one on a device, and run its ops as kernels; the names of those that were called."""
    stand_in.open()
    stand_in.configure("shuffle", "shuffle", 5)
    names = []

    class Recorded:
        def __getattr__(self, name):
            names.append(name)
            return getattr(KERNELS, name)

    monkeypatch.setattr(torch_ops, "NAMESPACE", Recorded())
    monkeypatch.setattr(where, "moment", lambda rows: None)
    monkeypatch.setattr(where, "on_a_device", lambda rows: isinstance(rows, torch.Tensor))
    return names


def memory(size=8, sizes=None, capacity=6):
    """Three layers with three committed tokens and six new rows behind them; room grows while they are written."""
    generator = torch.Generator().manual_seed(1)
    state = SequenceCache(3, capacity)
    for rows in (3, 6):
        for layer in range(3):
            shape = (1, 2, rows, sizes[layer] if sizes else size)
            state.write(layer, *(torch.randn(shape, generator=generator) for _ in range(2)))
        if rows == 3:
            state.commit(np.empty(0, np.int32), 3)
    return state


def committed(state):
    return [tensor[:, :, : state.length] for tensor in (*state._keys, *state._values)]


PATHS = [[1, 3], [0, 2, 4], [4], [0, 1], []]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_path_moves_in_one_launch_for_all_layers(called, monkeypatch, path):
    device = memory()
    device.commit(np.array(path, np.int32), 1)
    assert called == ([] if path == list(range(len(path))) else ["commit_cache"])
    monkeypatch.undo()
    host = memory()
    host.commit(np.array(path, np.int32), 1)
    assert device.length == host.length == 4 + len(path)
    assert all(torch.equal(a, b) for a, b in zip(committed(device), committed(host), strict=True))


def test_storage_that_has_grown_is_moved_where_it_lies_now(called, monkeypatch):
    def twice():
        state = memory()
        state.commit(np.array([1, 3], np.int32), 1)
        for layer in range(3):
            state.write(layer, *(torch.arange(2 * 9 * 8.0).view(1, 2, 9, 8) + layer for _ in range(2)))
        state.commit(np.array([2, 7], np.int32), 1)
        return committed(state)

    device = twice()
    assert called == ["commit_cache"] * 2
    monkeypatch.undo()
    assert all(torch.equal(a, b) for a, b in zip(device, twice(), strict=True))


@pytest.mark.parametrize("options", [{"sizes": [8, 12, 8]}, {"size": 6}], ids=["unlike layers", "24 bytes"])
def test_layers_that_one_launch_cannot_move_are_moved_one_by_one(called, monkeypatch, options):
    device = memory(**options)
    device.commit(np.array([1, 3], np.int32), 1)
    assert called == []
    monkeypatch.undo()
    host = memory(**options)
    host.commit(np.array([1, 3], np.int32), 1)
    assert all(torch.equal(a, b) for a, b in zip(committed(device), committed(host), strict=True))


def test_a_tree_is_committed_by_kernels(called, monkeypatch):
    """Texts, and the accepted nodes of every round, are those of the host."""
    options = {"draft_tokens": 6, "draft_shape": "tree", "max_new_tokens": 16, "eos_token_id": None}
    prompts = [[7, 3, 9, 11, 7, 3, 9, 12, 7, 3, 9], [5, 8, 5, 9, 5, 8, 5, 9, 5], list(range(20, 38))]
    made = specrs.generate(tiny_target("llama"), prompts, **options)
    assert "commit_cache" in called
    monkeypatch.undo()
    expected = specrs.generate(tiny_target("llama"), prompts, **options)
    assert [one.ids for one in made] == [one.ids for one in expected]
    assert [one.report.accepted for one in made] == [one.report.accepted for one in expected]
