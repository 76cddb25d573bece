"""Tasks whose answers can be checked exactly: prompts, and a reward of 0 or 1 for each answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Prompts with the reward of an answer.

    Attributes
    ----------
    name : str
    prompts : tuple of str
    reward : callable
        ``reward(index, answer) -> float``, the reward of an answer to prompt ``index``, in [0, 1].
    stop : str
        Text that ends an answer.
    """

    name: str
    prompts: tuple[str, ...]
    reward: Callable[[int, str], float]
    stop: str


def arithmetic(count: int, seed: int = 0) -> Task:
    """Return sums and products of small numbers, each with one worked example; the last number of the line counts."""
    generator = random.Random(seed)
    prompts, answers = [], []
    for _ in range(count):
        a, b, c = generator.randint(11, 99), generator.randint(11, 99), generator.randint(2, 9)
        prompts.append(
            "Q: What is (23 + 48) * 3?\nA: 23 + 48 = 71, and 71 * 3 = 213. The answer is 213.\n"
            f"Q: What is ({a} + {b}) * {c}?\nA:"
        )
        answers.append((a + b) * c)

    def reward(index: int, answer: str) -> float:
        numbers = re.findall(r"-?\d+", answer.split("\n")[0])
        return float(bool(numbers) and int(numbers[-1]) == answers[index])

    return Task("arithmetic", tuple(prompts), reward, "\n")


#: Tasks by name: ``TASKS[name](count, seed)``.
TASKS: dict[str, Callable[[int, int], Task]] = {"arithmetic": arithmetic}
