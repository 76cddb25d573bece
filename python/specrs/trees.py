"""Draft trees in the layouts that engines take; flat arrays in, flat arrays out."""

from __future__ import annotations

from specrs._core import pad_drafts, tree_links, tree_merge, tree_prune, tree_retrieve_indices, tree_visibility

__all__ = ["pad_drafts", "tree_links", "tree_merge", "tree_prune", "tree_retrieve_indices", "tree_visibility"]
