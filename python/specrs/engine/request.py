"""One text in the making: its tokens, its wishes, its memory in the target."""

from __future__ import annotations

import copy
import itertools
import secrets
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from specrs.engine.text import TextStream
    from specrs.engine.watcher import Watcher
    from specrs.sampling import SamplingParams, StopRules
    from specrs.session import Session
    from specrs.types import TokenArray

_ids = itertools.count()

#: Logits processors of transformers keep no state between calls, but for these.
_STATELESS_MODULE = "transformers.generation.logits_process"
_STATEFUL = frozenset(
    {
        "DiaEOSDelayPatternLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor",
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    }
)


class Request:
    """A text in the making. Changed by ``commit`` alone.

    Parameters
    ----------
    prompt : array of uint32, shape (P,)
    sampling : SamplingParams
    stop : StopRules
    state : object
        The target's memory of this text; may hold a prefix of the prompt already.
    sample : int
        Which of several samples of one prompt and seed.
    speculate : bool
        False: plain steps only.
    text : TextStream, optional
        Decodes the output as it comes.
    logprobs : int or None
        How many alternatives to report per token; None reports nothing.
    watcher : Watcher, optional
        Follows the text and may end it.
    session : Session, optional
        Where memories of this text are kept when it has ended.
    """

    def __init__(
        self,
        prompt: TokenArray,
        sampling: SamplingParams,
        stop: StopRules,
        state: Any,
        *,
        sample: int = 0,
        speculate: bool = True,
        text: TextStream | None = None,
        logprobs: int | None = None,
        watcher: Watcher | None = None,
        session: Session | None = None,
    ) -> None:
        self.id = next(_ids)
        self.sampling = sampling
        self.stop = stop
        self.state = state
        self.sample = sample
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.text = text
        self.watcher = watcher
        self.session = session
        self.logprobs_wanted = logprobs
        self.logprobs: list[TokenLogprob] = []
        self.prompt_length = len(prompt)
        self._buffer = np.empty(len(prompt) + stop.max_new_tokens + 1, np.uint32)
        self._buffer[: len(prompt)] = prompt
        self._length = len(prompt)
        self.finish_reason: str | None = None
        self.stopped_by: int | str | None = None
        self.reused = 0  #: prompt tokens that the memory held before the request began
        self.statistics = RequestStatistics()
        self.speculate = speculate
        self.processors = self._own_processors()

    @property
    def tokens(self) -> TokenArray:
        """Committed tokens, prompt and output; a view. The last one is the anchor."""
        return self._buffer[: self._length]

    @property
    def output(self) -> TokenArray:
        """Committed tokens after the prompt; a view."""
        return self._buffer[self.prompt_length : self._length]

    @property
    def generated(self) -> int:
        """Number of tokens committed after the prompt."""
        return self._length - self.prompt_length

    @property
    def pending(self) -> TokenArray:
        """Committed tokens that the target's memory does not hold yet, the anchor last; a view."""
        return self._buffer[self.state.length : self._length]

    def extend(self, kept: TokenArray) -> None:
        """Append committed tokens."""
        self._buffer[self._length : self._length + len(kept)] = kept
        self._length += len(kept)

    def _own_processors(self) -> list[Any]:
        """Return processors of this request's own, so that a state in them is shared with nobody."""
        shared = list(self.sampling.logits_processors)
        try:
            return [p if is_stateless(p) else copy.deepcopy(p) for p in shared]
        except Exception as error:  # a foreign class may raise anything from its copy hooks
            if self.speculate:
                warnings.warn(
                    f"a logits processor cannot be copied ({error}), so its state cannot follow a draft: "
                    "this request is decoded without drafts. Give the processor a __deepcopy__ to speculate with it.",
                    stacklevel=2,
                )
            self.speculate = False
            return shared


def is_stateless(processor: Any) -> bool:
    """Return whether a logits processor keeps no state from call to call, as far as is known."""
    kind = type(processor)
    if kind.__module__ == _STATELESS_MODULE:
        return kind.__name__ not in _STATEFUL
    return bool(getattr(processor, "stateless", False))


@dataclass(frozen=True, slots=True, repr=False)
class TokenLogprob:
    """The log-probability of an emitted token, and of the likeliest alternatives.

    Natural logarithms of the target's law after penalties, bias and processors, before temperature and truncation.
    """

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()

    def __repr__(self) -> str:
        return f"TokenLogprob(token={self.token}, logprob={self.logprob:.4f})"


class RequestStatistics:
    """Counts of one request's rounds.

    Attributes
    ----------
    rounds : int
        Target passes that emitted something.
    drafted : int
        Nodes scored by the target.
    accepted : int
        Nodes kept.
    switched_off : int
        Rounds without a draft because a limit of batch or text length forbade one.
    accepted_lengths : Counter
        How many rounds accepted n nodes.
    reached, accepted_at : Counter
        By depth: rounds that had a token to offer there below an accepted path, and rounds that accepted one there.
    by_source : Counter
        Accepted nodes by drafter.
    memory : dict of str to int
        Bytes at the text's end: of the target's keys and values for it, and of what the drafter holds for all texts.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.drafted = 0
        self.accepted = 0
        self.switched_off = 0
        self.accepted_lengths: Counter[int] = Counter()
        self.reached: Counter[int] = Counter()
        self.accepted_at: Counter[int] = Counter()
        self.by_source: Counter[str] = Counter()
        self.memory: dict[str, int] = {}

    def record(self, nodes: int, accepted: int, tried: int, source: str) -> None:
        """Count one round: a draft of ``nodes`` nodes, of which ``accepted`` were kept and ``tried`` depths decided."""
        self.rounds += 1
        self.drafted += nodes
        self.accepted += accepted
        self.accepted_lengths[accepted] += 1
        for position in range(1, tried + 1):
            self.reached[position] += 1
            self.accepted_at[position] += position <= accepted
        if accepted:
            self.by_source[source] += accepted
