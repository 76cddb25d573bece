"""What drafting beside the target brought: hits by position and origin, and where the time went."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from specrs.ssd.texts import Origin

if TYPE_CHECKING:
    from specrs.ssd.texts import Answer, Reply


class SsdStatistics:
    """Counts of all requests of a drafter.

    Attributes
    ----------
    first : int
        First rounds, which nobody could have guessed; counted nowhere else.
    by_origin : Counter of str
        Replies by where the draft came from.
    hits_at, outcomes_at : Counter of int
        By number of accepted drafts: guessed outcomes, and all.
    hits_after, outcomes_after : Counter of str
        The same by the origin of the draft before.
    tokens_after : Counter of str
        Tokens that rounds behind drafts of an origin brought.
    late, refused : int
        Rounds without an answer in time; replies that were not for the question asked.
    asked, stale : int
        Drafts asked for; those of them that came too late for their round, or for another outcome.
    wait_seconds, service_seconds, pre_draft_seconds, busy_seconds, message_seconds : float
        Waiting for answers; making them; drafting ahead; waiting for a forward of it to end; and what of the waiting
        neither side's work explains.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.first = 0
        self.by_origin: Counter[str] = Counter()
        self.hits_at: Counter[int] = Counter()
        self.outcomes_at: Counter[int] = Counter()
        self.hits_after: Counter[str] = Counter()
        self.outcomes_after: Counter[str] = Counter()
        self.tokens_after: Counter[str] = Counter()
        self.late = 0
        self.refused = 0
        self.asked = 0
        self.stale = 0
        self.wait_seconds = 0.0
        self.service_seconds = 0.0
        self.pre_draft_seconds = 0.0
        self.busy_seconds = 0.0
        self.message_seconds = 0.0

    def reply(self, reply: Reply, before: Origin | None) -> None:
        """Count a reply that was believed; ``before`` is the origin of the draft whose outcome it answers."""
        if reply.accepted < 0 or before is None:
            self.first += 1
            return
        self.tokens_after[before.name.lower()] += reply.accepted + 1
        hit = reply.origin == Origin.HIT
        self.by_origin[reply.origin.name.lower()] += 1
        self.outcomes_at[reply.accepted] += 1
        self.hits_at[reply.accepted] += hit
        self.outcomes_after[before.name.lower()] += 1
        self.hits_after[before.name.lower()] += hit

    def round(self, answer: Answer, waited: float, message_seconds: float) -> None:
        """Count a round that was answered."""
        self.rounds += 1
        self.wait_seconds += max(0.0, waited)
        self.service_seconds += answer.service_seconds
        self.pre_draft_seconds += answer.pre_draft_seconds
        self.busy_seconds += answer.busy_seconds
        self.message_seconds += max(0.0, message_seconds)

    def since(self, before: SsdStatistics) -> SsdStatistics:
        """Return what was counted after a copy was taken."""
        made = SsdStatistics()
        for name, value in vars(self).items():
            old = getattr(before, name)
            if isinstance(value, Counter):
                value = Counter({key: count - old[key] for key, count in value.items() if count != old[key]})
            else:
                value -= old
            setattr(made, name, value)
        return made

    @property
    def stale_rate(self) -> float | None:
        """Stale drafts of those asked for."""
        return self.stale / self.asked if self.asked else None

    @property
    def hit_rate(self) -> float | None:
        """Guessed outcomes of all that could have been guessed."""
        outcomes = sum(self.outcomes_at.values())
        return sum(self.hits_at.values()) / outcomes if outcomes else None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        positions = sorted(self.outcomes_at)
        return {
            "rounds": self.rounds,
            "first": self.first,
            "hit_rate": self.hit_rate,
            "stale_rate": self.stale_rate,
            "by_origin": dict(self.by_origin),
            "hit_rate_by_accepted": {k: self.hits_at[k] / self.outcomes_at[k] for k in positions},
            "outcomes_by_accepted": {k: self.outcomes_at[k] for k in positions},
            "hit_rate_after": {o: self.hits_after[o] / self.outcomes_after[o] for o in self.outcomes_after},
            "tokens_after": {o: self.tokens_after[o] / self.outcomes_after[o] for o in self.outcomes_after},
            "late": self.late,
            "refused": self.refused,
            "wait_seconds": self.wait_seconds,
            "service_seconds": self.service_seconds,
            "pre_draft_seconds": self.pre_draft_seconds,
            "busy_seconds": self.busy_seconds,
            "message_seconds": self.message_seconds,
        }
