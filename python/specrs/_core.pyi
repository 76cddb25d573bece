"""The Rust extension. Everything here is checked, runs without the GIL and never panics into Python."""

import numpy as np
import numpy.typing as npt

__version__: str
BUILD_PROFILE: str
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
