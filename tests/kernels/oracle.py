"""The kernels' rules in float64 NumPy, written down as plainly as they can be."""

import math

import numpy as np


def law(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """Probabilities of one row; None if it has no law."""
    row = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(row.max()) or np.isnan(row).any():
        return None
    if temperature == 0:
        return np.eye(len(row))[int(np.argmax(row))]
    weights = np.exp((row - row.max()) / temperature)
    kept = row > -np.inf
    if 0 < top_k < len(row):
        kept &= row >= np.sort(row)[-top_k]
    if top_p < 1:
        order = sorted(np.flatnonzero(kept), key=lambda i: (row[i], i), reverse=True)
        goal, above = top_p * weights[kept].sum(), 0.0
        for place, i in enumerate(order):
            if place and above >= goal:
                kept[i] = False
            above += weights[i]
    kept &= weights >= min_p
    weights = np.where(kept, weights, 0.0)
    return weights / weights.sum()


def draw(weights, coin):
    """The first id whose running sum passes coin times the total; None without mass."""
    total = weights.sum()
    if not total > 0:
        return None
    running = np.cumsum(weights)
    passed = np.flatnonzero(running > coin * total)
    return int(passed[0]) if len(passed) else int(np.flatnonzero(weights)[-1])


def is_clear(weights, coin, margin=2e-5):
    """Whether rounding cannot move the draw: the coin is not within `margin` of a step of the cumulative law."""
    running = np.cumsum(weights) / weights.sum()
    steps = np.concatenate([[0.0], running[weights > 0]])
    return np.abs(steps[1:-1] - coin).min(initial=1.0) > margin


def children(parents, node):
    return [i for i, parent in enumerate(parents) if parent == node]


def statistics(logits, temperature=1.0):
    row = np.asarray(logits, dtype=np.float64) / temperature
    shifted = row - row.max()
    total = np.exp(shifted).sum()
    probs = np.exp(shifted) / total
    entropy = -sum(p * math.log(p) for p in probs if p > 0)
    return int(np.argmax(row)), probs.max(), entropy, row.max() + math.log(total)
