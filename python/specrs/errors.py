"""The exceptions that specrs raises. Each message names the value found and what was expected."""

from __future__ import annotations


class SpecrsError(Exception):
    """Anything that specrs refuses or fails to do."""


class InvalidInputError(SpecrsError, ValueError):
    """An argument has a value or a shape that the call does not take."""


class UnknownNameError(InvalidInputError):
    """A name (method, model, option) that specrs does not know; the message suggests the nearest one."""


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


class ModelNotFoundError(SpecrsError, OSError):
    """No model is at the given name, folder or file."""


class UnsupportedModelError(SpecrsError):
    """The model cannot be driven without risk to its output (a state that cannot be rolled back, say)."""


class VocabularyMismatchError(SpecrsError):
    """Drafter and target do not mean the same text by the same ids."""


class ContextLimitError(InvalidInputError):
    """The prompt leaves no room for a new token within the model's context."""


class NonFiniteLogitsError(SpecrsError):
    """The target returned NaN logits; what was committed before is kept in ``partial``."""

    #: What was generated before the fault: a ``Generation``, or a list of them for a batch.
    partial: object = None


class MissingExtraError(SpecrsError, ImportError):
    """An optional dependency is not installed; the message gives the command that installs it."""


class GpuError(SpecrsError):
    """No CUDA driver, no kernel for the device, or a launch that the driver refused; the message names its error."""


class InternalError(SpecrsError):
    """A bug in specrs."""
