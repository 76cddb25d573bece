"""Cache drafting inside llama-cpp-python's own loop: a ``draft_model`` for its class ``Llama``.

>>> from llama_cpp import Llama                                             # doctest: +SKIP
>>> from specrs.integrations.llama_cpp import DraftModel                    # doctest: +SKIP
>>> llm = Llama("model.gguf", draft_model=DraftModel(), logits_all=True)    # doctest: +SKIP

The loop keeps its sampler and asks for one chain per step. ``specrs.load("model.gguf", backend="llama.cpp")`` runs our
own loop on the same library instead, with trees, batches, model drafters and reports.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from specrs import _core
from specrs.cache import SuffixCache
from specrs.errors import InvalidInputError

#: Longest draft. On a CPU a row's share of a forward hardly falls any more beyond 16 rows.
MAX_TOKENS = 40
#: Cost of one more row as a share of a forward over one, until timings are known: a 4-bit model on two cores.
TOKEN_COST = 0.4
#: The loop does not tell how many tokens it still wants.
ENDLESS = 1 << 20
#: A step this many times longer than usual steps of its size had a pause in it (a reader that took its time).
PAUSE = 4.0
#: After so many such steps in a row, steps have become slower.
PATIENCE = 5


class DraftModel:
    """Continues text that occurred before, where that pays: a ``LlamaDraftModel`` for ``Llama(draft_model=...)``.

    Before each step it weighs the expected tokens of a draft against what their rows cost, by the times that it sees
    between its calls, and offers nothing where plain decoding is faster. Lossless: the loop accepts what its own
    sampler draws. A finished text stays known to later ones.

    Parameters
    ----------
    max_tokens : int
        Longest draft.
    min_prob : float
        Stop a draft when its estimated probability of being reached falls below.
    cache : SuffixCache, optional
        A cache with text of earlier runs; by default a new one.
    router : PayoffRouter, optional
        What weighs drafts; by default one that begins with the costs of a 4-bit model on two cores.

    Attributes
    ----------
    steps, drafted, accepted, gated : int
        Calls; tokens offered; tokens of these that were kept; calls whose draft was held back entirely.
    """

    def __init__(
        self,
        *,
        max_tokens: int = MAX_TOKENS,
        min_prob: float = 0.1,
        cache: SuffixCache | None = None,
        router: _core.PayoffRouter | None = None,
    ) -> None:
        if max_tokens < 1:
            raise InvalidInputError(f"max_tokens must be >= 1, got {max_tokens}")
        if not 0 <= min_prob <= 1:
            raise InvalidInputError(f"min_prob must be in [0, 1], got {min_prob}")
        self._max_tokens = max_tokens
        self._min_prob = min_prob
        self._cache = SuffixCache() if cache is None else cache
        self._router = _core.PayoffRouter(token_cost=TOKEN_COST, explore=0.0) if router is None else router
        self._clock = _StepClock()
        self._request = 0
        self._text = np.empty(0, np.intc)
        self._started = False
        self._offered = np.empty(0, np.intc)
        self.steps = self.drafted = self.accepted = self.gated = 0
        _register(type(self))

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """Return the tokens to try after ``input_ids``, shape (T,): an array of shape (n,), n >= 0."""
        seconds = self._clock.stop()
        ids = np.asarray(input_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InvalidInputError(f"input_ids must be a row of whole numbers, got {ids.dtype} of shape {ids.shape}")
        if len(ids) and int(ids.min()) < 0:
            raise InvalidInputError(f"input_ids must be ids >= 0, got {int(ids.min())}")
        self.steps += 1
        known = len(self._text)
        if self._started and len(ids) > known and np.array_equal(ids[:known], self._text):
            new = ids[known:]
            self._learn(new, seconds)
        else:
            self._begin(len(ids))
            new = ids
        self._text = ids.astype(np.intc)
        tokens, parents, _, confidence, match_length, _ = self._cache.step(
            self._request, new, self._max_tokens, min_prob=self._min_prob
        )
        # Learns from earlier proposals too, offered or not, by the text that came. 'plain' comes with 0 nodes.
        _, nodes, _ = self._router.route(
            self._request,
            ids.astype(np.uint32),
            (tokens, parents, confidence),
            budget=self._max_tokens,
            remaining=ENDLESS,
            uniform=0.5,
            match_length=match_length,
        )
        self.gated += bool(len(tokens)) and not nodes
        self.drafted += nodes
        self._offered = tokens[:nodes].astype(np.intc)
        self._clock.start(1 + nodes)
        return self._offered

    def _begin(self, length: int) -> None:
        """Keep the text so far for later ones, and begin another with a prompt of ``length`` tokens."""
        if self._started:
            self._cache.finish(self._request, keep=True)
            self._router.finish(self._request, self._text.astype(np.uint32))
        self._request += 1
        self._cache.start(self._request, np.empty(0, np.uint32))
        self._router.start(self._request, length)
        self._started = True
        self._offered = self._offered[:0]

    def _learn(self, new: npt.NDArray[Any], seconds: float | None) -> None:
        """Count what was kept of the last offer, and learn from how long the step took."""
        same = min(len(self._offered), len(new))
        wrong = np.flatnonzero(self._offered[:same] != new[:same])
        self.accepted += int(wrong[0]) if len(wrong) else same
        if seconds is not None:
            self._router.note_forward(1 + len(self._offered), seconds)

    @property
    def acceptance_rate(self) -> float | None:
        """``accepted / drafted``; None before anything was offered."""
        return self.accepted / self.drafted if self.drafted else None


class _StepClock:
    """Times steps between calls, and leaves out those with a pause in them."""

    def __init__(self) -> None:
        self._rows = 0
        self._began: float | None = None
        self._usual: dict[int, float] = {}
        self._slow = 0

    def start(self, rows: int) -> None:
        """Begin a step over ``rows`` rows."""
        self._rows = rows
        self._began = time.perf_counter()

    def stop(self) -> float | None:
        """Return the seconds since ``start``, or None when there was none, or a pause."""
        if self._began is None:
            return None
        seconds, self._began = time.perf_counter() - self._began, None
        size = self._rows.bit_length()
        usual = self._usual_of(size)
        if usual is not None and seconds > PAUSE * usual and self._slow < PATIENCE:
            self._slow += 1
            return None
        self._slow = 0
        known = self._usual.get(size, seconds)
        self._usual[size] = known + 0.2 * (seconds - known)
        return seconds

    def _usual_of(self, size: int) -> float | None:
        """Return the usual seconds of a step of this size; of an unknown one, at most what its rows cost one by one."""
        if not self._usual:
            return None
        nearest = min(self._usual, key=lambda known: abs(known - size))
        return self._usual[nearest] * 2.0 ** max(size - nearest, 0)


def _register(kind: type) -> None:
    """Let ``isinstance(x, LlamaDraftModel)`` be true where llama-cpp-python is there."""
    try:
        from llama_cpp.llama_speculative import LlamaDraftModel
    except (ImportError, OSError, RuntimeError):
        return  # nothing to be an instance of
    LlamaDraftModel.register(kind)
