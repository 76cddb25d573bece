"""The arguments of ``model.generate`` that transformers does not hand on to a decoding method of the caller's own.

``generate(custom_generate=function)`` prepares inputs, processors and stopping criteria and calls the function; but up
to 5.24 at least it drops ``streamer``, ``assistant_model``, ``tokenizer`` and ``synced_gpus`` on the way (it replaces
the dictionary that holds them), and it does not say whether a cache was the caller's. A streamer that never hears of a
token would be a silent fault, so they are read from the frame of the ``generate`` call itself, which is identified by
its code object.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from transformers import GenerationMixin

if TYPE_CHECKING:
    from types import FrameType

#: What is looked for.
DROPPED = (
    "streamer",
    "synced_gpus",
    "assistant_model",
    "tokenizer",
    "assistant_tokenizer",
    "cache",
    "past_key_values",
)


def dropped_arguments() -> dict[str, Any]:
    """Return those of ``DROPPED`` that the ``generate`` call above us was given; empty when there is no such call."""
    layers = _code_of_generate()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not layers[-1]:
        frame = frame.f_back
    if frame is None:
        return {}
    found = {name: frame.f_locals[name] for name in DROPPED if frame.f_locals.get(name) is not None}
    # The decorators around it still hold the keywords as they were given; `generate` itself has taken some out.
    outer = frame.f_back
    while outer is not None and outer.f_code in layers[:-1]:
        given = outer.f_locals.get("kwargs")
        if isinstance(given, dict):
            found |= {name: given[name] for name in DROPPED if given.get(name) is not None}
        outer = outer.f_back
    return found


def _code_of_generate() -> list[Any]:
    """Return the code objects of ``generate`` and the decorators around it, the innermost last."""
    function: Any = GenerationMixin.generate
    codes = [function.__code__]
    while (function := getattr(function, "__wrapped__", None)) is not None:
        codes.append(function.__code__)
    return codes
