"""Where embedded models lie on disk: paths, state, and the lock that keeps processes from doing the work twice."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from specrs import config
from specrs.errors import FileAccessError, SpecrsError
from specrs.models.catalog import EmbeddedModel

State = Literal["absent", "fetched", "ready"]

#: Raised by one whenever a conversion would give other files than before.
FORMAT = 1
PROVENANCE = "specrs.json"

_log = logging.getLogger(__name__)


def gguf_path(model: EmbeddedModel) -> Path:
    """Return where the checked GGUF file of ``model`` lies once it is fetched."""
    return config.cache_folder() / "gguf" / f"{model.name}.gguf"


def dense_folder(model: EmbeddedModel) -> Path:
    """Return where the converted model lies once it is ready."""
    return config.cache_folder() / "models" / model.name


def is_fetched(model: EmbeddedModel) -> bool:
    """Whether the GGUF file is there. It gets its name only after its hash was checked, so the size is enough."""
    path = gguf_path(model)
    return path.is_file() and path.stat().st_size == model.file_bytes


def is_ready(model: EmbeddedModel) -> bool:
    """Whether the converted model is there, made from this file, in this dtype, by this format."""
    found = provenance(dense_folder(model))
    return found.get("format") == FORMAT and found.get("sha256") == model.sha256 and found.get("dtype") == model.dtype


def state(model: EmbeddedModel) -> State:
    """Return how far ``model`` is."""
    if is_ready(model):
        return "ready"
    return "fetched" if is_fetched(model) else "absent"


def provenance(folder: Path) -> dict[str, Any]:
    """Return what was recorded when ``folder`` was converted; nothing where it was not, or is damaged."""
    try:
        found = json.loads((folder / PROVENANCE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_space(folder: Path, needed: int, purpose: str) -> None:
    """Refuse to start what cannot end: ``needed`` bytes must be free where ``folder`` is."""
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise FileAccessError(
            f"{purpose} needs {needed / 1e9:.2f} GB in {folder}, found {free / 1e9:.2f} GB free; "
            "free some space or set SPECRS_CACHE to a folder on another disk"
        )


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals below into ``FileAccessError`` that names ``path``."""
    try:
        yield
    except SpecrsError:
        raise
    except OSError as error:
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise FileAccessError(f"cannot write {path}: {reason}") from error


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the lock ``name`` of the cache; wait while another process holds it. A dead process holds nothing."""
    path = config.cache_folder() / "locks" / f"{name}.lock"
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    with file:
        if not _try_lock(file):
            _log.info("waiting for another process that prepares %s", name)
            while not _try_lock(file):
                time.sleep(0.2)
        yield  # closing the file gives the lock back


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
