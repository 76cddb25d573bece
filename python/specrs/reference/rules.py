"""The exact acceptance rules, one request at a time.

Every rule takes the same arguments and returns the accepted path (node indices) and the token drawn behind it.

``target_probs[0]`` is the target's law at the anchor, ``target_probs[1 + i]`` behind node ``i``; ``draft_probs[i]`` is
the law that the token of node ``i`` was drawn from (siblings have the same one); ``accept`` and ``emit`` are coins in
[0, 1), one per row of ``target_probs``. Numbers may be floats or fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Law = Sequence[Any]
Path = tuple[int, ...]
Rule = Callable[
    [Sequence[Law], Sequence[Law], Sequence[int], Sequence[int], Sequence[Any], Sequence[Any]], tuple[Path, int]
]


def draw(weights: Law, coin: Any) -> int:
    """Return the first index whose running sum exceeds ``coin`` times the total; ``weights`` need no normalisation."""
    goal, below, last = coin * sum(weights), 0 * weights[0], 0
    for index, weight in enumerate(weights):
        if weight > 0:
            last = index
            below += weight
            if goal < below:
                break
    return last


def normalised(weights: Law) -> list[Any]:
    """Return ``weights`` divided by their sum."""
    total = sum(weights)
    return [weight / total for weight in weights]


def positive_part(left: Law, right: Law) -> list[Any]:
    """Return ``max(left - right, 0)``, entry by entry."""
    return [max(a - b, 0 * a) for a, b in zip(left, right, strict=True)]


def residual(target: Law, draft: Law) -> list[Any]:
    """Return norm(max(target - draft, 0)), or the target's law where that is empty."""
    rest = positive_part(target, draft)
    return normalised(rest) if sum(rest) else list(target)


def children(parents: Sequence[int], node: int) -> list[int]:
    """Return the children of ``node`` (-1: the anchor) in draft order."""
    return [child for child, parent in enumerate(parents) if parent == node]


def fixed(
    target_probs: Sequence[Law],
    draft_probs: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int],
    accept: Sequence[Any],
    emit: Sequence[Any],
) -> tuple[Path, int]:
    """Draw from the target's law; descend while the draft has what was drawn. Greedy when the laws are one-hot."""
    del draft_probs, accept
    path: list[int] = []
    node = -1
    while True:
        token = draw(target_probs[node + 1], emit[node + 1])
        matching = [child for child in children(parents, node) if tokens[child] == token]
        if not matching:
            return tuple(path), token
        node = matching[0]
        path.append(node)


def chain(
    target_probs: Sequence[Law],
    draft_probs: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int],
    accept: Sequence[Any],
    emit: Sequence[Any],
) -> tuple[Path, int]:
    """Rejection sampling (arXiv 2211.17192): accept iff ``coin * draft < target``, else draw from the residual."""
    del parents
    for node, token in enumerate(tokens):
        target, draft = target_probs[node], draft_probs[node]
        if accept[node] * draft[token] >= target[token]:
            return tuple(range(node)), draw(residual(target, draft), emit[node])
    return tuple(range(len(tokens))), draw(target_probs[len(tokens)], emit[len(tokens)])


def block(
    target_probs: Sequence[Law],
    draft_probs: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int],
    accept: Sequence[Any],
    emit: Sequence[Any],
) -> tuple[Path, int]:
    """Block verification (arXiv 2403.10444): the longest prefix whose own coin accepts stands."""
    del parents
    count = len(tokens)
    joint = [target_probs[0][0] * 0 + 1]
    for node, token in enumerate(tokens):
        joint.append(min(joint[0], joint[node] * target_probs[node][token] / draft_probs[node][token]))
    standing = 0
    for length in range(1, count + 1):
        bound = joint[length]
        if length < count:
            rest = sum(positive_part([joint[length] * p for p in target_probs[length]], draft_probs[length]))
            bound = rest / (rest + 1 - joint[length]) if rest + 1 - joint[length] > 0 else joint[0]
        if accept[length - 1] < bound:
            standing = length
    if standing == count:
        return tuple(range(count)), draw(target_probs[count], emit[count])
    rest = positive_part([joint[standing] * p for p in target_probs[standing]], draft_probs[standing])
    return tuple(range(standing)), draw(rest if sum(rest) else target_probs[standing], emit[standing])


def siblings(
    target_probs: Sequence[Law],
    draft_probs: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int],
    accept: Sequence[Any],
    emit: Sequence[Any],
    next_draft: Callable[[Law, int], Law],
) -> tuple[Path, int]:
    """Try the children one after the other, each by rejection sampling against what the earlier ones left.

    ``next_draft`` maps a stage's draft law and candidate to the next stage's law. A node's coin is that of its own row.
    """
    path: list[int] = []
    node = -1
    while True:
        target, accepted, draft = list(target_probs[node + 1]), None, None
        for child in children(parents, node):
            token = tokens[child]
            draft = list(draft_probs[child]) if draft is None else draft
            if accept[child + 1] * draft[token] < target[token]:
                accepted = child
                break
            target, draft = residual(target, draft), list(next_draft(draft, token))
        if accepted is None:
            return tuple(path), draw(target, emit[node + 1])
        node = accepted
        path.append(node)


def specinfer(
    target_probs: Sequence[Law],
    draft_probs: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int],
    accept: Sequence[Any],
    emit: Sequence[Any],
) -> tuple[Path, int]:
    """Siblings drawn independently from one law (arXiv 2305.09781)."""
    return siblings(target_probs, draft_probs, tokens, parents, accept, emit, lambda draft, token: draft)


def without_replacement(
    target_probs: Sequence[Law],
    draft_probs: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int],
    accept: Sequence[Any],
    emit: Sequence[Any],
) -> tuple[Path, int]:
    """Siblings drawn without replacement from one law (arXiv 2402.12374)."""

    def without(draft: Law, token: int) -> Law:
        rest = [0 * prob if index == token else prob for index, prob in enumerate(draft)]
        return normalised(rest) if sum(rest) else rest

    return siblings(target_probs, draft_probs, tokens, parents, accept, emit, without)


def spectr(
    target_probs: Sequence[Law],
    draft_probs: Sequence[Law],
    tokens: Sequence[int],
    parents: Sequence[int],
    accept: Sequence[Any],
    emit: Sequence[Any],
) -> tuple[Path, int]:
    """Independent siblings against one scaled law (arXiv 2310.15141, k-sequential selection)."""
    path: list[int] = []
    node = -1
    while True:
        target, candidates = target_probs[node + 1], children(parents, node)
        if not candidates:
            return tuple(path), draw(target, emit[node + 1])
        draft = draft_probs[candidates[0]]
        scale, gain = smallest_scale(target, draft, len(candidates))
        for child in candidates:
            if accept[child + 1] * scale * draft[tokens[child]] < target[tokens[child]]:
                node = child
                path.append(node)
                break
        else:
            rest = [max(p - min(q, p / scale) * gain, 0 * p) for p, q in zip(target, draft, strict=True)]
            return tuple(path), draw(rest if sum(rest) else target, emit[node + 1])


def smallest_scale(target: Law, draft: Law, count: int) -> tuple[Any, Any]:
    """Return SpecTr's rho and a / beta: bisection for the smallest rho with a / beta <= rho."""

    def gain(scale: Any) -> Any:
        beta = sum(min(q, p / scale) for p, q in zip(target, draft, strict=True))
        return (1 - (1 - min(beta, 1)) ** count) / beta if beta > 0 else count

    one = target[0] * 0 + 1
    low, high = one, one * count
    if count > 1:
        for _ in range(16):
            middle = (low + high) / 2
            low, high = (low, middle) if gain(middle) <= middle else (middle, high)
    return high, gain(high)


RULES: dict[str, Rule] = {
    "greedy_or_fixed": fixed,
    "chain": chain,
    "block": block,
    "specinfer": specinfer,
    "without_replacement": without_replacement,
    "spectr": spectr,
}
