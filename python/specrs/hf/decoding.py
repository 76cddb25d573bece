"""``specrs.hf.generate``: our round as a decoding method of ``model.generate``."""

from __future__ import annotations

import copy
import functools
import inspect
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.generation import stopping_criteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specrs.errors import InvalidInputError
from specrs.hf.arguments import dropped_arguments
from specrs.hf.law import RowProcessors, split_processors
from specrs.hf.refusals import left_padding, refuse_unsupported
from specrs.hf.rows import ColumnStreamer, RowWatcher, TogetherStop
from specrs.method_options import MethodOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specrs.drafters.base import Drafter
    from specrs.engine.request import Request
    from specrs.models.hf import TransformersTarget
    from specrs.policies.base import LengthPolicy
    from specrs.policies.cost import CostTable
    from specrs.report.report import Report


@dataclass
class GenerateOutput(GenerateDecoderOnlyOutput):
    """What ``generate(return_dict_in_generate=True)`` returns: the fields of transformers, and one report per row.

    Attributes
    ----------
    sequences : tensor of int64, shape (B, L + T)
        Prompts and outputs; rows that ended early are padded on the right.
    scores, logits : tuple of T tensors of float32, shape (B, V), or None
        As asked for with ``output_scores`` and ``output_logits``: what each token was drawn from, and the target's own
        rows. Behind a row's end they are 0.
    reports : list of Report
        Acceptance, passes and times of each row. Not part of what transformers returns.
    """

    reports: list[Report] | None = None


def generate(
    model: Any,
    input_ids: torch.Tensor | None = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    synced_gpus: bool | None = None,
    streamer: Any = None,
    *,
    drafter: str | Drafter = "cache",
    draft_model: Any = None,
    draft_tokens: int | None = None,
    draft_shape: str = "chain",
    policy: str | LengthPolicy | None = None,
    policy_options: Mapping[str, Any] | None = None,
    cost_table: CostTable | str | Path | None = None,
    disable_above_batch: int | None = None,
    disable_above_context: int | None = None,
    payoff: str | Path | None = None,
    seed: int | None = None,
    max_batch: int = 8,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode with specrs inside ``model.generate``; lossless.

    Give it to ``model.generate(..., custom_generate=specrs.hf.generate)``, or call it with the same arguments and the
    model first. The whole generation configuration holds: processors, stopping criteria, stop strings, lengths,
    sampling, ``num_return_sequences``, left-padded batches, streamers, recorded scores and logits. Sampling draws from
    the same law as ``generate``, with other random numbers; ``torch.manual_seed`` (or ``seed``) repeats a text.

    Parameters
    ----------
    model : PreTrainedModel
        A decoder-only model. Its attention is swapped for the time of a forward only.
    input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer
        As of ``model.generate``.
    drafter : str or Drafter
        Who drafts, as of ``specrs.generate``. An ``assistant_model`` makes 'model' the default.
    draft_model : object, optional
        A smaller model of the same vocabulary; ``assistant_model`` is another name for it.
    draft_tokens : int, optional
        Draft this many tokens each round. Default: as many as pay on this machine.
    draft_shape : {'chain', 'tree'}
    policy, policy_options, cost_table, disable_above_batch, disable_above_context, payoff
        As of ``specrs.generate``.
    seed : int, optional
        Default: drawn from torch's generator when sampling.
    max_batch : int
        Rows that run at once.
    stop_strings, tokenizer
        As of ``model.generate``.
    **model_kwargs
        ``attention_mask``; other inputs of the model are refused.

    Returns
    -------
    tensor of int64, shape (B, L + T), or GenerateOutput with ``return_dict_in_generate``

    Raises
    ------
    InvalidInputError
        What it cannot honour (beam search, attentions, a cache of the caller's, ...), all named, before any work.
    UnsupportedModelError
        A model whose state cannot be rolled back.
    """
    options = MethodOptions(
        drafter=drafter,
        draft_model=draft_model,
        draft_tokens=draft_tokens,
        draft_shape=draft_shape,
        policy=policy,
        policy_options=policy_options,
        cost_table=cost_table,
        disable_above_batch=disable_above_batch,
        disable_above_context=disable_above_context,
        payoff=payoff,
        max_batch=max_batch,
    )
    if not hasattr(generation_config, "_pad_token_tensor"):  # not prepared: called by the user, not by `generate`
        return _through_generate(
            model,
            input_ids,
            options,
            seed,
            stop_strings,
            tokenizer,
            streamer,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            synced_gpus=synced_gpus,
            **model_kwargs,
        )
    assert input_ids is not None
    dropped = dropped_arguments()
    synced_gpus = dropped.get("synced_gpus", synced_gpus)
    refuse_unsupported(generation_config, logits_processor, input_ids, model_kwargs, dropped, synced_gpus)
    padding = left_padding(input_ids, model_kwargs)
    streamer = dropped.get("streamer", streamer)
    criteria = list(stopping_criteria)
    if stop_strings is not None:
        criteria.append(_stop_string_criteria(stop_strings, dropped.get("tokenizer", tokenizer)))
    if "assistant_model" in dropped:
        options = _with_assistant(options, dropped["assistant_model"])
    return _decode(
        model, input_ids, padding, list(logits_processor), criteria, generation_config, streamer, options, seed
    )


def _through_generate(
    model: Any,
    input_ids: Any,
    options: MethodOptions,
    seed: int | None,
    stop_strings: Any,
    tokenizer: Any,
    streamer: Any,
    *,
    generation_config: Any,
    **arguments: Any,
) -> Any:
    """Let ``model.generate`` prepare everything and call us back."""
    if generation_config is not None and generation_config.stop_strings is not None and stop_strings is None:
        # transformers would ask for the tokenizer, which it does not hand on to us; we keep the criterion ourselves.
        stop_strings = generation_config.stop_strings
        generation_config = copy.deepcopy(generation_config)
        generation_config.stop_strings = None
    given = {option.name: getattr(options, option.name) for option in fields(options)}
    own = {name: value for name, value in given.items() if name in inspect.signature(generate).parameters}
    method = functools.partial(generate, stop_strings=stop_strings, tokenizer=tokenizer, seed=seed, **own)
    return model.generate(
        input_ids, custom_generate=method, streamer=streamer, generation_config=generation_config, **arguments
    )


def _stop_string_criteria(stop_strings: Any, tokenizer: Any) -> Any:
    if tokenizer is None:
        raise InvalidInputError(f"stop_strings {stop_strings!r} need tokenizer=, for they are looked for in text")
    return stopping_criteria.StopStringCriteria(tokenizer, stop_strings)


def _with_assistant(options: MethodOptions, assistant: Any) -> MethodOptions:
    if options.draft_model is not None:
        raise InvalidInputError("both draft_model and assistant_model were given; they are names of one thing")
    # A drafter that was named keeps its name where it takes a model.
    drafter = "model" if isinstance(options.drafter, str) and options.drafter == "cache" else options.drafter
    return replace(options, draft_model=assistant, drafter=drafter)


def _decode(
    model: Any,
    input_ids: torch.Tensor,
    padding: Sequence[int],
    processors: list[Any],
    criteria: list[Any],
    config: Any,
    streamer: Any,
    options: MethodOptions,
    seed: int | None,
) -> Any:
    """Run the rows to their ends and put together what ``generate`` returns."""
    from specrs.inputs import check_requests
    from specrs.models.kept import kept_target
    from specrs.report.recorder import Recorder
    from specrs.report.report import make_report

    target = kept_target(model, accelerate=True)
    sampled = bool(config.do_sample)
    ends, limit, others = _split_criteria(criteria, input_ids.shape[1], config)
    rows = _Rows(input_ids, padding, target)
    # torch.manual_seed must repeat a text, and only torch knows whether it was called
    method = options.make(target, sampled=sampled, seeded=True)
    if sampled and seed is None:
        seed = int(torch.randint(2**62, (1,)))
    requests = rows.requests(processors, others, config, ends, limit, seed)
    check_requests(target, [request.tokens for request in requests], requests[0].stop)
    columns = None if streamer is None else ColumnStreamer(streamer, len(requests), rows.fill(config))
    recorder = Recorder()
    engine = method.engine(target, recorder)
    number = {request.id: row for row, request in enumerate(requests)}
    for step in engine.run(requests):
        request = step.request
        if request.finish_reason == "error":
            _raise_unusable(request, number[request.id])
        if columns is not None:
            columns.add(number[request.id], step.tokens, finished=request.finish_reason is not None)
            columns.show(rows.together.length if rows.together is not None else None)
    if columns is not None:
        columns.end()
    sequences = rows.sequences(requests, config)
    if not config.return_dict_in_generate:
        return sequences
    plain = getattr(target, "plain_step_seconds", None)
    width = sequences.shape[1]
    scores: Any = rows.recorded(requests, "scores", width) if config.output_scores else None
    logits: Any = rows.recorded(requests, "logits", width) if config.output_logits else None
    found: Any = sequences  # transformers says LongTensor and one-tuples where it means int64 and tuples
    return GenerateOutput(
        sequences=found,
        scores=scores,
        logits=logits,
        reports=[make_report([r], recorder, method=method.name, plain_step_seconds=plain) for r in requests],
    )


def _raise_unusable(request: Request, row: int) -> None:
    from specrs.errors import NonFiniteLogitsError

    error = NonFiniteLogitsError(
        f"the target returned unusable logits (NaN, or no finite value) for row {row} after {request.generated} new "
        "tokens"
    )
    error.partial = request.output.tolist()
    raise error


def _split_criteria(criteria: Sequence[Any], length: int, config: Any) -> tuple[tuple[int, ...] | None, int, list[Any]]:
    """Return the ending ids (None without such a criterion), the most new tokens, and the other criteria."""
    ends: list[int] | None = None
    longest = config.max_length
    others = []
    for criterion in criteria:
        if type(criterion) is stopping_criteria.EosTokenCriteria:
            ends = (ends or []) + [int(i) for i in criterion.eos_token_id.flatten().tolist()]
        elif type(criterion) is stopping_criteria.MaxLengthCriteria:
            longest = criterion.max_length if longest is None else min(longest, criterion.max_length)
        else:
            others.append(criterion)
    if longest is None:
        raise InvalidInputError("no length limit was given; expected max_new_tokens or max_length")
    return (None if ends is None else tuple(ends)), max(0, longest - length), others


class _Rows:
    """The batch: which tokens are padding, and how rows become one rectangle again."""

    def __init__(self, input_ids: torch.Tensor, padding: Sequence[int], target: TransformersTarget) -> None:
        self._input_ids = input_ids
        self._cpu_ids = input_ids.to("cpu")
        self._padding = padding
        self._target = target
        self.together: TogetherStop | None = None

    def requests(
        self,
        processors: list[Any],
        criteria: list[Any],
        config: Any,
        ends: tuple[int, ...] | None,
        limit: int,
        seed: Any,
    ) -> list[Request]:
        """Return one request per row."""
        from specrs.engine.request import Request
        from specrs.sampling import SamplingParams, StopRules

        kept, law, tail = split_processors(processors, sampled=bool(config.do_sample))
        stops = StopRules(max_new_tokens=limit, eos_token_ids=tuple(i for i in ends or () if i >= 0))
        count = len(self._padding)
        if ends is None and count > 1 and criteria:
            self.together = TogetherStop(count)
        record_scores = bool(config.return_dict_in_generate and config.output_scores)
        record_logits = bool(config.return_dict_in_generate and config.output_logits)
        made = []
        for row, pad in enumerate(self._padding):
            watcher = None
            if criteria or record_scores or record_logits:
                watcher = RowWatcher(
                    self._cpu_ids[row],
                    row,
                    limit,
                    criteria,
                    tail,
                    record_scores=record_scores,
                    record_logits=record_logits,
                    together=self.together,
                )
            own = (RowProcessors(kept, row, count, self._cpu_ids[row : row + 1, :pad]),) if kept else ()
            prompt = self._cpu_ids[row, pad:].numpy().astype(np.uint32)
            request = Request(
                prompt,
                SamplingParams(**law, logits_processors=own, seed=seed),
                stops,
                self._target.new_state(len(prompt) + limit + 64),
                sample=row,
                watcher=watcher,
            )
            if limit == 0:
                request.finish_reason = "length"
            made.append(request)
        return made

    def fill(self, config: Any) -> int:
        """Return the id behind a row's end."""
        padding = config._pad_token_tensor
        return 0 if padding is None else int(padding)

    def sequences(self, requests: Sequence[Request], config: Any) -> torch.Tensor:
        """Return prompts and outputs as one rectangle, shape (B, L + T)."""
        width = max(request.generated for request in requests)
        if self.together is not None and self.together.length is not None:
            width = min(width, self.together.length)
        new = torch.full((len(requests), width), self.fill(config), dtype=self._input_ids.dtype)
        for row, request in enumerate(requests):
            output = torch.from_numpy(request.output[:width].astype(np.int64))
            new[row, : len(output)] = output
        return torch.cat([self._input_ids, new.to(self._input_ids.device)], dim=1)

    def recorded(self, requests: Sequence[Request], what: str, length: int) -> tuple[torch.Tensor, ...]:
        """Return the recorded rows as ``generate`` does: one tensor of shape (B, V) per new token."""
        columns = []
        for column in range(length - self._input_ids.shape[1]):
            parts = []
            for request in requests:
                rows = getattr(request.watcher, what)
                parts.append(rows[column] if column < len(rows) else torch.zeros(1, self._target.vocab_size))
            columns.append(torch.cat(parts).to(self._input_ids.device))
        return tuple(columns)
