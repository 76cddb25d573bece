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


def _candidate(target, token, draft_row, width):
    """(p, q, status) of a chain's candidate."""
    if token < 0 or token >= max(len(target), width):
        return 0.0, 0.0, 4
    q = draft_row[token] if token < len(draft_row) else 0.0
    if not 0 < q <= 1.001:
        return 0.0, q, 3
    return (target[token] if token < len(target) else 0.0), q, 0


def padded(draft_row, length):
    out = np.zeros(length)
    out[: min(length, len(draft_row))] = draft_row[:length]
    return out


def residual_or_law(target, scale, draft_row, coin):
    left = np.maximum(scale * target - padded(draft_row, len(target)), 0)
    token = draw(left, coin)
    return (token, 0) if token is not None else (draw(target, coin), 1)


def chain(targets, tokens, draft_rows, accept, emit, weight=None):
    """Rejection sampling, of a mixture if there are weights: (accepted, bonus, status)."""
    for i, token in enumerate(tokens):
        if targets[i] is None:
            return i, -1, 2
        p, q, status = _candidate(targets[i], token, draft_rows[i], len(draft_rows[i]))
        if status:
            return i, draw(targets[i], emit[i]), status
        w = 1.0 if weight is None else weight[i]
        if accept[i] * q < w * p + (1 - w) * q:
            continue
        bonus, status = residual_or_law(targets[i], 1.0, draft_rows[i], emit[i])
        return i, bonus, status
    last = len(tokens)
    return (last, -1, 2) if targets[last] is None else (last, draw(targets[last], emit[last]), 0)


def block(targets, tokens, draft_rows, accept, emit):
    """Block verification: (accepted, bonus, status)."""
    count, c, cs = len(tokens), 1.0, [1.0]
    for i in range(count):
        p, q, _ = _candidate(targets[i], tokens[i], draft_rows[i], len(draft_rows[i]))
        c = min(1.0, c * p / q)
        cs.append(c)
    tau = 0
    for i in range(1, count + 1):
        h = cs[i]
        if i < count:
            s = np.maximum(cs[i] * targets[i] - draft_rows[i], 0).sum()
            h = s / (s + 1 - cs[i]) if s + 1 - cs[i] > 0 else 1.0
        if accept[i - 1] < h:
            tau = i
    if tau == count:
        return tau, draw(targets[tau], emit[tau]), 0
    bonus, status = residual_or_law(targets[tau], cs[tau], draft_rows[tau], emit[tau])
    return tau, bonus, status


def siblings(targets, tokens, parents, draft_rows, accept, emit, *, with_replacement):
    """Recursive rejection with explicit vectors: (path, bonus, status)."""
    node, path = -1, []
    while True:
        row = node + 1
        p, q, taken, status = targets[row].copy(), None, None, 0
        for child in children(parents, node):
            q = draft_rows[child].copy() if q is None else q
            x = tokens[child]
            if not q[x] > 0:
                status = 3
                break
            if accept[child + 1] * q[x] < p[x]:
                taken = child
                break
            left = np.maximum(p - q, 0)
            if not left.sum() > 1e-12:
                status = 1
                break
            p = left / left.sum()
            if not with_replacement:
                q[x] = 0
                q = q / q.sum()
        if taken is None:
            return path, draw(p, emit[row]), status
        path.append(taken)
        node = taken
