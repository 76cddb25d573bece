"""What a run of texts hands out: chunks while it goes on, generations at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specrs.errors import NonFiniteLogitsError, SpecrsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specrs.engine.request import Request, TokenLogprob
    from specrs.report.report import Report


@dataclass(frozen=True)
class Generation:
    """A finished (or interrupted) text.

    Attributes
    ----------
    text : str or None
        The output decoded, special tokens left out; None without a tokenizer.
    ids : list of int
        New tokens, the one that stopped included.
    finish_reason : {'stop', 'length', 'interrupted', 'error'}
    stopped_by : int, str or None
        The id or the string that stopped it.
    logprobs : list of TokenLogprob or None
        One per new token, if asked for.
    report : Report
    """

    text: str | None
    ids: list[int]
    finish_reason: str
    stopped_by: int | str | None
    logprobs: list[TokenLogprob] | None
    report: Report


@dataclass(frozen=True)
class Chunk:
    """What one round added to one text of a stream.

    Attributes
    ----------
    index : int
        Which prompt (and sample) of the call.
    ids : tuple of int
    text : str
        Text that became whole; pieces joined equal the generation's text.
    """

    index: int
    ids: tuple[int, ...]
    text: str


class Stream:
    """An iterator over the chunks of a run; :attr:`generations` holds the results at any time.

    Leaving early (``close`` or dropping it) keeps what was produced and lets everything else go.
    """

    def __init__(self, requests: list[Request], steps: Iterator[Any], make: Any) -> None:
        self._requests = requests
        self._index = {request.id: index for index, request in enumerate(requests)}
        self._steps = steps
        self._make = make
        self._chunks = self._run()

    def _run(self) -> Iterator[Chunk]:
        failed: Request | None = None
        try:
            for step in self._steps:
                text = "".join(step.pieces)
                if step.request.finish_reason is not None:
                    if step.request.text is not None:
                        text += step.request.text.flush()
                    if step.request.session is None and hasattr(step.request.state, "close"):
                        step.request.state.close()  # nobody continues this text: its memory serves others
                if step.request.finish_reason == "error":
                    failed = failed or step.request
                if step.tokens:
                    yield Chunk(self._index[step.request.id], step.tokens, text)
            if failed is not None:  # the others have run to their ends: one request's fault is not theirs
                raise NonFiniteLogitsError(
                    f"the target returned unusable logits (NaN, or no finite value) for text "
                    f"{self._index[failed.id]} after {failed.generated} new tokens; all texts are kept in .partial"
                )
        finally:
            self._steps.close()  # type: ignore[attr-defined]
            for request in self._requests:
                if request.finish_reason is None:
                    request.finish_reason = "interrupted"
                if request.session is not None:
                    request.session.keep(request.session.model, request.tokens, request.state)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        try:
            return next(self._chunks)
        except SpecrsError as error:
            made = self.generations
            error.partial = made[0] if len(made) == 1 else made
            raise

    def close(self) -> None:
        """Stop here; what was produced is kept."""
        self._chunks.close()  # type: ignore[attr-defined]

    @property
    def generations(self) -> list[Generation]:
        """The results so far, one per prompt and sample."""
        return [self._make(request) for request in self._requests]
