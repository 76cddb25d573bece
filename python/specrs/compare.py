"""Hold a method against plain decoding under identical parameters: where do they part, and was it a near-tie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.generation import Generation, generate
from specrs.prompts import encode_prompts
from specrs.types import Draft

if TYPE_CHECKING:
    from specrs.models.base import TargetModel
    from specrs.types import TokenArray

#: Two logits closer than this many units in the last place of the model's dtype can change order by rounding alone.
NEAR_TIE_ULPS = 8
#: Rows of the wide forward that is held against the one-row forward.
WIDE_ROWS = 8
#: Relative spacing of numbers by dtype.
EPSILON = {"torch.float32": 2.0**-23, "torch.float16": 2.0**-10, "torch.bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Difference:
    """The first token at which two texts part.

    Attributes
    ----------
    position : int
        Index in the output.
    plain_token, method_token : int or None
        None where that text had ended.
    one_row, many_rows : tuple of float
        The two tokens' logits from a forward of one row, and as the last of several rows: the same weights, the same
        text, another shape.
    bound : float
        Gap that rounding in the model's dtype may turn around.
    near_tie : bool
        Whether the gap is within the bound in either shape. If not, the difference is a fault.
    """

    position: int
    plain_token: int | None
    method_token: int | None
    one_row: tuple[float, float]
    many_rows: tuple[float, float]
    bound: float
    near_tie: bool


@dataclass(frozen=True)
class Comparison:
    """Both texts of a prompt and where they part, if they do."""

    plain: Generation
    method: Generation
    difference: Difference | None

    @property
    def identical(self) -> bool:
        """Whether both texts are the same, token by token."""
        return self.difference is None


#: Options of the method under test, which plain decoding does not take.
DRAFTING = ("draft_model", "draft_tokens", "draft_shape", "fan_out", "fallback", "saguaro", "overlap", "draft_cores")


def compare(model: TargetModel, prompt: Any, *, drafter: Any = "cache", **options: Any) -> Comparison:
    """Generate plainly and with a method under identical parameters.

    Parameters
    ----------
    model : TargetModel
        From :func:`specrs.load`.
    prompt : str, sequence of int or list of messages
        One prompt.
    drafter : str or Drafter
        The method under test.
    **options
        As :func:`specrs.generate`, for both sides. For sampled texts give a ``seed``: with deterministic drafters the
        texts are the same then, token for token.
    """
    drafting = {name: options.pop(name) for name in DRAFTING if name in options}
    plain = generate(model, prompt, drafter="none", **options)
    method = generate(model, prompt, drafter=drafter, **drafting, **options)
    at = first_difference(plain.ids, method.ids)
    if at is None:
        return Comparison(plain, method, None)
    return Comparison(plain, method, explain(model, encode_prompts(model, prompt)[0], plain.ids, method.ids, at))


def first_difference(plain: list[int], method: list[int]) -> int | None:
    """Return the first index at which two outputs differ, or None."""
    for index, (a, b) in enumerate(zip(plain, method, strict=False)):
        if a != b:
            return index
    return None if len(plain) == len(method) else min(len(plain), len(method))


def explain(model: TargetModel, prompt: TokenArray, plain: list[int], method: list[int], at: int) -> Difference:
    """Score the two tokens at index ``at`` in forwards of one row and of several."""
    a = plain[at] if at < len(plain) else None
    b = method[at] if at < len(method) else None
    text = np.concatenate([prompt, np.array(plain[:at], np.uint32)]).astype(np.uint32)
    rows = []
    for wide in (1, min(WIDE_ROWS, len(text))):
        state = model.new_state(len(text) + 1)
        if len(text) > wide:
            model.prefill(state, text[:-wide])
        # As nodes of a chain below an anchor, so that each row passes through the output head, as in a round.
        tail = text[-wide:]
        rows.append(model.score([state], [tail[:1]], Draft.chains([tail[1:]])).logits[-1])

    def logit(row: Any, token: int | None) -> float:
        return float("nan") if token is None else float(row[token])

    values = [(logit(row, a), logit(row, b)) for row in rows]
    largest = max(abs(v) for pair in values for v in pair if v == v) if a is not None or b is not None else 0.0
    bound = NEAR_TIE_ULPS * EPSILON.get(str(rows[0].dtype), 2.0**-23) * max(largest, 1.0)
    gaps = [abs(x - y) for x, y in values]
    return Difference(at, a, b, values[0], values[1], bound, any(gap <= bound for gap in gaps))
