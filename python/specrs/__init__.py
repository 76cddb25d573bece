"""specrs: language models answer faster, with the same answers.

Importing the package costs no framework import: torch and transformers are loaded by the first call that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specrs._core import __version__
from specrs.cache import CacheStore, SuffixCache
from specrs.errors import SpecrsError

if TYPE_CHECKING:
    from specrs.generation import generate, stream
    from specrs.models.loading import load
    from specrs.report.report import Report
    from specrs.session import Session
    from specrs.streaming import Chunk, Generation, Stream
    from specrs.verification import Verdict, verify

__all__ = [
    "CacheStore",
    "Chunk",
    "Generation",
    "Report",
    "Session",
    "SpecrsError",
    "Stream",
    "SuffixCache",
    "Verdict",
    "__version__",
    "generate",
    "load",
    "stream",
    "verify",
]

#: Public names that are imported when first used.
_LAZY = {
    "Chunk": "specrs.streaming",
    "Generation": "specrs.streaming",
    "Report": "specrs.report.report",
    "Session": "specrs.session",
    "Stream": "specrs.streaming",
    "Verdict": "specrs.verification",
    "generate": "specrs.generation",
    "load": "specrs.models.loading",
    "stream": "specrs.generation",
    "verify": "specrs.verification",
}


def __getattr__(name: str) -> Any:
    if name == "hf":  # a module that needs torch and transformers: not among what `*` imports
        return importlib.import_module("specrs.hf")
    if name not in _LAZY:
        raise AttributeError(f"module 'specrs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__) | {"hf"})
