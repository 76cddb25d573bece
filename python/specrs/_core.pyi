"""The Rust extension. Everything here is checked, runs without the GIL and never panics into Python."""

import numpy as np
import numpy.typing as npt

__version__: str
BUILD_PROFILE: str
LINEAR_MAX_ROWS: int

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
        The sizes; ``rows`` is at most ``LINEAR_MAX_ROWS``.
    element_size : {2, 4}
        2 for bfloat16, 4 for float32.
    openmp : int
        Address of the ``GOMP_parallel`` in whose team to run, or 0 to start threads for the call.
    threads : int
        Threads to use.
    """
