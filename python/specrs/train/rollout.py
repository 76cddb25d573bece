"""Texts drawn from the mixture of two models, with the few numbers per token that training needs.

Of each drawn token y: ``p(y)``, ``q(y)`` (target and draft probability), the total-variation distance of the two laws,
and both hidden states. The gradient of everything that is trained follows from these; no logits are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specrs.train.ensemble import HeadTrainer
    from specrs.train.tasks import Task


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


class _Reader:
    """One model reading a text token by token: law and hidden state of the next token."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._memory: Any = None
        self._hidden: torch.Tensor | None = None

    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read ``ids``, shape (1, T); return logits (V,) and the state that the output head read, (H,)."""

        def keep(_module: object, arguments: tuple[torch.Tensor, ...]) -> None:
            self._hidden = arguments[0]

        hook = self._model.get_output_embeddings().register_forward_pre_hook(keep)
        try:
            out = self._model(input_ids=ids, past_key_values=self._memory, use_cache=True)
        finally:
            hook.remove()
        self._memory = out.past_key_values
        assert self._hidden is not None
        return out.logits[0, -1].float(), self._hidden.reshape(-1, self._hidden.shape[-1])[-1].float()


def roll_out(
    target: Any,
    draft: Any,
    prompt: Sequence[int],
    weight_of: Callable[[torch.Tensor], float],
    *,
    temperature: float = 1.0,
    max_new_tokens: int = 48,
    ends: Callable[[list[int]], bool] = lambda tokens: False,
    generator: torch.Generator | None = None,
) -> Rollout:
    """Draw a text from ``w * target + (1 - w) * draft``, token by token.

    Parameters
    ----------
    target, draft : PreTrainedModel
        Causal models of one vocabulary.
    prompt : sequence of int
    weight_of : callable
        The target's weight from the hidden states, shape (H_draft + H_target,).
    temperature : float
        Above 0: at 0 nothing is drawn, and a score-function gradient would be biased.
    max_new_tokens : int
    ends : callable
        Whether the tokens so far are a whole answer.
    generator : torch.Generator, optional

    Returns
    -------
    Rollout
    """
    readers = (_Reader(draft), _Reader(target))
    ids = torch.tensor([list(prompt)])
    tokens: list[int] = []
    columns: list[tuple[float, float, float]] = []
    states: list[torch.Tensor] = []
    with torch.inference_mode():
        while len(tokens) < max_new_tokens and not ends(tokens):
            (draft_logits, draft_state), (target_logits, target_state) = (reader.read(ids) for reader in readers)
            width = min(len(draft_logits), len(target_logits))
            q = (draft_logits[:width] / temperature).softmax(-1)
            p = (target_logits[:width] / temperature).softmax(-1)
            state = torch.cat([draft_state, target_state])
            weight = weight_of(state)
            token = int(torch.multinomial(weight * p + (1 - weight) * q, 1, generator=generator))
            tokens.append(token)
            columns.append((float(p[token]), float(q[token]), float((p - q).abs().sum() / 2)))
            states.append(state)
            ids = torch.tensor([[token]])
    facts = torch.tensor(columns).reshape(-1, 3)
    hidden = torch.stack(states).clone() if states else torch.zeros(0, 0)
    return Rollout(tokens, facts[:, 0], facts[:, 1], facts[:, 2], hidden)


def text_sampler(
    target: Any,
    draft: Any,
    tokenizer: Any,
    task: Task,
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
) -> Callable[[HeadTrainer, int], tuple[Rollout, float]]:
    """Return the ``sample`` of :func:`specrs.train.train_ensemble` for a task of prompts.

    Text number i answers prompt i modulo their number; the same seed draws the same texts from the same weights.
    """
    if not temperature > 0:
        raise InvalidInputError(f"temperature must be above 0 to draw texts, got {temperature}")

    def sample(trainer: HeadTrainer, index: int) -> tuple[Rollout, float]:
        number = index % len(task.prompts)
        text = roll_out(
            target,
            draft,
            tokenizer(task.prompts[number]).input_ids,
            trainer.weight_of,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            ends=lambda tokens: task.stop in tokenizer.decode(tokens),
            generator=torch.Generator().manual_seed(seed * 1_000_003 + index),
        )
        return text, task.reward(number, tokenizer.decode(text.tokens))

    return sample
