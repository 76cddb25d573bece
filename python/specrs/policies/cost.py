"""What scoring m rows costs on this machine: measured once per target, refined by every round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.types import Draft

if TYPE_CHECKING:
    from specrs.models.base import TargetModel

#: Row counts that are measured; the cost between them is interpolated, never smoothed over a step.
MEASURED_ROWS = (1, 2, 4, 8, 16, 32)
#: Committed tokens before the rows when the table is measured.
MEASURED_CONTEXT = 32
#: Weight of the newest observation.
RECENT = 0.1


class CostTable:
    """Seconds of a target forward by number of rows.

    Parameters
    ----------
    rows : array of int, shape (M,)
        Rising row counts, the first 1.
    seconds : array of float, shape (M,)
        Their measured seconds; made monotone.
    """

    def __init__(self, rows: Any, seconds: Any) -> None:
        self._rows = np.asarray(rows, np.float64)
        self._seconds = np.maximum.accumulate(np.asarray(seconds, np.float64))
        self._scale = 1.0

    @classmethod
    def measure(cls, target: TargetModel, repeats: int = 1) -> CostTable:
        """Time forwards of the target on its production path; the best of ``repeats`` for each row count."""
        room = MEASURED_CONTEXT + MEASURED_ROWS[-1] if target.max_context is None else target.max_context
        context = min(MEASURED_CONTEXT, room // 2)
        measured = [rows for rows in MEASURED_ROWS if rows <= max(1, room - context)]
        state = target.new_state(context + measured[-1] + 1)
        tokens = np.zeros(max(context, 1), np.uint32)
        target.prefill(state, tokens[:context])
        target.score([state], [tokens[:1]], Draft.chains([[]]))  # the first forward of a shape is slower
        seconds = []
        for rows in measured:
            draft = Draft.chains([np.zeros(rows - 1, np.uint32)])
            best = np.inf
            for _ in range(repeats):
                start = time.perf_counter()
                target.score([state], [tokens[:1]], draft)
                best = min(best, time.perf_counter() - start)
            seconds.append(best)
        return cls(measured, seconds)

    def seconds(self, rows: int) -> float:
        """Return the expected seconds of a forward over ``rows`` rows."""
        if rows <= self._rows[-1]:
            return float(np.interp(rows, self._rows, self._seconds)) * self._scale
        if len(self._rows) == 1:
            return float(self._seconds[0] * rows) * self._scale
        slope = max(0.0, (self._seconds[-1] - self._seconds[-2]) / (self._rows[-1] - self._rows[-2]))
        return float(self._seconds[-1] + slope * (rows - self._rows[-1])) * self._scale

    def observe(self, rows: int, seconds: float) -> None:
        """Refine the table by one finished forward: the measured point nearest to ``rows``, and the overall scale."""
        expected = self.seconds(rows)
        ratio = float(np.clip(seconds / expected, 0.5, 2.0))
        self._scale *= 1 + RECENT * (ratio - 1) * 0.5
        nearest = int(np.abs(self._rows - rows).argmin())
        self._seconds[nearest] *= 1 + RECENT * (ratio - 1)
        self._seconds = np.maximum.accumulate(self._seconds)

    def to_dict(self) -> dict[str, list[float]]:
        """Return the table as plain lists."""
        return {"rows": self._rows.tolist(), "seconds": (self._seconds * self._scale).tolist()}
