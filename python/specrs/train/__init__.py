"""Training of what relaxed rules decide by. Needs torch; nothing here is imported by ``import specrs``."""

from __future__ import annotations

from specrs.train.ensemble import EnsembleTraining, train_ensemble
from specrs.train.rollout import Rollout, roll_out, text_sampler
from specrs.train.tasks import TASKS, Task, arithmetic

__all__ = [
    "TASKS",
    "EnsembleTraining",
    "Rollout",
    "Task",
    "arithmetic",
    "roll_out",
    "text_sampler",
    "train_ensemble",
]
