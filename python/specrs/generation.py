"""Generate text: one call for a prompt or a batch, whole or streamed."""

from __future__ import annotations

import difflib
import inspect
import warnings
from typing import TYPE_CHECKING, Any, overload

from specrs.errors import InvalidInputError, UnknownNameError
from specrs.inputs import check_requests, eos_ids, per_prompt, session_per_prompt, token_ids
from specrs.prompts import encode_prompts, is_batch
from specrs.streaming import Generation, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from specrs.drafters.base import Drafter
    from specrs.models.base import TargetModel
    from specrs.policies.base import LengthPolicy
    from specrs.policies.cost import CostTable
    from specrs.session import Session
    from specrs.verification.base import Verifier
    from specrs.verification.ensemble_head import EnsembleHead


def stream(
    model: TargetModel,
    prompt: Any,
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
    verification: Verifier | EnsembleHead | str | Path | None = None,
    bias_budget: float | None = None,
    payoff: str | Path | None = None,
    fan_out: int | None = None,
    fallback: str | None = None,
    saguaro: float | None = None,
    overlap: str | None = None,
    draft_cores: Sequence[int] | None = None,
    max_new_tokens: int = 256,
    min_new_tokens: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float | None = None,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    logits_processor: Sequence[Any] = (),
    seed: int | Sequence[int | None] | None = None,
    eos_token_id: int | Sequence[int] | str | None = "model",
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    logprobs: int | None = None,
    n: int = 1,
    speculate: bool | Sequence[bool] = True,
    max_batch: int = 8,
    session: Session | Sequence[Session] | None = None,
    **unknown: Any,
) -> Stream:
    """Generate text, yielding a :class:`Chunk` for each text and round. Parameters as :func:`generate`."""
    if unknown:
        raise _unknown_options(unknown)
    from specrs.engine.request import Request
    from specrs.engine.text import TextStream
    from specrs.method_options import MethodOptions
    from specrs.models.loading import load
    from specrs.report.recorder import Recorder
    from specrs.report.report import make_report
    from specrs.sampling import SamplingParams, StopRules

    target = load(model) if not hasattr(model, "new_state") else model
    _warn_of_unapplied_settings(target)
    prompts = encode_prompts(target, prompt)
    if n < 1:
        raise InvalidInputError(f"n must be >= 1, got {n}")
    sessions = session_per_prompt(session, len(prompts), n)
    stops = StopRules(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        eos_token_ids=eos_ids(target, eos_token_id),
        stop_token_ids=token_ids(stop_token_ids),
        stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
    )
    check_requests(target, prompts, stops, logprobs, logit_bias or {})
    if repetition_penalty is None:
        repetition_penalty = getattr(target, "default_repetition_penalty", 1.0)
    seeds = per_prompt("seed", seed, len(prompts))
    switches = per_prompt("speculate", speculate, len(prompts))
    samplings = [
        SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=dict(logit_bias or {}),
            logits_processors=tuple(logits_processor),
            seed=one,
        )
        for one in seeds
    ]
    method = MethodOptions(
        drafter=drafter,
        draft_model=draft_model,
        draft_tokens=draft_tokens,
        draft_shape=draft_shape,
        policy=policy,
        policy_options=policy_options,
        cost_table=cost_table,
        disable_above_batch=disable_above_batch,
        disable_above_context=disable_above_context,
        verification=verification,
        bias_budget=bias_budget,
        payoff=payoff,
        fan_out=fan_out,
        fallback=fallback,
        saguaro=saguaro,
        overlap=overlap,
        draft_cores=draft_cores,
        max_batch=max_batch,
    ).make(target, sampled=temperature > 0, seeded=any(value is not None for value in seeds))
    recorder = Recorder()
    figures_from_now = getattr(method.drafter, "figures_from_now", None)
    figures = None if figures_from_now is None else figures_from_now()
    requests = []
    for ids, sampling, switch, kept in zip(prompts, samplings, switches, sessions, strict=True):
        for sample in range(n):
            capacity = len(ids) + max_new_tokens + 64
            state, reused = kept.take(target, ids, capacity) if kept else (target.new_state(capacity), 0)
            request = Request(
                ids,
                sampling,
                stops,
                state,
                sample=sample,
                speculate=switch,
                text=TextStream(target.tokenizer, stops.stop_strings) if target.tokenizer is not None else None,
                logprobs=logprobs,
                session=kept,
            )
            request.reused = reused
            if max_new_tokens == 0:
                request.finish_reason = "length"
            requests.append(request)

    def finish(request: Request) -> Generation:
        plain = getattr(target, "plain_step_seconds", None)
        text = None
        if target.tokenizer is not None:
            text = target.tokenizer.decode(
                request.output.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return Generation(
            text=text,
            ids=request.output.tolist(),
            finish_reason=request.finish_reason or "interrupted",
            stopped_by=request.stopped_by,
            logprobs=None if logprobs is None else list(request.logprobs),
            report=make_report(
                [request],
                recorder,
                method=method.name,
                plain_step_seconds=plain,
                policy_message=method.policy.message(),
                bias=None if method.relaxed is None else method.relaxed.bias_of(request),
                ahead=None if figures is None else figures(),
            ),
        )

    return Stream(
        requests,
        method.engine(target, recorder).run(requests),
        finish,
    )


@overload
def generate(model: Any, prompt: str, **options: Any) -> Generation: ...
@overload
def generate(model: Any, prompt: Any, **options: Any) -> Any: ...
def generate(model: Any, prompt: Any, **options: Any) -> Any:
    """Generate text with speculative decoding. Lossless: the output has the law of plain decoding.

    Parameters
    ----------
    model : TransformersTarget, PreTrainedModel, str or Path
        From :func:`specrs.load`, or anything that it takes.
    prompt : str, sequence of int, list of chat messages, or a list of these
        Text, token ids, or messages ``{"role": ..., "content": ...}`` for the chat template. A list of prompts gives a
        list of generations, which run together; none depends on the others.
    drafter : {'cache', 'model', 'hybrid', 'ssd', 'none'} or Drafter
        Who drafts. ``cache`` continues text already seen; ``model`` needs ``draft_model``; ``hybrid`` chooses between
        the two each round; ``ssd`` drafts with either while the target verifies; ``none`` is plain decoding.
    draft_model : object, optional
        A smaller model of the same vocabulary: anything that :func:`specrs.load` takes.
    draft_tokens : int, optional
        Draft this many tokens each round. Default: as many as pay on this machine, none if none do.
    policy : str or LengthPolicy, optional
        Decides how much is drafted and scored; ``specrs.policies.registry.POLICIES`` lists the names. Default:
        ``libra``, as many tokens as pay; with ``draft_tokens``, ``fixed``.
    policy_options : mapping, optional
        Options of the policy, by name; ``backoff=False`` drafts on where plain decoding is faster.
    cost_table : CostTable, str or Path, optional
        Measured costs (``specrs profile``) instead of the target's own. One of another machine or setting is not used.
    disable_above_batch, disable_above_context : int, optional
        No drafts while more requests than this run at once, or for a text of more tokens than this.
    verification : relaxed rule of ``specrs.verification``, EnsembleHead, str or Path, optional
        Verify by a relaxed rule: more drafts stand, and the output's law is not the target's. Text names a rule
        (``'lenience=0.5'``; ``ensemble``, ``typical``, ``top-k``, ``cascade``, ``fuzzy``) or is the path of a head that
        ``specrs train ensemble`` made for this very pair of models. Needs a temperature above 0.
    bias_budget : float, optional
        Most bias that each text may gather under ``verification``; beyond it the verification is exact.
    draft_shape : {'chain', 'tree'}
        Shape of the cache drafter's drafts.
    payoff : str or Path, optional
        A predictor that ``specrs train payoff`` made, for ``hybrid``; by default it trusts calibrated probabilities.
    fan_out, fallback, saguaro : int, str, float, optional
        For ``ssd``: guesses per number of accepted drafts (3), what to do after a wrong guess ('auto', 'slow', 'fast'
        or 'zero'), and the weight of guessed tokens in the draft law (1, off). See ``specrs.ssd.SsdOptions``.
    overlap : {'process', 'thread', 'none'}, optional
        For ``ssd``: where the drafter runs. A process by default, which later calls alike use again.
    draft_cores : sequence of int, optional
        For ``ssd``: processor cores that the drafter's process is pinned to; the last one by default. Leave the target
        the others (``threads`` of :func:`specrs.load`).
    max_new_tokens, min_new_tokens : int
        Length limits of the output. Before the minimum, ends cannot be drawn.
    temperature, top_k, top_p, min_p : float, int, float, float
        Law to draw from; temperature 0 is greedy. See ``SamplingParams``.
    repetition_penalty : float, optional
        Default: the model's own generation configuration.
    frequency_penalty, presence_penalty : float
    logit_bias : mapping of int to float, optional
    logits_processor : sequence of callables
        As in transformers; called once per scored row with the row's own history.
    seed : int, or one per prompt
        The same seed gives the same text, whatever runs beside it.
    eos_token_id : int, sequence of int or None
        Default: the model's. None or an empty sequence: no token ends the text.
    stop, stop_token_ids : str or sequence of str, sequence of int
        More ways to stop; the text keeps what stopped it.
    logprobs : int, optional
        Report each token's log-probability and those of this many alternatives (0: the token's alone).
    n : int
        Samples per prompt.
    speculate : bool, or one per prompt
        False decodes a prompt plainly, beside others that speculate.
    max_batch : int
        Requests that run at once.
    session : Session, or one per prompt, optional
        Continue a conversation without reading its beginning again.

    Returns
    -------
    Generation, or a list of them for a list of prompts or ``n > 1``

    Raises
    ------
    SpecrsError
        With the value found and what was expected, before any work. What may come later (``NonFiniteLogitsError``,
        ``CapacityError`` when memory ends) keeps what was generated in ``.partial``; so does ``KeyboardInterrupt``.
    """
    running = stream(model, prompt, **options)
    try:
        for _ in running:
            pass
    except KeyboardInterrupt as interrupt:
        running.close()
        partial = running.generations
        interrupt.partial = partial[0] if len(partial) == 1 else partial  # type: ignore[attr-defined]
        raise
    made = running.generations
    single = not is_batch(prompt) and options.get("n", 1) == 1
    return made[0] if single else made


def _warn_of_unapplied_settings(target: TargetModel) -> None:
    """Name, once per model, the settings of its generation configuration that we leave out."""
    ignored = getattr(target, "unapplied_settings", None)
    if ignored:
        target.unapplied_settings = {}  # type: ignore[attr-defined]
        warnings.warn(
            f"the generation configuration of {target.name} sets {ignored}, which specrs does not apply by itself; "
            "pass the matching logits_processor, or use model.generate(custom_generate=specrs.hf.generate)",
            stacklevel=4,
        )


def _unknown_options(unknown: Mapping[str, Any]) -> UnknownNameError:
    known = [
        name for name, p in inspect.signature(stream).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    parts = []
    for name in unknown:
        near = difflib.get_close_matches(name, known, 1)
        parts.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return UnknownNameError(f"unknown option {', '.join(parts)}; known: {', '.join(sorted(known))}")
