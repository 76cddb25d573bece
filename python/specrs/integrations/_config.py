"""Options of the engine integrations: from the engine's own configuration, else from the environment."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrs import config
from specrs.errors import InvalidInputError, UnknownNameError

#: The key under which an engine's free-form configuration (vLLM: ``additional_config``) may hold our options.
KEY = "specrs"


@dataclass(frozen=True)
class EngineOptions:
    """What an engine's own configuration has no place for.

    Engines pass no options of ours, so they come as JSON: an object, or the path of a file that holds one, in the
    environment variable ``SPECRS_ENGINE``; or, in vLLM, as ``additional_config={"specrs": {...}}``, which wins.

    Attributes
    ----------
    store : str, optional
        Folder of a :class:`specrs.CacheStore` to read history from and to add finished text to. Many processes may
        share it. It is created if it does not exist.
    store_seconds : float
        How often finished text is written to the store, and the text of other processes read from it.
    fingerprint : str, optional
        Names the tokenizer. By default computed from the engine's tokenizer, when there is a store.
    history : bool
        Whether finished requests serve later ones. Without it, a request drafts from its own text alone.
    history_tokens : int
        Most tokens of finished text that are held; the oldest are dropped.
    gate : {'payoff', 'off'}
        Whether a draft is cut where one more token costs more time than it is expected to bring.
    token_cost : float
        Cost of one more token in a forward as a share of a forward over one, assumed until it has been measured.
    min_prob : float
        A draft ends where the estimated probability of reaching its next token falls below.
    threads : int
        Threads of one drafting step.
    log_seconds : float
        How often the log states what was drafted and accepted; 0 for never.
    """

    store: str | None = None
    store_seconds: float = 30.0
    fingerprint: str | None = None
    history: bool = True
    history_tokens: int = 50_000_000
    gate: str = "payoff"
    token_cost: float = 0.02
    min_prob: float = 0.1
    threads: int = 1
    log_seconds: float = 60.0

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {value!r}, expected {expected}"
            for name, value, fits, expected in (
                ("store", self.store, self.store is None or (isinstance(self.store, str) and self.store), "a folder"),
                ("store_seconds", self.store_seconds, _positive(self.store_seconds), "seconds above 0"),
                (
                    "fingerprint",
                    self.fingerprint,
                    self.fingerprint is None or isinstance(self.fingerprint, str),
                    "text",
                ),
                ("history", self.history, isinstance(self.history, bool), "true or false"),
                ("history_tokens", self.history_tokens, _count(self.history_tokens, 1), "a count of at least 1"),
                ("gate", self.gate, self.gate in ("payoff", "off"), "'payoff' or 'off'"),
                ("token_cost", self.token_cost, _positive(self.token_cost), "a share above 0"),
                ("min_prob", self.min_prob, _number(self.min_prob) and 0 <= self.min_prob <= 1, "a probability"),
                ("threads", self.threads, _count(self.threads, 1), "a count of at least 1"),
                ("log_seconds", self.log_seconds, _number(self.log_seconds) and self.log_seconds >= 0, "seconds"),
            )
            if not fits
        ]
        if problems:
            raise InvalidInputError(f"engine options: {'; '.join(problems)}")


def read_options(engine: object = None) -> EngineOptions:
    """Return the options: those in the dictionary ``engine``, under ``specrs``, over the environment, over defaults.

    Raises
    ------
    UnknownNameError
        An option is not known; the message names the nearest one.
    InvalidInputError
        The text is no JSON object, the file cannot be read, or a value does not fit. All wrong values are named.
    """
    given = dict(_environment())
    ours = engine.get(KEY, {}) if isinstance(engine, dict) else {}
    if not isinstance(ours, dict):
        raise InvalidInputError(f"additional_config[{KEY!r}] is {ours!r}, expected a dictionary of options")
    given.update(ours)
    known = [field.name for field in dataclasses.fields(EngineOptions)]
    for name in given:
        if name not in known:
            raise UnknownNameError.among("engine option", name, known)
    return EngineOptions(**given)


def _environment() -> dict[str, Any]:
    text = config.engine_options().strip()
    if not text:
        return {}
    source = f"{config.ENGINE_OPTIONS} = {text!r}"
    if not text.startswith("{"):
        try:
            text = Path(text).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"{source}: neither a JSON object nor the path of a file that can be read ({error})"
            ) from error
    try:
        options = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{source}: no JSON ({error})") from error
    if not isinstance(options, dict):
        raise InvalidInputError(f"{source}: expected a JSON object, found {type(options).__name__}")
    return options


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
