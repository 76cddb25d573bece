"""Drafts for the tests of the llama.cpp adapter, what their rows have to be, and prompts."""

import numpy as np
from tests.models.toy_llama import law

import specrs
from specrs.types import Draft

#: A tree: 0-1-2 is the likeliest path, 3 and 4 branch off it, 5 is another root.
#:     anchor ─ 0 ─ 1 ─ 2
#:            │   └ 3 ─ 4
#:            └ 5
PARENTS = [-1, 0, 1, 0, 3, -1]
DEPTHS = [1, 2, 3, 2, 3, 1]
PROMPTS = [[1, 2, 3, 1, 2], [5] * 40, [7, 8], list(range(30))]


def tree_draft(tokens, sizes=None):
    """One request's tree, or several requests with the same tree cut to ``sizes`` nodes."""
    sizes = [len(tokens)] if sizes is None else sizes
    return Draft(
        tokens=np.concatenate([tokens[:n] for n in sizes]).astype(np.uint32),
        parents=np.concatenate([PARENTS[:n] for n in sizes]).astype(np.int32),
        depths=np.concatenate([DEPTHS[:n] for n in sizes]).astype(np.int32),
        node_ptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


def paths(parents):
    found = [[]]
    for node, parent in enumerate(parents):
        found.append([*found[parent + 1], node])
    return found


def check_rows(scores, first, text, tokens, parents):
    """Each row is the law of the committed text and its own path, bit for bit."""
    for offset, path in enumerate(paths(parents)):
        assert np.array_equal(scores.logits[first + offset], law([*text, *tokens[path]])), (offset, path)


def generate(target, prompts, **options):
    made = specrs.generate(target, prompts, eos_token_id=None, **options)
    return [one.ids for one in made] if isinstance(made, list) else made.ids
