"""Arrays that lie column after column: refused where rows are read in place, understood where they are copied.

numpy calls both layouts contiguous. A matrix read askew would give plausible numbers, so every door is tried.
"""

import numpy as np
import pytest

from specrs import _core
from specrs.errors import InvalidInputError

torch = pytest.importorskip("torch")

from specrs.ops.attend import attend  # noqa: E402

RNG = np.random.default_rng(0)


def askew(*shape, dtype=np.float32):
    """Return a matrix in Fortran order."""
    return np.asfortranarray(RNG.random(shape).astype(dtype))


def attention(flags):
    query, memory = torch.ones(2, 3, 8), torch.ones(2, 6, 8)
    return attend(query, memory, memory, np.arange(3, 6), flags, torch.empty(3, 2, 8))


def predictor(weights):
    layers = [(weights, np.zeros(weights.shape[1], np.float32))] * 3
    return _core.PayoffPredictor(layers)


@pytest.mark.parametrize(
    ("door", "matrix"),
    [
        (lambda m: _core.fork_ids(m, np.full(3, -1), [2, 2, 2]), askew(3, 8)),
        (
            lambda m: _core.BatchProposer(_core.SuffixCache(), 4, 64).step(m, [4, 4], [1, 1]),
            askew(2, 8, dtype=np.int32),
        ),
        (predictor, askew(4, 5)),
        (attention, askew(3, 6, dtype=np.bool_)),
    ],
    ids=["fork_ids", "BatchProposer", "PayoffPredictor", "attend"],
)
def test_rows_that_are_read_in_place_must_lie_row_after_row(door, matrix):
    strides = list(matrix.strides)
    with pytest.raises(InvalidInputError, match=rf"C-contiguous, got strides \[{strides[0]}, {strides[1]}\] bytes"):
        door(matrix)


def test_rows_that_are_copied_may_lie_in_any_order():
    laws = askew(3, 8)
    laws /= laws.sum(1, keepdims=True)
    assert np.array_equal(_core.saguaro(laws, 2, 0.5), _core.saguaro(np.ascontiguousarray(laws), 2, 0.5))
    cache = _core.SpeculationCache()
    cache.insert(0, 1, 0, 5, np.arange(3, dtype=np.uint32), np.ones(3, np.float32), laws)
    assert np.array_equal(cache.take(0, 1, 0, 5)[1], laws)
