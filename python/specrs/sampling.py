"""How a request wants its tokens drawn, and when it wants to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from specrs.errors import InvalidInputError


def _check(name: str, value: float, valid: bool, expected: str) -> None:
    if not valid or math.isnan(value):
        raise InvalidInputError(f"{name} must be {expected}, got {value!r}")


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInputError(f"{name} must be a whole number, got {value!r}")


@dataclass(frozen=True)
class SamplingParams:
    """The target's law, as plain decoding would form it: penalties, bias, processors, temperature, truncation.

    Attributes
    ----------
    temperature : float
        0 is greedy: the highest logit, the lowest id among equals.
    top_k : int
        Keep the k highest logits (ties with the k-th are kept); 0 is off.
    top_p : float
        Keep the smallest set of tokens whose probability reaches top_p; 1 is off.
    min_p : float
        Drop tokens less probable than min_p times the most probable one; 0 is off.
    repetition_penalty : float
        Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off (Keskar et al., 2019).
    frequency_penalty, presence_penalty : float
        Subtracted per occurrence, or once, for tokens in the output; 0 is off.
    logit_bias : mapping of int to float
        Added to the logits of these ids.
    logits_processors : tuple of callables
        ``processor(input_ids, scores) -> scores`` as in transformers, called once per scored row with that row's own
        history, ids of shape (1, L) and float32 scores of shape (1, V).
    seed : int or None
        None draws a seed once. The same seed gives the same text whatever runs beside the request.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logits_processors: tuple[Any, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, self.temperature >= 0 and math.isfinite(self.temperature), ">= 0")
        _check_whole("top_k", self.top_k)
        _check("top_k", self.top_k, self.top_k >= 0, ">= 0 (0 is off)")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1] (1 is off)")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1] (0 is off)")
        _check("repetition_penalty", self.repetition_penalty, self.repetition_penalty > 0, "> 0 (1 is off)")
        for name in ("frequency_penalty", "presence_penalty"):
            _check(name, getattr(self, name), math.isfinite(getattr(self, name)), "finite (0 is off)")
        for token, bias in self.logit_bias.items():
            _check_whole("an id of logit_bias", token)
            _check(f"logit_bias[{token}]", bias, token >= 0 and bias < math.inf, "below infinity, for an id >= 0")
        if self.seed is not None:
            _check_whole("seed", self.seed)
            if not 0 <= self.seed < 2**64:
                raise InvalidInputError(f"seed must be in [0, 2**64), got {self.seed}")

    @property
    def has_penalties(self) -> bool:
        """Whether the law depends on the tokens already written."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@dataclass(frozen=True)
class StopRules:
    """When a request is finished. Applied token by token, in text order, as plain decoding would.

    Attributes
    ----------
    max_new_tokens : int
        Length limit of the output; 0 asks for nothing.
    min_new_tokens : int
        Before this many tokens, end-of-sequence and stop tokens cannot be drawn and stop strings do not stop.
    eos_token_ids : tuple of int
        Ids that end the text; empty for none.
    stop_token_ids : tuple of int
        More ids that stop the output, by the caller's wish.
    stop_strings : tuple of str
        Texts that stop the output at the token that completes them; the text keeps them.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_whole("max_new_tokens", self.max_new_tokens)
        _check_whole("min_new_tokens", self.min_new_tokens)
        _check("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 0, ">= 0")
        _check("min_new_tokens", self.min_new_tokens, self.min_new_tokens >= 0, ">= 0")
        if self.min_new_tokens > self.max_new_tokens:
            raise InvalidInputError(
                f"min_new_tokens must be at most max_new_tokens = {self.max_new_tokens}, got {self.min_new_tokens}"
            )
        if any(not text for text in self.stop_strings):
            raise InvalidInputError(f"stop strings must not be empty, got {list(self.stop_strings)!r}")

    @property
    def ending_ids(self) -> tuple[int, ...]:
        """All ids that stop the output."""
        return self.eos_token_ids + self.stop_token_ids
