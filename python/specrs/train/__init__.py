"""What is learned once and used in every run, a module per thing. ``import specrs`` imports none of it."""

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
