"""From a name, a folder, a GGUF file or a loaded model to a target."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs.errors import InvalidInputError, MissingExtraError, ModelNotFoundError, UnknownNameError
from specrs.models.progress import Progress, quiet

if TYPE_CHECKING:
    from specrs.models.hf import TransformersTarget

#: What can run a model.
BACKENDS = ("transformers", "llama.cpp")
#: What a transformers model can be loaded in.
DTYPES = ("float32", "bfloat16", "float16")


def require_hf() -> None:
    """Import torch and transformers, or say how to install them."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"generation needs torch and transformers ({error}); install them with: pip install 'specrs[hf]'"
        ) from error


def load(
    model: Any,
    *,
    backend: str = "transformers",
    tokenizer: Any = None,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    accelerate: bool = True,
    progress: Progress = quiet,
    **options: Any,
) -> Any:
    """Load a target model.

    Parameters
    ----------
    model : str, Path, PreTrainedModel or TransformersTarget
        An embedded model's name (``specrs models`` lists them), a folder, a ``.gguf`` file, a hub name, or a model that
        is loaded already.
    backend : {'transformers', 'llama.cpp'}
        What runs the model. ``llama.cpp`` takes embedded names and ``.gguf`` files and keeps their weights as they are;
        it needs ``llama-cpp-python``, and neither torch nor transformers.
    tokenizer : object, optional
        Default: the one that lies beside the model. A loaded model without one takes and gives bare ids.
    dtype : {'float32', 'bfloat16', 'float16'}, optional
        Default: as the model was saved; bfloat16 for a GGUF file.
    device : str, optional
        As torch names it. Default: the CPU.
    threads : int, optional
        Calls ``torch.set_num_threads``, which is process-wide; the model's own with ``llama.cpp``.
    accelerate : bool
        On CPUs where torch scores several rows no cheaper than one by one, use our own linear kernels.
    progress : callable
        Told how far the fetching and converting of an embedded model is.
    **options
        Passed on to ``AutoModelForCausalLM.from_pretrained``; for ``llama.cpp`` see
        ``specrs.models.llama_cpp.OPTIONS``.

    Returns
    -------
    TransformersTarget or LlamaCppTarget
        The same one for the same model object, with what was measured about it.

    Raises
    ------
    ModelNotFoundError
        Nothing is there by that name.
    UnsupportedModelError
        The model cannot be rolled back; see its message.
    """
    if backend not in BACKENDS:
        raise UnknownNameError.among("backend", backend, BACKENDS)
    if backend == "llama.cpp":
        from specrs.models.llama_cpp import load_llama_cpp

        return load_llama_cpp(
            model, tokenizer=tokenizer, dtype=dtype, device=device, threads=threads, progress=progress, **options
        )
    require_hf()
    import torch

    from specrs.models.hf import TransformersTarget

    if isinstance(model, TransformersTarget):
        return model
    if threads is not None:
        if threads < 1:
            raise InvalidInputError(f"threads must be >= 1, got {threads}")
        torch.set_num_threads(threads)
    if not isinstance(model, (str, Path)):
        from specrs.models.kept import kept_target

        target = kept_target(model, accelerate=accelerate, tokenizer=tokenizer)
        model.eval()
        return target
    check_dtype(dtype)
    loaded, own_tokenizer = _from_disk(str(model), dtype, options, progress)
    if device is not None:
        loaded = loaded.to(device)
    return _ready(TransformersTarget(loaded.eval(), tokenizer or own_tokenizer, name=str(model)), accelerate)


def check_dtype(dtype: str | None) -> None:
    """Refuse what no model is loaded in."""
    if dtype is not None and dtype not in DTYPES:
        raise InvalidInputError(f"dtype must be 'float32', 'bfloat16' or 'float16', got {dtype!r}")


def require_folder(name: str) -> None:
    """Refuse an absolute path where nothing is; any other name may be a hub's."""
    if Path(name).is_absolute() and not Path(name).is_dir():
        raise ModelNotFoundError(f"no model folder at {name!r}")


def _ready(target: TransformersTarget, accelerate: bool) -> TransformersTarget:
    if accelerate:
        target.accelerate()
    return target


def _from_disk(name: str, dtype: str | None, options: dict[str, Any], progress: Progress) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from specrs.models.catalog import CATALOG
    from specrs.models.convert import ensure, load_gguf

    if name.endswith(".gguf"):
        if options:
            raise InvalidInputError(f"a GGUF file takes no loading options, got {', '.join(sorted(options))}")
        made: tuple[Any, Any] = load_gguf(Path(name), dtype=dtype or "bfloat16")
        return made
    path = str(ensure(name, progress=progress)) if name in CATALOG else name
    require_folder(name)
    options = {"dtype": "auto" if dtype is None else getattr(torch, dtype), **options}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        near = difflib.get_close_matches(name, CATALOG, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ModelNotFoundError(f"no model could be loaded from {name!r}{hint} ({error})") from error
    return model, tokenizer
