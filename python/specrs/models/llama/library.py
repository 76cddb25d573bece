"""Finds ``llama-cpp-python`` and says what is missing, before any model is read."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from typing import Any

from specrs.errors import MissingExtraError

#: The version that the tests run with; the low-level calls change between versions.
TESTED_VERSION = "0.3.36"
#: What installs it.
INSTALL = f"pip install 'llama-cpp-python=={TESTED_VERSION}'"
#: Low-level calls that the adapter makes.
_CALLS = (
    "llama_decode",
    "llama_detokenize",
    "llama_get_logits",
    "llama_get_memory",
    "llama_init_from_model",
    "llama_memory_seq_cp",
    "llama_memory_seq_rm",
    "llama_model_is_hybrid",
    "llama_model_load_from_file",
    "llama_state_seq_get_data",
    "llama_state_seq_set_data",
    "llama_token_to_piece",
    "llama_tokenize",
    "llama_vocab_is_eog",
)
#: Settings of a context that the adapter makes.
_SETTINGS = ("flash_attn_type", "kv_unified", "n_outputs_max", "n_seq_max", "swa_full")


def require_llama_cpp() -> Any:
    """Return the module ``llama_cpp``.

    Raises
    ------
    MissingExtraError
        It is not installed, does not load, or is of a version without the calls that the adapter makes. The message
        gives the command that installs the tested one.
    """
    try:
        library = importlib.import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: its shared library is missing or damaged
        raise MissingExtraError(
            f"backend 'llama.cpp' needs llama-cpp-python ({error}); install it with: {INSTALL}"
        ) from error
    known = {name for name, *_ in getattr(getattr(library, "llama_context_params", None), "_fields_", ())}
    missing = [name for name in _CALLS if not hasattr(library, name)]
    missing += [f"llama_context_params.{name}" for name in _SETTINGS if name not in known]
    if missing:
        raise MissingExtraError(
            f"llama-cpp-python {installed_version()} lacks {', '.join(missing)}; specrs is tested with "
            f"{TESTED_VERSION}: {INSTALL}"
        )
    log = logging.getLogger("llama-cpp-python")
    # Its handler prints everything at level NOTSET, and takes llama.cpp's warnings for errors. Whoever chose a level
    # keeps it; what fails is told by our exceptions.
    if log.level == logging.NOTSET:
        log.setLevel(logging.CRITICAL)
    return library


def installed_version() -> str:
    """Return the installed version of llama-cpp-python, or 'of an unknown version'."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"
