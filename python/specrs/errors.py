"""The exceptions that specrs raises. Each message names the value found and what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class SpecrsError(Exception):
    """Anything that specrs refuses or fails to do.

    Attributes
    ----------
    partial : Generation, list of Generation or None
        What was generated before, where a generation was under way.
    """

    partial: Any = None


class InvalidInputError(SpecrsError, ValueError):
    """An argument has a value or a shape that the call does not take."""


class UnknownNameError(InvalidInputError):
    """A name (method, model, option) that specrs does not know; the message suggests the nearest one."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Make the error for ``name``, which is no ``kind`` among ``known``."""
        # The import costs 5 ms, which only the error should pay.
        import difflib

        known = list(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(known)}"
        return cls(f"unknown {kind} {name!r}; {hint}")


class RequestError(SpecrsError, KeyError):
    """A request id is not known, or is known already."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CorruptFileError(SpecrsError):
    """A file is damaged, foreign, or of another version."""


class FileAccessError(SpecrsError, OSError):
    """The operating system refused an operation on a file."""


class CapacityError(SpecrsError):
    """A bound set by the caller (tokens, bytes) does not allow the operation."""


class DownloadError(SpecrsError, OSError):
    """A download failed: no network, or the package index does not have it."""


class ModelNotFoundError(SpecrsError, OSError):
    """No model is at the given name, folder or file."""


class UnsupportedModelError(SpecrsError):
    """The model cannot be driven without risk to its output (a state that cannot be rolled back, say)."""


class UnsupportedEngineError(SpecrsError):
    """An engine that specrs plugs into has another interface than the releases that specrs knows."""


class VocabularyMismatchError(SpecrsError):
    """Drafter and target do not mean the same text by the same ids."""


class ContextLimitError(InvalidInputError):
    """The prompt leaves no room for a new token within the model's context."""


class NonFiniteLogitsError(SpecrsError):
    """The target returned NaN logits; what was committed before is kept in ``partial``."""


class MissingExtraError(SpecrsError, ImportError):
    """An optional dependency is not installed; the message gives the command that installs it."""


class GpuError(SpecrsError):
    """No CUDA driver, no kernel for the device, or a launch that the driver refused; the message names its error."""


class RankError(SpecrsError, RuntimeError):
    """Another rank of a tensor parallel model failed; the message carries its error."""


class InternalError(SpecrsError):
    """A bug in specrs."""


class DrafterLateError(SpecrsError, TimeoutError):
    """A drafter beside the target did not answer in time; the round is decoded plainly."""


class DrafterLostError(SpecrsError):
    """A drafter beside the target died, spoke another version, or failed; decoding goes on without drafts."""
