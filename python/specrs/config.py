"""The settings that come from the environment. No other module of the package reads it."""

from __future__ import annotations

import os
from pathlib import Path

#: The variable that holds the options of the engine integrations: a JSON object, or the path of a file with one.
ENGINE_OPTIONS = "SPECRS_ENGINE"


def engine_options() -> str:
    """Return what ``SPECRS_ENGINE`` holds, empty if it is not set."""
    return os.environ.get(ENGINE_OPTIONS, "")


def cache_folder() -> Path:
    """Return the folder for everything that specrs keeps between runs.

    ``SPECRS_CACHE`` where it is set, else ``specrs`` in the user's cache folder (``XDG_CACHE_HOME``, else
    ``~/.cache``). The folder need not exist yet.
    """
    if chosen := os.environ.get("SPECRS_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "specrs"


def child_environment(temporary: Path) -> dict[str, str]:
    """Return the environment for a child process whose temporary files go to the folder ``temporary``."""
    return {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
