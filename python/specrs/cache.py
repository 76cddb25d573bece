"""The public cache drafter: text already seen proposes how the present text goes on."""

from __future__ import annotations

from specrs._core import SuffixCache

__all__ = ["SuffixCache"]
