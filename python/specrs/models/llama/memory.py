"""Who holds which cells: states of requests in one context, which grows, and lends sequences for branches."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from specrs.errors import CapacityError, InternalError
from specrs.models.llama.branches import Branches
from specrs.models.llama.context import SEQUENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from specrs.models.llama.context import Context
    from specrs.types import IndexArray, TokenArray

#: Below this many cells the context grows before anybody's cells are taken away.
GROW_FIRST = 16384


class _Slot:
    """What a state holds in the context. Outlives the state until its cells are freed."""

    __slots__ = ("branches", "is_open", "sequence", "used_at")

    def __init__(self) -> None:
        self.sequence: int | None = None
        self.branches: list[int] = []
        self.is_open = False  # between a forward and its commit
        self.used_at = 0


class LlamaState:
    """Memory of one sequence. Its cells may be given to others while it is idle; then they are read again.

    Parameters
    ----------
    memory : SequenceMemory
    """

    def __init__(self, memory: SequenceMemory) -> None:
        self._memory = memory
        self._tokens = np.empty(0, np.int32)
        self._new_tokens = np.empty(0, np.int32)
        self._pending = 0
        self._tree: Branches | None = None
        self.slot = _Slot()
        weakref.finalize(self, memory.abandon, self.slot).atexit = False

    @property
    def length(self) -> int:
        """How many tokens the memory holds."""
        return len(self._tokens)

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """The tokens that the memory holds."""
        return self._tokens

    @property
    def sequences(self) -> tuple[int, ...]:
        """The state's own sequence, then those lent to it: one per branch."""
        assert self.slot.sequence is not None
        return (self.slot.sequence, *self.slot.branches)

    def open(self, pending: TokenArray, nodes: TokenArray, tree: Branches | None) -> None:
        """Note what a forward wrote behind the committed cells. ``tree`` is None where no node's cells were kept."""
        self._new_tokens = np.concatenate([pending, nodes]).astype(np.int32)
        self._pending, self._tree = len(pending), tree
        self.slot.is_open = True

    def commit(self, kept_nodes: IndexArray, pending: int) -> None:
        """Keep ``pending`` committed tokens and the cells of ``kept_nodes`` after them; forget every other new cell."""
        kept = np.asarray(kept_nodes, np.int64)
        if not 0 <= pending <= self._pending:
            raise InternalError(f"{pending} pending tokens were committed of {self._pending} that were scored")
        tree = self._tree
        if tree is None:
            kept = kept[:0]  # their cells are gone: the engine sees a shorter memory and reads the tokens again
        base = self.length + pending
        with self._memory.exclusive() as context:
            slot = self.slot
            if slot.sequence is None:
                raise InternalError("a state was committed whose cells were given away")
            if len(kept):
                assert tree is not None
                branch = tree.through(int(kept[-1]))
                if branch:
                    context.remove(slot.sequence, base)
                    context.share(slot.branches[branch - 1], slot.sequence, base, base + len(kept))
            context.remove(slot.sequence, base + len(kept))
            self._memory.end_branches(slot)
        rows = np.concatenate([np.arange(pending), self._pending + kept])
        self._tokens = np.concatenate([self._tokens, self._new_tokens[rows]])
        self._close()

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        with self._memory.exclusive():
            self._tokens = self._tokens[:length]
            self._memory.discard(self)

    def discard(self) -> None:
        """Note that what was written since the last commit is gone."""
        self._close()

    def _close(self) -> None:
        self._new_tokens = self._new_tokens[:0]
        self._pending, self._tree = 0, None
        self.slot.is_open = False

    def close(self) -> None:
        """Give the cells back before the state itself goes; it can be used again, and then reads its tokens anew."""
        with self._memory.exclusive():
            self._memory.release(self.slot)
            self._close()

    def size_bytes(self) -> int:
        """Memory held, in bytes; 0 while the cells are given away."""
        return 0 if self.slot.sequence is None else self.length * self._memory.cell_bytes


class SequenceMemory:
    """The cells of one model, for all its states.

    Parameters
    ----------
    make_context : callable
        Returns a context with at least so many cells.
    cells : int
        Cells to begin with.
    cell_bytes : int
        Keys and values of one token, in bytes.
    """

    def __init__(self, make_context: Callable[[int], Context], cells: int, cell_bytes: int) -> None:
        self._make_context = make_context
        self._first_cells = cells
        self._context: Context | None = None
        self._lock = threading.RLock()
        self._free = list(range(SEQUENCES - 1, -1, -1))
        self._states: weakref.WeakValueDictionary[int, LlamaState] = weakref.WeakValueDictionary()
        self._abandoned: deque[_Slot] = deque()
        self._clock = 0
        self.cell_bytes = cell_bytes

    @property
    def cells(self) -> int:
        """Tokens that fit now."""
        return self._first_cells if self._context is None else self._context.cells

    @property
    def resident(self) -> int:
        """How many states hold cells."""
        return len(self._states)

    @property
    def free_sequences(self) -> int:
        """How many sequences nobody holds."""
        return len(self._free)

    def abandon(self, slot: _Slot) -> None:
        """Take note of a state that is gone; may be called in the middle of anything."""
        self._abandoned.append(slot)

    @contextmanager
    def exclusive(self) -> Iterator[Context]:
        """Hold the context: one forward, or one change of its cells, at a time."""
        with self._lock:
            if self._context is None:
                self._context = self._make_context(self._first_cells)
            while self._abandoned:
                self.release(self._abandoned.popleft())
            yield self._context

    def admit(self, states: Sequence[LlamaState], rows: int) -> Context:
        """Make the states' cells present, with room for ``rows`` more, and forget what was never committed.

        Other states lose their cells if they must; idle ones first of all, the longest idle first.

        Raises
        ------
        CapacityError
            The tokens of these states do not fit, or another thread's open round holds what they need.
        """
        with self.exclusive():
            for state in states:
                self.discard(state)
            self._clock += 1
            for state in states:
                state.slot.used_at = self._clock
            mine = {id(state) for state in states}
            needed = sum(state.length for state in states) + rows
            self._make_room(mine, needed)
            for state in states:
                if state.slot.sequence is None:
                    state.slot.sequence = self.borrow(mine)
                    self._states[state.slot.sequence] = state
                    if state.length:  # they were given away meanwhile
                        assert self._context is not None
                        self._context.read(state.slot.sequence, state.tokens, 0)
            assert self._context is not None
            return self._context

    def _make_room(self, mine: set[int], needed: int) -> None:
        others = sum(state.length for state in self._states.values() if id(state) not in mine)
        if others + needed <= self.cells:
            return
        if self.cells < GROW_FIRST:
            self._grow(min(others + needed, GROW_FIRST))
        while (others := self._held_by_others(mine)) + needed > self.cells and self._take_from_idlest(mine):
            pass
        if others + needed > self.cells:
            self._grow(others + needed)

    def _held_by_others(self, mine: set[int]) -> int:
        return sum(state.length for state in self._states.values() if id(state) not in mine)

    def _take_from_idlest(self, mine: set[int]) -> bool:
        """Take the cells of the state that was idle for longest; return whether there was one."""
        idle = [s for s in self._states.values() if id(s) not in mine and not s.slot.is_open]
        if not idle:
            return False
        self.release(min(idle, key=lambda state: state.slot.used_at).slot)
        return True

    def _grow(self, cells: int) -> None:
        """Move all sequences, bit for bit, into a larger context."""
        assert self._context is not None
        if any(state.slot.is_open for state in self._states.values()):
            raise CapacityError(
                f"{cells} tokens do not fit into {self.cells} cells while another thread's round is open; "
                "load the model with a larger context="
            )
        saved = {sequence: self._context.save(sequence) for sequence, state in self._states.items() if state.length}
        before = self.cells
        self._context.close()  # first, so that the cells are not in memory twice
        try:
            self._context = self._make_context(max(cells, 2 * before))
        except CapacityError:
            self._context = self._make_context(before)
            raise
        finally:
            for sequence, data in saved.items():
                self._context.restore(sequence, data)

    def borrow(self, mine: set[int]) -> int:
        """Return a free sequence, taken from the idlest state if there is none."""
        while not self._free:
            if not self._take_from_idlest(mine):
                raise CapacityError(f"llama.cpp tells at most {SEQUENCES} sequences apart, and all are in use")
        return self._free.pop()

    def branch(self, states: Sequence[LlamaState], state: LlamaState, wanted: int) -> bool:
        """Lend ``state`` that many more sequences that share its text; return whether there were enough."""
        slot, mine = state.slot, {id(one) for one in states}
        assert slot.sequence is not None
        assert self._context is not None
        while len(self._free) < wanted:
            if not self._take_from_idlest(mine):
                return False
        slot.branches = [self._free.pop() for _ in range(wanted)]
        for branch in slot.branches:
            self._context.share(slot.sequence, branch)
        return True

    def end_branches(self, slot: _Slot) -> None:
        """Take lent sequences back."""
        assert self._context is not None
        for branch in slot.branches:
            self._context.remove(branch)
        self._free += slot.branches
        slot.branches = []

    def discard(self, state: LlamaState) -> None:
        """Forget what a forward wrote for ``state`` without a commit."""
        if state.slot.sequence is not None:
            assert self._context is not None
            self.end_branches(state.slot)
            self._context.remove(state.slot.sequence, state.length)
        state.discard()

    def release(self, slot: _Slot) -> None:
        """Take everything that a slot holds."""
        if slot.sequence is None:
            return
        assert self._context is not None
        self.end_branches(slot)
        self._context.remove(slot.sequence)
        self._free.append(slot.sequence)
        self._states.pop(slot.sequence, None)
        slot.sequence, slot.is_open = None, False
