"""Small-batch linear layers on the CPU: the weights are read once, and a row's bits do not depend on its neighbours.

Scoring a draft of a few tokens should cost one reading of the weights, as a single token does. Where the processor has
no native bfloat16 products, torch's own kernels cost as much per row as a whole forward pass. This kernel does not, and
as it adds up each row in the same order whatever the number of rows, a verified token equals the token of plain
decoding bit for bit as far as the linear layers go.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal

import torch
from torch.nn import functional

from specrs import _core
from specrs.errors import InvalidInputError

__all__ = ["Acceleration", "accelerate", "linear", "worthwhile"]

_ELEMENT_SIZE: Mapping[torch.dtype, int] = MappingProxyType({torch.bfloat16: 2, torch.float32: 4})


@lru_cache(maxsize=1)
def openmp_address() -> int:
    """Return the address of ``GOMP_parallel`` in the runtime that torch itself uses, or 0 where there is none.

    Looking a symbol up in a library searches what that library depends on, so this is torch's runtime and no other.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def worthwhile(dtype: torch.dtype) -> bool:
    """Tell whether the kernel beats torch's on this processor, by its features alone.

    True for bfloat16 and float32 with AVX2 and FMA, unless the processor multiplies bfloat16 natively (AVX512-BF16, and
    with it AMX), where torch has good kernels of its own.
    """
    features = dict(_core.cpu_features())
    fused = features.get("avx2", False) and features.get("fma", False)
    return dtype in _ELEMENT_SIZE and fused and not features.get("avx512bf16", False)


def _run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    """Run the kernel on tensors that are known to fit."""
    outputs, inputs = weight.shape
    x = x.contiguous()
    out = x.new_empty((*x.shape[:-1], outputs))
    _core.unsafe_linear_ptr(
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        rows,
        inputs,
        outputs,
        x.element_size(),
        openmp_address(),
        torch.get_num_threads(),
    )
    return out


def _fits(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Tell whether the kernel takes these tensors."""
    return (
        x.dtype in _ELEMENT_SIZE
        and x.dtype == weight.dtype
        and x.device.type == "cpu"
        and weight.device.type == "cpu"
        and weight.dim() == 2
        and weight.is_contiguous()
        and x.dim() >= 1
        and x.shape[-1] == weight.shape[1]
        and (weight.shape[1] > 0)
        and (
            bias is None
            or (
                bias.dtype == x.dtype
                and bias.device.type == "cpu"
                and bias.shape == weight.shape[:1]
                and bias.is_contiguous()
            )
        )
    )


def _linear_cpu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if not _fits(x, weight, bias):
        return functional.linear(x, weight, bias)
    return _run(x, weight, bias, x.numel() // weight.shape[1])


def _linear_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


torch.library.define("specrs::linear", "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")
torch.library.impl("specrs::linear", "CPU")(_linear_cpu)
torch.library.register_fake("specrs::linear")(_linear_fake)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ``x @ weight.T + bias``, each row in an order of its own that no other row changes.

    The operator ``torch.ops.specrs.linear``; for inference, it has no gradient. What the kernel does not take (another
    dtype or device, a weight that is not dense) goes to ``torch.nn.functional.linear``.

    Parameters
    ----------
    x : Tensor, shape (..., inputs), bfloat16 or float32
    weight : Tensor, shape (outputs, inputs), dtype of ``x``, row-major
    bias : Tensor, shape (outputs,), dtype of ``x``, optional

    Returns
    -------
    Tensor, shape (..., outputs), dtype of ``x``
        Summed in float32 and rounded once. For a row ``x[i]`` the same bits as ``linear(x[i], weight, bias)``.

    Examples
    --------
    >>> import torch
    >>> linear(torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))
    tensor([[ 5., 14.]])
    """
    result: torch.Tensor = torch.ops.specrs.linear(x, weight, bias)
    return result


def _patched(module: torch.nn.Linear, original: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a forward for ``module`` with as little Python around the kernel as the checks allow."""
    outputs, inputs = module.weight.shape
    dtype = module.weight.dtype
    element_size = _ELEMENT_SIZE[dtype]
    size = outputs * inputs
    parameters = module._parameters
    openmp = openmp_address()
    kernel = _core.unsafe_linear_ptr
    threads = torch.get_num_threads
    grad_enabled = torch.is_grad_enabled
    compiling = torch.compiler.is_compiling
    autocast = torch.is_autocast_enabled

    def forward(input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name that torch.nn.Linear gives it
        if compiling():
            result: torch.Tensor = torch.ops.specrs.linear(input, parameters["weight"], parameters["bias"])
            return result
        weight, bias = parameters["weight"], parameters["bias"]
        shape = input.shape
        count = input.numel()
        # Parameters can be changed under us (a resized vocabulary, another dtype), so each call looks again.
        if not (
            input.dtype is dtype
            and shape[-1] == inputs
            and input.is_cpu
            and weight is not None
            and weight.dtype is dtype
            and weight.is_cpu
            and weight.numel() == size
            and weight.is_contiguous()
            and (bias is None or (bias.dtype is dtype and bias.is_cpu and bias.numel() == outputs))
        ):
            return original(input)
        if grad_enabled() or autocast("cpu"):
            return original(input)
        x = input if input.is_contiguous() else input.contiguous()
        out = x.new_empty(*shape[:-1], outputs)
        kernel(
            x.data_ptr(),
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            out.data_ptr(),
            count // inputs,
            inputs,
            outputs,
            element_size,
            openmp,
            threads(),
        )
        return out

    return forward


def _obstacle(module: torch.nn.Linear, when: str) -> str | None:
    """Return why ``module`` stays torch's, or None."""
    weight, bias = module.weight, module.bias
    if type(module) is not torch.nn.Linear or "forward" in module.__dict__:
        return "forward is not the plain one of torch.nn.Linear"
    if weight.dtype not in _ELEMENT_SIZE:
        return f"dtype {weight.dtype}, the kernel takes bfloat16 and float32"
    if weight.device.type != "cpu":
        return f"device {weight.device}, the kernel runs on the CPU"
    if type(weight) is not torch.nn.Parameter or not weight.is_contiguous() or weight.numel() == 0:
        return "the weight is not a dense row-major parameter"
    if bias is not None and (bias.dtype != weight.dtype or not bias.is_contiguous()):
        return "the bias is not dense or has another dtype than the weight"
    if when == "auto" and not worthwhile(weight.dtype):
        return "torch's kernel is the better one on this processor"
    return None


@dataclass
class Acceleration:
    """What :func:`accelerate` did to a model, and the way back. As a context manager it restores at the end.

    Attributes
    ----------
    replaced : dict of str to Linear
        The modules that use the kernel, by name.
    skipped : dict of str to str
        The linear modules that do not, and why.
    """

    replaced: dict[str, torch.nn.Linear] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def restore(self) -> None:
        """Give every module its own forward back. A second call does nothing."""
        for module in self.replaced.values():
            module.__dict__.pop("forward", None)
        self.replaced = {}

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def accelerate(model: torch.nn.Module, when: Literal["auto", "always"] = "auto") -> Acceleration:
    """Let the model's linear layers use the kernel, in place and reversibly.

    Concerns ``torch.nn.Linear`` on the CPU in bfloat16 or float32, outside of gradients and autocast.

    Parameters
    ----------
    model : Module
        Anything with linear layers; tied weights stay tied.
    when : {'auto', 'always'}
        Whether to ask :func:`worthwhile` first.

    Returns
    -------
    Acceleration
        The modules replaced and skipped; ``restore()`` undoes it.
    """
    if when not in ("auto", "always"):
        raise InvalidInputError(f"when must be 'auto' or 'always', got {when!r}")
    done = Acceleration()
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        obstacle = _obstacle(module, when)
        if obstacle is not None:
            done.skipped[name] = obstacle
            continue
        module.__dict__["forward"] = _patched(module, module.forward)
        done.replaced[name] = module
    return done
