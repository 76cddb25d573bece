"""Texts drawn from the mixture of two models, with the few numbers per token that training needs.

Of each drawn token y: ``p(y)``, ``q(y)`` (target and draft probability), the total-variation distance of the two laws,
and both hidden states. The gradient of everything that is trained follows from these; no logits are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specrs.errors import InvalidInputError
from specrs.ops import where
from specrs.types import Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.models.base import TargetModel
    from specrs.train.ensemble import HeadTrainer
    from specrs.train.tasks import Task
    from specrs.types import Scores, TokenArray


@dataclass(frozen=True, eq=False)
class Rollout:
    """One text drawn from the mixture.

    Attributes
    ----------
    tokens : list of T int
    target_probs, draft_probs, distances : tensor of float32, shape (T,)
        p(y_t), q(y_t) and TV(p_t, q_t).
    hidden : tensor of float32, shape (T, H_draft + H_target)
        The draft's state first, each of the row whose logits gave the token.
    """

    tokens: list[int]
    target_probs: torch.Tensor
    draft_probs: torch.Tensor
    distances: torch.Tensor
    hidden: torch.Tensor


class _Text:
    """A text in the making."""

    def __init__(self, prompt: Sequence[int], generator: torch.Generator) -> None:
        self.unread: TokenArray = np.asarray(prompt, np.uint32)
        self.generator = generator
        self.tokens: list[int] = []
        self.facts: list[torch.Tensor] = []
        self.hidden: list[torch.Tensor] = []

    def draw(self, p: torch.Tensor, q: torch.Tensor, weight: float, hidden: torch.Tensor) -> None:
        token = int(torch.multinomial(weight * p + (1 - weight) * q, 1, generator=self.generator))
        self.tokens.append(token)
        self.facts.append(torch.stack([p[token], q[token], (p - q).abs().sum() / 2]))
        self.hidden.append(hidden)
        self.unread = np.array([token], np.uint32)

    def rollout(self) -> Rollout:
        facts = torch.stack(self.facts)
        return Rollout(self.tokens, facts[:, 0], facts[:, 1], facts[:, 2], torch.stack(self.hidden))


def roll_out(
    target: TargetModel,
    draft: TargetModel,
    prompts: Sequence[Sequence[int]],
    weights_of: Callable[[torch.Tensor], torch.Tensor],
    *,
    seeds: Sequence[int],
    temperature: float = 1.0,
    max_new_tokens: int = 48,
    ends: Callable[[list[int]], bool] = lambda tokens: False,
) -> list[Rollout]:
    """Draw texts from ``w * target + (1 - w) * draft``, all of them a token at a time together.

    Parameters
    ----------
    target, draft : TransformersTarget
        Models of one vocabulary; they are told to keep hidden states.
    prompts : sequence of B sequences of int
    weights_of : callable
        The target's weights, shape (B,), from the hidden states, shape (B, H_draft + H_target).
    seeds : sequence of B int
        A text depends on its own seed alone.
    temperature : float
        Above 0: at 0 nothing is drawn, and a score-function gradient would be biased.
    max_new_tokens : int
    ends : callable
        Whether the tokens so far are a whole answer.

    Returns
    -------
    list of B Rollout

    Raises
    ------
    InvalidInputError
        A temperature of 0, no token to draw, or not one seed per prompt.
    """
    if not temperature > 0 or max_new_tokens < 1 or len(seeds) != len(prompts):
        raise InvalidInputError(
            "texts are drawn at a temperature above 0, of at least one token, with one seed per prompt; got "
            f"temperature {temperature}, max_new_tokens {max_new_tokens}, {len(seeds)} seeds for {len(prompts)} prompts"
        )
    models: tuple[Any, Any] = (draft, target)
    for model in models:
        model.keeps_hidden = True
    texts = [_Text(p, torch.Generator().manual_seed(s)) for p, s in zip(prompts, seeds, strict=True)]
    states = [[model.new_state(len(prompt) + max_new_tokens + 1) for prompt in prompts] for model in models]
    # One prompt after the other, in stretches that the model chooses: a forward over all of them at once may have more
    # rows than it is fast with, and bits that depend on how many they are.
    for model, memories in zip(models, states, strict=True):
        for state, text in zip(memories, texts, strict=True):
            model.prefill(state, text.unread[:-1])
    for text in texts:
        text.unread = text.unread[-1:]
    width = min(model.vocab_size for model in models)
    going = list(range(len(texts)))
    while going:
        scores = [
            _read(m, [s[b] for b in going], [texts[b] for b in going]) for m, s in zip(models, states, strict=True)
        ]
        # Texts are drawn by generators of the host, one for each.
        q, p = (where.on_host((score.logits[:, :width].float() / temperature).softmax(-1)) for score in scores)
        hidden = torch.cat([torch.from_numpy(score.hidden) for score in scores], dim=1)
        weights = weights_of(hidden).tolist()
        for i, b in enumerate(going):
            texts[b].draw(p[i], q[i], weights[i], hidden[i])
        going = [b for b in going if len(texts[b].tokens) < max_new_tokens and not ends(texts[b].tokens)]
    return [text.rollout() for text in texts]


def _read(model: TargetModel, states: Sequence[Any], texts: Sequence[_Text]) -> Scores:
    unread = [text.unread for text in texts]
    scores = model.score(states, unread, Draft.empty(len(texts)))
    for state, tokens in zip(states, unread, strict=True):
        state.commit(np.empty(0, np.int32), len(tokens))
    return scores


def text_sampler(
    target: TargetModel, draft: TargetModel, task: Task, *, temperature: float, max_new_tokens: int, seed: int
) -> Callable[[HeadTrainer, Sequence[int]], list[tuple[Rollout, float]]]:
    """Return the ``sample`` of :func:`specrs.train.train_ensemble` for a task of prompts.

    Text number i answers prompt i modulo their number; the same seed draws the same texts from the same weights.
    """
    tokenizer = target.tokenizer

    def sample(trainer: HeadTrainer, indices: Sequence[int]) -> list[tuple[Rollout, float]]:
        numbers = [index % len(task.prompts) for index in indices]
        texts = roll_out(
            target,
            draft,
            [tokenizer(task.prompts[number]).input_ids for number in numbers],
            trainer.weights_of,
            seeds=[seed * 1_000_003 + index for index in indices],
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            ends=lambda tokens: tokens[-1] in target.eos_token_ids or task.stop in tokenizer.decode(tokens),
        )
        return [
            (text, task.reward(number, tokenizer.decode(text.tokens)))
            for number, text in zip(numbers, texts, strict=True)
        ]

    return sample
