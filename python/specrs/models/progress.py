"""How long work on model files tells how far it is: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

#: Called with what is being done, how many bytes are done, and how many there are (0: not known).
Progress = Callable[[str, int, int], None]

_log = logging.getLogger(__name__)


def quiet(task: str, done: int, total: int) -> None:
    """Tell nothing."""


def logged() -> Progress:
    """Return a progress that logs each task once when it starts and once when it is complete."""
    seen: set[tuple[str, bool]] = set()

    def progress(task: str, done: int, total: int) -> None:
        complete = 0 < total <= done
        if complete and (task, True) not in seen and (task, False) in seen:
            _log.info("%s: done", task)
        elif (task, False) not in seen:
            _log.info("%s%s", task, f" ({total / 1e6:.0f} MB)" if total else "")
        seen.add((task, complete))

    return progress


@contextlib.contextmanager
def terminal() -> Iterator[Progress]:
    """Give a bar on stderr where that is a terminal and ``rich`` is installed, log lines otherwise."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars
    except ImportError:
        yield logged()
        return
    if not sys.stderr.isatty():
        yield logged()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=total or None)
            bars.update(tasks[task], completed=done, total=total or None)

        yield progress
