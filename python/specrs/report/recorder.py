"""Takes the timings of a run: stages, rounds, plain steps."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specrs.policies.base import RoundSeconds


class Recorder:
    """Sums what each stage of a run took.

    Attributes
    ----------
    seconds : dict of str to float
        Per stage: prefill, draft, tree, score, verify, commit.
    rounds : int
        Target passes.
    emitted : int
        Tokens that the rounds kept, all requests together.
    first_token_seconds : float or None
        From the start to the end of the first round.
    decode_seconds, decode_emitted : float, int
        Time and tokens of the rounds after the first of the run.
    plain_seconds : list of float
        Score time of rounds without drafts over one row per request, one running request each.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.ended = self.started
        self.seconds: dict[str, float] = defaultdict(float)
        self.rounds = 0
        self.emitted = 0
        self.first_token_seconds: float | None = None
        self.decode_emitted = 0
        self.plain_seconds: list[float] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage outside the rounds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def round(self, pending: Sequence[int], nodes: int, emitted: int, seconds: RoundSeconds) -> None:
        """Take a finished round."""
        self.ended = time.perf_counter()
        if self.first_token_seconds is None:
            self.first_token_seconds = self.ended - self.started
        else:
            self.decode_emitted += emitted
        self.rounds += 1
        self.emitted += emitted
        prefilling = any(size > 1 for size in pending)
        self.seconds["draft"] += seconds.draft
        self.seconds["tree"] += seconds.tree
        self.seconds["prefill" if prefilling else "score"] += seconds.score
        self.seconds["verify"] += seconds.verify
        self.seconds["commit"] += seconds.commit
        if not nodes and not prefilling and len(pending) == 1:
            self.plain_seconds.append(seconds.total)

    @property
    def total_seconds(self) -> float:
        """From the start to the end of the last round."""
        return self.ended - self.started

    @property
    def decode_seconds(self) -> float:
        """From the end of the first round to the end of the last."""
        return self.total_seconds - (self.first_token_seconds or 0.0)
