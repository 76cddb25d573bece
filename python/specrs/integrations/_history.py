"""The history that processes share: finished text goes to a store on disk, and what others wrote comes from it."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specrs.cache import CacheStore
from specrs.errors import FileAccessError, InvalidInputError, SpecrsError, VocabularyMismatchError

if TYPE_CHECKING:
    from specrs.cache import SuffixCache

_log = logging.getLogger(__name__)
Tokens = npt.NDArray[np.uint32]

#: Segments above which a writer merges the store into one.
MERGE_ABOVE = 24


class SharedHistory:
    """Keeps a cache's finished text and a store on disk in step, from a thread of its own.

    Parameters
    ----------
    cache : SuffixCache
    folder : str
        The store; made if it does not exist.
    fingerprint : str
        Of the tokenizer.
    seconds : float
        Time between two exchanges.

    Raises
    ------
    VocabularyMismatchError
        The store holds the ids of another tokenizer.
    CorruptFileError, FileAccessError
        The store cannot be read.
    """

    def __init__(self, cache: SuffixCache, folder: str, fingerprint: str, seconds: float) -> None:
        self._cache = cache
        self._store = _open(Path(folder).expanduser(), fingerprint)
        self._unsaved: list[Tokens] = []
        self._lock = threading.Lock()
        self._exchange_lock = threading.Lock()
        self._stop = threading.Event()
        self._failed = False
        self._known = self._segments()
        self._store.load_into(cache)
        # Neither the thread nor the exit hook may keep this object, and with it the cache, alive.
        mine = weakref.ref(self)
        self._thread = threading.Thread(
            target=_exchange_forever, args=(mine, self._stop, seconds), name="specrs-history", daemon=True
        )
        self._thread.start()
        atexit.register(_close, mine)

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self._store.path

    def add(self, document: Tokens) -> None:
        """Take a finished text, shape (T,), to be written with the next exchange."""
        if len(document):
            with self._lock:
                self._unsaved.append(document)

    def exchange(self) -> None:
        """Write what has finished and take over what others wrote. A failure is logged once, and nothing is lost."""
        with self._exchange_lock:
            try:
                self._exchange()
                self._failed = False
            except SpecrsError as error:
                if not self._failed:
                    _log.warning("specrs: no exchange with the cache store %s for now: %s", self.path, error)
                self._failed = True

    def _exchange(self) -> None:
        with self._lock:
            documents = self._unsaved[:]
        if documents:
            ptr = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64)
            self._store.add(np.concatenate(documents), ptr)
            with self._lock:
                del self._unsaved[: len(documents)]
        now = self._segments()
        if len(now) > MERGE_ABOVE:
            self._store.merge()
            now = self._segments()
        others_wrote = len(now - self._known) > bool(documents)
        if others_wrote or len(now) < len(self._known):
            # What is in the store replaces what is in memory; texts that finished just now are added again.
            self._cache.clear()
            self._store.load_into(self._cache, checksums=False)
            with self._lock:
                for document in self._unsaved:
                    self._cache.add(document)
        self._known = now

    def _segments(self) -> set[str]:
        return {str(segment["name"]) for segment in self._store.inspect()}

    def close(self) -> None:
        """Write what has finished, and stop."""
        self._stop.set()
        self.exchange()


def _open(folder: Path, fingerprint: str) -> CacheStore:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        try:
            return CacheStore.create(folder, fingerprint)
        except InvalidInputError:
            pass  # another process was faster
        except OSError as error:
            raise FileAccessError(f"cannot make a cache store at {folder}: {error}") from error
    store = CacheStore.open(folder)
    if fingerprint and store.fingerprint and fingerprint != store.fingerprint:
        raise VocabularyMismatchError(
            f"the cache store {folder} was made with tokenizer {store.fingerprint!r}, the engine's is {fingerprint!r}; "
            "name another folder for this model"
        )
    return store


def _exchange_forever(history: weakref.ref[SharedHistory], stop: threading.Event, seconds: float) -> None:
    while not stop.wait(seconds):
        mine = history()
        if mine is None:
            return
        mine.exchange()
        del mine


def _close(history: weakref.ref[SharedHistory]) -> None:
    mine = history()
    if mine is not None:
        mine.close()
