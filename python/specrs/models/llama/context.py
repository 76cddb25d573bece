"""One llama.cpp context: batches in, logits out, and the cells of its sequences."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.errors import CapacityError, InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from specrs.types import FloatArray

#: Most rows of one forward, and the chunk that a prompt is read in: llama.cpp's own default.
BATCH_ROWS = 512
#: Most rows of one forward whose logits are asked for; each costs memory of a whole vocabulary.
SCORED_ROWS = 256
#: Sequences that one context tells apart (``LLAMA_MAX_SEQ``).
SEQUENCES = 256
#: llama.cpp rounds the number of cells up to this.
CELL_GRAIN = 256


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one forward.

    Attributes
    ----------
    tokens : array of int32, shape (R,)
    positions : array of int32, shape (R,)
        Rising within each sequence, each sequence's first one behind its last cell.
    sequences : sequence of R tuples of int
        The sequences that a row belongs to.
    wanted : array of bool, shape (R,)
        Rows whose logits are asked for.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    sequences: Sequence[tuple[int, ...]]
    wanted: npt.NDArray[np.bool_]

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Return all rows, in order."""
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.positions for part in parts]),
            [row for part in parts for row in part.sequences],
            np.concatenate([part.wanted for part in parts]),
        )

    def cut(self, start: int, end: int) -> Rows:
        """Return rows ``start`` to ``end``."""
        rows = slice(start, end)
        return Rows(self.tokens[rows], self.positions[rows], self.sequences[rows], self.wanted[rows])

    def pieces(self) -> list[Rows]:
        """Return the rows in pieces that one forward takes, in order."""
        found, start, wanted = [], 0, 0
        for at, want in enumerate(self.wanted.tolist()):
            if at - start == BATCH_ROWS or (want and wanted == SCORED_ROWS):
                found.append(self.cut(start, at))
                start, wanted = at, 0
            wanted += want
        return [*found, self.cut(start, len(self.tokens))]


class Context:
    """A llama.cpp context over one unified buffer of cells. Not for several threads at once.

    Parameters
    ----------
    library : module
        ``llama_cpp``.
    model : pointer
        Loaded weights; ``keep`` keeps them alive.
    keep : object
    cells : int
        Tokens that all sequences hold together, at most.
    threads : int
    vocab_size : int
    flash_attention : bool
        Default: as llama-cpp-python's own plain decoding has it, so that texts can be held against each other.
    """

    def __init__(
        self,
        library: Any,
        model: Any,
        keep: object,
        cells: int,
        *,
        threads: int,
        vocab_size: int,
        flash_attention: bool = False,
    ) -> None:
        self._library = library
        self._keep = keep
        self._vocab_size = vocab_size
        self.cells = -(-cells // CELL_GRAIN) * CELL_GRAIN
        settings = library.llama_context_default_params()
        settings.n_ctx = self.cells
        settings.n_batch = settings.n_ubatch = BATCH_ROWS
        settings.n_outputs_max = SCORED_ROWS
        settings.n_seq_max = SEQUENCES
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = (
            library.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attention else library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        settings.kv_unified = True  # cells may belong to several sequences: that is what makes trees possible
        settings.swa_full = True  # a sliding window that drops cells could not be rolled back over its edge
        settings.no_perf = True
        self._pointer = library.llama_init_from_model(model, settings)
        if not self._pointer:
            raise CapacityError(f"llama.cpp could not make a context of {self.cells} tokens: out of memory?")
        self._close = weakref.finalize(self, library.llama_free, self._pointer)
        self._cells = library.llama_get_memory(self._pointer)
        self._tokens = np.zeros(BATCH_ROWS, np.int32)
        self._positions = np.zeros(BATCH_ROWS, np.int32)
        self._counts = np.zeros(BATCH_ROWS, np.int32)
        self._addresses = np.zeros(BATCH_ROWS, np.uint64)
        self._wanted = np.zeros(BATCH_ROWS, np.int8)
        whole = ctypes.POINTER(ctypes.c_int32)
        self._batch = library.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(whole),
            embd=None,
            pos=self._positions.ctypes.data_as(whole),
            n_seq_id=self._counts.ctypes.data_as(whole),
            seq_id=self._addresses.ctypes.data_as(ctypes.POINTER(whole)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def close(self) -> None:
        """Free the context now."""
        self._close()

    def forward(self, rows: Rows) -> FloatArray:
        """Run the model over ``rows`` and return the logits of the wanted ones, float32, shape (W, V).

        The logits are a copy: llama.cpp overwrites or frees its own at the next forward, which another thread may run.
        """
        pieces = rows.pieces()
        if len(pieces) == 1:
            return self._run(pieces[0]).copy()
        return np.concatenate([self._run(piece) for piece in pieces])

    def _run(self, rows: Rows) -> FloatArray:
        """Run one forward; what it returns is llama.cpp's own memory."""
        count = len(rows.tokens)
        self._tokens[:count], self._positions[:count], self._wanted[:count] = rows.tokens, rows.positions, rows.wanted
        self._counts[:count] = sizes = [len(row) for row in rows.sequences]
        ids = np.fromiter(itertools.chain.from_iterable(rows.sequences), np.int32, sum(sizes))
        self._addresses[:count] = ids.ctypes.data + 4 * (np.cumsum(sizes) - sizes)
        self._batch.n_tokens = count
        code = self._library.llama_decode(self._pointer, self._batch)
        if code == 1:
            raise CapacityError(f"llama.cpp found no place for {count} rows in {self.cells} cells")
        if code != 0:
            raise InternalError(f"llama_decode returned {code} for {count} rows, expected 0")
        wanted = int(rows.wanted.sum())
        if not wanted:
            return np.empty((0, self._vocab_size), np.float32)
        return np.ctypeslib.as_array(self._library.llama_get_logits(self._pointer), shape=(wanted, self._vocab_size))

    def read(self, sequence: int, tokens: npt.NDArray[np.int32], position: int) -> None:
        """Read ``tokens`` into ``sequence`` from ``position`` on, chunk by chunk, without logits."""
        for start in range(0, len(tokens), BATCH_ROWS):
            self._run(plain_rows(tokens[start : start + BATCH_ROWS], position + start, (sequence,), last_wanted=False))

    def remove(self, sequence: int, start: int = 0, end: int = -1) -> None:
        """Forget positions ``start`` to ``end`` (-1: the last) of ``sequence``."""
        if not self._library.llama_memory_seq_rm(self._cells, sequence, start, end):
            raise InternalError(f"llama.cpp cannot remove positions {start} to {end} of sequence {sequence}")

    def share(self, source: int, target: int, start: int = 0, end: int = -1) -> None:
        """Let positions ``start`` to ``end`` (-1: the last) of ``source`` belong to ``target`` too."""
        self._library.llama_memory_seq_cp(self._cells, source, target, start, end)

    def save(self, sequence: int) -> Any:
        """Return the keys and values of ``sequence``, bit for bit."""
        size = self._library.llama_state_seq_get_size(self._pointer, sequence)
        data = (ctypes.c_uint8 * size)()
        if self._library.llama_state_seq_get_data(self._pointer, data, size, sequence) != size:
            raise InternalError(f"llama.cpp did not save the {size} bytes of sequence {sequence}")
        return data

    def restore(self, sequence: int, data: Any) -> None:
        """Put what ``save`` returned into ``sequence``."""
        if self._library.llama_state_seq_set_data(self._pointer, data, len(data), sequence) != len(data):
            raise InternalError(f"llama.cpp did not restore the {len(data)} bytes of sequence {sequence}")


def plain_rows(tokens: npt.NDArray[Any], position: int, sequences: tuple[int, ...], *, last_wanted: bool) -> Rows:
    """Return consecutive rows of text from ``position`` on."""
    count = len(tokens)
    wanted = np.zeros(count, np.bool_)
    wanted[-1:] = last_wanted
    return Rows(
        np.asarray(tokens).astype(np.int32),
        np.arange(position, position + count, dtype=np.int32),
        [sequences] * count,
        wanted,
    )
