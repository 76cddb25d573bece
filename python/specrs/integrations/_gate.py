"""How much of each draft of a batch is worth scoring: expected tokens over measured step time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Bins of stated confidence, and of the match that a draft rests on: shorter than each bound, or longer than all.
CONFIDENCE_BINS = 16
MATCH_BOUNDS = (2, 4, 8, 16, 32)
#: Observations that the stated confidence counts for, in each bin, before it is outweighed.
PRIOR_WEIGHT = 4.0
#: Share of its weight that the past of a bin keeps at each new step that it takes part in.
MEMORY = 1 - 1 / 128
#: Row counts whose step time is measured; between them it is interpolated.
MEASURED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
#: Weight of the newest time, and the largest factor by which one time may differ from what was expected.
RECENT = 0.2
OUTLIER = 3.0
#: Share above which drafting must beat a plain step, so that noise does not tip the scales.
MARGIN = 1.03
#: Steps of plain decoding after which a short draft is tried, in case the times were wrong, and its length.
PROBE_EVERY = 40
PROBE_NODES = 3
#: Expected acceptance that a probe's first token must have.
PROBE_LEAST = 0.5


class StepTimes:
    """Seconds of an engine's step by the rows it scores: measured where seen, in between and beyond by a straight line.

    Parameters
    ----------
    token_cost : float
        Cost of one more row as a share of the cost of one, where nothing was measured.
    """

    def __init__(self, token_cost: float) -> None:
        self._rows = np.array(MEASURED_ROWS, np.float64)
        self._seconds = np.full(len(MEASURED_ROWS), np.nan)
        self._token_cost = token_cost
        self._at: Floats | None = None
        self._time: Floats | None = None
        self._table: Floats = np.empty(0)

    @property
    def measured(self) -> bool:
        """Whether any step was timed yet."""
        return self._at is not None

    def observe(self, rows: int, seconds: float) -> None:
        """Learn that a step over ``rows`` rows took ``seconds``."""
        if rows < 1 or not seconds > 0:
            return
        nearest = int(np.abs(np.log(self._rows / rows)).argmin())
        known = self._seconds[nearest]
        if np.isnan(known):
            # Another count of rows than the point's own: move it along the straight line.
            scale = self._prior(self._rows[nearest]) / self._prior(rows) if self._at is None else None
            at_rows = self.seconds(np.array([self._rows[nearest], rows], np.float64))
            self._seconds[nearest] = seconds * (at_rows[0] / at_rows[1] if scale is None else scale)
        else:
            expected = float(self.seconds(np.array([rows], np.float64))[0])
            ratio = min(max(seconds / expected, 1 / OUTLIER), OUTLIER)
            self._seconds[nearest] = known * (1 + RECENT * (ratio - 1))
        self._table = np.empty(0)
        seen = ~np.isnan(self._seconds)
        # More rows never cost less; where noise says so, both points are believed by half.
        self._at, self._time = self._rows[seen], _rising(self._seconds[seen])

    def _prior(self, rows: Any) -> Any:
        return 1 + self._token_cost * (rows - 1)

    def seconds(self, rows: Floats) -> Floats:
        """Return the expected seconds of steps over ``rows`` rows, shape (N,)."""
        at, time = self._at, self._time
        if at is None or time is None:
            return np.asarray(self._prior(rows), np.float64)
        inside = np.interp(rows, at, time)
        below = time[0] * self._prior(rows) / self._prior(at[0])
        slope = time[-1] * self._token_cost / self._prior(at[-1])
        if len(at) > 1:
            slope = max(slope, (time[-1] - time[-2]) / (at[-1] - at[-2]))
        beyond = time[-1] + slope * (rows - at[-1])
        return np.where(rows < at[0], below, np.where(rows > at[-1], beyond, inside))

    def run(self, first: int, count: int) -> Floats:
        """Return the expected seconds of steps over ``first`` rows, one more, and so on, shape (count,)."""
        if len(self._table) < first + count:
            self._table = self.seconds(np.arange(2 * (first + count), dtype=np.float64))
        return self._table[first : first + count]

    def to_dict(self) -> dict[str, list[float]]:
        """Return what was measured."""
        if self._at is None or self._time is None:
            return {"rows": [], "seconds": []}
        return {"rows": self._at.tolist(), "seconds": self._time.tolist()}


class PayoffGate:
    """Cuts the drafts of a batch where one more token costs more time than it is expected to bring.

    The tokens that stay are those of the largest survival probability, as many as make (B + their sum) / T(B + their
    count) largest, T being the measured time of a step. Zero is among the choices. Survival is the product of
    confidences, calibrated by what was accepted, by stated confidence and length of the match.

    Parameters
    ----------
    token_cost : float
        See :class:`StepTimes`.
    """

    def __init__(self, token_cost: float) -> None:
        self.times = StepTimes(token_cost)
        shape = (len(MATCH_BOUNDS) + 1, CONFIDENCE_BINS)
        stated = np.broadcast_to((np.arange(CONFIDENCE_BINS) + 0.5) / CONFIDENCE_BINS, shape)
        self._seen = np.full(shape, PRIOR_WEIGHT)
        self._hits = stated * PRIOR_WEIGHT
        self._plain_steps = 0

    def cut(self, confidence: Floats, lengths: Integers, matches: Integers) -> Integers:
        """Return how many tokens of each draft to score.

        Parameters
        ----------
        confidence : array of float, shape (B, K)
            Per token, the stated probability of acceptance given that the token before is accepted; chains.
        lengths : array of int64, shape (B,)
            Tokens of each draft.
        matches : array of int64, shape (B,)
            Length of the match that each draft rests on.

        Returns
        -------
        array of int64, shape (B,)
        """
        batch, longest = confidence.shape
        if not longest or not lengths.any():
            return np.zeros(batch, np.int64)
        rate = (self._hits / self._seen)[_match_bins(matches)[:, None], _confidence_bins(confidence)]
        # Strictly falling along a draft, so that what stays is its beginning.
        survival = np.cumprod(np.minimum(rate, 0.999), axis=1)
        survival[np.arange(longest) >= lengths[:, None]] = 0
        gain = -np.sort(-survival, axis=None)[: int(lengths.sum())]
        expected = np.cumsum(np.concatenate([[float(batch)], gain]))
        speed = expected / self.times.run(batch, len(gain) + 1)
        best = int(speed.argmax())
        if best and speed[best] < MARGIN * speed[0]:
            best = 0
        self._plain_steps = 0 if best else self._plain_steps + 1
        if self._plain_steps >= PROBE_EVERY and gain[0] > PROBE_LEAST:
            self._plain_steps, best = 0, min(PROBE_NODES, len(gain))
        if not best:
            return np.zeros(batch, np.int64)
        kept: Integers = (survival >= gain[best - 1]).sum(1)
        if int(kept.sum()) > best:  # equal ones at the edge: the first rows have them
            order = np.argsort(-survival, axis=None, kind="stable")[:best]
            kept = np.bincount(order // longest, minlength=batch)
        return kept

    def learn(
        self, confidence: Floats, matches: Integers, tokens: npt.NDArray[Any], following: npt.NDArray[Any]
    ) -> None:
        """Learn from drafts, scored or not, by the tokens that followed them.

        Parameters
        ----------
        confidence : array of float, shape (B, K)
        matches : array of int64, shape (B,)
        tokens, following : arrays of int, shape (B, K)
            Drafted tokens, -1 where there are none, and what followed, -2 where that is not known.
        """
        known = (tokens >= 0) & (following >= 0)
        hit = known & (tokens == following)
        # A token was put to the test if all before it were hits.
        tested = known & np.concatenate([np.ones((len(hit), 1), np.bool_), hit[:, :-1]], axis=1).cumprod(1).astype(
            np.bool_
        )
        if not tested.any():
            return
        where = (_match_bins(matches)[:, None] * CONFIDENCE_BINS + _confidence_bins(confidence))[tested]
        size = self._seen.size
        seen = np.bincount(where, minlength=size).reshape(self._seen.shape)
        hits = np.bincount(where, hit[tested], minlength=size).reshape(self._seen.shape)
        fading = np.where(seen > 0, MEMORY, 1.0)
        self._seen = self._seen * fading + seen
        self._hits = self._hits * fading + hits


def _confidence_bins(confidence: Floats) -> npt.NDArray[np.int64]:
    return np.clip((confidence * CONFIDENCE_BINS).astype(np.int64), 0, CONFIDENCE_BINS - 1)


def _match_bins(matches: Integers) -> npt.NDArray[np.int64]:
    return np.searchsorted(MATCH_BOUNDS, matches, side="right")


def _rising(values: Floats) -> Floats:
    """Return the least-squares fit to ``values`` that never falls (pool adjacent violators)."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            both = counts[-2] + counts[-1]
            means[-2] = (means[-2] * counts[-2] + means[-1] * counts[-1]) / both
            counts[-2] = both
            del means[-1], counts[-1]
    return np.repeat(means, counts)
