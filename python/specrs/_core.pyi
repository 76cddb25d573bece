"""The Rust extension. Everything here is checked, runs without the GIL and never panics into Python."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

__version__: str
BUILD_PROFILE: str

#: The attention kernel takes heads of a multiple of so many elements.
ATTENTION_HEAD_MULTIPLE: int

#: Size of the embedded CUDA kernels, or None in a build without nvcc.
GPU_FATBIN_BYTES: int | None

def cpu_features() -> list[tuple[str, bool]]:
    """Return the processor features that the hot paths ask for, and whether this processor has them."""

def coins(
    seed: int, positions: npt.NDArray[np.uint32], purpose: str, request: int = 0, index: int = 0
) -> npt.NDArray[np.float64]:
    """Return the coins of (seed, request, position, purpose, index) for each position.

    Parameters
    ----------
    seed : int
        64-bit seed of the request.
    positions : array of uint32, shape (P,)
        Committed tokens before the token that is drawn.
    purpose : {'draft', 'accept', 'emit', 'policy'}
        The stream; no two purposes share a draw.
    request : int
        Which sample of the same prompt and seed.
    index : int
        Counts several draws at one position.

    Returns
    -------
    array of float64, shape (P,)
        Multiples of 2**-53 in [0, 1). Philox4x32-10 (Salmon et al., 2011).
    """

@final
class SuffixCache:
    """Drafts from text already seen: each request's own prompt and output, and the text of finished requests.

    Every position that shares a suffix with the committed text votes for what followed it; longer matches weigh more,
    and the draft is the most probable continuation (``shape="chain"``) or a best-first tree of them. All methods may be
    called from any thread and release the GIL.

    Parameters
    ----------
    vocab_size : int, optional
        Ids at or above it are never drafted.
    max_match : int
        Longest match that is measured, in tokens. Drafts are not bounded by it.
    min_match : int
        Shortest match that votes.
    max_votes : int
        Most matches that vote: of the request's own text, and of all finished text.
    max_tokens : int, optional
        Most tokens of finished text that are kept; the oldest is dropped when there is more.
    max_bytes : int, optional
        Most bytes that finished text takes, in memory or mapped.
    max_age : int, optional
        Epochs after which finished text is dropped; :meth:`advance_epoch` begins a new one.
    epoch_decay : float
        What finished text weighs in drafts for each epoch that it is old: 1 keeps all text equal.
    """

    def __new__(
        cls,
        vocab_size: int | None = None,
        *,
        max_match: int = 128,
        min_match: int = 1,
        max_votes: int = 8,
        max_tokens: int | None = None,
        max_bytes: int | None = None,
        max_age: int | None = None,
        epoch_decay: float = 1.0,
    ) -> SuffixCache: ...
    def start(self, request_id: int, prompt: npt.ArrayLike) -> None:
        """Open a request with its prompt, integers of shape (T,); a known id raises ``RequestError``."""

    def append(self, request_id: int, tokens: npt.ArrayLike) -> None:
        """Append committed tokens, integers of shape (T,), to a request."""

    def finish(self, request_id: int, keep: bool = True) -> None:
        """End a request. With ``keep`` its text serves later requests, and those that are active now."""

    def abort(self, request_id: int) -> None:
        """End a request and forget its text."""

    def add(self, document: npt.ArrayLike) -> None:
        """Add a document, integers of shape (T,), to the finished text."""

    def add_many(self, tokens: npt.ArrayLike, ptr: npt.ArrayLike) -> None:
        """Add documents to finished text: document ``i`` is ``tokens[ptr[i]:ptr[i + 1]]``; ptr has shape (D + 1,)."""

    def compact(self) -> None:
        """Make one segment of all finished text; drafts are faster then."""

    def evict_to(self, tokens: int) -> None:
        """Drop the oldest finished text, whole segments at a time, until at most ``tokens`` are left."""

    def advance_epoch(self) -> int:
        """Begin a new epoch and return its number: finished text is one epoch older now, and dropped if too old.

        For text that goes out of date at known times: rollouts of a model that is being trained, or by the clock.
        """

    def count(self, pattern: npt.ArrayLike) -> int:
        """Return how often a pattern, integers of shape (T,), occurs within documents of the finished text."""

    def clear(self) -> None:
        """Forget all finished text; active requests go on."""

    def draft(
        self,
        request_id: int,
        budget: int,
        *,
        shape: str = "chain",
        min_prob: float = 0.1,
        eos: npt.ArrayLike | None = None,
    ) -> tuple[
        npt.NDArray[np.uint32],
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.float32],
        int,
        float,
    ]:
        """Draft for one request.

        Parameters
        ----------
        request_id : int
            An active request.
        budget : int
            Most nodes, N at most.
        shape : {'chain', 'tree'}
            One path, or a best-first tree.
        min_prob : float
            Least estimated probability of the path to a node, for the node to be drafted.
        eos : array of int, optional
            Tokens that end a draft; they are drafted themselves.

        Returns
        -------
        tokens : array of uint32, shape (N,)
            Nodes in topological order; N may be 0.
        parents : array of int32, shape (N,)
            Index of the parent, -1 for children of the anchor. Read-only for a short chain: all chains share it.
        depths : array of int32, shape (N,)
            Distance from the anchor, from 1. Read-only as well.
        confidence : array of float32, shape (N,)
            Estimated probability that the node is accepted given that its parent is.
        match_length : int
            Longest suffix of the committed text that was found, at most ``max_match``.
        expected_accepted : float
            Sum of the path probabilities.
        """

    def step(
        self,
        request_id: int,
        tokens: npt.ArrayLike,
        budget: int,
        *,
        shape: str = "chain",
        min_prob: float = 0.1,
        eos: npt.ArrayLike | None = None,
    ) -> tuple[
        npt.NDArray[np.uint32],
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.float32],
        int,
        float,
    ]:
        """Append ``tokens`` and draft, in one call; arguments and result are those of ``append`` and ``draft``."""

    def step_many(
        self,
        request_ids: npt.ArrayLike,
        new_tokens: npt.ArrayLike,
        new_ptr: npt.ArrayLike,
        budget: int | npt.ArrayLike,
        *,
        shape: str = "chain",
        min_prob: float = 0.1,
        eos: npt.ArrayLike | None = None,
        threads: int = 1,
    ) -> tuple[
        npt.NDArray[np.uint32],
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.float32],
        npt.NDArray[np.int64],
        npt.NDArray[np.int32],
        npt.NDArray[np.float32],
    ]:
        """Append to B requests and draft for each, in one call.

        Parameters
        ----------
        request_ids : array of int, shape (B,)
            Active requests, each once.
        new_tokens : array of int, shape (T,)
            Committed tokens of all requests, one after the other.
        new_ptr : array of int, shape (B + 1,)
            Where each request's new tokens start.
        budget : int or array of int, shape (B,)
            Most nodes per request.
        shape, min_prob, eos
            As for ``draft``.
        threads : int
            Most threads used. The result does not depend on it.

        Returns
        -------
        tokens, parents, depths, confidence : arrays, shape (N,)
            Nodes of all requests; parents count from the start of their own request's nodes.
        row_ptr : array of int64, shape (B + 1,)
            Where each request's nodes start.
        match_lengths : array of int32, shape (B,)
            Longest match of each request.
        expected_accepted : array of float32, shape (B,)
            Expected accepted tokens of each request.
        """

    def stats(self) -> dict[str, int]:
        """Return the numbers of requests, documents, tokens and bytes held."""

    def memory_bytes(self) -> int:
        """Return the bytes held."""

@final
class BatchProposer:
    """Drafts for a whole batch of an engine that shows its rows and no request ids; one call per step.

    Requests are known by their text: rows may be permuted, left and taken by others, and a preempted request is known
    when it returns. Drafts are chains from ``cache``, cut where one more token costs more time than it is expected to
    bring: the tokens of the largest survival stay, as many as make (B + their survival) / T(B + their count) largest,
    T being the engine's own step times. Rust programs find the same in ``specrs::serving``.

    Parameters
    ----------
    cache : SuffixCache
        Drafted from, and given what finishes. Its requests are this proposer's alone.
    draft_tokens : int
        Most tokens of a draft, K.
    max_length : int
        Most tokens of a request, prompt included.
    eos : array of int, optional
        Tokens that end a text: they end a draft, and what follows one in new text is not learnt.
    min_prob : float
        A draft ends where the estimated probability of reaching its next token falls below.
    threads : int
        Threads of one step.
    gate : bool
        Whether drafts are cut by what they cost. Nothing is drafted then until a step was timed.
    token_cost : float
        Cost of one more row as a share of the first, until it is measured.
    keep : bool
        Whether finished requests serve later ones.
    hand_out : bool
        Whether :meth:`step` and :meth:`finish_all` return the text of finished requests.
    dead_steps : int
        Steps in a row with drafts and nothing accepted, after something was, that make it forget all requests.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """

    def __new__(
        cls,
        cache: SuffixCache,
        draft_tokens: int,
        max_length: int,
        *,
        eos: npt.ArrayLike | None = None,
        min_prob: float = 0.1,
        threads: int = 1,
        gate: bool = True,
        token_cost: float = 0.02,
        keep: bool = True,
        hand_out: bool = False,
        dead_steps: int = 200,
    ) -> BatchProposer: ...
    def step(
        self,
        tokens: npt.NDArray[np.int32],
        lengths: npt.ArrayLike,
        fresh: npt.ArrayLike,
        seconds: float | None = None,
    ) -> tuple[list[list[int]], list[npt.NDArray[np.uint32]], bool]:
        """Draft for each row after a step of the engine.

        Parameters
        ----------
        tokens : array of int32, shape (B, L), contiguous
            Text of each row.
        lengths : array of int, shape (B,)
            Tokens of each row that are text.
        fresh : array of int, shape (B,)
            How many of them came with the step; a row with none gets no draft, its prompt is still being read.
        seconds : float, optional
            What the engine's step took.

        Returns
        -------
        drafts : list of list of int, length B
        finished : list of array of uint32
            Text of requests that are gone for good, with ``hand_out``.
        anew : bool
            Whether all requests were forgotten, because nothing was accepted for ``dead_steps`` steps.

        Raises
        ------
        InvalidInputError
            Shapes do not fit, a length is beyond L, or a token is negative.
        RequestError
            Someone else used the cache's requests. After any error call :meth:`forget`.
        """

    def finish_all(self) -> list[npt.NDArray[np.uint32]]:
        """Finish all requests; return their text, with ``hand_out``."""

    def forget(self) -> None:
        """Drop all requests and their text; the next step meets them anew."""

    def counts(self) -> dict[str, int]:
        """Return ``steps``, ``requests`` met, tokens ``drafted``, ``accepted`` and ``emitted``, ``active`` requests."""

    def step_times(self) -> tuple[list[float], list[float]]:
        """Return the row counts whose step time was measured, and their seconds."""

def verify(
    logits: npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16],
    dtype: str,
    row_ptr: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.uint32],
    parents: npt.NDArray[np.int32],
    rule: str,
    temperature: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int32],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
    accept_coins: npt.NDArray[np.float64],
    emit_coins: npt.NDArray[np.float64],
    draft_probs: npt.NDArray[np.float32] | None = None,
    draft_rows: npt.NDArray[np.int64] | None = None,
    draft_ids: npt.NDArray[np.uint32] | None = None,
    draft_ptr: npt.NDArray[np.int64] | None = None,
    one_hot: bool = False,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Verify the drafts of B requests with N nodes in total over R = B + N logit rows.

    Parameters
    ----------
    logits : array, shape (R, V)
        Processed target logits; rows may be further apart than they are long. Request b owns rows
        row_ptr[b] .. row_ptr[b + 1]: its anchor's, then one per node.
    dtype : {'f32', 'f16', 'bf16'}
        float32, float16, or bfloat16 bits in uint16.
    row_ptr : array of int64, shape (B + 1,)
        First row of each request.
    tokens : array of uint32, shape (N,)
        Draft tokens; request b's start at row_ptr[b] - b.
    parents : array of int32, shape (N,)
        Parent within the request, -1 for the anchor; parents come before children.
    rule : {'greedy_or_fixed', 'chain', 'block', 'specinfer', 'without_replacement', 'spectr'}
        Exact rules. 'greedy_or_fixed' takes what plain decoding takes with the row's emit coin and descends while the
        draft has it. 'chain' is rejection sampling (arXiv 2211.17192), 'block' block verification (2403.10444), both
        for chains. The others are for trees whose siblings were sampled from one law: independently ('specinfer',
        2305.09781; 'spectr', 2310.15141) or without replacement (2402.12374).
    temperature, top_p, min_p : array of float32, shape (B,)
        0, 1 and 0 mean greedy, off and off.
    top_k : array of int32, shape (B,)
        0 means off.
    accept_coins, emit_coins : array of float64, shape (R,)
        In [0, 1). A row's emit coin draws its token. Its accept coin decides about its child ('chain', 'block'), or
        about the row's own node (rules for siblings; see ``round_coins`` with ``parents``).
    draft_probs : array of float32, shape (M, V_draft) or, for a sparse law, (E,), optional
        The laws the tokens were drawn from; ids they do not cover have probability 0.
    draft_rows : array of int64, shape (N,), optional
        Row of ``draft_probs`` for each node; by default node i has row i.
    draft_ids : array of uint32, shape (E,), optional
        Ids of a sparse law, ascending within a row.
    draft_ptr : array of int64, shape (M + 1,), optional
        Row r of a sparse law is draft_ptr[r] .. draft_ptr[r + 1].
    one_hot : bool
        The tokens were chosen with certainty (instead of ``draft_probs``).

    Returns
    -------
    path_ptr : array of int64, shape (B + 1,)
    path : array of int32
        Accepted nodes within their request.
    bonus : array of uint32, shape (B,)
        4294967295 where status is 2.
    status : array of uint8, shape (B,)
        0 ok; 1 empty residual, drew from the target's law; 2 unusable target row, path ends there; 3 unusable draft
        row, drew from the target's law; 4 draft token in neither vocabulary, cut there.
    """

def verify_relaxed(
    logits: npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16],
    dtype: str,
    row_ptr: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.uint32],
    parents: npt.NDArray[np.int32],
    rule: str,
    knobs: npt.NDArray[np.float32],
    temperature: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int32],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
    accept_coins: npt.NDArray[np.float64],
    emit_coins: npt.NDArray[np.float64],
    draft_probs: npt.NDArray[np.float32] | None = None,
    draft_rows: npt.NDArray[np.int64] | None = None,
    draft_ids: npt.NDArray[np.uint32] | None = None,
    draft_ptr: npt.NDArray[np.int64] | None = None,
    one_hot: bool = False,
    beyond_support: bool = False,
    budget: npt.NDArray[np.float64] | None = None,
) -> tuple[
    tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint32], npt.NDArray[np.uint8]],
    npt.NDArray[np.float64],
]:
    """Verify chains under a relaxed rule: the output law is *not* the target's.

    Parameters
    ----------
    rule : str
        'ensemble' (knobs: target weight per node), 'lenience' (l), 'typical' (epsilon, delta), 'top_k' (k), 'cascade'
        (alpha), 'fuzzy_total_variation', 'fuzzy_jensen_shannon' or 'fuzzy_kullback_leibler' (threshold).
    knobs : array of float32
        See ``rule``.
    beyond_support : bool
        Whether tokens that the target's law excludes may stand.
    budget : array of float64, shape (B,), optional
        Bias that each request may still gather; a position that would exceed it is verified exactly.

    Other parameters are those of ``verify``.

    Returns
    -------
    verdict : tuple
        As ``verify`` returns it.
    bias : array of float64, shape (B,)
        Total-variation distance gathered over the tested positions of this round.
    """

def round_coins(
    seeds: npt.NDArray[np.uint64],
    requests: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.uint32],
    row_ptr: npt.NDArray[np.int64],
    depths: npt.NDArray[np.int32],
    parents: npt.NDArray[np.int32] | None = None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the accept and emit coins of every logit row of a round.

    Parameters
    ----------
    seeds : array of uint64, shape (B,)
    requests : array of uint32, shape (B,)
        Which sample of the same prompt and seed.
    positions : array of uint32, shape (B,)
        Committed tokens.
    row_ptr : array of int64, shape (B + 1,)
        As for ``verify``.
    depths : array of int32, shape (N,)
        1 for a child of the anchor.
    parents : array of int32, shape (N,), optional
        For rules that try siblings in turn: a node's accept coin is its own, keyed by its rank among its siblings.

    Returns
    -------
    accept_coins, emit_coins : array of float64, shape (R,)
        Keyed by position + depth (the anchor has depth 0).
    """

def draw(
    logits: npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16],
    dtype: str,
    temperature: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int32],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
    coins: npt.NDArray[np.float64],
    with_probs: bool,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]:
    """Draw one token per row, and return the law it was drawn from if ``with_probs``.

    Parameters
    ----------
    logits : array, shape (R, V)
    dtype : {'f32', 'f16', 'bf16'}
    temperature, top_p, min_p : array of float32, shape (R,)
    top_k : array of int32, shape (R,)
    coins : array of float64, shape (R,)
    with_probs : bool

    Returns
    -------
    tokens : array of uint32, shape (R,)
        4294967295 for a row that is NaN, +inf or masked throughout.
    probs : array of float32, shape (R, V), or None
        To the bit what ``verify`` computes from the same logits; one-hot at temperature 0; a drawn token has a positive
        entry; NaN for an unusable row.
    """

def log_probs(
    logits: npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16],
    dtype: str,
    rows: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.uint32],
) -> npt.NDArray[np.float32]:
    """Return the log-softmax of row ``rows[i]`` at ``tokens[i]`` (temperature 1, nothing truncated), shape (n,)."""

def top_log_probs(
    logits: npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16],
    dtype: str,
    rows: npt.NDArray[np.int64],
    k: int,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """Return ids and log-probabilities of the ``k`` most probable tokens of each row, both of shape (n, k)."""

def unsafe_linear_ptr(
    x: int,
    weight: int,
    bias: int,
    out: int,
    rows: int,
    inputs: int,
    outputs: int,
    element_size: int,
    openmp: int,
    threads: int,
    /,
) -> None:
    """Compute ``out = x @ weight.T + bias`` on memory by address; the caller answers for what lies there.

    Null, misaligned and oversized arguments are refused. All arrays are dense and row-major, of one element type.

    Parameters
    ----------
    x : int
        Address of (rows, inputs).
    weight : int
        Address of (outputs, inputs).
    bias : int
        Address of (outputs,), or 0 for none.
    out : int
        Address of (rows, outputs), written whole.
    rows, inputs, outputs : int
        The sizes.
    element_size : {2, 4}
        2 for bfloat16, 4 for float32.
    openmp : int
        Address of the ``GOMP_parallel`` in whose team to run, or 0 to start threads for the call.
    threads : int
        Threads to use.
    """

def unsafe_attention_ptr(
    query: int,
    keys: int,
    values: int,
    out: int,
    query_strides: tuple[int, int],
    memory_strides: tuple[int, int],
    shape: tuple[int, int, int, int],
    committed: int,
    positions: npt.NDArray[np.int64],
    flags: npt.NDArray[np.bool_] | None,
    window: int | None,
    scale: float,
    openmp: int,
    threads: int,
    /,
) -> None:
    """Attend from new rows to what each sees, on float32 memory by address; the caller answers for what lies there.

    Null, misaligned and oversized arguments are refused.

    Parameters
    ----------
    query : int
        Address of (rows, query heads, size), by ``query_strides`` (row, head) in elements.
    keys, values : int
        Addresses of (key heads, slots, size), by ``memory_strides`` (head, slot) in elements.
    out : int
        Address of (rows, query heads, size), dense, written whole.
    shape : tuple of int
        (rows, query heads, key heads, size).
    committed : int
        Slots that every row sees, in the order of their positions.
    positions : array of int64, shape (S,)
        Of the slots behind them, the new rows last.
    flags : array of bool, shape (rows, S), or None
        What each row sees of them, itself and nothing later; None is everything up to itself.
    window : int or None
        A row at position p sees positions above ``p - window``.
    scale : float
    openmp : int
        Address of the ``GOMP_parallel`` in whose team to run, or 0 to start threads for the call.
    threads : int
        Threads to use.
    """

@final
class CacheStore:
    """Finished documents in a folder: segment files that processes map, and a manifest replaced by one rename.

    A crash at any byte leaves the old store or the new one. Damaged or foreign files raise ``CorruptFileError``.
    """

    @staticmethod
    def create(path: str | os.PathLike[str], fingerprint: str = "") -> CacheStore:
        """Make an empty store; ``fingerprint`` names the tokenizer (at most 64 printable characters)."""

    @staticmethod
    def open(path: str | os.PathLike[str], fingerprint: str = "") -> CacheStore:
        """Open a store; a known ``fingerprint`` must be that of the store, unless that one is unknown."""

    @property
    def path(self) -> pathlib.Path:
        """The folder."""

    @property
    def fingerprint(self) -> str:
        """The tokenizer's fingerprint; empty when unknown."""

    def add(self, tokens: npt.ArrayLike, ptr: npt.ArrayLike) -> None:
        """Add documents as one segment: document ``i`` is ``tokens[ptr[i]:ptr[i + 1]]``; ptr has shape (D + 1,)."""

    def add_cache(self, cache: SuffixCache) -> None:
        """Add all finished text of a cache."""

    def merge(self) -> None:
        """Make one segment of all, and remove what is no longer named."""

    def inspect(self) -> list[dict[str, str | int]]:
        """Return name, tokens, documents and bytes of each segment, oldest first."""

    def verify(self) -> list[dict[str, str | int]]:
        """Check every file in full: checksums, and that the order is one of the text. Returns as ``inspect``."""

    def load_into(self, cache: SuffixCache, *, checksums: bool = True) -> None:
        """Map all segments and add them to the finished text of a cache."""

def tree_merge(
    drafts: list[tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]],
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Merge drafts given as (tokens, parents, confidence): equal paths become one, with the larger confidence.

    Returns tokens, parents, depths and confidence, each of shape (N,); the first draft keeps its indices.
    """

def tree_prune(
    tokens: npt.ArrayLike, parents: npt.ArrayLike, confidence: npt.ArrayLike, budget: int
) -> tuple[
    tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]],
    npt.NDArray[np.int32],
]:
    """Keep the ``budget`` nodes of the largest path probability.

    Returns (tokens, parents, depths, confidence) of what is kept, and the kept nodes' old indices.
    """

def tree_visibility(parents: npt.ArrayLike, row_ptr: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return which nodes each node sees, as bits.

    Parameters
    ----------
    parents : array of int, shape (N,)
        Parents of all requests' nodes, each counted from the start of its own request; -1 is the anchor.
    row_ptr : array of int, shape (B + 1,)
        Where each request's nodes start.

    Returns
    -------
    array of uint64, shape (N, W)
        Bit 0 is the anchor, bit ``j + 1`` is node ``j`` of the same request; low bits first.
    """

def tree_retrieve_indices(parents: npt.ArrayLike, row_ptr: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Return root-to-leaf paths, shape (B, leaves, 1 + deepest): 0 is the anchor, ``i + 1`` is node ``i``, -1 pads."""

def tree_links(parents: npt.ArrayLike, row_ptr: npt.ArrayLike) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return first child and next sibling of anchor and nodes, each of shape (N + B,); -1 is none.

    A request's part starts at ``row_ptr[b] + b`` and counts from its own anchor, which is 0.
    """

def pad_drafts(
    tokens: npt.ArrayLike, row_ptr: npt.ArrayLike, width: int, fill: int = -1
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return ragged drafts as int32 of shape (B, width), filled up with ``fill``, and their lengths, shape (B,)."""

@final
class PayoffPredictor:
    """Predicts how much of a cache draft is accepted: a perceptron with two hidden layers of 256 rectified units.

    Parameters
    ----------
    layers : tuple of three (weights, bias)
        Arrays of float32, shapes (F, 256) and (256,), (256, 256) and (256,), (256, 1) and (1,). F is the number of
        features that :meth:`PayoffRouter.take_examples` gives.
    fingerprint : str
        Names the tokenizer that it was trained with.
    """

    def __new__(
        cls,
        layers: tuple[
            tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
            tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
            tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]],
        ],
        fingerprint: str = "",
    ) -> PayoffPredictor: ...
    @property
    def fingerprint(self) -> str:
        """Names the tokenizer that it was trained with."""

    def predict(self, features: npt.NDArray[np.float32]) -> float:
        """Return the accepted tokens expected of a draft with these features, shape (F,)."""

    def to_bytes(self) -> bytes:
        """Return the content of a predictor's file: versions, sizes, fingerprint, weights, checksum."""

    @staticmethod
    def from_bytes(data: bytes) -> PayoffPredictor:
        """Return a predictor from what ``to_bytes`` gave; damage and other versions are refused."""

@final
class PayoffRouter:
    """Chooses, before verification, between the cache's chain and tree, a model drafter's draft, and none.

    The arm with the most expected tokens per unit of time wins, and a cache draft is cut where one more token costs
    more than it brings. Hybrid Verified Decoding (Su et al., arXiv:2606.01019) compares with a fixed threshold instead.

    Parameters
    ----------
    token_cost : float
        Cost of one more row in a forward, as a share of a forward over one row.
    model_cost : float
        Cost of one token of the model drafter, as a share of a forward over one row.
    model_acceptance : float
        Probability that a token of the model drafter is accepted given that its parent is.
    longest_model : int
        Longest draft of the model drafter.
    explore : float
        Share of rounds that try the model drafter against the estimate.
    """

    def __new__(
        cls,
        *,
        token_cost: float = 0.02,
        model_cost: float = 0.25,
        model_acceptance: float = 0.7,
        longest_model: int = 8,
        explore: float = 0.01,
    ) -> PayoffRouter: ...
    def copy(self) -> PayoffRouter:
        """Return a router that knows what this one learned, without its requests."""

    def set_costs(
        self, forward: tuple[list[float], list[float]], draft: tuple[list[float], list[float]] | None
    ) -> None:
        """Replace the guessed costs by measured ones: (rising row counts from 1, seconds of a forward over each).

        ``forward`` is the target's, ``draft`` the model drafter's.
        """

    def set_rule(self, rule: Literal["rate", "expected", "match"], threshold: float = 0.0) -> None:
        """Change the rule: 'rate' is ours; the others take the whole chain, or else the model drafter's draft.

        'expected': if more than ``threshold`` accepted tokens are expected (Hybrid Verified Decoding: 6). 'match': if
        the match has at least ``threshold`` tokens (SAM-Decoding: 5, TensorRT-LLM: 4).
        """

    def set_predictor(self, predictor: PayoffPredictor | None) -> None:
        """Change what predicts a chain's accepted length; None: the calibrated path probabilities."""

    def set_classes(self, classes: npt.NDArray[np.uint8]) -> None:
        """Tell the class bits of each token id: 1 white space, 2 punctuation, 4 bracket, 8 delimiter."""

    def keep_examples(self) -> None:
        """Keep an example of every chain whose label becomes known, until ``take_examples``."""

    def take_examples(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Return features, shape (N, F), and accepted lengths, shape (N,), of the examples kept, and forget them."""

    def start(self, request_id: int, prompt_length: int) -> None:
        """Meet a request."""

    def finish(self, request_id: int, text: npt.NDArray[np.uint32]) -> None:
        """Let go of a request, learning what its text still tells. Unknown ids are ignored."""

    def route(
        self,
        request_id: int,
        text: npt.NDArray[np.uint32],
        chain: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.float32]],
        tree: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32], npt.NDArray[np.float32]] | None = None,
        *,
        budget: int,
        batch: int = 1,
        remaining: int,
        backlog: int | None = None,
        uniform: float,
        match_length: int = 0,
        beside: bool = False,
    ) -> tuple[Literal["chain", "tree", "model", "plain"], int, int]:
        """Return which draft to verify, learning from earlier drafts by ``text``.

        With it come the number of the cache's nodes and the number of tokens that the model drafter is to draft. Both
        are positive where the cache's chain or tree is to be verified beside the model's draft, as one tree.

        Parameters
        ----------
        request_id : int
        text : array of uint32, shape (T,)
            All committed tokens.
        chain, tree : tuple of arrays of uint32, int32 and float32, shape (N,) each
            Tokens, parents and confidences of the cache's drafts, best first.
        budget : int
            Most nodes.
        batch : int
            Requests that share the forward.
        remaining : int
            Tokens that may still be written.
        backlog : int, optional
            Committed tokens that the model drafter has not read; None where it cannot draft.
        uniform : float
            A coin in [0, 1) that decides on exploration.
        match_length : int
            Longest match behind the cache's drafts.
        beside : bool
            Whether the two may be verified together.
        """

    def weigh(self, path_probs: npt.NDArray[np.float32]) -> int:
        """Return how many nodes of a chain with these path probabilities, shape (N,), pay against a plain step.

        For a loop of somebody else's: no request, no model drafter, nothing learned.
        """

    def note_chain(
        self, tokens: npt.NDArray[np.uint32], path_probs: npt.NDArray[np.float32], following: npt.ArrayLike
    ) -> None:
        """Learn from a chain, verified or not, by the tokens that followed it."""

    def note_forward(self, rows: int, seconds: float) -> None:
        """Learn the time of a target forward over ``rows`` rows."""

    def note_model_time(self, nodes: int, batch: int, read: int, seconds: float) -> None:
        """Learn the time of a model draft of ``nodes`` tokens for ``batch`` requests, after ``read`` unread ones."""

    def note_model(self, request_id: int, accepted: int, refused: bool) -> None:
        """Learn from a verified model draft: tokens accepted, and whether one was refused after them."""

    def save(self) -> str:
        """Return what was learned, as text with its version."""

    @staticmethod
    def load(text: str) -> PayoffRouter:
        """Return a router from what ``save`` gave."""

@final
class CostTable:
    """Measured seconds of a target's forwards by rows, batch and context; ``specrs.policies.cost`` makes them.

    Parameters
    ----------
    rows : list of int
        Rising from 1.
    seconds : list of float
        Positive. Made monotone; between two counts the larger one's cost holds.
    """

    def __new__(cls, rows: list[int], seconds: list[float]) -> CostTable: ...
    def add(self, batch: int, context: int, rows: list[int], seconds: list[float]) -> None:
        """Add costs measured with ``batch`` requests of ``context`` tokens; row counts are of the whole batch."""

    def seconds(self, rows: int, batch: int = 1, context: int = 0) -> float:
        """Return the expected seconds of a forward."""

    def observe(self, rows: int, seconds: float, batch: int = 1, context: int = 0) -> None:
        """Learn from a forward of production; times that are no positive number are ignored."""

    def cells(self) -> list[tuple[int, int, list[float]]]:
        """Return (batch, context, seconds of 1, 2, ... rows) of every measured cell, as they are now."""

@final
class Learned:
    """What is known of a drafter on a target: calibration, drafting time, acceptance. Shared by policies.

    Parameters
    ----------
    calibration : {'bins', 'ratio', 'identity', 'temperatures'}
        How a stated confidence becomes an acceptance rate: by the record of its bin, by accepted over stated of its
        position, at its word, or by fixed temperatures.
    temperatures : list of float, optional
        One per position, as ``fit_temperatures`` gives.
    """

    def __new__(cls, calibration: str = "bins", temperatures: list[float] | None = None) -> Learned: ...
    @property
    def rate(self) -> float | None:
        """Tokens per second of the rounds so far."""

    def set_step_seconds(self, seconds: float) -> None:
        """Set the seconds of one drafted token, as measured beforehand."""

@final
class LengthPolicy:
    """One length policy for the rounds of one engine; ``specrs.policies.registry`` names them and their options.

    Parameters
    ----------
    name : str
    options : dict
        All of the policy's.
    stepwise : bool
        The drafter asks before each further token.
    cost : CostTable, optional
    learned : Learned, optional
    guarded : bool
        Rest drafting while plain decoding is faster; needs ``cost``.
    """

    def __new__(
        cls,
        name: str,
        options: dict[str, Any],
        *,
        stepwise: bool,
        cost: CostTable | None = None,
        learned: Learned | None = None,
        guarded: bool = False,
    ) -> LengthPolicy: ...
    @property
    def sight(self) -> str:
        """What it looks at: 'past rounds', 'drafted tokens', 'own law' or 'whole draft'."""

    @property
    def safe_when_drawn(self) -> bool:
        """Whether the output keeps the target's law when the draft's tokens are drawn."""

    @property
    def decides_stepwise(self) -> bool:
        """Whether ``more`` decides anything."""

    @property
    def guard(self) -> tuple[int, int, int, float] | None:
        """(Rounds rested, rounds, rests, slowdown at the last rest) if guarded."""

    def budgets(
        self, ids: list[int], temperatures: list[float], drawn: list[bool], context: int, limits: list[int]
    ) -> list[int]:
        """Return the nodes to ask for, shape (B,)."""

    def more(
        self,
        ids: list[int],
        temperatures: list[float],
        drawn: list[bool],
        context: int,
        which: list[int],
        lengths: list[int],
        confidence: list[float],
        entropy: list[float],
        token_probs: list[float],
        head: list[float],
    ) -> list[bool]:
        """Return whether each of the chains ``which`` gets one more token."""

    def trim(
        self,
        ids: list[int],
        temperatures: list[float],
        drawn: list[bool],
        context: int,
        parents: npt.NDArray[np.int32],
        confidence: npt.NDArray[np.float32] | None,
        node_ptr: npt.NDArray[np.int64],
        sees_token: bool,
    ) -> npt.NDArray[np.bool_]:
        """Return which nodes to score, shape (N,), closed under parents."""

    def observe(
        self,
        ids: list[int],
        temperatures: list[float],
        drawn: list[bool],
        context: int,
        parents: npt.NDArray[np.int32],
        confidence: npt.NDArray[np.float32] | None,
        node_ptr: npt.NDArray[np.int64],
        sees_token: bool,
        accepted: npt.NDArray[np.bool_],
        steps: int,
        seconds: tuple[float, float, float],
    ) -> None:
        """Learn from a round: nodes scored and accepted, tokens drafted in turn, seconds of (draft, score, rest)."""

    def forget(self, id: int) -> None:  # noqa: A002
        """Let go of a request."""

def fit_temperatures(confidence: npt.NDArray[np.float32], length: int, accepted: list[int]) -> list[float]:
    """Fit sequential temperature scaling: one temperature per position, for ``Learned('temperatures', ...)``.

    Parameters
    ----------
    confidence : array of float32, shape (D * length,)
        Stated confidences of D drafts.
    length : int
    accepted : list of int, D
        Accepted tokens of each draft.
    """

def best_threshold(probs: list[float], accepted: list[bool]) -> float | None:
    """Return the threshold on probabilities with the least FPR + 3 FNR; None for fewer than six or one kind."""

def best_length(confidence: list[float], cost: list[float], hysteresis: float = 0.0) -> int:
    """Return the length L with the largest (1 + sum of the first L survivals) / cost[L].

    ``hysteresis`` is the share by which drafting at all must beat drafting nothing.
    """

def gpu_open(driver: str | None = None, image: bytes | None = None) -> None:
    """Open the CUDA driver and load the kernels, for all later calls of the process.

    Parameters
    ----------
    driver : str, optional
        The driver library; ``libcuda.so.1`` by default.
    image : bytes, optional
        A fatbin or cubin; the embedded one by default.

    Raises
    ------
    GpuError
        No driver, no kernels in this build, or an image that the driver refuses.
    """

def gpu_takes_host_memory() -> bool:
    """Return whether the opened driver is a stand-in that runs kernels on host memory; False before one is opened."""

def gpu_driver() -> tuple[int, int]:
    """Return the driver's version (13000 for CUDA 13.0) and the number of devices."""

def gpu_prepare(device: int) -> None:
    """Load every kernel on ``device``, so that later launches can be captured in a graph."""

def gpu_kernels() -> list[tuple[str, int, int, str]]:
    """Return (name, threads of a block, dynamic shared bytes, parameters) of each kernel.

    One letter per parameter: P pointer, p pointer that may be null, i int32, l int64, f float.
    """

def unsafe_launch_ptr(
    kernel: str, device: int, stream: int, grid: list[int], shared: int, values: list[int | float]
) -> None:
    """Launch a kernel on a stream; ``specrs.ops`` is the safe way.

    Every address among ``values`` must be memory of ``device`` that holds what the kernel's header describes, and must
    stay alive until the stream has passed the launch.
    """

def outcome_probs(acceptance: float, lookahead: int) -> list[float]:
    """Return P(k drafts accepted) for k = 0..lookahead when each is accepted with probability ``acceptance``."""

def geometric_fan_out(acceptance: float, rho: float, lookahead: int, budget: int) -> list[float]:
    """Return the real fan-out per number of accepted drafts that hits most often (arXiv:2603.03251, theorem 12)."""

def allocate_fan_out(weights: list[float], rho: float, budget: int, most: int = ..., scale: float = 1.0) -> list[int]:
    """Return the best whole fan-out: maximises sum of weights[k] * v(F_k), v(0) = 0, v(F) = 1 - scale * F ** -rho.

    At the paper's scale of 1, under which a single guess never hits, v(F) = 2 - F ** -rho.

    Parameters
    ----------
    weights : list of K + 1 floats
        P(k drafts accepted).
    rho : float
        Exponent of the power law of misses.
    budget : int
        Guesses in all; fewer where weights are 0.
    most : int
        Guesses per slot.
    scale : float
        Miss rate of a single guess.
    """

def fit_power_law(
    fan_outs: list[float], rates: list[float], weights: list[float], through_one: bool = False
) -> tuple[float, float]:
    """Fit miss rates by ``scale * F ** -rho``; ``through_one`` keeps scale at 1. Returns (scale, rho)."""

def fork_ids(
    logits: npt.NDArray[np.float32], exclude: npt.NDArray[np.int64], counts: list[int]
) -> tuple[npt.NDArray[np.uint32], list[int]]:
    """Return the best bonus tokens of each row, the smaller id first among equals.

    Parameters
    ----------
    logits : array of float32, shape (R, V)
        Contiguous; one row per number of accepted drafts.
    exclude : array of int64, shape (R,)
        The draft token that a rejection at the row rules out, or -1.
    counts : list of R ints
        Most ids of each row.

    Returns
    -------
    ids : array of uint32
    row_ptr : list of R + 1 ints
    """

def saguaro(laws: npt.NDArray[np.float32], favoured: int, weight: float) -> npt.NDArray[np.float32]:
    """Return laws, shape (R, V), whose ``favoured`` most probable ids are weighed by ``weight`` and renormalised."""

@final
class RankMisses:
    """How often an outcome is missed, by fan-out, from the ranks at which outcomes were guessed.

    Parameters
    ----------
    scale, rho : float
        Prior law, worth a handful of outcomes.
    """

    def __new__(cls, scale: float = 1.0, rho: float = 1.0) -> RankMisses: ...
    def observe(self, rank: int | None, fan_out: int) -> None:
        """Learn the rank, from 1, of an outcome among ``fan_out`` guesses; None if it was not there."""

    def rate(self, fan_out: int) -> tuple[float, float]:
        """Return the miss rate at a fan-out and the weight behind it."""

    def law(self) -> tuple[float, float]:
        """Return (scale, rho) of the fitted power law."""

#: Version of the messages that ``DrafterChannel`` carries.
DRAFTER_MESSAGE_VERSION: Final[int]

@final
class DrafterChannel:
    """One side's end of the messages between target and drafter process: two rings in shared memory and a socket.

    A reader watches for a message before it sleeps; only a reader that sleeps is woken by a byte on the socket, which
    also tells when the other process is gone. POSIX systems only.

    Parameters
    ----------
    bell : int
        Descriptor of a connected stream socket.
    inbox, outbox : int
        Descriptors of files of zeros that both sides map: to read from, and to write to. All three are duplicated.
    """

    def __new__(cls, bell: int, inbox: int, outbox: int) -> DrafterChannel: ...
    def has_message(self) -> bool:
        """Tell whether a message waits."""

    def start(
        self,
        request: int,
        tokens: npt.NDArray[np.uint32],
        *,
        capacity: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        sample: int,
        repeatable: bool,
    ) -> None:
        """Send a new request; see ``specrs.ssd.texts.Text``."""

    def finish(self, request: int) -> None:
        """Send that a request is over."""

    def speculate(
        self, number: int, asked: float, questions: Sequence[tuple[int, int, int, int, int, npt.NDArray[np.uint32]]]
    ) -> None:
        """Send a question: per request (request, generation, keep, accepted, budget, new tokens)."""

    def answer(
        self,
        number: int,
        seconds: Sequence[float],
        replies: Sequence[tuple[int, int, int, int, int, npt.NDArray[np.uint32], npt.NDArray[np.float32] | None]],
    ) -> None:
        """Send an answer: per request (request, generation, accepted, bonus, origin, tokens, laws); three seconds."""

    def fail(self, reason: str) -> None:
        """Send that the drafter gives up."""

    def receive(self, timeout: float | None = None, busy_seconds: float = 0.0) -> tuple[str, Any] | None:
        """Return (kind, value) of the next message, or None after ``timeout`` seconds (None waits for ever).

        Watches for ``busy_seconds`` before it sleeps. Kinds are ``start``, ``finish``, ``speculate``, ``answer`` and
        ``failure``.

        Raises
        ------
        DrafterLostError
            The other process is gone, or the message is foreign, of another version, or cut off.
        """

@final
class SpeculationCache:
    """Drafts by outcome (request, accepted drafts, bonus token), good for one generation.

    Parameters
    ----------
    max_bytes : int
        Memory bound; what would pass it is refused.
    """

    def __new__(cls, max_bytes: int = ...) -> SpeculationCache: ...
    def insert(
        self,
        generation: int,
        request: int,
        accepted: int,
        bonus: int,
        tokens: npt.NDArray[np.uint32],
        confidence: npt.NDArray[np.float32],
        draft_probs: npt.NDArray[np.float32] | None = None,
    ) -> bool:
        """Keep a draft: tokens of shape (n,), confidence (n,) or (0,), draft_probs (n, V). False: no room for it."""

    def take(
        self, generation: int, request: int, accepted: int, bonus: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32] | None, npt.NDArray[np.float32]] | None:
        """Return (tokens, draft_probs, confidence) of an outcome or None, and drop all guesses for the request."""

    def forget(self, request: int) -> int:
        """Drop all guesses for a request; returns how many."""

    def clear(self) -> None:
        """Drop everything."""

    def memory_bytes(self) -> int:
        """Return the bytes held."""

    def counts(self) -> dict[str, int]:
        """Return hits, misses, stale (guessed for another generation) and refused so far."""

    def __len__(self) -> int: ...

@final
class FallbackChooser:
    """Chooses among 'slow', 'fast' and 'zero' by batch size, by measured tokens per second from miss to miss.

    Parameters
    ----------
    offered : list of str
    """

    def __new__(cls, offered: list[str]) -> FallbackChooser: ...
    def choose(self, batch: int) -> str:
        """Answer a miss in a batch of ``batch`` requests."""

    def best(self, batch: int) -> str:
        """Return what was measured best."""

    def speed(self, name: str, batch: int) -> float | None:
        """Return the measured tokens per second of an option, or None before it was tried."""

    def note_round(self, tokens: float, seconds: float) -> None:
        """Take a finished round; seconds that no clock gives are ignored."""

def expected_tokens(acceptance: float, lookahead: int) -> float:
    """Return tokens per round, bonus included, at an i.i.d. acceptance rate."""

def sd_speedup(tokens: float, draft_time: float) -> float:
    """Return tokens per verification of synchronous drafting; times in units of one verification."""

def ssd_speedup(
    hit_rate: float,
    hit_tokens: float,
    draft_time: float,
    miss_tokens: float,
    miss_time: float,
    requests: float = 1.0,
) -> float:
    """Return tokens per verification of drafting ahead (arXiv:2603.03251, theorem 7 and corollary 16)."""

def ssd_bounds(hit_rate: float, draft_time: float, hit_tokens: float, sd_tokens: float) -> tuple[float, float]:
    """Return bounds of drafting ahead over synchronous drafting with the same drafter (corollaries 8 and 9)."""

def critical_batch(
    hit_rate: float, hit_tokens: float, draft_time: float, slow: tuple[float, float], fast: tuple[float, float]
) -> float | None:
    """Return the batch size from which the fast fallback wins; each is (tokens, time). None: never."""

def stationary_hits(after_hit: float, after_miss: float) -> float:
    """Return the long-run hit rate of two rates: behind a hit, and behind a fallback's draft."""

def advise_overlap(
    costs: tuple[float, float, float, float, float],
    acceptance: float,
    miss_law: tuple[float, float],
    devices: tuple[float, float] = ...,
) -> dict[str, float | int | str | bool]:
    """Say whether drafting ahead pays for its devices, and with which K and fan-out.

    Parameters
    ----------
    costs : (plain, verify_row, draft, draft_row, overhead)
        Seconds: a target forward over one row, each further row; a drafter forward, each further row; messages of a
        round.
    acceptance : float
    miss_law : (scale, rho)
    devices : (target, draft)

    Returns
    -------
    dict
        verdict ('plain', 'synchronous', 'overlapped'), lookahead, fan_out, hit_rate, speeds plain, synchronous and
        overlapped in tokens per second, synchronous_lookahead, gain_at_lookahead, draft_share, needed_share,
        needed_share_at_hit_rate, fits.
    """

def simulate_overlap(
    costs: tuple[float, float, float, float, float],
    *,
    lookahead: int,
    acceptance: float,
    miss_law: tuple[float, float],
    budget: int,
    synchronous_lookahead: int | None = None,
    fallback: str = "slow",
    fallback_acceptance: float = 0.0,
    batch: int = 1,
    rounds: int = 10000,
    seed: int = 0,
) -> dict[str, float]:
    """Play rounds of plain, synchronous and overlapped decoding; the same seed gives the same run.

    Returns
    -------
    dict
        plain, synchronous, overlapped (tokens per second of the batch), hit_rate, tokens_per_round, round_seconds.
    """

def synthetic_rates(
    temperature: float,
    *,
    favoured: int = 0,
    weight: float = 1.0,
    most: int = 8,
    vocabulary: int = 500,
    spread: float = 4.0,
    noise: float = 0.25,
    contexts: int = 200,
    seed: int = 0,
) -> tuple[float, list[float]]:
    """Return (acceptance, miss rates at fan-outs 1..most) of a made-up pair of models at a temperature."""
