"""specrs: language models answer faster, with the same answers.

Importing the package costs no framework import: torch and transformers are loaded by the first call that needs them.
"""

from __future__ import annotations

from specrs._core import __version__
from specrs.cache import CacheStore, SuffixCache
from specrs.errors import SpecrsError

__all__ = ["CacheStore", "SpecrsError", "SuffixCache", "__version__"]
