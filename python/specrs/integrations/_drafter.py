"""The cache drafter as SGLang uses it: requests by number, their text, and where it goes when they finish."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specrs.cache import SuffixCache
from specrs.errors import InvalidInputError, RequestError
from specrs.integrations._history import SharedHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.integrations._config import EngineOptions

Integers = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.uint32]


class BatchDrafter:
    """A :class:`specrs.SuffixCache` with the history that the options ask for.

    Parameters
    ----------
    vocab_size : int
        Ids at or above it are never drafted.
    options : EngineOptions
    eos : sequence of int
        Tokens that end a text.
    fingerprint : callable
        See :func:`open_history`.
    """

    def __init__(
        self,
        vocab_size: int,
        options: EngineOptions,
        eos: Sequence[int],
        fingerprint: Callable[[], str],
    ) -> None:
        self.cache = SuffixCache(vocab_size, max_tokens=options.history_tokens)
        self.active: set[int] = set()
        self._options = options
        self._eos = np.array(eos, np.uint32)
        self._texts: dict[int, list[Tokens]] = {}
        self.history = open_history(self.cache, options, fingerprint)

    def start(self, request: int, text: npt.NDArray[Any]) -> None:
        """Meet a request with all of its text so far, shape (T,)."""
        text = text.astype(np.uint32)
        self.cache.start(request, text)
        self.active.add(request)
        if self.history:
            self._texts[request] = [text]

    def finish(self, request: int) -> None:
        """End a request. Its text serves later ones, unless the options say otherwise."""
        self.active.discard(request)
        self.cache.finish(request, keep=self._options.history)
        text = self._texts.pop(request, None)
        if self.history and text is not None:
            self.history.add(np.concatenate(text))

    def forget(self) -> None:
        """Drop all requests and their text, whatever state a fault left them in."""
        for request in self.active:
            with contextlib.suppress(RequestError):  # the fault came between the cache and the record of it here
                self.cache.abort(request)
        self.active.clear()
        self._texts.clear()

    def step(self, requests: Integers, unread: Tokens, ptr: Integers, room: npt.NDArray[np.int32]) -> tuple[Any, ...]:
        """Read new text and draft trees, in one call without the GIL; see :meth:`specrs.SuffixCache.step_many`.

        What follows an end token within the new text of a request is left out: engines drop it too.
        """
        if len(self._eos) and np.isin(unread, self._eos).any():
            unread, ptr = self._end_at_eos(unread, ptr)
        if self.history:
            for request, start, end in zip(requests.tolist(), ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
                if end > start:
                    self._texts[request].append(unread[start:end])
        return self.cache.step_many(
            requests,
            unread,
            ptr,
            room,
            shape="tree",
            min_prob=self._options.min_prob,
            eos=self._eos if len(self._eos) else None,
            threads=self._options.threads,
        )

    def _end_at_eos(self, unread: Tokens, ptr: Integers) -> tuple[Tokens, Integers]:
        parts = []
        for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
            part = unread[start:end]
            ends = np.flatnonzero(np.isin(part, self._eos))
            parts.append(part[: ends[0] + 1] if len(ends) else part)
        return np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])])

    def close(self) -> None:
        """Finish all requests, and write what has finished to the store."""
        for request in sorted(self.active):
            self.finish(request)
        if self.history:
            self.history.close()


def open_history(cache: SuffixCache, options: EngineOptions, fingerprint: Callable[[], str]) -> SharedHistory | None:
    """Return the history that ``options`` name a store for, if they do.

    ``fingerprint`` names the engine's tokenizer; it is called only if there is a store and the options do not name it.
    """
    if options.store is None:
        return None
    name = fingerprint() if options.fingerprint is None else options.fingerprint
    return SharedHistory(cache, options.store, name, options.store_seconds)


def load_fingerprint(tokenizer: str, **options: Any) -> str:
    """Return the fingerprint of the tokenizer of a model name or folder; ``options`` go to ``from_pretrained``.

    Raises
    ------
    InvalidInputError
        It cannot be loaded.
    """
    from specrs.drafters.token_classes import tokenizer_fingerprint

    try:
        from transformers import AutoTokenizer

        return tokenizer_fingerprint(AutoTokenizer.from_pretrained(tokenizer, **options))
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"cannot load the engine's tokenizer {tokenizer!r} to tell whether the store is of the same one ({error}); "
            "set the option 'fingerprint' to a name of your own for it"
        ) from error
