"""A transformers causal language model as a target: any attention-only decoder, driven through packed forwards."""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AttentionInterface, PreTrainedModel

from specrs.errors import InvalidInputError, UnsupportedModelError
from specrs.models.attention import ATTENTION_NAME, PackedForward, Segment, packed_tree_attention, set_active
from specrs.models.parallel import ranks_of
from specrs.models.sequence_cache import SequenceCache
from specrs.ops import where
from specrs.types import Scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from specrs.types import Draft, TokenArray

#: A forward changes what the model object (and its configuration, which models may share) runs: one at a time.
_MODEL_LOCK = threading.Lock()

AttentionInterface.register(ATTENTION_NAME, packed_tree_attention)

#: Kinds of layers whose state is keys and values by position, which can be rolled back.
CROPPABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})
#: Rotary schemes that change with the length of the text; exact only while the text is short enough.
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})

#: Settings of a generation configuration, besides the repetition penalty, that change even a greedy text.
_LAW_SETTINGS = (
    "no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "sequence_bias",
    "guidance_scale",
    "exponential_decay_length_penalty",
)


class TransformersTarget:
    """A transformers causal language model behind the ``TargetModel`` interface.

    The model object stays the caller's: its attention implementation is swapped for the time of a forward only.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model in evaluation mode.
    tokenizer : object, optional
        A transformers tokenizer.
    name : str, optional
        For reports and errors.

    Raises
    ------
    UnsupportedModelError
        The model keeps a state that cannot be rolled back, or cannot run our attention.
    """

    prefill_chunk = 512
    #: Whether scores carry the hidden states that the output head read.
    keeps_hidden = False

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None, *, name: str | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        if not isinstance(model, PreTrainedModel):
            raise UnsupportedModelError(f"expected a transformers PreTrainedModel, got {type(model).__name__}")
        self._config = model.config.get_text_config(decoder=True)
        _refuse_unsupported(model, self._config)
        self.vocab_size = _head_width(model)
        self.max_context = _max_context(self._config)
        self.eos_token_ids = _eos_token_ids(model)
        self.default_repetition_penalty = float(getattr(model.generation_config, "repetition_penalty", None) or 1.0)
        self.unapplied_settings = _unapplied_settings(model)
        self.ranks = ranks_of(model)
        self._layers = int(self._config.num_hidden_layers)
        parameters = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self._fast_forwards: list[tuple[dict[str, Any], Any]] = []
        self._cache_dtype: torch.dtype | None = None

    def accelerate(self) -> None:
        """Use our linear kernels in this target's forwards, where the processor makes them the better ones.

        The model object itself is left alone: its modules are swapped for the time of a forward.
        """
        from specrs.ops.linear import accelerate

        acceleration = accelerate(self.model)
        self._fast_forwards = [(m.__dict__, m.__dict__["forward"]) for m in acceleration.replaced.values()]
        acceleration.restore()
        if self._fast_forwards:
            # On such processors torch's attention is five times slower in half precision than in float32. Keys and
            # values are exact in float32, and rounding once at the end also keeps rows nearer to each other.
            self._cache_dtype = torch.float32

    @property
    def accelerated(self) -> bool:
        """Whether our linear kernels are in use."""
        return bool(self._fast_forwards)

    @contextmanager
    def _our_modules(self, forward: PackedForward) -> Iterator[None]:
        """Put our attention and linear kernels into the model, for one forward."""
        config = self._config
        with _MODEL_LOCK:
            before = config._attn_implementation_internal
            own_forwards = [attributes.get("forward") for attributes, _ in self._fast_forwards]
            config._attn_implementation_internal = ATTENTION_NAME
            set_active(forward)
            for attributes, fast in self._fast_forwards:
                attributes["forward"] = fast
            try:
                with torch.inference_mode():
                    yield
            finally:
                for (attributes, _), own in zip(self._fast_forwards, own_forwards, strict=True):
                    attributes.pop("forward", None)
                    if own is not None:
                        attributes["forward"] = own
                set_active(None)
                config._attn_implementation_internal = before

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's weights."""
        return torch.empty(0, dtype=self.model.dtype).dtype

    def new_state(self, capacity: int) -> SequenceCache:
        """Return an empty memory with room for ``capacity`` tokens."""
        return SequenceCache(self._layers, capacity, self._cache_dtype)

    def prefill(self, state: SequenceCache, tokens: TokenArray) -> None:
        """Read ``tokens`` into the memory, chunk by chunk, without scores."""
        nobody = np.empty(0, np.int32)
        for start in range(0, len(tokens), self.prefill_chunk):
            chunk = np.asarray(tokens[start : start + self.prefill_chunk], np.int64)
            positions = np.arange(state.length, state.length + len(chunk), dtype=np.int64)
            self._forward([Segment(0, len(chunk), state, positions, None)], chunk, [len(chunk) - 1])
            state.commit(nobody, len(chunk))

    def score(self, states: Sequence[SequenceCache], pending: Sequence[TokenArray], draft: Draft) -> Scores:
        """Run one forward over each request's pending tokens and draft. See ``TargetModel.score``."""
        segments, ids, rows, at = [], [], [], 0
        for request, (state, tokens) in enumerate(zip(states, pending, strict=True)):
            if not len(tokens):
                raise InvalidInputError(f"request {request} has no pending token, expected its anchor at least")
            nodes = draft.nodes_of(request)
            parents, depths = draft.parents[nodes], draft.depths[nodes].astype(np.int64)
            anchor = state.length + len(tokens) - 1
            positions = np.concatenate([np.arange(state.length, anchor + 1), anchor + depths])
            end = at + len(positions)
            segments.append(Segment(at, end, state, positions, _visible(len(tokens), parents)))
            ids += [np.asarray(tokens, np.int64), draft.tokens[nodes].astype(np.int64)]
            rows.append(np.arange(at + len(tokens) - 1, end))
            at = end
        row_ptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
        kept: list[torch.Tensor] = []
        hook = None
        if self.keeps_hidden:
            head = self.model.get_output_embeddings()
            hook = head.register_forward_pre_hook(lambda _, arguments: kept.append(arguments[0]))
        wanted = np.concatenate(rows)
        try:
            logits = self._forward(segments, np.concatenate(ids), wanted)
        finally:
            if hook is not None:
                hook.remove()
        hidden = None
        if kept:
            inputs = kept[0].reshape(-1, kept[0].shape[-1])
            hidden = (inputs if len(inputs) == len(wanted) else inputs[wanted]).float().cpu().numpy()
        return Scores(logits, row_ptr, hidden)

    def forward_segments(self, segments: Sequence[Segment], ids: npt.NDArray[np.int64]) -> torch.Tensor:
        """Run one forward over rows that the caller laid out, and return all their logits, shape (rows, V).

        They lie where those of :meth:`score` do.

        Parameters
        ----------
        segments : sequence of Segment
            Memory, positions and visibility of consecutive rows. The new rows are written behind each memory's length,
            which stays as it is.
        ids : array of int64, shape (rows,)
        """
        return self._forward(list(segments), ids, range(len(ids)))

    def _forward(
        self, segments: list[Segment], ids: npt.NDArray[np.int64], rows: Sequence[int] | npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Run the model over packed segments and return the logits of ``rows``, shape (rows, V).

        They stay on a CUDA device that our kernels run on; from any other the host gets them.
        """
        device = self.device
        positions = np.concatenate([segment.positions for segment in segments])
        keep = where.as_tensor(np.asarray(rows, np.int64), device)
        all_rows = len(rows) == len(ids)
        arguments: dict[str, Any] = {
            "input_ids": where.as_tensor(ids[None], device),
            "position_ids": where.as_tensor(positions[None], device),
            "use_cache": True,
        }
        forward = PackedForward(segments, row_invariant=self.accelerated)
        arguments[self._cache_argument] = forward
        if self._keeps_logits and not all_rows:
            arguments["logits_to_keep"] = keep
        with self._our_modules(forward):
            logits: torch.Tensor = self.model(**arguments).logits[0]
            if not self._keeps_logits and not all_rows:
                logits = logits[keep]
        return logits if where.on_a_device(logits) else logits.to("cpu")


def _visible(pending: int, parents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_] | None:
    """Return which new rows each new row sees, or None when the draft is a chain (plain causal).

    A node sees the pending tokens, itself, and what its parent sees.
    """
    nodes = len(parents)
    if np.array_equal(parents, np.arange(-1, nodes - 1)):
        return None
    seen = np.zeros((pending + nodes, pending + nodes), np.bool_)
    seen[:pending, :pending] = np.tri(pending, dtype=np.bool_)
    for node, parent in enumerate(parents.tolist()):
        row = pending + node
        seen[row] = seen[pending + parent]
        seen[row, row] = True
    return seen


def _refuse_unsupported(model: PreTrainedModel, config: Any) -> None:
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{kind} is an encoder-decoder; specrs drives decoder-only models")
    layer_types = set(getattr(config, "layer_types", None) or ())
    strange = sorted(layer_types - CROPPABLE_LAYERS)
    if strange or getattr(model, "_is_stateful", False):
        what = f"layers of type {', '.join(strange)}" if strange else "a recurrent state"
        raise UnsupportedModelError(
            f"{kind} has {what}: a state that cannot be rolled back after a rejected draft. "
            f"specrs supports {', '.join(sorted(CROPPABLE_LAYERS))}"
        )
    if getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedModelError(f"{kind} shares keys and values between layers, which specrs does not support yet")
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModelError(f"{kind} attends to later tokens; specrs drives causal models")
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedModelError(f"{kind} does not use the attention interface of transformers, which specrs needs")


def _head_width(model: Any) -> int:
    head = model.get_output_embeddings()
    if head is None:
        raise UnsupportedModelError(f"{type(model).__name__} has no output head; expected a causal language model")
    return int(head.weight.shape[0])


def _max_context(config: Any) -> int | None:
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        limit = original or limit
    return None if limit is None else int(limit)


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    if configured is None:
        configured = getattr(model.config, "eos_token_id", None)
    if configured is None:
        return ()
    return tuple(int(i) for i in np.atleast_1d(np.asarray(configured)) if int(i) >= 0)  # -1 stands for none


def _unapplied_settings(model: PreTrainedModel) -> dict[str, Any]:
    """Return the settings of the model's generation configuration that change the law and that we do not apply.

    The repetition penalty we do apply, for plain greedy decoding uses it too.
    """
    configured = model.generation_config
    return {
        name: value
        for name in _LAW_SETTINGS
        if (value := getattr(configured, name, None)) not in (None, 0, 0.0, 1.0, [], ())
    }
