"""Making a drafter that runs beside the target: what drafts, where it runs, and one process for calls alike."""

from __future__ import annotations

import atexit
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs.errors import InvalidInputError
from specrs.ssd.cache_branches import CacheBranches
from specrs.ssd.drafter import SsdDrafter
from specrs.ssd.links import LocalLink, ThreadLink
from specrs.ssd.predrafter import PreDrafter
from specrs.ssd.process import ProcessLink
from specrs.ssd.sampling import DraftLaw
from specrs.ssd.texts import SsdOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.models.base import TargetModel
    from specrs.ssd.branches import BranchDrafter
    from specrs.ssd.texts import Link

#: Where a drafter can run.
OVERLAPS = ("process", "thread", "none")

_processes: dict[tuple[Any, ...], ProcessLink] = {}


def build(draft_model: Any, options: SsdOptions, vocab_size: int, tokenizer: Any = None) -> PreDrafter:
    """Return the drafter's side.

    Parameters
    ----------
    draft_model : TargetModel, PreTrainedModel, str, Path or None
        None: text already seen drafts.
    options : SsdOptions
    vocab_size : int
        The target's.
    tokenizer : object, optional
        The target's, to compare with the draft model's.
    """
    if draft_model is None:
        return PreDrafter(CacheBranches(vocab_size), options, vocab_size)
    from specrs.ssd.model_branches import ModelBranches

    if isinstance(draft_model, Shipped):
        draft_model = draft_model.unpack()
    if not hasattr(draft_model, "new_state"):
        from specrs.models.loading import load

        draft_model = load(draft_model)
    if tokenizer is not None and draft_model.tokenizer is not None:
        from specrs.models.vocabulary import require_same_vocabulary

        require_same_vocabulary(tokenizer, draft_model.tokenizer)
    law = DraftLaw(options.fan_out + 1, options.saguaro)
    return PreDrafter(ModelBranches(draft_model, vocab_size, law), options, vocab_size)


class Shipped:
    """A transformers target on its way to another process: its modules are swapped there anew."""

    def __init__(self, target: Any) -> None:
        self.model, self.name, self.accelerated = target.model, target.name, target.accelerated

    def unpack(self) -> TargetModel:
        """Return the target, made anew."""
        from specrs.models.hf import TransformersTarget

        target = TransformersTarget(self.model, name=self.name)
        if self.accelerated:
            target.accelerate()
        return target


def make_ssd(
    target: TargetModel,
    draft_model: Any = None,
    *,
    options: SsdOptions | None = None,
    overlap: str = "process",
    cores: Sequence[int] | None = None,
    patience: float = 10.0,
) -> SsdDrafter:
    """Return a drafter that drafts while ``target`` verifies.

    Parameters
    ----------
    target : TargetModel
    draft_model : TargetModel, PreTrainedModel, str, Path or None
        As for :func:`specrs.generate`; None continues text already seen.
    options : SsdOptions, optional
    overlap : {'process', 'thread', 'none'}
        Where the drafter runs: in a process of its own; in a thread, on a GPU in a stream of its own (this has not been
        run on a GPU); or here, after each answer (for tests: everything in a fixed order).
    cores : sequence of int, optional
        Pin the process to these. Default: the last core that this process may use, if it may use several.
    patience : float
        Seconds to wait for an answer before a round is decoded plainly.

    Raises
    ------
    DrafterLostError
        The process did not come up.
    InvalidInputError
        The draft model cannot be sent to another process.
    """
    options = SsdOptions() if options is None else options
    if overlap not in OVERLAPS:
        raise InvalidInputError(f"overlap must be one of {', '.join(map(repr, OVERLAPS))}, got {overlap!r}")
    if draft_model is None and options.saguaro < 1:
        raise InvalidInputError(
            f"saguaro={options.saguaro} weighs a law that tokens are drawn from; it needs draft_model="
        )
    vocabulary = target.vocab_size
    link: Link
    side: ProcessLink | BranchDrafter
    if overlap == "process":
        link = side = _process(target, draft_model, options, cores, patience)
    else:
        made = build(draft_model, options, vocabulary, target.tokenizer)
        link = LocalLink(made) if overlap == "none" else ThreadLink(made, _side_stream(draft_model))
        side = made.drafter
    return SsdDrafter(
        link,
        lookahead=options.lookahead,
        vocab_size=vocabulary,
        max_context=side.max_context,
        tokens_are_drawn=side.tokens_are_drawn,
    )


def _side_stream(draft_model: Any) -> Any:
    device = getattr(draft_model, "device", None)
    if device is None or getattr(device, "type", "cpu") != "cuda":
        return None
    import torch

    return torch.cuda.Stream(device)


def _process(
    target: TargetModel, draft_model: Any, options: SsdOptions, cores: Sequence[int] | None, patience: float
) -> ProcessLink:
    """Return a running process for these settings; a call alike finds it again."""
    named = draft_model is None or isinstance(draft_model, (str, Path))
    if cores is None and hasattr(os, "sched_getaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        cores = allowed[-1:] if len(allowed) > 1 else None
    key = (None if draft_model is None else str(draft_model), options, target.vocab_size, tuple(cores or ()), patience)
    found = _processes.get(key) if named else None
    if found is not None and found.process.poll() is None:
        return found
    shipped = Shipped(draft_model) if hasattr(draft_model, "accelerated") else draft_model
    tokenizer = target.tokenizer if named else None
    if not named and tokenizer is not None and getattr(draft_model, "tokenizer", None) is not None:
        from specrs.models.vocabulary import require_same_vocabulary

        require_same_vocabulary(tokenizer, draft_model.tokenizer)
    link = ProcessLink(
        partial(build, shipped, options, target.vocab_size, tokenizer),
        law_bytes=4 * options.lookahead * target.vocab_size if draft_model is not None else 0,
        cores=cores,
        patience=patience,
    )
    if named:
        close_all()  # a draft model is large: one at a time
        _processes[key] = link
    return link


def close_all() -> None:
    """End the drafter processes that calls by name have started."""
    for link in _processes.values():
        link.close()
    _processes.clear()


atexit.register(close_all)
