"""Hold a method against plain decoding under identical parameters: where do they part, and was it a near-tie."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.engine.law import process
from specrs.engine.request import Request, is_stateless
from specrs.errors import InvalidInputError
from specrs.generation import generate
from specrs.inputs import eos_ids
from specrs.method_options import MethodOptions
from specrs.prompts import encode_prompts
from specrs.sampling import SamplingParams, StopRules
from specrs.types import Draft, Scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specrs.models.base import TargetModel
    from specrs.streaming import Generation
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
        text, another shape. After bias, penalties and processors, which both sides applied; a processor with a state is
        left out, for it has not seen the text before.
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
class ShapeCheck:
    """How often rounding alone changes the greedy choice, each position of a text judged behind its own past.

    Attributes
    ----------
    positions : int
        Tokens of the text.
    rows : int
        Rows of the wide forward, as of a round that verifies ``rows - 1`` drafts.
    by_shape : int
        Positions where a forward of one row and one of ``rows`` rows choose different tokens: no speculation there.
    unlike_one_row : int
        Positions whose token is not the choice of one row.
    unexplained : int
        Positions whose token is the choice of neither shape: a fault of speculation, expected 0.
    """

    positions: int
    rows: int
    by_shape: int
    unlike_one_row: int
    unexplained: int


@dataclass(frozen=True)
class Comparison:
    """Both texts of a prompt and where they part, if they do; ``shapes`` of the method's text, if asked for."""

    plain: Generation
    method: Generation
    difference: Difference | None
    shapes: ShapeCheck | None = None

    @property
    def identical(self) -> bool:
        """Whether both texts are the same, token by token."""
        return self.difference is None


#: Options of the method under test, which plain decoding does not take.
DRAFTING = tuple(option.name for option in fields(MethodOptions) if option.name not in ("drafter", "max_batch"))


def compare(
    model: TargetModel, prompt: Any, *, drafter: Any = "cache", shape_check: bool = False, **options: Any
) -> Comparison:
    """Generate plainly and with a method under identical parameters.

    Parameters
    ----------
    model : TargetModel
        From :func:`specrs.load`.
    prompt : str, sequence of int or list of messages
        One prompt.
    drafter : str or Drafter
        The method under test.
    shape_check : bool
        Also decode the method's text again by forwards of one row and of several, for :class:`ShapeCheck`: disagreement
        that comes of shapes is told apart from what speculation would have to answer for. Greedy texts only.
    **options
        As :func:`specrs.generate`, for both sides. For sampled texts give a ``seed``: with deterministic drafters the
        texts are the same then, token for token.
    """
    if shape_check and options.get("temperature", 0.0) > 0:
        raise InvalidInputError(f"shape_check judges greedy texts, got temperature={options['temperature']}")
    drafting = {name: options.pop(name) for name in DRAFTING if name in options}
    plain = generate(model, prompt, drafter="none", **options)
    method = generate(model, prompt, drafter=drafter, **drafting, **options)
    at = first_difference(plain.ids, method.ids)
    ids = encode_prompts(model, prompt)[0]
    law = _law_of(model, options)
    difference = None if at is None else explain(model, ids, plain.ids, method.ids, at, law=law)
    shapes = check_shapes(model, ids, method.ids, law=law) if shape_check else None
    return Comparison(plain, method, difference, shapes)


def check_shapes(
    model: TargetModel,
    prompt: TokenArray,
    written: list[int],
    *,
    rows: int = WIDE_ROWS,
    law: tuple[SamplingParams, StopRules] | None = None,
) -> ShapeCheck:
    """Decode a greedy text again by forwards of one row and of ``rows`` rows; without a law, logits as given.

    Costs a forward per token, and one more per ``rows`` tokens.
    """
    if rows < 2:
        raise InvalidInputError(f"rows must be >= 2, got {rows}")
    one, wide = (_choices(model, prompt, written, width, law) for width in (1, rows))
    triples = list(zip(written, one, wide, strict=True))
    return ShapeCheck(
        positions=len(written),
        rows=rows,
        by_shape=sum(a != b for _, a, b in triples),
        unlike_one_row=sum(token != a for token, a, _ in triples),
        unexplained=sum(token not in (a, b) for token, a, b in triples),
    )


def _choices(
    model: TargetModel, prompt: TokenArray, written: list[int], rows: int, law: tuple[SamplingParams, StopRules] | None
) -> list[int]:
    """Return the token ranked first at each position of a text, by forwards of ``rows`` rows over it."""
    text = np.concatenate([prompt, np.array(written[:-1], np.uint32)]).astype(np.uint32)
    state = model.new_state(len(text) + rows)
    first = len(prompt) - 1
    if first:
        model.prefill(state, text[:first])
    chosen: list[int] = []
    for start in range(first, len(text), rows):
        stretch = text[start : start + rows]
        nodes = Draft.chains([stretch[1:]])
        raw = model.score([state], [stretch[:1]], nodes).logits
        for i in range(len(stretch)):
            row = raw[i] if law is None else _processed(raw[i : i + 1], prompt, written[: len(chosen)], law)
            chosen.append(int(row.argmax()))
        state.commit(np.arange(len(stretch) - 1, dtype=np.int32), 1)
    return chosen


#: Options of ``generate`` that form the law before temperature.
_LAW_OPTIONS = ("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias")


def _law_of(model: TargetModel, options: Mapping[str, Any]) -> tuple[SamplingParams, StopRules]:
    """Return what ``generate`` makes of the options that change logits."""
    given = {name: options[name] for name in _LAW_OPTIONS if options.get(name) is not None}
    given.setdefault("repetition_penalty", getattr(model, "default_repetition_penalty", 1.0))
    processors = tuple(p for p in options.get("logits_processor", ()) if is_stateless(p))
    limit = int(options.get("max_new_tokens", 256))
    stops = StopRules(
        max_new_tokens=limit,
        min_new_tokens=int(options.get("min_new_tokens", 0)),
        eos_token_ids=eos_ids(model, options.get("eos_token_id", "model")),
        stop_token_ids=tuple(options.get("stop_token_ids", ())),
    )
    return SamplingParams(**given, logits_processors=processors), stops


def first_difference(plain: list[int], method: list[int]) -> int | None:
    """Return the first index at which two outputs differ, or None."""
    for index, (a, b) in enumerate(zip(plain, method, strict=False)):
        if a != b:
            return index
    return None if len(plain) == len(method) else min(len(plain), len(method))


def explain(
    model: TargetModel,
    prompt: TokenArray,
    plain: list[int],
    method: list[int],
    at: int,
    *,
    law: tuple[SamplingParams, StopRules] | None = None,
) -> Difference:
    """Score the two tokens at index ``at`` in forwards of one row and of several; without a law, logits as given."""
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
        raw = model.score([state], [tail[:1]], Draft.chains([tail[1:]])).logits[-1:]
        rows.append(raw[0] if law is None else _processed(raw, prompt, plain[:at], law))

    def logit(row: Any, token: int | None) -> float:
        return float("nan") if token is None else float(row[token])

    values = [(logit(row, a), logit(row, b)) for row in rows]
    largest = max((abs(v) for pair in values for v in pair if np.isfinite(v)), default=0.0)  # -inf is no near tie
    # A backend may compute more coarsely than the dtype of its logits tells, and says so.
    epsilon = getattr(model, "rounding", None) or EPSILON.get(str(rows[0].dtype), 2.0**-23)
    bound = NEAR_TIE_ULPS * epsilon * max(largest, 1.0)
    gaps = [abs(x - y) for x, y in values]
    return Difference(at, a, b, values[0], values[1], bound, any(gap <= bound for gap in gaps))


def _processed(raw: Any, prompt: TokenArray, written: list[int], law: tuple[SamplingParams, StopRules]) -> Any:
    """Return the row, shape (V,), after bias, penalties and processors, given the text before it."""
    request = Request(prompt, law[0], law[1], None)
    request.extend(np.array(written, np.uint32))
    scores = Scores(raw, np.array([0, 1], np.int64))
    return process([request], Draft.empty(1), scores).logits[0]
