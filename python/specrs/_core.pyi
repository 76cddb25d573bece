"""The Rust extension. Everything here is checked, runs without the GIL and never panics into Python."""

import numpy as np
import numpy.typing as npt

__version__: str
BUILD_PROFILE: str

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
