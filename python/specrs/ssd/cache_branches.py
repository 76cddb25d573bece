"""Text already seen drafts behind guesses: the suffix cache's tree says both what may come and what follows it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from specrs.cache import SuffixCache
from specrs.ssd.branches import Branch
from specrs.ssd.texts import NOTHING, Chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.ssd.branches import Growth, Job
    from specrs.ssd.texts import Text

#: Guesses less likely than this are not worth a slot.
MIN_PROB = 0.01


class CacheBranches:
    """Continues the longest suffix that occurred before, of the text and of guesses of it.

    Parameters
    ----------
    vocab_size : int
        The target's; ids beyond it are never proposed.
    """

    name = "cache"
    max_context: int | None = None
    tokens_are_drawn = False

    def __init__(self, vocab_size: int) -> None:
        self.cache = SuffixCache(vocab_size)
        self._read: dict[int, tuple[int, int]] = {}  # by request: its id in the cache, and tokens it has there
        self._ids = itertools.count()

    def start(self, text: Text) -> None:
        """Index the prompt."""
        self._index(text)

    def finish(self, request: int) -> None:
        """Forget the text."""
        if request in self._read:
            self.cache.abort(self._read.pop(request)[0])

    def sync(self, text: Text, keep: int) -> None:
        """Read what was committed; a text that lost tokens is indexed anew."""
        own, read = self._read[text.request]
        if keep < read:
            self.finish(text.request)
            self._index(text)
            return
        self.cache.append(own, text.tokens[read:])
        self._read[text.request] = own, len(text.tokens)

    def _index(self, text: Text) -> None:
        own = next(self._ids)
        self.cache.start(own, text.tokens)
        self._read[text.request] = own, len(text.tokens)

    def draft(self, texts: Sequence[Text], budgets: Sequence[int]) -> list[Chain]:
        """Continue the texts."""
        made = []
        for text, budget in zip(texts, budgets, strict=True):
            tokens = self.cache.draft(self._read[text.request][0], budget)[0] if budget else NOTHING.tokens
            made.append(Chain(tokens))
        return made

    def grow(self, jobs: Sequence[Job], lookahead: int) -> Growth:
        """Look up what may follow each number of accepted drafts, in one step."""
        return _CacheGrowth(self, jobs, lookahead)

    def guesses(self, index: int, job: Job, lookahead: int) -> list[Branch]:
        """Return the guesses of a job with their drafts, looked up in a copy of the text that reads the draft."""
        copy = next(self._ids)
        self.cache.start(copy, job.text.tokens)
        branches = []
        try:
            for accepted, fan_out in enumerate(job.fan_out):
                if accepted:
                    self.cache.append(copy, job.trunk[accepted - 1 : accepted])
                if not fan_out:
                    continue
                excluded = int(job.trunk[accepted]) if accepted < len(job.trunk) else -1
                budget = (fan_out + 1) * (lookahead + 1)
                tokens, parents, _, confidence, *_ = self.cache.draft(copy, budget, shape="tree", min_prob=MIN_PROB)
                roots = [node for node in np.flatnonzero(parents < 0) if int(tokens[node]) != excluded]
                roots.sort(key=lambda node: -confidence[node])
                for rank, root in enumerate(roots[:fan_out], 1):
                    branch = Branch(index, accepted, int(tokens[root]), rank)
                    node = root
                    while len(branch.tokens) < lookahead:
                        children = np.flatnonzero(parents == node)
                        if not len(children):
                            break
                        node = children[confidence[children].argmax()]
                        branch.tokens.append(int(tokens[node]))
                    branches.append(branch)
        finally:
            self.cache.abort(copy)
        return branches


class _CacheGrowth:
    """Guesses of the cache: there after one step."""

    def __init__(self, drafter: CacheBranches, jobs: Sequence[Job], lookahead: int) -> None:
        self._drafter = drafter
        self._jobs = jobs
        self._lookahead = lookahead
        self.branches: list[Branch] = []

    def step(self) -> bool:
        """Look everything up."""
        if not self.branches:
            for index, job in enumerate(self._jobs):
                self.branches += self._drafter.guesses(index, job, self._lookahead)
        return False

    def keep_only(self, branches: Sequence[Branch]) -> None:
        """Nothing is left to do for the others."""

    def chain(self, branch: Branch) -> Chain:
        """Return the guess's continuation."""
        return Chain(np.array(branch.tokens, np.uint32))

    def close(self) -> None:
        """Nothing was kept."""
