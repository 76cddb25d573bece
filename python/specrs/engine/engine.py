"""The round: draft, trim, score, verify, commit. Only ``commit`` changes state."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.engine import law, stopping, verifier
from specrs.engine.ranks import ONE_RANK
from specrs.engine.request import TokenLogprob
from specrs.engine.watchdog import Watchdog
from specrs.errors import InvalidInputError
from specrs.ops import where
from specrs.policies.base import RoundSeconds
from specrs.types import ANCHOR, Draft
from specrs.verification.logits import as_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specrs.drafters.base import Drafter, GoOn
    from specrs.engine.relaxed import RelaxedVerification
    from specrs.engine.request import Request
    from specrs.models.base import TargetModel
    from specrs.policies.base import LengthPolicy
    from specrs.report.recorder import Recorder
    from specrs.types import IndexArray, Scores, Verdict

#: A drafter that has more committed tokens to read than this before it drafts is catching up, not drafting.
MOST_UNREAD = 16
#: Status of a verdict whose target row held no usable number.
TARGET_UNUSABLE = 2


@dataclass(frozen=True)
class Step:
    """What one round committed for one request.

    Attributes
    ----------
    request : Request
    tokens : tuple of int
    pieces : tuple of str
        Text that became whole with each token; empty where no text is decoded.
    """

    request: Request
    tokens: tuple[int, ...]
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    """What a verdict emits for one request: the tokens of the accepted path and the bonus token behind it."""

    path: IndexArray
    tokens: list[int]
    unusable: bool


def _run_of(draft: Draft, verdict: Verdict, b: int) -> _Run:
    path = verdict.path[verdict.path_ptr[b] : verdict.path_ptr[b + 1]]
    tokens = draft.tokens[draft.nodes_of(b)][path].tolist()
    unusable = bool(verdict.status[b] == TARGET_UNUSABLE)
    if not unusable:
        tokens.append(int(verdict.bonus[b]))
    return _Run(path, tokens, unusable)


class Engine:
    """Runs requests to their end, one target forward per round for all of them.

    Parameters
    ----------
    target : TargetModel
    drafter : Drafter
    policy : LengthPolicy
    recorder : Recorder
        Takes the timings.
    max_batch : int
        Requests that run at once; others wait.
    disable_above_batch, disable_above_context : int, optional
        No drafts while more requests run at once, or for a text of more tokens.
    relaxed : RelaxedVerification, optional
        Verifies instead of the exact rules; the output's law is then not the target's.

    Raises
    ------
    InvalidInputError
        The policy cuts on drawn tokens and the drafter draws them: the output would be biased.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        policy: LengthPolicy,
        recorder: Recorder,
        *,
        max_batch: int = 8,
        disable_above_batch: int | None = None,
        disable_above_context: int | None = None,
        relaxed: RelaxedVerification | None = None,
    ) -> None:
        if policy.cuts_on_drawn_tokens and drafter.tokens_are_drawn:
            raise InvalidInputError(
                f"length policy {policy.name!r} cuts drafts by what was drawn and drafter {drafter.name!r} draws its "
                "tokens: together they would bias the output"
            )
        if max_batch < 1:
            raise InvalidInputError(f"max_batch must be >= 1, got {max_batch}")
        self.target = target
        self.drafter = drafter
        self.policy = policy
        self.recorder = recorder
        self.max_batch = max_batch
        self.disable_above_batch = disable_above_batch
        self.disable_above_context = disable_above_context
        self.relaxed = relaxed
        self._ranks = getattr(target, "ranks", ONE_RANK)
        self._watchdog = Watchdog(drafter)
        self._warned_drafter_limit = False

    def run(self, requests: Sequence[Request]) -> Iterator[Step]:
        """Run the requests, yielding what each round commits. Finished or abandoned, every drafter state is let go."""
        seeds = self._ranks.agree(lambda: [request.seed for request in requests])
        for request, seed in zip(requests, seeds, strict=True):
            request.seed = seed  # ranks draft in step only when they draw alike
        waiting = [request for request in requests if request.finish_reason is None]
        running: list[Request] = []
        try:
            while waiting or running:
                while waiting and len(running) < self.max_batch:
                    running.append(waiting.pop(0))
                    self._admit(running[-1])
                yield from self.step(running)
                for request in running:
                    if request.finish_reason is not None:
                        self._finish(request)
                running = [request for request in running if request.finish_reason is None]
        finally:
            for request in running:
                self._finish(request)

    def _finish(self, request: Request) -> None:
        used = getattr(self.drafter, "memory_bytes", lambda: 0)()
        request.statistics.memory = {"target": request.state.size_bytes(), "drafter": used}
        self.drafter.finish(request)
        self.policy.finish(request)

    def _admit(self, request: Request) -> None:
        """Let the drafter meet the request and read all but the last stretch of its prompt."""
        with self.recorder.stage("prefill"):
            self.drafter.start(request)
            pending = request.pending
            chunk = self.target.prefill_chunk
            whole = (len(pending) - 1) // chunk * chunk
            if whole:
                self.target.prefill(request.state, pending[:whole])

    def step(self, requests: Sequence[Request]) -> list[Step]:
        """Run one round for ``requests`` and return what was committed."""
        clock = [time.perf_counter()]

        def lap() -> None:
            clock.append(time.perf_counter())

        catching_up = self._unread(requests) > MOST_UNREAD
        draft = self._draft(requests)
        lap()
        # Clocks differ between ranks, and a forward of another shape would not meet its peers: rank 0 decides.
        drafted = draft
        draft = self._ranks.agree(lambda: self.policy.trim(requests, drafted), lambda d: replace(d, draft_probs=None))
        lap()
        readable = draft.readable(self.target.vocab_size)
        scores = self.target.score([r.state for r in requests], [r.pending for r in requests], readable)
        scored = where.moment(scores.logits)
        lap()
        processed = self._ranks.attempt(lambda: law.process(requests, readable, scores))
        rule = self.relaxed or verifier
        verdict = self._ranks.agree(lambda: rule.verify(requests, draft, scores, processed.logits))
        verified = where.moment(scores.logits)
        lap()
        if scored is not None and verified is not None:
            # On a device the forward ends long after it was launched: while the host waits for the verdict.
            clock[-2] = max(clock[-2], clock[-1] - where.seconds_between(scored, verified))
        pending = [len(request.pending) for request in requests]
        steps = self._commit(requests, draft, scores, processed, verdict)
        lap()
        seconds = RoundSeconds(*np.diff(clock).tolist())
        self.recorder.round(pending, len(draft.tokens), sum(len(step.tokens) for step in steps), seconds)
        self._watchdog.note(requests, len(draft.tokens), len(verdict.path))
        # A round in which the target or the drafter also read a long stretch says nothing about usual rounds.
        if all(size == 1 for size in pending) and not (catching_up and len(draft.tokens)):
            self.policy.observe(requests, draft, verdict, seconds)
        return steps

    def _unread(self, requests: Sequence[Request]) -> int:
        """Return how many committed tokens the drafter has to read first: a new text's prompt, or what came in rest."""
        unread = getattr(self.drafter, "unread", None)
        return 0 if unread is None else max(unread(request) for request in requests)

    def _draft(self, requests: Sequence[Request]) -> Draft:
        off = [self._is_switched_off(request, len(requests)) for request in requests]
        for request, switched_off in zip(requests, off, strict=True):
            request.statistics.switched_off += switched_off
        limits = [0 if switched_off else self._limit(r) for r, switched_off in zip(requests, off, strict=True)]
        if not any(limits) or not self._watchdog.may_draft():
            return Draft.empty(len(requests), self.drafter.name)
        budgets = self._ranks.agree(lambda: self.policy.budgets(requests, limits))
        if not any(budgets):
            return Draft.empty(len(requests), self.drafter.name)
        if getattr(self.drafter, "asks_to_go_on", False):
            draft = self.drafter.propose(requests, budgets, self._go_on(requests))  # type: ignore[call-arg]
        else:
            draft = self.drafter.propose(requests, budgets)
        if draft.batch_size != len(requests):
            raise InvalidInputError(
                f"drafter {self.drafter.name!r} drafted for {draft.batch_size} requests, expected {len(requests)}"
            )
        # What a drafter brings beyond its budget could pass the model's context; a row is cut by its length alone.
        return _until_the_end(requests, draft.within(budgets))

    def _is_switched_off(self, request: Request, batch: int) -> bool:
        """Return whether the batch or the text is longer than drafting is wanted for."""
        crowded = self.disable_above_batch is not None and batch > self.disable_above_batch
        long = self.disable_above_context is not None and len(request.tokens) > self.disable_above_context
        return crowded or long

    def _limit(self, request: Request) -> int:
        """Return how many more tokens a draft may bring: the bonus token needs no draft."""
        if not request.speculate:
            return 0
        room = request.stop.max_new_tokens - request.generated - 1
        written = len(request.tokens)
        if self.target.max_context is not None:
            room = min(room, self.target.max_context - written - 1)
        limit = self.drafter.max_context
        if limit is not None and written + room > limit:
            room = min(room, limit - written)
            if room <= 0 and not self._warned_drafter_limit:
                self._warned_drafter_limit = True
                warnings.warn(
                    f"drafter {self.drafter.name!r} reads at most {limit} tokens and the text has {written} (the "
                    f"target reads {self.target.max_context}): the rest is decoded without drafts",
                    stacklevel=2,
                )
        return max(room, 0)

    def _go_on(self, requests: Sequence[Request]) -> GoOn | None:
        """Return the policy's question after each token; ranks draft in step, so rank 0's answer is everybody's."""
        ask = self.policy.go_on(requests)
        if ask is None or self._ranks is ONE_RANK:
            return ask
        return lambda step: self._ranks.agree(lambda: ask(step))

    def _trim_runs(
        self, requests: Sequence[Request], runs: Sequence[_Run], scores: Scores, processed: law.ProcessedScores
    ) -> list[stopping.Kept]:
        """Return what stays of each run, after its watcher has seen it."""
        for b, (request, run) in enumerate(zip(requests, runs, strict=True)):
            if request.watcher is not None and request.watcher.wants_rows:
                rows = (scores.row_ptr[b] + np.concatenate([[0], run.path + 1]))[: len(run.tokens)]
                request.watcher.offered(scores.logits[rows], processed.logits[rows])
        return [stopping.trim(r, run.tokens, self.target.max_context) for r, run in zip(requests, runs, strict=True)]

    def _commit(
        self,
        requests: Sequence[Request],
        draft: Draft,
        scores: Scores,
        processed: law.ProcessedScores,
        verdict: Verdict,
    ) -> list[Step]:
        """Append what is kept, move its keys and values into place, and tell the drafter."""
        runs = [_run_of(draft, verdict, b) for b in range(len(requests))]
        # Every rank reads the run, for its texts and watchers go on by it; rank 0 says where it ends: a rule may ask
        # a clock.
        own = self._ranks.attempt(lambda: self._trim_runs(requests, runs, scores, processed))
        trimmed = self._ranks.agree(lambda: own)
        steps = []
        for b, (request, run, kept) in enumerate(zip(requests, runs, trimmed, strict=True)):
            path, unusable = run.path, run.unusable
            nodes = draft.nodes_of(b)
            tokens = np.array(run.tokens[: kept.count], np.uint32)
            rows = scores.row_ptr[b] + np.concatenate([[0], path + 1])
            if request.logprobs_wanted is not None:
                request.logprobs += _logprobs(processed.logits, rows[: kept.count], tokens, request.logprobs_wanted)
            last_row = int(rows[min(len(path), kept.count)])
            request.processors = processed.row_states.get(last_row, request.processors)
            # The last kept token becomes the anchor: its keys and values are made by the next round.
            request.state.commit(path[: max(kept.count - 1, 0)], len(request.pending) - (kept.count == 0))
            request.extend(tokens)
            if request.watcher is not None:
                request.watcher.kept(kept.count)
            request.finish_reason, request.stopped_by = kept.finish_reason, kept.stopped_by
            if unusable and request.finish_reason is None:
                request.finish_reason = "error"
            if request.finish_reason is None:
                self.drafter.commit(request, tokens)
            accepted = min(len(path), kept.count)
            # A token was offered behind the accepted ones, unless a stop cut the run before the verifier got there.
            last = int(path[-1]) if len(path) else ANCHOR
            missed = kept.count > len(path) and bool((draft.parents[nodes] == last).any())
            request.statistics.record(len(draft.tokens[nodes]), accepted, accepted + missed, draft.source_of(b))
            steps.append(Step(request, tuple(tokens.tolist()), kept.pieces))
        return steps


def _until_the_end(requests: Sequence[Request], draft: Draft) -> Draft:
    """Cut what is drafted behind a token that ends the text: it can never be kept."""
    ends = {token for request in requests for token in request.stop.ending_ids}
    if not ends or not np.isin(draft.tokens, list(ends)).any():
        return draft
    kept = np.ones(len(draft.tokens), np.bool_)
    for b, request in enumerate(requests):
        own, nodes = set(request.stop.ending_ids), draft.nodes_of(b)
        least = request.stop.min_new_tokens - request.generated
        for node, parent in enumerate(draft.parents[nodes].tolist(), nodes.start):
            above = nodes.start + parent
            if parent == ANCHOR:
                continue
            ended = int(draft.tokens[above]) in own and int(draft.depths[above]) > least
            kept[node] = kept[above] and not ended
    return draft.keep_nodes(kept)


def _logprobs(logits: Any, rows: np.ndarray, tokens: np.ndarray, alternatives: int) -> list[TokenLogprob]:
    rows = rows[: len(tokens)].astype(np.int64)
    if where.on_a_device(logits):  # log-probs are the host's work: it gets the rows that they are asked of
        logits, rows = logits[rows], np.arange(len(rows))
    values, dtype = as_rows(logits)
    own = _core.log_probs(values, dtype, rows, tokens)
    if not alternatives:
        return [TokenLogprob(int(t), float(v)) for t, v in zip(tokens, own, strict=True)]
    ids, top = _core.top_log_probs(values, dtype, rows, alternatives)
    return [
        TokenLogprob(int(t), float(v), tuple(zip(i.tolist(), w.tolist(), strict=True)))
        for t, v, i, w in zip(tokens, own, ids, top, strict=True)
    ]
