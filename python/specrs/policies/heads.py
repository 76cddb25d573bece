"""Trained heads for ``specdecpp`` and ``disco``: P(token accepted) from what the drafter's law says of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specrs.errors import CorruptFileError, FileAccessError, InvalidInputError

if TYPE_CHECKING:
    from specrs.drafters.base import TokenFacts

#: Largest probabilities of the law among the features.
TOP = 10
#: Width of the features: logarithms of the top probabilities and of the token's own, entropy, position.
FEATURES = TOP + 3
#: Hidden width.
HIDDEN = 32
#: SpecDec++ weighs rejections this much more than acceptances.
REJECTION_WEIGHT = 6.0
KINDS = ("specdecpp", "disco")

Matrix = npt.NDArray[np.float32]


def features(facts: TokenFacts) -> Matrix:
    """Return what a head looks at, shape (chains, FEATURES), float32."""
    top = np.full((len(facts.requests), TOP), 1e-9, np.float32)
    for row, probs in zip(top, facts.top_probs(TOP), strict=True):
        row[: len(probs)] = probs
    own = np.asarray(facts.token_probs(), np.float32)[:, None]
    entropy = np.asarray(facts.entropy(), np.float32)[:, None]
    position = np.asarray(facts.lengths, np.float32)[:, None]
    parts = [np.log(np.maximum(top, 1e-9)), np.log(np.maximum(own, 1e-9)), entropy, position / 10]
    return np.concatenate(parts, 1, dtype=np.float32)


class AcceptanceHead:
    """A small network over :func:`features`: residual SiLU blocks that share their weights, then a sigmoid.

    ``specdecpp`` (Huang et al., arXiv:2405.19715) runs the block three times; ``disco`` (Mamou et al.,
    arXiv:2405.04304) is a two-layer network, which is no block at all. Both papers also feed, or feed instead, the
    draft model's hidden state; here a head sees the law alone, so it works over any drafter that draws from one.

    Parameters
    ----------
    kind : {'specdecpp', 'disco'}
    weights : mapping of str to array of float32
        ``mean``, ``scale`` (FEATURES,), ``inner`` (FEATURES, HIDDEN), ``inner_bias`` (HIDDEN,), ``block`` (HIDDEN,
        HIDDEN), ``block_bias`` (HIDDEN,), ``outer`` (HIDDEN,), ``outer_bias`` ().
    """

    def __init__(self, kind: str, weights: dict[str, Any]) -> None:
        if kind not in KINDS:
            raise InvalidInputError(f"a head is for one of {', '.join(KINDS)}, got {kind!r}")
        self.kind = kind
        self.weights = {name: np.asarray(value, np.float32) for name, value in weights.items()}
        for name, shape in _SHAPES.items():
            found = self.weights[name].shape if name in self.weights else None
            if found != shape:
                raise InvalidInputError(f"weight {name!r} of a head must have shape {shape}, got {found}")

    def __call__(self, facts: TokenFacts) -> list[float]:
        """Return P(accepted) of each chain's last token."""
        found: list[float] = self.predict(features(facts)).tolist()
        return found

    def predict(self, x: Matrix) -> Matrix:
        """Return P(accepted), shape (N,), for features of shape (N, FEATURES)."""
        w = self.weights
        hidden: Any = _silu((x - w["mean"]) / w["scale"] @ w["inner"] + w["inner_bias"])
        for _ in range(_BLOCKS[self.kind]):
            hidden = hidden + _silu(hidden @ w["block"] + w["block_bias"])
        logits = hidden @ w["outer"] + w["outer_bias"]
        found: Matrix = 1.0 / (1.0 + np.exp(-np.clip(logits, -30, 30)))
        return found

    def save(self, path: Path | str) -> None:
        """Write the head to an ``.npz`` file."""
        try:
            with Path(path).open("wb") as file:
                np.savez(file, kind=np.array(self.kind), **self.weights)  # type: ignore[arg-type]
        except OSError as error:
            raise FileAccessError(f"cannot write the head {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path | str) -> AcceptanceHead:
        """Read what ``save`` wrote."""
        try:
            with np.load(path, allow_pickle=False) as data:
                weights = {name: data[name] for name in data.files}
            return cls(str(weights.pop("kind")), weights)
        except OSError as error:
            raise FileAccessError(f"cannot read the head {path}: {error}") from error
        except (ValueError, KeyError, EOFError) as error:
            raise CorruptFileError(f"{path} is no head: {error}") from error


_BLOCKS = {"specdecpp": 3, "disco": 0}
_SHAPES: dict[str, tuple[int, ...]] = {
    "mean": (FEATURES,),
    "scale": (FEATURES,),
    "inner": (FEATURES, HIDDEN),
    "inner_bias": (HIDDEN,),
    "block": (HIDDEN, HIDDEN),
    "block_bias": (HIDDEN,),
    "outer": (HIDDEN,),
    "outer_bias": (),
}


def _silu(x: Any) -> Any:
    return x / (1.0 + np.exp(-np.clip(x, -30, 30)))


def train(
    kind: str, x: npt.ArrayLike, accepted: npt.ArrayLike, *, epochs: int = 3, rate: float = 1e-2, seed: int = 0
) -> AcceptanceHead:
    """Train a head by cross-entropy on soft labels.

    Parameters
    ----------
    kind : {'specdecpp', 'disco'}
    x : array of float32, shape (N, FEATURES)
        What :func:`features` gave for N drafted tokens.
    accepted : array of float, shape (N,)
        P(accepted) of each, or 0 and 1. ``specdecpp`` weighs the rejected part six times.
    epochs : int
    rate : float
        Of AdamW.
    seed : int

    Returns
    -------
    AcceptanceHead
    """
    import torch

    inputs, labels = np.asarray(x, np.float32), np.asarray(accepted, np.float32)
    if inputs.ndim != 2 or inputs.shape[1] != FEATURES or labels.shape != inputs.shape[:1] or not len(labels):
        raise InvalidInputError(
            f"expected features (N, {FEATURES}) and labels (N,), got {inputs.shape} and {labels.shape}"
        )
    if not np.isfinite(inputs).all() or not ((labels >= 0) & (labels <= 1)).all():
        raise InvalidInputError("features must be finite and labels in [0, 1]")
    mean, scale = inputs.mean(0), inputs.std(0) + 1e-3
    generator = torch.Generator().manual_seed(seed)
    parameters = {
        name: (torch.randn(shape, generator=generator) * (0.5 / np.sqrt(shape[0]) if len(shape) == 2 else 0.0))
        for name, shape in _SHAPES.items()
        if name not in ("mean", "scale")
    }
    for value in parameters.values():
        value.requires_grad_()
    parameters["outer"].data.normal_(0, 0.1, generator=generator)
    data, target = torch.from_numpy((inputs - mean) / scale), torch.from_numpy(labels)
    optimiser = torch.optim.AdamW(list(parameters.values()), lr=rate)
    silu = torch.nn.functional.silu
    weight = REJECTION_WEIGHT if kind == "specdecpp" else 1.0
    for _ in range(epochs):
        for batch in torch.randperm(len(data), generator=generator).split(128):
            hidden = silu(data[batch] @ parameters["inner"] + parameters["inner_bias"])
            for _ in range(_BLOCKS.get(kind, 0)):
                hidden = hidden + silu(hidden @ parameters["block"] + parameters["block_bias"])
            logits = hidden @ parameters["outer"] + parameters["outer_bias"]
            log_yes, log_no = torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
            loss = -(target[batch] * log_yes + weight * (1 - target[batch]) * log_no).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    trained = {name: value.detach().numpy() for name, value in parameters.items()}
    return AcceptanceHead(kind, {"mean": mean, "scale": scale, **trained})
