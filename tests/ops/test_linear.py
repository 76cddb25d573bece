"""The small-batch linear kernel: right, the same bits for a row in any company, and torch's where it does not fit."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from specrs import _core  # noqa: E402
from specrs.errors import InvalidInputError  # noqa: E402
from specrs.ops import linear as ops  # noqa: E402

DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def inference():
    threads = torch.get_num_threads()
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def tensors(rows, inputs, outputs, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    return x, weight, bias


def ordered_reference(x, weight, bias):
    """The documented order of accumulation, for float32 from bfloat16 products (exact in float64, rounded per step)."""
    (rows, inputs), outputs = x.shape, weight.shape[0]
    groups = -(-inputs // 16)
    paired = x.dtype == torch.bfloat16

    def lanes(values):
        padded = np.zeros((values.shape[0], groups * 16))
        padded[:, :inputs] = values.double().numpy()
        grouped = padded.reshape(-1, groups, 8, 2) if paired else padded.reshape(-1, groups, 2, 8).swapaxes(2, 3)
        return grouped.swapaxes(2, 3).reshape(-1, groups * 2, 8)

    sums = np.zeros((rows, outputs, 8), dtype=np.float32)
    for left, right in zip(lanes(x).swapaxes(0, 1), lanes(weight).swapaxes(0, 1), strict=True):
        # A product of two bfloat16 is exact in float64, and so is its sum with a float32 unless they are far apart.
        sums = (sums + left[:, None] * right[None]).astype(np.float32)
    pairs = sums[..., :4] + sums[..., 4:]
    total = (pairs[..., 0] + pairs[..., 2]) + (pairs[..., 1] + pairs[..., 3])
    return (torch.from_numpy(total) + bias.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 13, 33, 64])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 3), (16, 8), (17, 49), (40, 97), (1536, 131), (1100, 50)])
def test_close_to_float64(dtype, rows, inputs, outputs):
    x, weight, bias = tensors(rows, inputs, outputs, dtype)
    for added in (None, bias):
        exact = functional.linear(x.double(), weight.double(), None if added is None else added.double())
        found = ops.linear(x, weight, added)
        assert found.dtype == dtype
        size = x.double().abs() @ weight.double().abs().T + 1
        unit = 2**-8 if dtype == torch.bfloat16 else 2**-23
        bound = exact.abs() * unit + size * 2**-23 * 8
        assert ((found.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("inputs", [5, 16, 200])
def test_order_is_the_documented_one(inputs):
    x, weight, bias = tensors(5, inputs, 19, torch.bfloat16)
    assert torch.equal(ops.linear(x, weight, bias), ordered_reference(x, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(1536, 300), (4500, 97), (23, 1001)])
def test_a_row_has_the_same_bits_in_any_company(dtype, inputs, outputs):
    x, weight, bias = tensors(200, inputs, outputs, dtype)
    torch.set_num_threads(1)
    alone = torch.cat([ops.linear(row[None], weight, bias) for row in x])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in [*range(1, 66), 128, 129, 200]:
            assert torch.equal(ops.linear(x[-rows:], weight, bias), alone[-rows:]), (threads, rows)


def test_torch_itself_is_not_row_invariant():
    """The reason for the kernel; if torch ever becomes so, this says that it is no longer needed."""
    if not ops.worthwhile(torch.bfloat16):
        pytest.skip("torch has native kernels here")
    x, weight, _ = tensors(16, 1536, 512, torch.float32)
    alone = torch.cat([functional.linear(row[None], weight) for row in x])
    assert not torch.equal(functional.linear(x, weight), alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay_in_their_row(dtype):
    x, weight, _ = tensors(5, 37, 21, dtype)
    clean = ops.linear(x, weight)
    x[1, 3] = float("nan")
    x[2, 36] = float("inf")
    found = ops.linear(x, weight)
    assert found[1].isnan().all()
    assert torch.equal(found[2], torch.where(weight[:, 36] > 0, float("inf"), float("-inf")).to(dtype))
    assert torch.equal(found[[0, 3, 4]], clean[[0, 3, 4]])
    x, weight, _ = tensors(2, 37, 21, dtype)
    weight[4, 36] = float("nan")
    found = ops.linear(x, weight)
    assert found[:, 4].isnan().all()
    assert not found[:, [*range(4), *range(5, 21)]].isnan().any()


def test_bfloat16_rounds_to_nearest_even_and_overflows_to_infinity():
    weight = torch.ones(1, 2, dtype=torch.bfloat16)
    x = torch.tensor([[1.0, 2**-8], [1.0, 3 * 2**-8], [3.3895e38, 3.3895e38]], dtype=torch.bfloat16)
    assert ops.linear(x, weight).flatten().tolist() == [1.0, 1.015625, float("inf")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_and_leading_dimensions(dtype):
    x, weight, bias = tensors(12, 64, 33, dtype)
    expected = ops.linear(x, weight, bias)
    assert torch.equal(ops.linear(x.T.contiguous().T, weight, bias), expected)
    assert torch.equal(ops.linear(x.reshape(3, 2, 2, 64), weight, bias), expected.reshape(3, 2, 2, 33))
    assert torch.equal(ops.linear(x[0], weight, bias), expected[0])
    wide = torch.cat([x, x], 1)
    assert torch.equal(ops.linear(wide[:, 64:], weight, bias), expected)


def test_what_does_not_fit_is_torchs():
    x, weight, _ = tensors(4, 64, 33, torch.float32)
    for dtype in (torch.float64, torch.float16):
        left, right = x.to(dtype), weight.to(dtype)
        assert torch.equal(ops.linear(left, right), functional.linear(left, right))
    strided = weight.T.contiguous().T
    assert torch.equal(ops.linear(x, strided), functional.linear(x, strided))
    with pytest.raises(RuntimeError):
        ops.linear(x.bfloat16(), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty(dtype):
    x, weight, bias = tensors(0, 64, 33, dtype)
    assert ops.linear(x, weight, bias).shape == (0, 33)
    assert ops.linear(torch.ones(2, 64, dtype=dtype), weight[:0]).shape == (2, 0)


def test_operator_has_a_fake():
    x, weight, bias = tensors(3, 64, 33, torch.bfloat16)
    torch.library.opcheck(torch.ops.specrs.linear, (x.clone(), weight.clone(), bias.clone()), test_utils="test_schema")
    fake = torch.ops.specrs.linear(x.to("meta"), weight.to("meta"), bias.to("meta"))
    assert (fake.shape, fake.dtype, fake.device.type) == ((3, 33), torch.bfloat16, "meta")


@pytest.mark.parametrize(
    "change",
    [{"x": 0}, {"weight": 1}, {"out": 0}, {"rows": 2**62}, {"inputs": 2**63}, {"element_size": 8}, {"bias": 3}],
    ids=str,
)
def test_addresses_and_sizes_are_checked(change):
    x, weight, _ = tensors(2, 8, 4, torch.float32)
    out = torch.zeros(2, 4)
    call = {
        "x": x.data_ptr(),
        "weight": weight.data_ptr(),
        "bias": 0,
        "out": out.data_ptr(),
        "rows": 2,
        "inputs": 8,
        "outputs": 4,
        "element_size": 4,
        "openmp": 0,
        "threads": 1,
    }
    _core.unsafe_linear_ptr(*call.values())
    assert torch.equal(out, ops.linear(x, weight))
    with pytest.raises(InvalidInputError):
        _core.unsafe_linear_ptr(*(call | change).values())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_of_its_own_give_the_same_bits(threads):
    x, weight, _ = tensors(4, 512, 1000, torch.float32)
    out = torch.empty(4, 1000)
    addresses = (x.data_ptr(), weight.data_ptr(), 0, out.data_ptr())
    _core.unsafe_linear_ptr(*addresses, 4, 512, 1000, 4, 0, threads)
    assert torch.equal(out, ops.linear(x, weight))


def test_a_forked_child_computes():
    code = """
import os, torch
from specrs.ops.linear import linear
torch.set_num_threads(2)
x, weight = torch.randn(4, 512), torch.randn(1000, 512)
with torch.inference_mode():
    expected = linear(x, weight)
    child = os.fork()
    if child == 0:
        os._exit(0 if bool((linear(x, weight).numpy() == expected.numpy()).all()) else 1)
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
