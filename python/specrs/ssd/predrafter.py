"""The drafter's side of a round: answer from what was guessed, or fall back; then guess how the next round ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from specrs import _core
from specrs.errors import InvalidInputError
from specrs.ssd.branches import Job
from specrs.ssd.cache_branches import CacheBranches
from specrs.ssd.texts import NOTHING, Answer, Chain, Origin, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.ssd.branches import Branch, BranchDrafter, Growth
    from specrs.ssd.texts import Query, SsdOptions, Text

#: Weight of the newest outcome in the running acceptance rates.
RECENT = 0.05


class PreDrafter:
    """Holds the guesses for one outcome of each request.

    Whether an answer was guessed never changes it where the fallback is the primary drafter: a draft is a function of
    the committed text, its seed and its position alone. So a seeded text does not depend on what was ready when; to
    exclude even different rounding, a repeatable request waits for its guesses and falls back to the primary drafter.

    Parameters
    ----------
    drafter : BranchDrafter
    options : SsdOptions
    vocab_size : int
        The target's.
    """

    def __init__(self, drafter: BranchDrafter, options: SsdOptions, vocab_size: int) -> None:
        self.drafter = drafter
        self.options = options
        self.cache = _core.SpeculationCache(options.max_cache_bytes)
        self.texts: dict[int, Text] = {}
        self.misses = _core.RankMisses(0.5, 1.0)
        offered = ["slow", "fast", "zero"] if options.fallback == "auto" else [options.fallback]
        self.chooser = _core.FallbackChooser(offered)
        self._fast = drafter if isinstance(drafter, CacheBranches) else CacheBranches(vocab_size)
        self._uses_fast = self._fast is not drafter and "fast" in offered
        self._acceptance = {Origin.SLOW: options.acceptance, Origin.FAST: 0.3, Origin.ZERO: 0.0}
        self._growth: Growth | None = None
        self._jobs: list[Job] = []
        self._origins: dict[int, Origin] = {}
        self._generations: dict[int, int] = {}
        self._fan_outs: dict[int, list[int]] = {}
        self._ranks: dict[int, dict[tuple[int, int], int]] = {}
        self._pre_draft_seconds = 0.0
        self._round_started: float | None = None

    def start(self, text: Text) -> None:
        """Meet a request."""
        self.texts[text.request] = text
        self.drafter.start(text)
        if self._uses_fast:
            self._fast.start(text)

    def finish(self, request: int) -> None:
        """Drop a request and all guesses for it; unknown ones are ignored."""
        if self.texts.pop(request, None) is None:
            return
        self.cache.forget(request)
        if self._growth is not None:
            self._growth.keep_only([b for b in self._growth.branches if self._jobs[b.job].text.request != request])
            if all(job.text.request == request for job in self._jobs):
                self._drop_growth()
        self.drafter.finish(request)
        if self._uses_fast:
            self._fast.finish(request)
        for known in (self._origins, self._generations, self._fan_outs, self._ranks):
            known.pop(request, None)

    def answer(self, round_: int, queries: Sequence[Query], clock: Callable[[], float] = time.perf_counter) -> Answer:
        """Answer a round's question: hits from the guesses, misses by the fallback."""
        started = clock()
        for query in queries:
            if query.request not in self.texts:
                raise InvalidInputError(f"request {query.request} is not known to the drafter, or finished")
        self._finish_guesses(queries)
        self._note_round(queries, started)
        replies: dict[int, Reply] = {}
        missed = []
        for query in queries:
            chain = self._take(query)
            text = self.texts[query.request]
            before = len(text.tokens)
            text.update(query.keep, query.new)
            if query.keep < before or len(query.new):
                stands = query.keep + max(query.accepted, 0)  # accepted drafts may have been read already
                self.drafter.sync(text, stands)
                if self._uses_fast:
                    self._fast.sync(text, stands)
            if chain is None:
                missed.append(query)
            else:
                replies[query.request] = self._reply(query, Origin.HIT, chain)
        if missed:
            for query, (origin, chain) in zip(missed, self._fall_back(missed, len(queries)), strict=True):
                replies[query.request] = self._reply(query, origin, chain)
        answers = tuple(replies[query.request] for query in queries)
        pre_draft_seconds, self._pre_draft_seconds = self._pre_draft_seconds, 0.0
        self._plan(queries, answers)
        return Answer(round_, answers, max(0.0, clock() - started), pre_draft_seconds)

    def pre_draft(self, *, steps: int | None = None, clock: Callable[[], float] = time.perf_counter) -> bool:
        """Draft on for the guesses; False when nothing is left to do.

        Parameters
        ----------
        steps : int, optional
            Most forwards; default: all.
        """
        growth, started = self._growth, clock()
        if growth is None:
            return False
        going, done = True, 0
        while going and (steps is None or done < steps):
            going = growth.step()
            done += 1
        self._pre_draft_seconds += max(0.0, clock() - started)
        if not going:
            self._keep_guesses(growth, growth.branches)
        return going

    def _reply(self, query: Query, origin: Origin, chain: Chain) -> Reply:
        chain = chain.first(query.budget)
        return Reply(query.request, query.generation, query.accepted, query.bonus, origin, chain)

    def _finish_guesses(self, queries: Sequence[Query]) -> None:
        """Drop what is still being drafted for outcomes that did not come, and finish the one that did."""
        growth = self._growth
        if growth is None:
            return
        if any(self.texts[query.request].repeatable for query in queries):
            self.pre_draft()
            return
        self._note_ranks(growth)
        outcomes = {(query.request, query.accepted, query.bonus) for query in queries}

        def came(branch: Branch) -> bool:
            return (self._jobs[branch.job].text.request, branch.accepted, branch.bonus) in outcomes

        growth.keep_only([branch for branch in growth.branches if came(branch)])
        if growth.branches:
            self.pre_draft()
        else:
            self._drop_growth()

    def _note_ranks(self, growth: Growth) -> None:
        for branch in growth.branches:
            request = self._jobs[branch.job].text.request
            self._ranks.setdefault(request, {}).setdefault((branch.accepted, branch.bonus), branch.rank)

    def _keep_guesses(self, growth: Growth, branches: Sequence[Branch]) -> None:
        self._note_ranks(growth)
        for branch in branches:
            request = self._jobs[branch.job].text.request
            chain = growth.chain(branch)
            if request in self.texts and len(chain.tokens):
                none = np.empty(0, np.float32)
                self.cache.insert(
                    self._generations[request], request, branch.accepted, branch.bonus, chain.tokens, none, chain.laws
                )
        self._drop_growth()

    def _drop_growth(self) -> None:
        if self._growth is not None:
            self._growth.close()
        self._growth, self._jobs = None, []

    def _take(self, query: Query) -> Chain | None:
        """Return the guessed draft for a request's outcome, if there is one, and learn from it."""
        request = query.request
        if query.accepted < 0 or request not in self._fan_outs or not len(query.new):
            self.cache.forget(request)
            return None
        found = self.cache.take(query.generation - 1, request, query.accepted, query.bonus)
        fan_outs, ranks = self._fan_outs[request], self._ranks.pop(request, None)
        if query.accepted < len(fan_outs):
            self._learn_acceptance(request, query.accepted, len(fan_outs) - 1)
            if ranks is not None:
                self.misses.observe(ranks.get((query.accepted, query.bonus)), fan_outs[query.accepted])
        return None if found is None else Chain(found[0], found[1])

    def _learn_acceptance(self, request: int, accepted: int, drafted: int) -> None:
        origin = self._origins.get(request, Origin.SLOW)
        origin = Origin.SLOW if origin == Origin.HIT else origin
        for position in range(min(accepted + 1, drafted)):
            rate = self._acceptance[origin]
            self._acceptance[origin] = rate + RECENT * ((position < accepted) - rate)

    def _fall_back(self, missed: Sequence[Query], batch: int) -> list[tuple[Origin, Chain]]:
        texts = [self.texts[query.request] for query in missed]
        budgets = [query.budget for query in missed]
        how = "slow" if any(text.repeatable for text in texts) else self.chooser.choose(batch)
        if how == "zero":
            return [(Origin.ZERO, NOTHING)] * len(missed)
        drafter = self.drafter if how == "slow" else self._fast
        origin = Origin.SLOW if how == "slow" else Origin.FAST
        return [(origin, chain) for chain in drafter.draft(texts, budgets)]

    def _note_round(self, queries: Sequence[Query], now: float) -> None:
        """Tell the chooser what the round before brought."""
        if self._round_started is not None:
            self.chooser.note_round(float(sum(len(query.new) for query in queries)), now - self._round_started)
        self._round_started = now

    def _plan(self, queries: Sequence[Query], replies: Sequence[Reply]) -> None:
        """Share out the guesses for the round that begins with these replies."""
        self._drop_growth()
        jobs = []
        for query in queries:
            self._ranks.pop(query.request, None)
        for query, reply in zip(queries, replies, strict=True):
            text, trunk = self.texts[query.request], reply.chain.tokens
            self._generations[query.request] = query.generation
            self._origins[query.request] = reply.origin
            fan_out = self._fan_out(reply.origin, len(trunk))
            self._fan_outs[query.request] = fan_out
            if self._has_room(text, len(trunk)) and any(fan_out):
                jobs.append(Job(text, trunk, fan_out))
        if jobs and self.options.lookahead > 0:
            self._jobs = jobs
            self._growth = self.drafter.grow(jobs, self.options.lookahead)

    def _fan_out(self, origin: Origin, drafted: int) -> list[int]:
        """Return the guesses per number of accepted drafts: most where the round most likely ends."""
        budget = self.options.fan_out * (self.options.lookahead + 1)
        acceptance = self._acceptance[Origin.SLOW if origin == Origin.HIT else origin]
        scale, rho = self.misses.law()
        weights = _core.outcome_probs(min(max(acceptance, 0.0), 1.0), drafted)
        return _core.allocate_fan_out(weights, rho, budget, scale=scale)

    def _has_room(self, text: Text, drafted: int) -> bool:
        """Tell whether draft, bonus and the draft behind it fit the drafter's context."""
        limit = self.drafter.max_context
        return limit is None or len(text.tokens) + drafted + 1 + self.options.lookahead <= limit
