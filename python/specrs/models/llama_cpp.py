"""A GGUF model run by llama.cpp as a target: packed rows over one context, trees as sequences."""

from __future__ import annotations

import ctypes
import functools
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.errors import InvalidInputError, ModelNotFoundError, UnknownNameError, UnsupportedModelError
from specrs.models.gguf_header import read_metadata
from specrs.models.llama.branches import Branches, waves
from specrs.models.llama.context import BATCH_ROWS, Context, Rows, plain_rows
from specrs.models.llama.library import installed_version, require_llama_cpp
from specrs.models.llama.memory import LlamaState, SequenceMemory
from specrs.models.llama.tokenizer import LlamaTokenizer
from specrs.models.progress import Progress, quiet
from specrs.types import ANCHOR, Draft, Scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from specrs.policies.cost import CostTable
    from specrs.types import FloatArray, IndexArray, TokenArray

#: More pending tokens than this are read before the draft's nodes, so that the prompt's cells do not depend on the
#: draft that happens to come first.
SHORT_PENDING = 8
#: Cells of a context to begin with; it grows as texts do.
FIRST_CELLS = 2048
#: Row counts whose cost is measured, where kernels for one, four, eight and sixteen rows take turns.
COST_ROWS = (1, 2, 3, 4, 6, 7, 8, 12, 16, 17, 24, 32, 48, 64)
#: Up to this many rows a forward is short enough to be timed three times.
MEASURED_AGAIN = 8
#: Tokens before the rows when cost is measured.
COST_CONTEXT = 256
#: Kernels round activations to the type of the weights, and to 8 bits where these are quantised.
ROUNDING = {"F32": 2.0**-10, "BF16": 2.0**-7, "F16": 2.0**-10}  # keys and values are float16 at best
QUANTISED = 2.0**-8
#: Loading options that go to llama.cpp, with what they are.
OPTIONS = {
    "context": "tokens that all requests together may hold before memory grows",
    "gpu_layers": "layers that run on a GPU, where llama.cpp was built for one",
    "repack": "whether llama.cpp lays weights out anew for its wide kernels, as it does by default",
    "flash_attention": "whether attention runs in llama.cpp's fused kernel",
}


class LlamaCppTarget:
    """A model file in llama.cpp behind the ``TargetModel`` interface.

    Loaded by ``specrs.load(..., backend="llama.cpp")``. All requests share one context; any thread may use it, one
    forward at a time.

    Parameters
    ----------
    path : Path
        A GGUF file.
    threads : int, optional
        Default: one per core.
    name : str, optional
        For reports and errors.
    context : int
        Cells to begin with.
    gpu_layers : int
        Layers that run on a GPU, where llama.cpp was built for one.
    repack : bool
        Whether llama.cpp lays weights out anew for its wide kernels, as it does by default.
    flash_attention : bool
        Whether attention runs in llama.cpp's fused kernel; llama-cpp-python does not by default.

    Raises
    ------
    MissingExtraError
        ``llama-cpp-python`` is missing or of an unfit version.
    ModelNotFoundError
        There is no such file.
    UnsupportedModelError
        llama.cpp cannot load it, or its state cannot be rolled back.
    """

    prefill_chunk = BATCH_ROWS
    #: Which ``backend`` of ``specrs.load`` made this target; a draft model is loaded by the same one.
    backend = "llama.cpp"

    def __init__(
        self,
        path: Path,
        *,
        threads: int | None = None,
        name: str | None = None,
        context: int = FIRST_CELLS,
        gpu_layers: int = 0,
        repack: bool = True,
        flash_attention: bool = False,
    ) -> None:
        library = require_llama_cpp()
        for what, value, least in (("threads", threads, 1), ("context", context, 1), ("gpu_layers", gpu_layers, -1)):
            if value is not None and value < least:
                raise InvalidInputError(f"{what} must be >= {least}, got {value}")
        if not path.is_file():
            raise ModelNotFoundError(f"no model file at {str(path)!r}")
        metadata = read_metadata(path)  # refuses what is no GGUF file before llama.cpp prints about it
        self.model = _Weights(library, path, gpu_layers, repack)
        pointer = self.model.pointer
        self.path = path
        self.name = name or path.name
        self.threads = threads or _cores()
        self.tokenizer = LlamaTokenizer(library, pointer, self.model)
        self.vocab_size = self.tokenizer.vocab_size
        self.eos_token_ids = self.tokenizer.end_ids
        self.max_context: int | None = int(library.llama_model_n_ctx_train(pointer)) or None
        self.dtype = self.model.description
        self.version = installed_version()
        #: Relative spacing of the numbers that products are made of; ``compare`` tells near-ties by it.
        self.rounding = next((step for kind, step in ROUNDING.items() if kind in self.dtype), QUANTISED)
        self._cost: CostTable | None = None

        # Without a reference to this target, so that it can go as soon as nobody uses it.
        make_context = functools.partial(
            Context,
            library,
            pointer,
            self.model,
            threads=self.threads,
            vocab_size=self.vocab_size,
            flash_attention=flash_attention,
        )
        self._memory = SequenceMemory(make_context, context, _cell_bytes(metadata))

    @property
    def device(self) -> str:
        """Where logits are."""
        return "cpu"

    def new_state(self, capacity: int) -> LlamaState:
        """Return an empty memory. ``capacity`` is not reserved: the context grows when texts do."""
        return LlamaState(self._memory)

    def prefill(self, state: LlamaState, tokens: TokenArray) -> None:
        """Read ``tokens`` into the memory, chunk by chunk, without scores."""
        nobody, nothing = np.empty(0, np.int32), np.empty(0, np.uint32)
        for start in range(0, len(tokens), BATCH_ROWS):
            chunk = tokens[start : start + BATCH_ROWS]
            with self._memory.exclusive():
                context = self._memory.admit([state], len(chunk))
                assert state.slot.sequence is not None
                context.read(state.slot.sequence, np.asarray(chunk).astype(np.int32), state.length)
                state.open(chunk, nothing, None)
                state.commit(nobody, len(chunk))

    def score(self, states: Sequence[LlamaState], pending: Sequence[TokenArray], draft: Draft) -> Scores:
        """Run one forward over each request's pending tokens and draft. See ``TargetModel.score``.

        Long pending text, a prompt's end, takes a forward before the draft's: its cells are then those that plain
        decoding makes. Logits are float32 arrays of the caller's own.
        """
        for request, tokens in enumerate(pending):
            if not len(tokens):
                raise InvalidInputError(f"request {request} has no pending token, expected its anchor at least")
        row_ptr = draft.node_ptr + np.arange(draft.batch_size + 1)
        rows_of = [np.arange(row_ptr[b], row_ptr[b + 1]) for b in range(draft.batch_size)]
        result = _Logits(int(row_ptr[-1]), self.vocab_size)
        with self._memory.exclusive():
            context = self._memory.admit(states, sum(map(len, pending)) + len(draft.tokens))
            long = [b for b, tokens in enumerate(pending) if len(tokens) > SHORT_PENDING]
            if long:
                texts = [_text_rows(states[b], pending[b]) for b in long]
                result.put(context.forward(Rows.join(texts)), row_ptr[long])
            parts, places, crowded = [], [], []
            for b, (state, tokens) in enumerate(zip(states, pending, strict=True)):
                nodes = draft.nodes_of(b)
                tree = Branches.of(draft.parents[nodes])
                has_branches = self._memory.branch(states, state, tree.count - 1)
                if b not in long:
                    parts.append(_text_rows(state, tokens))
                    places.append(rows_of[b][:1])
                if has_branches:
                    anchor = state.length + len(tokens) - 1
                    parts.append(_node_rows(state, anchor, draft.tokens[nodes], draft.depths[nodes], tree))
                    places.append(rows_of[b][1:])
                else:
                    crowded.append(b)
                state.open(tokens, draft.tokens[nodes], tree if has_branches else None)
            joined = Rows.join(parts)
            if len(joined.tokens):
                result.put(context.forward(joined), np.concatenate(places))
            for b in crowded:
                self._score_in_waves(context, states, b, pending[b], draft, rows_of[b][1:], result)
        return Scores(result.rows, row_ptr)

    def _score_in_waves(
        self,
        context: Context,
        states: Sequence[LlamaState],
        b: int,
        pending: TokenArray,
        draft: Draft,
        places: IndexArray,
        result: _Logits,
    ) -> None:
        """Score a tree of more leaves than there are free sequences, subtree by subtree. No node's cells stay."""
        state, nodes = states[b], draft.nodes_of(b)
        tokens, parents, depths = draft.tokens[nodes], draft.parents[nodes], draft.depths[nodes]
        anchor = state.length + len(pending) - 1
        for wave in waves(parents, 1 + self._memory.free_sequences):
            index = np.full(len(parents) + 1, ANCHOR)  # its last entry stands for the anchor
            index[wave] = np.arange(len(wave))
            tree = Branches.of(index[parents[wave]])
            self._memory.branch(states, state, tree.count - 1)
            rows = _node_rows(state, anchor, tokens[wave], depths[wave], tree)
            result.put(context.forward(rows), places[wave])
            self._memory.end_branches(state.slot)
            assert state.slot.sequence is not None
            context.remove(state.slot.sequence, anchor + 1)

    @property
    def cost_table(self) -> CostTable:
        """What a forward over m rows costs here; measured at the first use, at row counts where kernels change."""
        if self._cost is None:
            self._cost = measure_cost(self)
            self.plain_step_seconds = self._cost.seconds(1)
        return self._cost

    def cost_fingerprint(self) -> dict[str, Any]:
        """Return what the cost table depends on; see ``policies.cost.fingerprint``."""
        return {"model": self.name, "vocab_size": self.vocab_size, **self.environment()}

    def environment(self) -> dict[str, Any]:
        """Return what a measurement depends on."""
        return {"backend": f"llama-cpp-python {self.version}", "threads": self.threads, "dtype": self.dtype}


class _Logits:
    """Rows of logits from several forwards; from a single one without a further copy."""

    def __init__(self, count: int, width: int) -> None:
        self._shape = (count, width)
        self._rows: FloatArray | None = None

    def put(self, rows: FloatArray, places: npt.NDArray[Any]) -> None:
        """Take ``rows`` as the rows ``places``."""
        if self._rows is None:
            if np.array_equal(places, np.arange(self._shape[0])):
                self._rows = rows
                return
            self._rows = np.empty(self._shape, np.float32)
        self._rows[places] = rows

    @property
    def rows(self) -> FloatArray:
        """All rows."""
        assert self._rows is not None
        return self._rows


def _text_rows(state: LlamaState, tokens: TokenArray) -> Rows:
    """Return committed tokens, which all of the state's branches see; the anchor's logits are wanted."""
    return plain_rows(tokens, state.length, state.sequences, last_wanted=True)


def _node_rows(state: LlamaState, anchor: int, tokens: TokenArray, depths: IndexArray, tree: Branches) -> Rows:
    """Return the rows of a tree's nodes below the anchor at position ``anchor``."""
    sequences = state.sequences
    return Rows(
        tokens.astype(np.int32),
        (anchor + depths).astype(np.int32),
        [tuple(sequences[branch] for branch in branches) for branches in tree.members],
        np.ones(len(tokens), np.bool_),
    )


class _Weights:
    """Loaded weights, freed when nobody holds them."""

    def __init__(self, library: Any, path: Path, gpu_layers: int, repack: bool) -> None:
        settings = library.llama_model_default_params()
        settings.n_gpu_layers = gpu_layers
        settings.use_extra_bufts = repack
        self.pointer = library.llama_model_load_from_file(str(path).encode(), settings)
        if not self.pointer:
            raise UnsupportedModelError(
                f"llama.cpp {installed_version()} cannot load {path}: an architecture or a type of weights that it "
                "does not know, or a damaged file"
            )
        self._free = weakref.finalize(self, library.llama_model_free, self.pointer)
        buffer = ctypes.create_string_buffer(256)
        library.llama_model_desc(self.pointer, buffer, len(buffer))
        #: Architecture, size and type of the weights, in llama.cpp's words.
        self.description = buffer.value.decode("utf-8", errors="replace")
        for what, refused in (
            ("a recurrent state", library.llama_model_is_recurrent),
            ("recurrent layers", library.llama_model_is_hybrid),
            ("an encoder", library.llama_model_has_encoder),
            ("no causal order (a diffusion model)", library.llama_model_is_diffusion),
        ):
            if refused(self.pointer):
                raise UnsupportedModelError(
                    f"{path.name} has {what}, whose state cannot be rolled back after a rejected draft; specrs drives "
                    "decoders with keys and values by position"
                )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cell_bytes(metadata: dict[str, Any]) -> int:
    """Return the bytes of one token's keys and values in float16, as the file's metadata has the model."""
    kind = metadata.get("general.architecture", "")

    def number(key: str, otherwise: int) -> int:
        value = metadata.get(f"{kind}.{key}", otherwise)
        return int(max(value) if isinstance(value, list) else value)

    heads = max(1, number("attention.head_count", 1))
    width = number("embedding_length", 0) // heads
    pair = number("attention.key_length", width) + number("attention.value_length", width)
    return 2 * number("block_count", 0) * number("attention.head_count_kv", heads) * pair


def measure_cost(target: LlamaCppTarget) -> CostTable:
    """Time forwards of ``target`` at the row counts where its kernels change."""
    from specrs.policies.cost import CostTable

    room = target.max_context or COST_CONTEXT + COST_ROWS[-1]
    context = min(COST_CONTEXT, room // 2)
    measured = [rows for rows in COST_ROWS if rows <= max(1, room - context)]
    state = target.new_state(context)
    tokens = np.zeros(context + measured[-1], np.uint32)
    target.prefill(state, tokens[:context])
    best = dict.fromkeys(measured, np.inf)
    for turn in range(3):  # row counts in turn, so that a disturbance does not fall on one of them alone
        for rows in measured:
            if turn and rows > MEASURED_AGAIN:
                continue
            start = time.perf_counter()
            target.score([state], [tokens[:1]], Draft.chains([tokens[: rows - 1]]))
            best[rows] = min(best[rows], time.perf_counter() - start)
    state.close()
    return CostTable(measured, [best[rows] for rows in measured])


def load_llama_cpp(
    model: Any,
    *,
    tokenizer: Any = None,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: Progress = quiet,
    **options: Any,
) -> LlamaCppTarget:
    """Load a target in llama.cpp; what ``specrs.load(..., backend="llama.cpp")`` calls.

    Parameters
    ----------
    model : str, Path or LlamaCppTarget
        An embedded model's name, a ``.gguf`` file, or a target that is loaded already.
    tokenizer : object, optional
        Instead of llama.cpp's own.
    dtype, device : None
        The file says how weights are kept, ``gpu_layers`` where they are; others are refused.
    threads : int, optional
        Default: one per core.
    progress : callable
    **options
        See ``OPTIONS``.
    """
    from specrs.models.catalog import CATALOG
    from specrs.models.fetch import fetch

    if isinstance(model, LlamaCppTarget):
        return model
    for what, value, instead in (
        ("dtype", dtype, "the file itself"), ("device", device, "gpu_layers"),
    ):  # fmt: skip
        if value is not None:
            raise InvalidInputError(f"backend 'llama.cpp' takes no {what} ({value!r} was given): {instead} decides")
    for option in options:
        if option not in OPTIONS:
            raise UnknownNameError.among("option of backend 'llama.cpp'", option, OPTIONS)
    if not isinstance(model, (str, Path)):
        raise InvalidInputError(f"backend 'llama.cpp' loads names and .gguf files, got {type(model).__name__}")
    require_llama_cpp()
    name = str(model)
    if name in CATALOG:
        target = LlamaCppTarget(fetch(name, progress=progress), threads=threads, name=name, **options)
    elif name.endswith(".gguf"):
        target = LlamaCppTarget(Path(name), threads=threads, **options)
    else:
        raise ModelNotFoundError(
            f"backend 'llama.cpp' found no model {name!r}; expected a .gguf file or one of: {', '.join(CATALOG)}"
        )
    if tokenizer is not None:
        target.tokenizer = tokenizer
    return target
