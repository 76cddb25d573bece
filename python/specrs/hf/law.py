"""From the logits processors that transformers prepared to the law that our verifier draws from."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation import logits_process

from specrs.engine.request import is_stateless

if TYPE_CHECKING:
    from collections.abc import Sequence


def split_processors(processors: Sequence[Any], *, sampled: bool) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Split processors into those that run row by row and the temperature and truncation that the verifier applies.

    The verifier truncates in Rust, in one pass over a row. It has temperature, top-k, top-p and min-p, in this order;
    when a list ends in these, they are taken off its end. Any other list runs as it is, and the verifier only draws.

    Parameters
    ----------
    processors : sequence of LogitsProcessor
        As ``generate`` prepared them.
    sampled : bool
        ``do_sample``.

    Returns
    -------
    rows : list of LogitsProcessor
        To be called on each row.
    law : dict
        ``temperature``, ``top_k``, ``top_p`` and ``min_p`` of ``SamplingParams``.
    tail : list of LogitsProcessor
        What was taken off: the scores that are reported went through it, too.
    """
    rows = list(processors)
    if not sampled:
        return rows, {"temperature": 0.0}, []
    law: dict[str, Any] = {"temperature": 1.0}
    tail: list[Any] = []
    if rows and type(rows[-1]) is logits_process.LogitNormalization:  # a constant per row, which no draw depends on
        tail.insert(0, rows.pop())
    for kind, name, value_of in _TRUNCATIONS:
        if rows and type(rows[-1]) is kind and _is_plain(rows[-1]):
            law[name] = value_of(rows[-1])
            tail.insert(0, rows.pop())
    return rows, law, tail


#: From the last that is applied to the first: class, our name, its value.
_TRUNCATIONS: tuple[tuple[type, str, Any], ...] = (
    (logits_process.MinPLogitsWarper, "min_p", lambda p: float(p.min_p)),
    (logits_process.TopPLogitsWarper, "top_p", lambda p: float(p.top_p)),
    (logits_process.TopKLogitsWarper, "top_k", lambda p: int(p.top_k)),
    (logits_process.TemperatureLogitsWarper, "temperature", lambda p: float(p.temperature)),
)


def _is_plain(warper: Any) -> bool:
    """Return whether a truncation drops tokens altogether and may leave a single one, as the verifier's do."""
    return getattr(warper, "filter_value", -float("inf")) == -float("inf") and (
        getattr(warper, "min_tokens_to_keep", 1) == 1
    )


class RowProcessors:
    """The processors of one row of a batch, as one processor.

    ``generate`` calls processors with the whole batch; we call them row by row, for rows grow at different speeds. This
    object makes the difference invisible: the row's history begins with its left padding, for lengths and penalties
    count it, and a function of the row's number is told that number.

    Parameters
    ----------
    processors : sequence of LogitsProcessor
    row, rows : int
        Number of the row in the batch, and how many there are.
    padding : tensor of int64, shape (1, P)
        What stands before the row's first token.
    """

    def __init__(self, processors: Sequence[Any], row: int, rows: int, padding: torch.Tensor) -> None:
        self._processors = [_of_row(processor, row, rows) for processor in processors]
        self._padding = padding

    @property
    def stateless(self) -> bool:
        """Whether no processor keeps a state from call to call, as far as is known."""
        return all(is_stateless(processor) for processor in self._processors)

    def __deepcopy__(self, memo: dict[int, Any]) -> RowProcessors:
        made = RowProcessors((), 0, 1, self._padding)
        made._processors = [p if is_stateless(p) else copy.deepcopy(p, memo) for p in self._processors]
        return made

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return ``scores``, shape (1, V), after all processors in turn; ``input_ids`` has shape (1, L)."""
        if self._padding.shape[1]:
            input_ids = torch.cat([self._padding, input_ids], dim=1)
        for processor in self._processors:
            scores = processor(input_ids, scores)
        return scores


#: What processors of transformers keep per row of the batch: class, attributes.
_PER_ROW: dict[type, tuple[str, ...]] = {
    logits_process.RepetitionPenaltyLogitsProcessor: ("prompt_ignore_length",),
    logits_process.EncoderRepetitionPenaltyLogitsProcessor: ("encoder_input_ids",),
    logits_process.EncoderNoRepeatNGramLogitsProcessor: ("generated_ngrams",),
}


def _of_row(processor: Any, row: int, rows: int) -> Any:
    """Return a processor that does for a batch of one what ``processor`` does for ``row`` of ``rows``."""
    if type(processor) is logits_process.PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        return logits_process.PrefixConstrainedLogitsProcessor(lambda _, sentence: allowed(row, sentence), 1)
    if type(processor) not in _PER_ROW:
        return processor
    made = copy.copy(processor)
    for name in _PER_ROW[type(processor)]:
        held = getattr(made, name, None)
        if isinstance(held, (torch.Tensor, list)):
            own = row // (rows // len(held))  # rows of one prompt follow each other
            setattr(made, name, held[own : own + 1])
    if hasattr(made, "batch_size"):
        made.batch_size = 1
    return made
