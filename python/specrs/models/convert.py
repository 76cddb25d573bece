"""Turns a GGUF file into a dense model folder, once: later loads take seconds instead of minutes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import specrs
from specrs.errors import MissingExtraError, ModelNotFoundError, UnsupportedModelError
from specrs.models import cache
from specrs.models.catalog import EmbeddedModel, find
from specrs.models.fetch import fetch
from specrs.models.gguf_header import read_metadata
from specrs.models.progress import Progress, quiet

#: Vocabularies whose merges never cross a digit (llama.cpp splits digits off for these; transformers does not).
_SINGLE_DIGIT_VOCABULARIES = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
#: Texts of control tokens that end a turn. A GGUF file names one end id, chat models may emit others.
_END_TEXTS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_text|>", "<|eom_id|>"}
)


def ensure(name: str, *, progress: Progress = quiet) -> Path:
    """Return the folder of the embedded model ``name``, ready to load; fetch and convert it if need be."""
    if not cache.is_ready(find(name)):
        fetch(name, progress=progress)
    return convert(name, progress=progress)


def convert(name: str, *, progress: Progress = quiet) -> Path:
    """Return the dense folder of the embedded model ``name``, made from its fetched GGUF file if it is not there.

    The folder is what ``transformers`` loads by path: configuration, safetensors weights, tokenizer with chat
    template, generation configuration, and ``specrs.json``, which records where everything came from. It appears
    complete or not at all.

    Raises
    ------
    ModelNotFoundError
        The GGUF file is not in the cache.
    MissingExtraError
        ``torch``, ``transformers`` or ``gguf`` is not installed.
    FileAccessError
        The cache folder cannot be written, or is full.
    """
    model = find(name)
    folder = cache.dense_folder(model)
    if cache.is_ready(model):
        return folder
    with cache.lock(name):
        if not cache.is_ready(model):
            _convert(model, folder, progress)
    return folder


def _convert(model: EmbeddedModel, folder: Path, progress: Progress) -> None:
    source = cache.gguf_path(model)
    if not cache.is_fetched(model):
        raise ModelNotFoundError(f"no file of {model.name} at {source}; `specrs models fetch {model.name}` gets it")
    task = f"converting {model.name} (once)"
    cache.check_space(folder.parent, model.dense_bytes + 50_000_000, task)
    for left_over in folder.parent.glob(f".{model.name}.*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    progress(task, 0, 0)
    network, tokenizer = load_gguf(source, dtype=model.dtype, eos_ids=model.eos_ids)
    network.config._name_or_path = model.name
    record = {
        "format": cache.FORMAT,
        "name": model.name,
        "title": model.title,
        "licence": model.licence,
        "sha256": model.sha256,
        "dtype": model.dtype,
        "packages": [f"{part.package}=={part.version}" for part in model.parts],
        "made_by": {"specrs": specrs.__version__, **_versions("torch", "transformers", "gguf")},
    }
    new, old = folder.with_name(f".{model.name}.new"), folder.with_name(f".{model.name}.old")
    with cache.file_errors(folder):
        try:
            save(network, tokenizer, new)
            (new / cache.PROVENANCE).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            if folder.exists():  # of an older format
                folder.replace(old)
            new.replace(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    progress(task, 1, 1)


def load_gguf(source: Path, *, dtype: str = "float32", eos_ids: Sequence[int] = ()) -> tuple[Any, Any]:
    """Return the dense model and the tokenizer that a GGUF file holds.

    Parameters
    ----------
    source : Path
        The file.
    dtype : {'float32', 'bfloat16', 'float16'}
        Of the dense weights. Left packed, weights make a pass of several tokens cost several passes.
    eos_ids : sequence of int
        The ids that end generation. Without them: the file's own and every control token known to end a turn.

    Returns
    -------
    tuple of transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase
        In evaluation mode, with a greedy generation configuration that knows the end ids.
    """
    if not source.is_file():
        raise ModelNotFoundError(f"no GGUF file at {source}")
    metadata = read_metadata(source)
    for package in ("torch", "transformers", "accelerate", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"{package} is not installed; pip install 'specrs[hf]'")
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    # Releases without this class always unpack.
    packing = getattr(transformers, "GgufConfig", None)
    options = {} if packing is None else {"quantization_config": packing(dequantize=True)}
    with _silence():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
            network = transformers.AutoModelForCausalLM.from_pretrained(
                source.parent, gguf_file=source.name, dtype=getattr(torch, dtype), **options
            )
        except (ValueError, KeyError, NotImplementedError) as error:
            raise UnsupportedModelError(f"transformers cannot read {source}: {error}") from error
    _repair_tokenizer(tokenizer, metadata, network.config)
    _set_ends(network, tokenizer, tuple(eos_ids) or _end_ids(metadata))
    network.eval()
    return network, tokenizer


def save(network: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer into ``folder`` so that ``transformers`` loads both by path."""
    with _silence():
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors makes them private, which a shared cache is not


def _repair_tokenizer(tokenizer: Any, metadata: Mapping[str, Any], config: Any) -> None:
    """Set what ``transformers`` does not take from the file."""
    from tokenizers import pre_tokenizers

    if metadata.get("tokenizer.ggml.pre") in _SINGLE_DIGIT_VOCABULARIES:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    template = metadata.get("tokenizer.chat_template")
    if template and not tokenizer.chat_template:
        tokenizer.chat_template = template
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.padding_side = "left"
    tokenizer.clean_up_tokenization_spaces = False


def _set_ends(network: Any, tokenizer: Any, eos_ids: tuple[int, ...]) -> None:
    transformers = importlib.import_module("transformers")
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (*eos_ids, None)[0]
    network.generation_config = transformers.GenerationConfig(
        do_sample=False, eos_token_id=list(eos_ids) or None, bos_token_id=tokenizer.bos_token_id, pad_token_id=pad_id
    )


def _end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the file's end id first, then the control tokens (type 3) whose text is known to end a turn."""
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    # Files may list fewer kinds than tokens.
    ends += [index for index, (text, kind) in enumerate(zip(tokens, kinds)) if kind == 3 and text in _END_TEXTS]  # noqa: B905
    return tuple(dict.fromkeys(end for end in ends if end is not None))


def _versions(*packages: str) -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in packages}


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the progress bars and loading advice of ``transformers`` off the terminal; ours say what happens."""
    logging = importlib.import_module("transformers.utils.logging")
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        # One bar of the GGUF reader obeys no switch; it writes to whatever sys.stderr is.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
