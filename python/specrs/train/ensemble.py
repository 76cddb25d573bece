"""REINFORCE for the head of a dynamic ensemble (DIVERSED, arXiv 2604.07622).

Both models stay as they are. With ``v_t = w_t p_t + (1 - w_t) q_t``, rewards R and advantages ``A = R - baseline``::

    L_reward     = -mean over texts of  A * sum_t log v_t(y_t)
    L_acceptance = -mean over texts of  sum_t (1 - w_t TV(p_t, q_t))
    L            = L_reward + lambda * L_acceptance,   lambda = share * |L_reward| / |L_acceptance|

The mixture is one of probabilities, lambda is positive (the acceptance term pulls acceptance up), texts are drawn, and
the baseline is a running mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from specrs.errors import InvalidInputError
from specrs.verification.ensemble_head import SMALLEST_WEIGHT, EnsembleHead, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.train.rollout import Rollout

#: A reward term smaller than this gives no scale; the acceptance term is then weighed by ``fallback_lambda``.
NO_REWARD_SIGNAL = 1e-8


@dataclass(frozen=True)
class EnsembleTraining:
    """Settings of a training.

    Attributes
    ----------
    steps : int
        Updates.
    batch : int
        Texts per update.
    learning_rate, clip : float
        AdamW with linear warm-up and cosine decay; gradient-norm clip.
    warmup : int
        Updates until the full rate.
    acceptance_share : float
        Size of the acceptance term relative to the reward term.
    fallback_lambda : float
        Weight of the acceptance term where all advantages are 0.
    baseline_momentum : float
        Of the running mean of rewards.
    per_token_mean : bool
        Divide each text's sums by its length, so that long texts do not dominate.
    seed : int
    """

    steps: int = 60
    batch: int = 8
    learning_rate: float = 5e-4
    clip: float = 5.0
    warmup: int = 10
    acceptance_share: float = 0.05
    fallback_lambda: float = 1.0
    baseline_momentum: float = 0.9
    per_token_mean: bool = False
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise InvalidInputError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("acceptance_share", "fallback_lambda", "warmup"):
            if getattr(self, name) < 0:
                raise InvalidInputError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.baseline_momentum < 1:
            raise InvalidInputError(f"baseline_momentum must be in [0, 1), got {self.baseline_momentum}")


@dataclass(frozen=True)
class Update:
    """What one update saw.

    Attributes
    ----------
    reward : float
        Mean of the batch.
    acceptance : float
        Mean expected acceptance per token, ``1 - w TV(p, q)``.
    weight : float
        Mean target weight.
    """

    reward: float
    acceptance: float
    weight: float


@dataclass(eq=False)
class HeadTrainer:
    """The trained parameters and their optimiser.

    Parameters
    ----------
    features : int
        H_draft + H_target.
    settings : EnsembleTraining
    """

    features: int
    settings: EnsembleTraining
    baseline: float | None = None
    parameters: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        # Zero: every weight starts at one half.
        self.parameters = [torch.zeros(self.features, requires_grad=True), torch.zeros(1, requires_grad=True)]
        self._optimiser = torch.optim.AdamW(self.parameters, lr=self.settings.learning_rate, weight_decay=0.0)

        def rate(step: int) -> float:
            settings = self.settings
            if step < settings.warmup:
                return 0.1 + 0.9 * step / settings.warmup
            done = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
            return 0.5 * (1 + float(np.cos(np.pi * min(done, 1.0))))

        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimiser, rate)

    def weights(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the target's weight of each row of ``hidden``, shape (T, H_draft + H_target)."""
        return torch.sigmoid(hidden @ self.parameters[0] + self.parameters[1]).clamp(SMALLEST_WEIGHT, 1)

    def weights_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the target's weights for drawing: as :meth:`weights`, without a gradient."""
        with torch.no_grad():
            return self.weights(hidden)

    def losses(self, texts: Sequence[Rollout], advantages: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``L_reward`` and ``L_acceptance``, differentiable in the head alone."""
        rewards, acceptances = [], []
        for text, advantage in zip(texts, advantages, strict=True):
            weight = self.weights(text.hidden)
            mixed = weight * text.target_probs + (1 - weight) * text.draft_probs
            scale = 1 / max(len(text.tokens), 1) if self.settings.per_token_mean else 1.0
            rewards.append(advantage * mixed.clamp_min(1e-30).log().sum() * scale)
            acceptances.append((1 - weight * text.distances).sum() * scale)
        return -torch.stack(rewards).mean(), -torch.stack(acceptances).mean()

    def update(self, texts: Sequence[Rollout], rewards: Sequence[float]) -> Update:
        """Take one step on a batch of texts and their rewards."""
        mean = float(np.mean(rewards))
        baseline = mean if self.baseline is None else self.baseline
        reward_loss, acceptance_loss = self.losses(texts, [reward - baseline for reward in rewards])
        momentum = self.settings.baseline_momentum
        self.baseline = momentum * baseline + (1 - momentum) * mean
        size = float(reward_loss.detach().abs())
        if size > NO_REWARD_SIGNAL:
            scale = self.settings.acceptance_share * size / max(float(acceptance_loss.detach().abs()), 1e-12)
        else:
            scale = self.settings.fallback_lambda
        self._optimiser.zero_grad()
        torch.autograd.backward(reward_loss + scale * acceptance_loss)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self._optimiser.step()
        self._schedule.step()
        with torch.no_grad():
            weights = torch.cat([self.weights(text.hidden) for text in texts])
            distances = torch.cat([text.distances for text in texts])
        return Update(mean, float((1 - weights * distances).mean()), float(weights.mean()))

    def head(self, pair: Pair, task: str) -> EnsembleHead:
        """Return the trained head."""
        weight, bias = (parameter.detach().numpy().astype(np.float32).copy() for parameter in self.parameters)
        return EnsembleHead(weight, float(bias[0]), pair, task)


def train_ensemble(
    sample: Callable[[HeadTrainer, Sequence[int]], list[tuple[Rollout, float]]],
    pair: Pair,
    *,
    task: str = "",
    settings: EnsembleTraining | None = None,
    seen: Callable[[int, Update], None] | None = None,
) -> EnsembleHead:
    """Train a head.

    Parameters
    ----------
    sample : callable
        ``sample(trainer, indices)`` draws the texts of those numbers from the mixture with ``trainer.weights_of`` and
        returns each with its reward. Any task is one such function.
    pair : Pair
        The models that the texts come from.
    task : str
        Name kept with the head.
    settings : EnsembleTraining, optional
    seen : callable, optional
        Told of each update.

    Returns
    -------
    EnsembleHead
    """
    settings = EnsembleTraining() if settings is None else settings
    trainer = HeadTrainer(pair.draft_size + pair.target_size, settings)
    for step in range(settings.steps):
        drawn = sample(trainer, range(step * settings.batch, (step + 1) * settings.batch))
        update = trainer.update([text for text, _ in drawn], [reward for _, reward in drawn])
        if seen is not None:
            seen(step, update)
    return trainer.head(pair, task)
