"""Stand-ins for a device: host tensors that say they lie on one and note what leaves it, and the ops as kernels."""

import contextlib
from types import SimpleNamespace
from typing import ClassVar

import torch

from specrs.ops import torch_ops, where

#: Every op's CUDA side by name.
KERNELS = SimpleNamespace(**{name: kernel for name, (kernel, _, _) in torch_ops.OPS.items()})

#: Methods of a tensor that bring its values to the host.
FETCHES = ("cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__")


class DeviceTensor(torch.Tensor):
    """A tensor as a CUDA model gives it: NumPy cannot see it, and each copy to the host is noted in ``fetched``."""

    fetched: ClassVar[list[tuple[int, ...]]] = []

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        options, name = options or {}, getattr(function, "__name__", "")
        if function == torch.Tensor.is_cuda.__get__:
            return True
        if name == "get_device":
            return 0
        if name in ("numpy", "__array__"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if name in FETCHES or (name == "to" and "cpu" in (*arguments, *options.values())):
            cls.fetched.append(tuple(arguments[0].shape))
            copy = arguments[0].as_subclass(torch.Tensor).clone()
            return function(copy, *arguments[1:], **options)
        return super().__torch_function__(function, types, arguments, options)


def on_the_host(value):
    """The same memory as a host tensor, which an op's CPU implementation is called with."""
    return value.as_subclass(torch.Tensor) if isinstance(value, DeviceTensor) else value


def on_the_device(made):
    """What an op made, as tensors of the device."""
    return tuple(map(on_the_device, made)) if isinstance(made, tuple) else made.as_subclass(DeviceTensor)


def recorded_ops(monkeypatch, op_of):
    """Let ``op_of(name)`` be what is called for an op; the names that are asked for."""
    names = []

    class Recorded:
        def __getattr__(self, name):
            names.append(name)
            return op_of(name)

    monkeypatch.setattr(torch_ops, "NAMESPACE", Recorded())
    return names


@contextlib.contextmanager
def device_logits(monkeypatch, *models):
    """Let these transformers models give their logits on a device; the list of what is fetched from there."""

    def moved(module, arguments, output):
        output.logits = output.logits.as_subclass(DeviceTensor)
        return output

    hooks = [model.register_forward_hook(moved) for model in models]
    monkeypatch.setattr(where, "moment", lambda rows: None)  # the stand-in has no clock
    monkeypatch.setattr(DeviceTensor, "fetched", [])
    try:
        yield DeviceTensor.fetched
    finally:
        for hook in hooks:
            hook.remove()
