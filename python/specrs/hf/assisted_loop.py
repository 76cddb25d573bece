"""``specrs.hf.assisted``: the assisted loop of transformers, unchanged, with a candidate generator of the caller's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from specrs.errors import InvalidInputError
from specrs.hf.arguments import dropped_arguments
from specrs.hf.candidates import CacheCandidateGenerator, RoutedCandidateGenerator
from specrs.models.kept import kept_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers.generation.candidate_generator import CandidateGenerator


def assisted(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    candidate_generator: CandidateGenerator | None = None,
    inputs_tensor: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode one text with transformers' own assisted loop and a candidate generator of the caller's.

    Give it to ``model.generate(..., custom_generate=specrs.hf.assisted, candidate_generator=...)``. Forwards,
    acceptance and outputs are those of transformers, its limits too: one text at a time, chains only, and a stop string
    or criterion is looked at once per round. ``specrs.hf.generate`` has none of these limits.

    Parameters
    ----------
    model, input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer, inputs_tensor
        As ``generate`` prepares them.
    candidate_generator : CandidateGenerator, optional
        Default: ``CacheCandidateGenerator()``, or ``RoutedCandidateGenerator()`` with an ``assistant_model``.

    Returns
    -------
    What ``generate`` returns.

    Raises
    ------
    InvalidInputError
        A batch of several texts, or a cache that cannot be cropped.
    """
    if input_ids.shape[0] != 1:
        raise InvalidInputError(
            f"the assisted loop of transformers takes one text, got {input_ids.shape[0]}; "
            "specrs.hf.generate takes batches"
        )
    if not model_kwargs.get("use_cache", True):
        raise InvalidInputError("the assisted loop of transformers needs use_cache=True")
    dropped = dropped_arguments()
    assistant = dropped.get("assistant_model")
    if candidate_generator is None:
        candidate_generator = CacheCandidateGenerator() if assistant is None else RoutedCandidateGenerator()
    _make_croppable(model_kwargs, dropped)
    if isinstance(candidate_generator, CacheCandidateGenerator):
        eos = generation_config._eos_token_tensor
        candidate_generator.prepare(
            vocab_size=model.get_output_embeddings().weight.shape[0],
            eos_token_ids=frozenset(() if eos is None else map(int, eos.flatten().tolist())),
            max_length=generation_config.max_length,
            target=kept_target(model, accelerate=True),
        )
    with _offered_to(model, candidate_generator, has_other=_names_another_drafter(generation_config, assistant)):
        try:
            return type(model)._assisted_decoding(
                model,
                input_ids,
                logits_processor=logits_processor,
                stopping_criteria=stopping_criteria,
                generation_config=generation_config,
                synced_gpus=dropped.get("synced_gpus", synced_gpus),
                streamer=dropped.get("streamer", streamer),
                inputs_tensor=input_ids if inputs_tensor is None else inputs_tensor,
                assistant_model=assistant,
                assistant_tokenizer=dropped.get("assistant_tokenizer"),
                tokenizer=dropped.get("tokenizer") if "assistant_tokenizer" in dropped else None,
                **model_kwargs,
            )
        finally:
            if isinstance(candidate_generator, CacheCandidateGenerator):
                candidate_generator.finish()


def _names_another_drafter(config: Any, assistant: Any) -> bool:
    """Return whether transformers would have a candidate generator of its own for this call."""
    settings = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
    return assistant is not None or any(getattr(config, name, None) for name in settings)


@contextmanager
def _offered_to(model: Any, generator: CandidateGenerator, *, has_other: bool) -> Iterator[None]:
    """Let the model's loop find ``generator`` where it asks for one.

    The loop asks the model for its generator by one method and has no argument for another; the method is covered on
    this model object, for the time of the call.
    """
    own: Callable[..., CandidateGenerator] = model._get_candidate_generator

    def get_candidate_generator(**arguments: Any) -> CandidateGenerator:
        if isinstance(generator, RoutedCandidateGenerator) and has_other:
            generator.offer(lambda input_ids: own(**_begun_at(input_ids, arguments)))
        return generator

    covered = model.__dict__.get("_get_candidate_generator")
    model.__dict__["_get_candidate_generator"] = get_candidate_generator
    try:
        yield
    finally:
        del model.__dict__["_get_candidate_generator"]
        if covered is not None:
            model.__dict__["_get_candidate_generator"] = covered


def _begun_at(input_ids: torch.Tensor, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a candidate generator that meets the text only now.

    Its own bookkeeping of masks and positions begins with the text it is given.
    """
    model_kwargs = {k: v for k, v in arguments["model_kwargs"].items() if k not in ("position_ids", "cache_position")}
    mask = model_kwargs.get("attention_mask")
    if mask is not None and (missing := input_ids.shape[1] - mask.shape[1]) > 0:
        model_kwargs["attention_mask"] = torch.cat([mask, mask.new_ones(1, missing)], dim=1)
    return {**arguments, "input_ids": input_ids, "inputs_tensor": input_ids, "model_kwargs": model_kwargs}


def _make_croppable(model_kwargs: dict[str, Any], dropped: dict[str, Any]) -> None:
    """See that rejected candidates can be taken out of the cache again.

    Before ``Cache.activate_past_recording`` existed, ``generate`` gave the assisted loop a cache whose sliding layers
    keep everything; it did not know that we are that loop.
    """
    if hasattr(DynamicCache, "activate_past_recording"):
        return
    name = "cache" if "cache" in model_kwargs else "past_key_values"
    cache = model_kwargs.get(name)
    if any(getattr(layer, "is_compileable", False) for layer in getattr(cache, "layers", ())):
        raise InvalidInputError(
            f"the assisted loop cannot crop a {type(cache).__name__}; expected cache_implementation='dynamic'"
        )
    if name not in dropped:
        model_kwargs[name] = DynamicCache()  # without a configuration: no sliding layers
