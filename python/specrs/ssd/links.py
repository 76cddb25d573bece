"""Drafters in this process: one after the other with the target, or in a thread beside it."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from specrs.errors import DrafterLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.ssd.predrafter import PreDrafter
    from specrs.ssd.texts import Answer, Query, Text


class LocalLink:
    """Answers, then drafts for all guesses at once: the same results as beside the target, in a fixed order.

    Parameters
    ----------
    drafter : PreDrafter
    steps : callable, optional
        Most forwards of drafting ahead in a round, by its number; None is all. Plays an outcome that comes early.
    """

    def __init__(self, drafter: PreDrafter, steps: Callable[[int], int | None] = lambda _: None) -> None:
        self.drafter = drafter
        self._steps = steps

    def start(self, text: Text) -> None:
        """Tell the drafter of a request."""
        self.drafter.start(text)

    def finish(self, request: int) -> None:
        """Tell the drafter that a request is over."""
        self.drafter.finish(request)

    def speculate(self, round_: int, queries: Sequence[Query]) -> Answer:
        """Return the drafts, having drafted ahead already."""
        answer = self.drafter.answer(round_, queries)
        self.drafter.pre_draft(steps=self._steps(round_))
        return answer

    def close(self) -> None:
        """Nothing to let go of."""


class ThreadLink:
    """Drafts ahead in a thread of this process, on a device stream of its own if one is given.

    On one device this is correct and of little use: both models share it. It has been run on CPUs only, without a
    stream.

    Parameters
    ----------
    drafter : PreDrafter
    stream : torch.cuda.Stream, optional
        Where the drafter's kernels go, so that they run beside the target's.
    """

    def __init__(self, drafter: PreDrafter, stream: Any = None) -> None:
        self.drafter = drafter
        self._stream = stream
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._work = threading.Event()
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="specrs-drafter", daemon=True)
        self._thread.start()

    def _on_stream(self) -> Any:
        if self._stream is None:
            return nullcontext()
        import torch

        return torch.cuda.stream(self._stream)

    def _run(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            if self._closed:
                return
            try:
                going = True
                while going and not self._asked.is_set():
                    with self._lock, self._on_stream():
                        going = self.drafter.pre_draft(steps=1)
            except Exception as error:  # whatever the model raises must reach the caller, not the thread's end
                self._error = error

    def start(self, text: Text) -> None:
        """Tell the drafter of a request."""
        with self._lock, self._on_stream():
            self.drafter.start(text)

    def finish(self, request: int) -> None:
        """Tell the drafter that a request is over."""
        with self._lock:
            self.drafter.finish(request)

    def speculate(self, round_: int, queries: Sequence[Query]) -> Answer:
        """Stop drafting ahead where it is, answer, and go on drafting beside the caller."""
        self._asked.set()
        with self._lock, self._on_stream():
            self._asked.clear()
            if self._error is not None:
                raise DrafterLostError(f"the drafter failed: {self._error!r}") from self._error
            answer = self.drafter.answer(round_, queries)
        self._work.set()
        return answer

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._asked.set()
        self._work.set()
        self._thread.join(5)
