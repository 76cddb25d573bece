"""The law of a logit row in float64, as transformers' processors form it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def row_law(
    logits: npt.ArrayLike, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> npt.NDArray[np.float64]:
    """Return the probabilities of one row.

    Parameters
    ----------
    logits : array, shape (V,)
        Finite or -inf, at least one finite.
    temperature : float
        0 for a one-hot law on the first largest logit.
    top_k, top_p, min_p
        Truncations in this order; 0, 1 and 0 are off.

    Returns
    -------
    array of float64, shape (V,)
        ::

            scores = logits / temperature
            drop scores below the top_k-th largest               (ties with it stay)
            drop the low tail whose probability is <= 1 - top_p  (order: score, then id; the largest stays)
            drop what is less probable than min_p * the largest
    """
    values = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        one_hot = np.zeros_like(values)
        one_hot[int(values.argmax())] = 1.0
        return one_hot
    scores = values / temperature
    if 0 < top_k < len(scores):
        scores = np.where(scores < np.sort(scores)[-top_k], -np.inf, scores)
    if top_p < 1:
        ascending = np.argsort(scores, kind="stable")
        below = np.cumsum(_softmax(scores)[ascending])
        dropped = ascending[below <= 1 - top_p]
        dropped = dropped[dropped != ascending[-1]]
        scores[dropped] = -np.inf
    if min_p > 0:
        probs = _softmax(scores)
        scores = np.where(probs < min_p * probs.max(), -np.inf, scores)
    return _softmax(scores)


def _softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    total: np.float64 = weights.sum()
    return np.asarray(weights / total, dtype=np.float64)
