"""The engine's drafter for drafting beside the target: asks over a link, believes only what fits the question."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.errors import DrafterLateError, DrafterLostError
from specrs.ssd.statistics import SsdStatistics
from specrs.ssd.texts import NOTHING, Origin, Query, Text
from specrs.types import Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.engine.request import Request
    from specrs.ssd.texts import Answer, Chain, Link, Reply
    from specrs.types import FloatArray, TokenArray

#: Answers missed in a row before the drafter is given up.
MOST_LATE = 3


@dataclass
class _Known:
    """What the other side was told of a request, and what it drafted."""

    sent: int
    generation: int = 0
    accepted: int = -1
    trunk: TokenArray | None = None
    origin: Origin | None = None


class SsdDrafter:
    """Drafts while the target verifies (SSD and Saguaro; Kumar, Dao and May, arXiv:2603.03251, 2026).

    ``propose`` tells the drafter how the last round ended and gets the next draft, at once if the outcome was guessed;
    while the target scores it, the drafter drafts behind the likely outcomes. Only when a draft is ready changes, not
    how it is verified, so the output's law stays the target's. A drafter that is late, dead, or answers another
    question costs drafts and nothing else; one warning says so.

    Parameters
    ----------
    link : Link
        The way to the drafter.
    lookahead : int
        Longest draft.
    vocab_size : int
        The target's.
    max_context : int, optional
        Most tokens that the drafter can read.
    tokens_are_drawn : bool
        Whether the drafter draws tokens from laws.
    clock : callable
        Seconds, for the statistics.
    """

    name = "ssd"

    def __init__(
        self,
        link: Link,
        *,
        lookahead: int,
        vocab_size: int,
        max_context: int | None = None,
        tokens_are_drawn: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.link = link
        self.lookahead = lookahead
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.tokens_are_drawn = tokens_are_drawn
        self.statistics = SsdStatistics()
        self._clock = clock
        self._known: dict[int, _Known] = {}
        # Behind the rounds of whoever used the link before: an answer that is late from then is not taken for ours.
        self._round: int = getattr(link, "last_round", 0)
        self._late_in_a_row = 0
        self._lost = False
        self._warned_refused = False

    def start(self, request: Request) -> None:
        """Tell the drafter of the prompt, which it reads while the target does."""
        sampling = request.sampling
        text = Text(
            request.id,
            request.tokens,
            capacity=len(request.tokens) + request.stop.max_new_tokens + 1,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=request.seed,
            sample=request.sample,
            repeatable=self.tokens_are_drawn and sampling.seed is not None and sampling.temperature > 0,
        )
        self._known[request.id] = _Known(len(request.tokens))
        if not self._lost:
            self._guard(lambda: self.link.start(text))

    def propose(self, requests: Sequence[Request], budgets: Sequence[int]) -> Draft:
        """Return what the drafter has for how the last round ended; an empty draft if it has nothing in time."""
        asked = [b for b, budget in enumerate(budgets) if budget > 0]
        if self._lost or not asked:
            return Draft.empty(len(requests), self.name)
        self._round += 1
        queries = [self._query(requests[b], min(budgets[b], self.lookahead)) for b in asked]
        started = self._clock()
        self.statistics.asked += len(queries)
        answer = self._ask(queries)
        if answer is None:
            return Draft.empty(len(requests), self.name)
        self.statistics.round(answer, self._clock() - started, getattr(self.link, "message_seconds", 0.0))
        chains = [NOTHING] * len(requests)
        replies = {reply.request: reply for reply in answer.replies}
        for b, query in zip(asked, queries, strict=True):
            known, reply = self._known[query.request], replies.get(query.request)
            if reply is None or not self._fits(query, reply, requests[b].sampling.temperature > 0):
                self._refuse(query, reply)
                continue
            self.statistics.reply(reply, known.origin)
            known.trunk, known.origin = reply.chain.tokens, reply.origin
            chains[b] = reply.chain
        return self._as_draft(chains)

    def _query(self, request: Request, budget: int) -> Query:
        known = self._known[request.id]
        known.generation += 1
        new = request.tokens[known.sent :].copy()
        query = Query(request.id, known.generation, known.sent, new, known.accepted, budget)
        known.sent, known.accepted, known.trunk = len(request.tokens), -1, None
        return query

    def _ask(self, queries: Sequence[Query]) -> Answer | None:
        try:
            answer = self.link.speculate(self._round, queries)
        except DrafterLateError as error:
            self.statistics.late += 1
            self.statistics.stale += len(queries)
            self._late_in_a_row += 1
            if self._late_in_a_row >= MOST_LATE:
                self._lose(f"{error}, {MOST_LATE} times in a row")
            return None
        except DrafterLostError as error:
            self._lose(str(error))
            return None
        self._late_in_a_row = 0
        return answer

    def _guard(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except (DrafterLateError, DrafterLostError) as error:
            self._lose(str(error))

    def _lose(self, reason: str) -> None:
        if self._lost:
            return
        self._lost = True
        self.link.close()
        warnings.warn(
            f"drafting beside the target ended: {reason}. Decoding goes on without drafts, with the same output law; a "
            "seeded sampled text may differ from here on",
            stacklevel=2,
        )

    def _fits(self, query: Query, reply: Reply, drawn: bool) -> bool:
        """Tell whether a reply is for the question asked, and a draft that can be verified."""
        tokens, laws = reply.chain.tokens, reply.chain.laws
        echo = (reply.generation, reply.accepted, reply.bonus)
        if echo != (query.generation, query.accepted, query.bonus) or len(tokens) > query.budget:
            return False
        if laws is None:
            # Tokens chosen with certainty are verified as such; a law is owed by who draws at a temperature.
            return not (drawn and self.tokens_are_drawn and reply.origin in (Origin.HIT, Origin.SLOW) and len(tokens))
        if laws.shape[0] != len(tokens) or int(tokens.max()) >= laws.shape[1]:
            return False
        own = laws[np.arange(len(tokens)), tokens]
        return bool((own > 0).all() and np.abs(laws.sum(axis=1, dtype=np.float64) - 1).max() < 1e-3)

    def _refuse(self, query: Query, reply: Reply | None) -> None:
        self.statistics.refused += 1
        self.statistics.stale += 1
        if not self._warned_refused:
            self._warned_refused = True
            asked = (query.request, query.generation, query.accepted, query.bonus)
            found = None if reply is None else (reply.request, reply.generation, reply.accepted, reply.bonus)
            warnings.warn(
                f"the drafter answered {found} to the outcome {asked} (request, round, accepted, token), or with a law "
                "that is none: such drafts are not used",
                stacklevel=2,
            )

    def _as_draft(self, chains: Sequence[Chain]) -> Draft:
        laws = [chain.laws for chain in chains if chain.laws is not None]
        draft_probs: FloatArray | None = None
        if laws:
            tokens = np.concatenate([chain.tokens for chain in chains])
            width = max(int(tokens.max()) + 1, *(rows.shape[1] for rows in laws))
            draft_probs = np.zeros((len(tokens), width), np.float32)
            at = 0
            for chain in chains:
                rows = np.arange(at, at + len(chain.tokens))
                if chain.laws is None:
                    draft_probs[rows, chain.tokens] = 1.0
                else:
                    draft_probs[rows, : chain.laws.shape[1]] = chain.laws
                at += len(rows)
        return Draft.chains([chain.tokens for chain in chains], draft_probs=draft_probs, source=self.name)

    def commit(self, request: Request, kept: TokenArray) -> None:
        """Note how the round ended for a request: drafts accepted, and the token behind them."""
        known = self._known[request.id]
        trunk, known.trunk, known.accepted = known.trunk, None, -1
        accepted = len(kept) - 1
        if trunk is not None and 0 <= accepted <= len(trunk) and np.array_equal(kept[:-1], trunk[:accepted]):
            known.accepted = accepted

    def figures_from_now(self) -> Callable[[], dict[str, Any]]:
        """Return a function that gives the figures of what happens from now on: hit rate, stale rate, waits."""
        before = copy.deepcopy(self.statistics)
        return lambda: self.statistics.since(before).to_dict()

    def finish(self, request: Request) -> None:
        """Let the drafter forget the request."""
        if self._known.pop(request.id, None) is not None and not self._lost:
            self._guard(lambda: self.link.finish(request.id))

    def close(self) -> None:
        """End the drafter."""
        self._lost = True
        self.link.close()
