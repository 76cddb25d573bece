"""The public cache drafter: text already seen proposes how the present text goes on."""

from __future__ import annotations

from specrs._core import CacheStore, SuffixCache

__all__ = ["CacheStore", "SuffixCache"]
