"""Cache drafting for SGLang: the algorithm ``SPECRS`` in its public registry.

The installed package announces :func:`register` to SGLang as a plugin, so ``--speculative-algorithm SPECRS`` works with
no further step; where plugins are off, call it before the engine is made. The algorithm answers like SGLang's own
``NGRAM`` wherever the scheduler asks what kind it is, and its worker is SGLang's n-gram worker with another corpus.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
from typing import TYPE_CHECKING, Any

from specrs.errors import InvalidInputError, MissingExtraError, UnsupportedEngineError
from specrs.integrations._config import EngineOptions, read_options
from specrs.integrations._corpus import Corpus, Text
from specrs.integrations._drafter import load_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

#: The algorithm's name.
NAME = "SPECRS"
#: The release whose classes the tests run against.
TESTED = "0.5.23"
#: What our algorithm does not take over from NGRAM.
_OWN = ("from_string", "register", "create_worker", "get_platform_worker_cls")
#: What the worker replaces or relies on in SGLang's n-gram worker.
_WORKER_PARTS = ("_prepare_draft_tokens", "_update_ngram_corpus", "forward_batch_generation", "clear_cache_pool")


def register() -> None:
    """Register the algorithm; a second call does nothing.

    Raises
    ------
    MissingExtraError
        SGLang is not installed.
    UnsupportedEngineError
        Its registry is not as expected.
    InvalidInputError
        The options in the environment do not fit.
    """
    read_options()  # told here rather than in a worker process
    registry = _import("sglang.srt.speculative.spec_info")
    base = _import("sglang.srt.speculative.spec_registry")
    algorithms: Any = getattr(registry, "SpeculativeAlgorithm", None)
    custom: Any = getattr(base, "CustomSpecAlgo", None)
    if not hasattr(algorithms, "register") or not hasattr(algorithms, "NGRAM") or custom is None:
        raise UnsupportedEngineError(
            f"SGLang {_version()} has no algorithm registry with an NGRAM algorithm; tested with {TESTED}"
        )
    if base.get_spec(NAME) is not None:
        return
    algorithms.register(NAME, supports_overlap=True, spec_class=_algorithm(algorithms, custom))(
        lambda server_args: make_worker_class()
    )


def _algorithm(algorithms: Any, custom: Any) -> type:
    """Return a class of registry entries that answers as NGRAM does to whatever an algorithm may be asked."""

    def as_ngram(name: str) -> Any:
        def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(algorithms.NGRAM, name)(*args, **kwargs)

        answer.__name__ = name
        answer.__doc__ = f"Answer as ``SpeculativeAlgorithm.NGRAM.{name}``."
        return answer

    asked = [
        name
        for name, member in vars(algorithms).items()
        if inspect.isfunction(member) and not name.startswith("__") and name not in _OWN
    ]
    return type("SpecrsAlgorithm", (custom,), {name: as_ngram(name) for name in asked})


def make_worker_class() -> type:
    """Return the worker: SGLang's n-gram worker, drafting from :class:`specrs.integrations._corpus.Corpus`.

    Raises
    ------
    UnsupportedEngineError
        SGLang's worker is not as expected.
    """
    module = _import("sglang.srt.speculative.ngram_worker")
    worker = getattr(module, "NGRAMWorker", None)
    missing = [name for name in _WORKER_PARTS if not hasattr(worker, name)]
    if missing or not hasattr(module, "NgramCorpus"):
        raise UnsupportedEngineError(
            f"the n-gram worker of SGLang {_version()} has no {', '.join(missing) or 'NgramCorpus'}; "
            f"tested with {TESTED}"
        )
    base: Any = worker

    class SpecrsWorker(base):  # type: ignore[misc]
        """The n-gram worker with our corpus in the place of its own."""

        def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
            with _corpus_in_place(module, lambda nodes: make_corpus(nodes, server_args, target_worker)):
                super().__init__(server_args, gpu_id, nccl_port, target_worker)

        def _prepare_draft_tokens(self, batch: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
            """Draft from the whole text; SGLang's own method passes its corpus the last tokens alone."""
            fresh: list[list[int]] = [[] for _ in batch.reqs]
            if self.enable_overlap and not batch.grammar_needs_sync():
                # With overlap, what the last round accepted is not among the requests' output yet.
                accepted, counts = batch.spec_info.accept_tokens.tolist(), batch.spec_info.accept_lens.tolist()
                nodes = self.draft_token_num
                fresh = [accepted[i * nodes : i * nodes + count] for i, count in enumerate(counts)]
            texts = [
                Text(request.origin_input_ids_unpadded, request.output_ids, new)
                for request, new in zip(batch.reqs, fresh, strict=True)
            ]
            corpus: Corpus = self.ngram_corpus
            return corpus.draft([request.rid for request in batch.reqs], texts)

        def _update_ngram_corpus(self, batch: Any) -> None:
            """Do nothing: new text is read when the next draft is made."""

    return SpecrsWorker


def make_corpus(nodes: int, server_args: Any, target_worker: Any) -> Corpus:
    """Return the corpus for a worker.

    Raises
    ------
    InvalidInputError
        A store with tensor parallelism: ranks that read it at different moments would draft different trees.
    """
    options = read_options()
    ranks = int(getattr(server_args, "tp_size", 1))
    if options.store is not None and ranks > 1:
        raise InvalidInputError(
            f"the option 'store' with tp_size {ranks}: ranks must draft the same, and would read the store at "
            "different moments; leave out 'store', or use tp_size 1"
        )
    try:
        model = target_worker.model_runner.model_config
        vocab_size = int(model.vocab_size)
    except (AttributeError, TypeError) as error:
        raise UnsupportedEngineError(
            f"the target worker of SGLang {_version()} is not as expected ({error}); tested with {TESTED}"
        ) from error
    eos = sorted(int(token) for token in (getattr(model, "hf_eos_token_id", None) or ()))
    path = str(getattr(server_args, "tokenizer_path", None) or getattr(server_args, "model_path", ""))
    return Corpus(nodes, vocab_size, options, eos, lambda: load_fingerprint(path))


@contextlib.contextmanager
def _corpus_in_place(module: Any, make: Any) -> Iterator[None]:
    """Let the worker's constructor make our corpus: its own would be compiled, and takes gigabytes."""
    own = module.NgramCorpus
    module.NgramCorpus = lambda *_, draft_token_num, **__: make(draft_token_num)
    try:
        yield
    finally:
        module.NgramCorpus = own


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "sglang":
            raise MissingExtraError("SGLang is not installed; pip install sglang") from error
        raise UnsupportedEngineError(
            f"SGLang {_version()} cannot be imported: {error}; tested with {TESTED} and its requirements"
        ) from error
    except ImportError as error:
        raise UnsupportedEngineError(f"SGLang {_version()} has no {name} ({error}); tested with {TESTED}") from error


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("sglang")
    return "of unknown version"


__all__ = ["NAME", "EngineOptions", "make_corpus", "make_worker_class", "register"]
