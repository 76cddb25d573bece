"""The head that gives a dynamic ensemble its weights, and the two files it is kept in.

One linear map of both models' hidden states at a position (what the output head reads for the row whose logits give
the token), squashed to the target's weight: ``w = sigmoid(u . [h_draft, h_target] + c)`` (DIVERSED, arXiv 2604.07622;
its two-way softmax is the same function).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specrs.errors import InvalidInputError, SpecrsError

#: What the numbers of a saved head mean; another value is refused.
CONVENTION = (
    "target weight = sigmoid(weight . [draft hidden, target hidden] + bias), hidden states after the final norm"
)

#: Weights are kept this far from 0, which no rule accepts.
SMALLEST_WEIGHT = 1e-6


@dataclass(frozen=True)
class Pair:
    """The two models that a head was trained on.

    Attributes
    ----------
    draft, target : str
        Names of the models.
    draft_size, target_size : int
        Lengths of their hidden states.
    """

    draft: str
    target: str
    draft_size: int
    target_size: int


@dataclass(frozen=True, eq=False)
class EnsembleHead:
    """Weights of the target in a mixture, from both models' hidden states.

    Attributes
    ----------
    weight : array of float32, shape (H_draft + H_target,)
    bias : float
    pair : Pair
    task : str
        What it was trained for.
    """

    weight: npt.NDArray[np.float32]
    bias: float
    pair: Pair
    task: str = ""

    def __post_init__(self) -> None:
        expected = (self.pair.draft_size + self.pair.target_size,)
        if self.weight.shape != expected or not np.isfinite(self.weight).all() or not np.isfinite(self.bias):
            raise InvalidInputError(
                f"a head must have finite weights of shape {expected} and a finite bias, got {self.weight.shape}"
            )

    def weights(
        self, draft_hidden: npt.NDArray[np.float32], target_hidden: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the target's weight at each of N positions, in (0, 1].

        Parameters
        ----------
        draft_hidden : array, shape (N, H_draft)
        target_hidden : array, shape (N, H_target)

        Raises
        ------
        InvalidInputError
            Shapes that are not the pair's.
        """
        sizes = (draft_hidden.shape[-1], target_hidden.shape[-1])
        if sizes != (self.pair.draft_size, self.pair.target_size) or len(draft_hidden) != len(target_hidden):
            raise InvalidInputError(
                f"hidden states must have sizes {(self.pair.draft_size, self.pair.target_size)} and one row each per "
                f"position, got {draft_hidden.shape} and {target_hidden.shape}"
            )
        cut = self.pair.draft_size
        score = draft_hidden @ self.weight[:cut] + target_hidden @ self.weight[cut:] + np.float32(self.bias)
        weights = 1 / (1 + np.exp(-np.clip(score, -60, 60)))
        return np.clip(weights, SMALLEST_WEIGHT, 1).astype(np.float32)

    def save(self, path: str | Path) -> Path:
        """Write ``path``.safetensors and ``path``.json, either ending may be given; return the path of the first."""
        from safetensors.numpy import save_file

        file, about_file = _files(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"weight": self.weight, "bias": np.array([self.bias], np.float32)}, file)
        about = {"kind": "ensemble head", "convention": CONVENTION, "task": self.task, "pair": asdict(self.pair)}
        about_file.write_text(json.dumps(about, indent=2) + "\n")
        return file

    @classmethod
    def load(cls, path: str | Path, pair: Pair | None = None) -> EnsembleHead:
        """Read a saved head.

        Parameters
        ----------
        path : str or Path
            Of the safetensors file or its JSON.
        pair : Pair, optional
            The models it is to serve; a head of another pair is refused.

        Raises
        ------
        InvalidInputError
            Another convention, another pair.
        SpecrsError
            The files are missing or hold something else.
        """
        from safetensors.numpy import load_file

        file, about_file = _files(path)
        try:
            about: dict[str, Any] = json.loads(about_file.read_text())
            tensors = load_file(file)
            found = Pair(**about["pair"])
            head = cls(tensors["weight"].astype(np.float32), float(tensors["bias"][0]), found, about.get("task", ""))
        except SpecrsError:
            raise
        except Exception as error:
            raise SpecrsError(f"{file} and its .json are no ensemble head: {error}") from error
        if about.get("convention") != CONVENTION:
            raise InvalidInputError(f"the head's convention must be {CONVENTION!r}, got {about.get('convention')!r}")
        if pair is not None and pair != found:
            raise InvalidInputError(f"the head in {file} was trained for {found}, expected {pair}")
        return head


def _files(path: str | Path) -> tuple[Path, Path]:
    """Return the two files of a head; what stands behind another dot is part of the name."""
    given = Path(path)
    stem = given.with_suffix("") if given.suffix in (".safetensors", ".json") else given
    return stem.with_name(f"{stem.name}.safetensors"), stem.with_name(f"{stem.name}.json")
