"""What the engine asks of a target model. Nothing above this interface knows what kind of model answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specrs.types import Draft, IndexArray, Scores, TokenArray


class SequenceState(Protocol):
    """A target's memory of one sequence (keys and values, say). Owned by one request."""

    @property
    def length(self) -> int:
        """How many tokens the memory holds."""
        ...

    def commit(self, kept_nodes: IndexArray, pending: int) -> None:
        """Keep ``pending`` committed tokens and the rows of ``kept_nodes`` after them; forget every other new row."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        ...

    def size_bytes(self) -> int:
        """Memory held, in bytes."""
        ...


class TargetModel(Protocol):
    """A causal language model that scores drafts.

    Attributes
    ----------
    name : str
        For reports and errors.
    vocab_size : int
        Width V of a row of logits.
    max_context : int or None
        Most tokens that a sequence may have; None for no limit.
    eos_token_ids : tuple of int
        Ids that end a text, from the model's own configuration.
    prefill_chunk : int
        Most pending tokens that one forward should read.
    tokenizer : object or None
        A transformers tokenizer, or None for a model of bare ids.
    model : object
        The wrapped model.
    """

    name: str
    vocab_size: int
    max_context: int | None
    eos_token_ids: tuple[int, ...]
    prefill_chunk: int
    tokenizer: Any
    model: Any

    def new_state(self, capacity: int) -> Any:
        """Return an empty memory with room for ``capacity`` tokens."""
        ...

    def prefill(self, state: Any, tokens: TokenArray) -> None:
        """Read ``tokens`` into the memory, without scores."""
        ...

    def score(self, states: Sequence[Any], pending: Sequence[TokenArray], draft: Draft) -> Scores:
        """Run one forward over each request's pending tokens (the anchor last) and its draft's nodes.

        Parameters
        ----------
        states : sequence of B memories
        pending : sequence of B token arrays, each of at least one token
            Committed tokens that the memory does not hold yet.
        draft : Draft
            B trees below the anchors.

        Returns
        -------
        Scores
            A row of logits for each anchor and node.
        """
        ...
