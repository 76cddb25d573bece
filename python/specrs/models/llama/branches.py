"""A tree of drafts as sequences: llama.cpp has no tree mask, but a token may belong to several sequences.

Each leaf stands for one sequence, and a node belongs to the sequences of all leaves below it::

    anchor ── a ── b        b ends branch 0, c ends branch 1:
              └─── c        a is in {0, 1}, b in {0}, c in {1}

A row attends to the cells of its own sequences at earlier positions, which are exactly its ancestors and the text
before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specrs.types import ANCHOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.types import IndexArray


@dataclass(frozen=True)
class Branches:
    """Which branches each node of a tree is on.

    Attributes
    ----------
    members : tuple of tuple of int
        By node, the branches through it, rising. Branch 0 ends at the leaf that first children lead to.
    count : int
        Number of branches, one per leaf; 1 for a tree without nodes.
    """

    members: tuple[tuple[int, ...], ...]
    count: int

    @classmethod
    def of(cls, parents: Sequence[int] | IndexArray) -> Branches:
        """Return the branches of the tree with these parents (topological order, ``ANCHOR`` below the anchor)."""
        above = np.asarray(parents).tolist()
        leaves = _leaves(above)
        members: list[list[int]] = [[] for _ in above]
        for branch, leaf in enumerate(leaves):
            node = leaf
            while node != ANCHOR:
                members[node].append(branch)
                node = above[node]
        return cls(tuple(map(tuple, members)), max(1, len(leaves)))

    def through(self, node: int) -> int:
        """Return a branch through ``node``: branch 0 where it is one."""
        return self.members[node][0]


def _leaves(above: list[int]) -> list[int]:
    """Return the nodes without children: first the one that first children lead to, then in order."""
    inner = set(above)
    leaves = [node for node in range(len(above)) if node not in inner]
    if len(leaves) > 1:
        node = ANCHOR
        while node in inner:
            node = above.index(node)
        leaves.remove(node)
        leaves.insert(0, node)
    return leaves


def waves(parents: Sequence[int] | IndexArray, width: int) -> list[IndexArray]:
    """Return subtrees of at most ``width`` leaves that cover the tree together.

    Each is the rising indices of its nodes, closed under parents. A tree with few enough leaves is one wave; otherwise
    nodes above leaves of several waves come again in each.

    Parameters
    ----------
    parents : sequence of int
    width : int
        At least 1.
    """
    above = np.asarray(parents).tolist()
    leaves = _leaves(above)
    if len(leaves) <= width:
        return [np.arange(len(above), dtype=np.int32)]
    found = []
    for start in range(0, len(leaves), width):
        nodes: set[int] = set()
        for leaf in leaves[start : start + width]:
            node = leaf
            while node != ANCHOR and node not in nodes:
                nodes.add(node)
                node = above[node]
        found.append(np.array(sorted(nodes), np.int32))
    return found
