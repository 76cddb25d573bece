"""The cache drafter as SGLang's n-gram worker wants its corpus: trees of a fixed number of nodes, and a mask."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specrs.errors import InvalidInputError, SpecrsError
from specrs.integrations._drafter import BatchDrafter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from specrs.integrations._config import EngineOptions

_log = logging.getLogger(__name__)

#: Rounds for which a request may be out of the batch before it counts as finished.
PATIENCE = 16
#: Last known tokens that must stand where they stood, else the id was given to another request.
TAIL = 16


class Text:
    """A request's text in the parts that an engine holds it in, read without putting them together."""

    def __init__(self, *parts: Sequence[int]) -> None:
        self._parts = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, end: int) -> list[int]:
        """Return tokens ``start`` to ``end``."""
        found: list[int] = []
        for part in self._parts:
            if start < len(part) and end > 0:
                found += part[max(start, 0) : end]
            start, end = start - len(part), end - len(part)
        return found


@dataclass
class _Seen:
    """What is known of a request: its number in the cache, how much was read, the last of it, rounds away."""

    number: int
    length: int
    tail: list[int]
    away: int = 0


class Corpus:
    """What a draft is made from, behind the interface of SGLang's ``NgramCorpus``.

    Parameters
    ----------
    draft_token_num : int
        Nodes of a tree, D, the last committed token among them.
    vocab_size, options, eos, fingerprint
        As for :class:`specrs.integrations._drafter.BatchDrafter`.
    """

    def __init__(
        self,
        draft_token_num: int,
        vocab_size: int,
        options: EngineOptions,
        eos: Sequence[int],
        fingerprint: Callable[[], str],
    ) -> None:
        self.draft_token_num = draft_token_num
        self._drafter = BatchDrafter(vocab_size, options, eos, fingerprint)
        self._seen: dict[str, _Seen] = {}
        self._next = 0
        self._faults: set[type[Exception]] = set()
        self._corpora: dict[str, list[npt.NDArray[np.uint32]]] = {}

    def draft(self, ids: Sequence[str], texts: Sequence[Text]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draft a tree for each of B requests.

        Parameters
        ----------
        ids : sequence of str, length B
            The engine's ids; one that is used again for another text begins anew.
        texts : sequence of Text, length B
            All committed text.

        Returns
        -------
        tokens : array of int64, shape (B * D,)
            Per request the last committed token, then the drafted ones in topological order, then zeros.
        mask : array of int64, shape (B * D * D,)
            1 where the column's node is the row's, or above it. Nodes of the padding hang below the root.
            A fault inside is logged, once per kind, and gives padding alone: a plain step.
        """
        depth = self.draft_token_num
        tokens = np.zeros((len(ids), depth), np.int64)
        parents = np.zeros((len(ids), depth), np.int64)
        tokens[:, 0] = [text.read(len(text) - 1, len(text))[0] if len(text) else 0 for text in texts]
        if len(ids) and depth > 1:
            try:
                self._fill(ids, texts, tokens, parents)
            except Exception as error:  # whatever it is, a drafter must not take the engine down
                self._recover(error)
                tokens[:, 1:], parents[:] = 0, 0
        mask = np.zeros((len(ids), depth, depth), np.int64)
        rows = np.arange(len(ids))
        for node in range(depth):
            if node:
                mask[:, node] = mask[rows, parents[:, node]]
            mask[:, node, node] = 1
        return tokens.ravel(), mask.ravel()

    def _fill(
        self, ids: Sequence[str], texts: Sequence[Text], tokens: npt.NDArray[np.int64], parents: npt.NDArray[np.int64]
    ) -> None:
        unread = [self._meet(name, text) for name, text in zip(ids, texts, strict=True)]
        self._let_go(ids)
        numbers = np.array([self._seen[name].number for name in ids], np.int64)
        ptr = np.concatenate([[0], np.cumsum([len(new) for new in unread])]).astype(np.int64)
        flat = np.array([token for new in unread for token in new], np.uint32)
        room = np.full(len(ids), self.draft_token_num - 1, np.int32)
        drafted, above, _, _, node_ptr, _, _ = self._drafter.step(numbers, flat, ptr, room)
        counts = np.diff(node_ptr)
        row = np.repeat(np.arange(len(ids)), counts)
        column = np.arange(len(drafted)) - np.repeat(node_ptr[:-1], counts) + 1
        tokens[row, column] = drafted
        parents[row, column] = above + 1

    def _meet(self, name: str, text: Text) -> list[int]:
        """Return what was not read yet of a request's text; start it if it is new."""
        length = len(text)
        seen = self._seen.get(name)
        if seen and seen.length <= length and text.read(seen.length - len(seen.tail), seen.length) == seen.tail:
            unread = text.read(seen.length, length)
            seen.away = 0
        else:
            if seen:
                self._finish(name)
            for other in [other for other, known in self._seen.items() if known.away]:
                self._finish(other)  # engines bring retracted requests back before they take new ones
            seen = self._seen[name] = _Seen(self._next, 0, [])
            self._next += 1
            self._drafter.start(seen.number, np.array(text.read(0, length), np.uint32))
            unread = []
        seen.length = length
        seen.tail = text.read(max(length - TAIL, 0), length)
        return unread

    def _let_go(self, ids: Sequence[str]) -> None:
        here = set(ids)
        for name in [name for name in self._seen if name not in here]:
            self._seen[name].away += 1
            if self._seen[name].away > PATIENCE:
                self._finish(name)

    def _finish(self, name: str) -> None:
        self._drafter.finish(self._seen.pop(name).number)

    def _recover(self, error: Exception) -> None:
        if type(error) not in self._faults:
            self._faults.add(type(error))
            _log.warning(
                "specrs: no drafts in this step, no more word of this kind of fault: %s: %s",
                type(error).__name__,
                error,
                exc_info=not isinstance(error, SpecrsError),
            )
        self._drafter.forget()
        self._seen.clear()

    def erase_match_state(self, ids: Iterable[str]) -> None:
        """Note that requests left the batch; they may have been retracted, so they count as finished a little later."""
        for name in ids:
            if name in self._seen:
                self._seen[name].away = max(self._seen[name].away, 1)

    def synchronize(self) -> None:
        """Do nothing: what was read is searched at once."""

    def batch_put(self, texts: Sequence[Sequence[int]]) -> None:
        """Do nothing: requests are read by :meth:`draft`."""

    def reset(self) -> None:
        """Forget all requests, all finished text, and named corpora."""
        self._drafter.forget()
        self._seen.clear()
        self._corpora.clear()
        self._drafter.cache.clear()

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Add documents under a name; returns how many tokens they have."""
        if corpus_id in self._corpora:
            raise InvalidInputError(f"corpus {corpus_id!r} is loaded already; remove it first")
        documents = [np.array(list(chunk), np.uint32) for chunk in chunks]
        for document in documents:
            self._drafter.cache.add(document)
        self._corpora[corpus_id] = documents
        return sum(map(len, documents))

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Do nothing: the corpus was added when it was loaded."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Remove a named corpus. Finished text of requests goes with it; other corpora stay."""
        if corpus_id not in self._corpora:
            raise InvalidInputError(f"no corpus {corpus_id!r}; there are: {', '.join(self._corpora) or 'none'}")
        del self._corpora[corpus_id]
        self._drafter.cache.clear()
        for documents in self._corpora.values():
            for document in documents:
                self._drafter.cache.add(document)

    def list_external_corpora(self) -> dict[str, int]:
        """Return the tokens of each named corpus."""
        return {name: sum(map(len, documents)) for name, documents in self._corpora.items()}

    def stats(self) -> dict[str, Any]:
        """Return the numbers of :meth:`specrs.SuffixCache.stats`."""
        return self._drafter.cache.stats()

    def close(self) -> None:
        """Finish all requests and write the store."""
        self._drafter.close()
        self._seen.clear()
