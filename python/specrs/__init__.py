"""specrs: language models answer faster, with the same answers.

Importing the package costs no framework import: torch and transformers are loaded by the first call that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specrs._core import __version__
from specrs.errors import SpecrsError

if TYPE_CHECKING:
    from specrs.verification import Verdict, verify

__all__ = ["SpecrsError", "Verdict", "__version__", "verify"]

#: Public names that are loaded when they are first used, and where they live.
_LAZY = {"Verdict": "specrs.verification", "verify": "specrs.verification"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'specrs' has no attribute '{name}'")
