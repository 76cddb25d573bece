"""What a round costs on this machine: measured on the production path, kept in the user's cache, refined by rounds."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.engine.ranks import ONE_RANK
from specrs.errors import CorruptFileError, FileAccessError
from specrs.ops import where
from specrs.types import Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.models.base import TargetModel

#: Row counts of a quick measurement; where the cost rises by more than ``STEP`` between two of them, those in between
#: are measured too, so that a stair is found where it is.
QUICK_ROWS = (1, 2, 4, 8, 16, 24, 32, 48)
STEP = 0.08
#: Committed tokens before the rows in a quick measurement.
QUICK_CONTEXT = 32
#: Of the file format.
VERSION = 1

_log = logging.getLogger("specrs")


class CostTable:
    """Seconds of a target forward by rows, batch and context; what drafting costs, by drafter.

    Parameters
    ----------
    rows : sequence of int
        Rising row counts, the first 1, measured with one request.
    seconds : sequence of float
        Their measured seconds. Made monotone (isotonic regression), never smoothed; between two counts the larger
        one's cost holds.
    fingerprint : dict, optional
        Model, machine and settings that it was measured with. A table without one fits everything.

    Raises
    ------
    InvalidInputError
        Rows do not rise from 1 or a cost is not a positive number.
    """

    def __init__(self, rows: Any, seconds: Any, *, fingerprint: dict[str, Any] | None = None) -> None:
        self.core = _core.CostTable(np.asarray(rows).tolist(), np.asarray(seconds, np.float64).tolist())
        self.fingerprint = fingerprint
        #: Seconds per drafted token, by drafter.
        self.step_seconds: dict[str, float] = {}

    def add(self, batch: int, context: int, rows: Sequence[int], seconds: Sequence[float]) -> None:
        """Add costs measured with ``batch`` requests of ``context`` tokens; row counts are of the whole batch."""
        self.core.add(batch, context, list(rows), list(seconds))

    def seconds(self, rows: int, batch: int = 1, context: int = 0) -> float:
        """Return the expected seconds of a forward over ``rows`` rows."""
        return self.core.seconds(rows, batch, context)

    @classmethod
    def measure(cls, target: TargetModel, repeats: int = 1) -> CostTable:
        """Time forwards of one request with a short text: what ``generate`` does at the first use of a target."""
        room = target.max_context
        context = QUICK_CONTEXT if room is None else max(1, min(QUICK_CONTEXT, room // 2))
        rows = [m for m in QUICK_ROWS if room is None or m <= max(1, room - context)]
        found = measure_rows(target, rows, batch=1, context=context, repeats=repeats, refine=True)
        return cls(list(found), list(found.values()), fingerprint=fingerprint(target))

    @classmethod
    def profile(
        cls,
        target: TargetModel,
        *,
        batches: Sequence[int] = (1, 2, 4, 8),
        contexts: Sequence[int] = (64, 1024),
        rows: Sequence[int] = tuple(range(1, 49)),
        repeats: int = 3,
        progress: Callable[[str], None] = lambda what: None,
    ) -> CostTable:
        """Time every row count for every batch and context: ``specrs profile``.

        ``rows`` are per batch of one; a batch of b has at least b rows. Medians of ``repeats``.
        """
        table: CostTable | None = None
        for batch in sorted(set(batches) | {1}):
            for context in sorted(contexts):
                if target.max_context is not None and context + rows[-1] > target.max_context:
                    continue
                progress(f"batch {batch}, {context} tokens of text, {rows[0]} to {rows[-1]} rows")
                counts = [m for m in rows if m >= batch]
                found = measure_rows(target, counts, batch=batch, context=context, repeats=repeats)
                if table is None:
                    table = cls(list(found), list(found.values()), fingerprint=fingerprint(target))
                table.add(batch, context, list(found), list(found.values()))
        if table is None:
            return cls.measure(target, repeats)
        return table

    def differs_from(self, other: dict[str, Any]) -> str | None:
        """Name what differs between this table's fingerprint and ``other``; None if nothing does."""
        if self.fingerprint is None:
            return None
        names = [name for name in {**self.fingerprint, **other} if self.fingerprint.get(name) != other.get(name)]
        if not names:
            return None
        return ", ".join(f"{n}: table {self.fingerprint.get(n)!r}, here {other.get(n)!r}" for n in sorted(names))

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values, as they are now."""
        return {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "step_seconds": self.step_seconds,
            "cells": [{"batch": b, "context": c, "seconds": s} for b, c, s in self.core.cells()],
        }

    @classmethod
    def from_dict(cls, data: Any, where: str = "the cost table") -> CostTable:
        """Return the table that ``to_dict`` gave.

        Raises
        ------
        CorruptFileError
            The values are no cost table of this version.
        """
        try:
            if data["version"] != VERSION:
                raise CorruptFileError(f"{where} has version {data['version']!r}, expected {VERSION}")
            first, *more = data["cells"]
            table = cls(range(1, len(first["seconds"]) + 1), first["seconds"], fingerprint=data["fingerprint"])
            for cell in (first, *more):
                table.add(cell["batch"], cell["context"], range(1, len(cell["seconds"]) + 1), cell["seconds"])
            table.step_seconds = {str(name): float(value) for name, value in data["step_seconds"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(f"{where} is no cost table: {error}") from error
        return table

    def save(self, path: Path) -> None:
        """Write the table; readers see the old file or the new one, never a part."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
            partial.write_text(json.dumps(self.to_dict()), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise FileAccessError(f"cannot write the cost table {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path | str) -> CostTable:
        """Read a table that ``save`` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise FileAccessError(f"cannot read the cost table {path}: {error.strerror}") from error
        except ValueError as error:
            raise CorruptFileError(f"{path} is no cost table: {error}") from error
        return cls.from_dict(data, str(path))


def measure_rows(
    target: TargetModel, rows: Sequence[int], *, batch: int, context: int, repeats: int, refine: bool = False
) -> dict[int, float]:
    """Time forwards of the target over ``rows`` rows in all, shared evenly by ``batch`` requests of ``context`` tokens.

    The forward is the engine's own: memory of each request, packed rows, logits of all of them. ``refine`` measures
    between two counts where the cost steps.
    """
    ranks = getattr(target, "ranks", ONE_RANK)
    most = max(rows)
    tokens = np.zeros(context, np.uint32)
    states = []
    for _ in range(batch):
        state = target.new_state(context + most + 1)
        target.prefill(state, tokens)
        states.append(state)
    anchors = [tokens[:1]] * batch

    def seconds(count: int) -> float:
        drafted = count - batch
        chains = [np.zeros(drafted // batch + (b < drafted % batch), np.uint32) for b in range(batch)]
        draft = Draft.chains(chains)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            where.wait_for(target.score(states, anchors, draft).logits)
            times.append(time.perf_counter() - start)
        # What is measured next depends on what was measured: ranks of one model go by rank 0's clock.
        return ranks.agree(lambda: statistics.median(times))

    seconds(rows[0])  # the first forward of a shape is slower
    found = {count: seconds(count) for count in rows}
    step = max(found[rows[0]] * STEP, 1e-5)
    pairs = list(itertools.pairwise(rows)) if refine else []
    while pairs:
        low, high = pairs.pop()
        if high - low > 1 and found[high] - found[low] > step:
            middle = (low + high) // 2
            found[middle] = seconds(middle)
            pairs += [(low, middle), (middle, high)]
    return dict(sorted(found.items()))


def fingerprint(target: TargetModel) -> dict[str, Any]:
    """Return what the costs of a target depend on: model, dtype, device, threads, kernels, versions."""
    own = getattr(target, "cost_fingerprint", None)
    if own is not None:
        return dict(own())
    facts: dict[str, Any] = {
        "model": target.name,
        "vocab_size": target.vocab_size,
        "specrs": _core.__version__,
        "build": _core.BUILD_PROFILE,
        "processor": _processor(),
        "cores": os.cpu_count(),
    }
    model = target.model
    if model is not None:
        import torch
        import transformers

        facts |= {
            "parameters": sum(p.numel() for p in model.parameters()),
            "dtype": str(getattr(target, "dtype", None)),
            "device": _device(getattr(target, "device", None)),
            "threads": torch.get_num_threads(),
            "accelerated": bool(getattr(target, "accelerated", False)),
            "ranks": getattr(target, "ranks", ONE_RANK).size,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
    return facts


def _device(device: Any) -> str:
    if device is not None and device.type == "cuda":
        import torch

        return f"cuda {torch.cuda.get_device_name(device)}"
    return str(device)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        import platform

        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def stored_path(facts: dict[str, Any]) -> Path:
    """Return where the table of a fingerprint is kept in the user's cache."""
    from specrs.config import cache_folder

    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    return cache_folder() / "cost" / f"{key}.json"


def _stored(path: Path | None, facts: dict[str, Any]) -> dict[str, Any] | None:
    """Return the stored table of a setting, as plain values; None when there is none that fits."""
    if path is None or not path.is_file():
        return None
    try:
        table = CostTable.load(path)
    except (CorruptFileError, FileAccessError) as error:
        _log.warning("%s; measuring again", error)
        return None
    if table.differs_from(facts):
        _log.warning("%s holds the costs of another setting; measuring again", path)
        return None
    return table.to_dict()


def target_cost(target: TargetModel) -> CostTable:
    """Return the target's cost table: the one in use, else the stored one of this very setting, else measured now.

    A model object without parameters (a toy) is measured but not stored.
    """
    table: CostTable | None = getattr(target, "cost_table", None)
    facts = fingerprint(target)
    if table is not None and table.fingerprint in (None, facts):
        return table
    path = stored_path(facts) if target.model is not None else None
    ranks = getattr(target, "ranks", ONE_RANK)
    # Measuring takes forwards, in which all ranks meet: none may find a table that another does not.
    known = ranks.agree(lambda: _stored(path, facts))
    table = None if known is None else CostTable.from_dict(known)
    if table is None:
        table = CostTable.measure(target)
        if path is not None and ranks.rank == 0:
            try:
                table.save(path)
            except FileAccessError as error:
                _log.warning("%s; it will be measured again next time", error)
    target.cost_table = table  # type: ignore[attr-defined]
    target.plain_step_seconds = table.seconds(1)  # type: ignore[attr-defined]
    return table
