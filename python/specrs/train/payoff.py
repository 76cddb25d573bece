"""Train the predictor of Hybrid Verified Decoding by replaying text: how much of a cache draft would be accepted.

The predictor, its size, loss and settings are those of Su et al., arXiv:2606.01019. No model is run: the recorded text
is its own greedy output, so a draft's label is its longest prefix that equals the text.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs import _core
from specrs.cache import SuffixCache
from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from specrs.types import FloatArray, TokenArray

#: Most examples of a gradient step (the paper's batch), and least steps of an epoch where there are fewer.
BATCH = 65_536
LEAST_STEPS = 32
#: Accepted lengths from which a draft counts as worth it in reports: the paper's threshold.
WORTH = 6
#: Longest draft that is replayed, and the probability below which a draft ends.
LONGEST = 40
LEAST_PROB = 0.02
#: Tokens that a round of the other arm writes while text is replayed.
OTHER_ARM = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Quality:
    """How well a predictor does on text that it was not trained on.

    Attributes
    ----------
    examples : int
    mean_absolute_error : float
        In tokens.
    precision, recall : float
        Of "at least six tokens will be accepted".
    """

    examples: int
    mean_absolute_error: float
    precision: float
    recall: float


def replay(
    documents: Iterable[TokenArray],
    *,
    cache: SuffixCache | None = None,
    classes: npt.NDArray[np.uint8] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[tuple[FloatArray, npt.NDArray[np.int32]]]:
    """Return features, shape (N, F), and labels, shape (N,), of the drafts that each document would have been offered.

    The first quarter of a document is its prompt. Rounds advance as an engine's would: by the accepted tokens and one
    where the router takes the cache, by a few where it takes the other arm. A finished document joins the cache.

    Parameters
    ----------
    documents : iterable of array of uint32
    cache : SuffixCache, optional
        Holds older text; by default the documents are each other's history.
    classes : array of uint8, shape (V,), optional
        From :func:`specrs.drafters.token_classes.token_classes`.
    progress : callable
        Called with the number of documents done.
    """
    cache = SuffixCache() if cache is None else cache
    router = _core.PayoffRouter(explore=0.0)
    router.keep_examples()
    if classes is not None:
        router.set_classes(classes)
    examples = []
    for number, document in enumerate(documents):
        text = np.ascontiguousarray(document, np.uint32)
        at = read = max(1, len(text) // 4)
        if at >= len(text):
            continue
        cache.start(number, text[:at])
        router.start(number, at)
        while at < len(text):
            tokens, parents, _, confidence, match, _ = cache.step(number, text[read:at], LONGEST, min_prob=LEAST_PROB)
            read = at
            arm, nodes, _ = router.route(
                number,
                text[:at],
                (tokens, parents, confidence),
                budget=LONGEST,
                remaining=len(text) - at,
                backlog=1,
                uniform=1.0,
                match_length=match,
            )
            written = OTHER_ARM
            if arm == "chain":
                following = text[at : at + nodes]
                equal = tokens[: len(following)] == following
                written = (len(equal) if equal.all() else int(equal.argmin())) + 1
            at = min(len(text), at + written)
        cache.append(number, text[read:])
        cache.finish(number)
        router.finish(number, text)
        examples.append(router.take_examples())
        progress(number + 1)
    return examples


def fit(
    features: FloatArray,
    labels: npt.NDArray[np.int32],
    *,
    epochs: int = 20,
    learning_rate: float = 1e-3,
    seed: int = 42,
    fingerprint: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> _core.PayoffPredictor:
    """Train a perceptron with two hidden layers of 256 rectified units on squared error of the accepted length.

    Parameters
    ----------
    features : array of float32, shape (N, F)
    labels : array of int, shape (N,)
    epochs, learning_rate, seed : int, float, int
        As in the paper.
    fingerprint : str
        Names the tokenizer in the predictor's file.
    progress : callable
        Called with (epochs done, all).

    Raises
    ------
    InvalidInputError
        No example, or lengths that do not fit.
    """
    import torch

    if not len(features) or len(features) != len(labels):
        raise InvalidInputError(
            f"expected as many features as labels and at least one, got {len(features)} and {len(labels)}"
        )
    mean, spread = features.mean(0), features.std(0)
    spread = np.where(spread > 1e-6, spread, 1.0).astype(np.float32)
    x = torch.from_numpy((features - mean) / spread)
    y = torch.from_numpy(labels.astype(np.float32))
    source = torch.Generator().manual_seed(seed)
    sizes = [(features.shape[1], 256), (256, 256), (256, 1)]
    weights = [torch.randn(i, o, generator=source).mul_((2 / i) ** 0.5).requires_grad_() for i, o in sizes]
    biases = [torch.zeros(o, requires_grad=True) for _, o in sizes]

    def predict(rows: Any) -> Any:
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            rows = torch.relu(rows @ weight + bias)
        return (rows @ weights[-1] + biases[-1])[:, 0]

    batch = max(1, min(BATCH, len(x) // LEAST_STEPS))
    optimiser = torch.optim.Adam([*weights, *biases], lr=learning_rate)
    for epoch in range(epochs):
        for rows in torch.randperm(len(x), generator=source).split(batch):
            loss = torch.nn.functional.mse_loss(predict(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        progress(epoch + 1, epochs)
    plain = [(w.detach().numpy(), b.detach().numpy()) for w, b in zip(weights, biases, strict=True)]
    # The first layer takes raw features: the scaling is a part of its weights.
    first = plain[0][0] / spread[:, None]
    plain[0] = (first, plain[0][1] - mean @ first)
    layers = [(np.ascontiguousarray(w, np.float32), np.ascontiguousarray(b, np.float32)) for w, b in plain]
    return _core.PayoffPredictor((layers[0], layers[1], layers[2]), fingerprint)


def quality(predicted: Sequence[float] | FloatArray, labels: npt.NDArray[np.int32]) -> Quality:
    """Return how well ``predicted`` accepted lengths fit ``labels``, both of shape (N,)."""
    guess, truth = np.asarray(predicted), np.asarray(labels)
    said, was = guess >= WORTH, truth >= WORTH
    both = float((said & was).sum())
    error = float(np.abs(guess - truth).mean()) if len(truth) else 0.0
    return Quality(len(truth), error, both / max(float(said.sum()), 1.0), both / max(float(was.sum()), 1.0))


def save(predictor: _core.PayoffPredictor, path: str | Path) -> None:
    """Write a predictor to ``path``; a crash leaves the old file or the new one."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(predictor.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
