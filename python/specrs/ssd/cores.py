"""How long to watch for a message before sleeping: long on a core of one's own, a moment on one that is shared."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

#: Seconds to watch where target and drafter have different cores: longer than a forward. Waking up from sleep takes
#: a good part of a millisecond.
APART = 1.0
#: Seconds to watch where they share cores, so that watching takes time from the other's threads.
SHARED = 0.002


def watch_seconds(cores: Collection[int] | None, target: int) -> float:
    """Return the seconds that either side may watch.

    Parameters
    ----------
    cores : collection of int or None
        The drafter's; None if it is not pinned.
    target : int
        The target's process.
    """
    if cores is None or not hasattr(os, "sched_getaffinity"):
        return 0.0
    try:
        targets = os.sched_getaffinity(target)
    except OSError:  # it is gone
        return 0.0
    return SHARED if targets & set(cores) else APART
