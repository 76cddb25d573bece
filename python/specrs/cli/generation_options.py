"""Options that generate, chat, compare and bench share: the model, the method, the law, the ends."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs.cli.arguments import one_of
from specrs.errors import InvalidInputError
from specrs.method_options import MethodOptions
from specrs.methods import DRAFTERS, LOADS_OWN_MODEL
from specrs.models.loading import BACKENDS
from specrs.policies.registry import DEFAULT, POLICIES
from specrs.verification.named import RULES

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser


def add_prompt(parser: Parser) -> None:
    """Add what names the prompt."""
    parser.add_argument("prompt", nargs="?", help="the text; '-' or nothing reads standard input")
    parser.add_argument("--file", metavar="PATH", help="append this file's text to the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")


def read_prompt(arguments: argparse.Namespace) -> str:
    """Return the text that the arguments and standard input make."""
    parts = []
    if arguments.prompt not in (None, "-"):
        parts.append(arguments.prompt)
    elif arguments.file is None or arguments.prompt == "-":
        parts.append(sys.stdin.read())
    if arguments.file is not None:
        try:
            parts.append(Path(arguments.file).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInputError(f"cannot read --file {arguments.file!r}: {error.strerror}") from error
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise InvalidInputError("the prompt is empty; pass it as an argument, by --file or on standard input")
    return text


def as_prompt(text: str, target: Any, arguments: argparse.Namespace) -> Any:
    """Return the text as a message where the model has a chat template, unless ``--raw`` was given."""
    chat = bool(getattr(target.tokenizer, "chat_template", None)) and not arguments.raw
    return [{"role": "user", "content": text}] if chat else text


def add_model(parser: Parser) -> None:
    """Add what names and loads the models."""
    parser.add_argument(
        "--model", default="smollm2-135m", metavar="NAME", help="embedded name, folder, .gguf file or hub name"
    )
    parser.add_argument(
        "--backend", default="transformers", type=one_of("backend", BACKENDS), help=f"{' or '.join(BACKENDS)}"
    )
    parser.add_argument("--draft-model", metavar="NAME", help="a smaller model of the same vocabulary")
    parser.add_argument(
        "--draft-backend", type=one_of("backend", BACKENDS), help="what runs the draft model; default: as the target"
    )
    parser.add_argument(
        "--dtype", type=one_of("dtype", ("float32", "bfloat16", "float16")), help="default: as the model was saved"
    )
    parser.add_argument("--device", help="as torch names it; default: cpu")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the model; default: the backend's choice")
    parser.add_argument("--no-accelerate", action="store_true", help="leave linear layers to torch on every processor")


def add_method(parser: Parser) -> None:
    """Add what names the method."""
    parser.add_argument("--drafter", default="cache", type=one_of("drafter", DRAFTERS), help=", ".join(DRAFTERS))
    add_draft_length(parser)
    parser.add_argument(
        "--policy", type=one_of("policy", POLICIES), metavar="NAME",
        help=f"how much to draft and score: {', '.join(POLICIES)}; default: {DEFAULT}",
    )  # fmt: skip
    parser.add_argument(
        "--policy-option", action="append", default=[], metavar="NAME=VALUE", help="option of the policy; repeatable"
    )
    parser.add_argument("--cost-table", metavar="FILE", help="measured costs that `specrs profile --out` wrote")
    parser.add_argument("--draft-shape", default="chain", type=one_of("shape", ("chain", "tree")), help="chain or tree")
    parser.add_argument("--payoff", metavar="FILE", help="predictor from `specrs train payoff`, for drafter hybrid")
    parser.add_argument(
        "--fan-out", type=int, metavar="F", help="ssd: guesses per number of accepted drafts; default: 3"
    )
    parser.add_argument(
        "--fallback",
        type=one_of("fallback", ("auto", "slow", "fast", "zero")),
        help="ssd: after a wrong guess draft anew, continue seen text, do not draft, or what was measured fastest",
    )
    parser.add_argument("--saguaro", type=float, metavar="C", help="ssd: weight of guessed tokens in the draft law")
    parser.add_argument(
        "--overlap",
        type=one_of("overlap", ("process", "thread", "none")),
        help="ssd: where the drafter runs; default: process",
    )
    parser.add_argument(
        "--draft-cores", type=_numbers, metavar="N,N", help="ssd: processor cores of the drafter's process"
    )
    parser.add_argument(
        "--verification", metavar="RULE",
        help=f"relaxed, not lossless: {', '.join(f'{name}=NUMBER' for name in RULES)}, or a head's file from "
        "`specrs train ensemble`",
    )  # fmt: skip
    parser.add_argument("--bias-budget", type=float, metavar="B", help="most bias of a text; exact beyond it")
    parser.add_argument("--disable-above-batch", type=int, metavar="N", help="no drafts while more texts run at once")
    parser.add_argument("--disable-above-context", type=int, metavar="N", help="no drafts for texts of more tokens")


def add_draft_length(parser: Parser) -> None:
    """Add how long drafts are."""
    parser.add_argument(
        "--draft-tokens", type=int, metavar="N", help="draft N tokens each round; default: as many as pay"
    )


def add_law(parser: Parser) -> None:
    """Add sampling and ends."""
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N")
    parser.add_argument("--min-new-tokens", type=int, default=0, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0 is off")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="1 is off")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="0 is off")
    parser.add_argument("--repetition-penalty", type=float, metavar="R", help="default: the model's own")
    parser.add_argument("--frequency-penalty", type=float, default=0.0, metavar="F")
    parser.add_argument("--presence-penalty", type=float, default=0.0, metavar="F")
    parser.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same text")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop at this text; repeatable")


#: Options of ``add_law`` that go to ``specrs.generate`` under the same name.
_LAW = (
    "max_new_tokens",
    "min_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
)


def law(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``add_law`` for ``specrs.generate``."""
    return {name: getattr(arguments, name) for name in _LAW}


def load_models(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Load the target, and the draft model or None."""
    from specrs.models import progress
    from specrs.models.loading import load

    backend, draft_backend = arguments.backend, arguments.draft_backend or arguments.backend
    loads_own = getattr(arguments, "drafter", None) in LOADS_OWN_MODEL
    if arguments.draft_backend and not arguments.draft_model:
        raise InvalidInputError(f"--draft-backend is what runs --draft-model, got {draft_backend!r} and no draft model")
    if arguments.draft_backend and loads_own and draft_backend != "transformers":
        raise InvalidInputError(
            f"drafter {arguments.drafter!r} runs its draft model in 'transformers', got --draft-backend {draft_backend}"
        )
    options, draft_options = _loading(arguments, backend), _loading(arguments, draft_backend)
    if backend == draft_backend == "transformers":
        draft_options["threads"] = None  # torch's are process-wide
    with progress.terminal() as show:
        target = load(arguments.model, progress=show, **options)
        drafting = arguments.draft_model
        if drafting and not loads_own:
            drafting = load(drafting, progress=show, **draft_options)
    return target, drafting


def _loading(arguments: argparse.Namespace, backend: str) -> dict[str, Any]:
    """Return the options of ``add_model`` for ``specrs.load`` with this backend."""
    options = {"backend": backend, "threads": arguments.threads}
    if backend == "transformers":
        from specrs.models.loading import require_hf

        require_hf()
        from transformers.utils import logging

        logging.disable_progress_bar()  # our own line says what is being loaded
        options["accelerate"] = not arguments.no_accelerate
    elif arguments.no_accelerate and arguments.backend == backend:
        raise InvalidInputError(f"--no-accelerate is for backend 'transformers', got backend {backend!r}")
    if backend == arguments.backend:
        options |= {"dtype": arguments.dtype, "device": arguments.device}
    return options


def method(arguments: argparse.Namespace, draft_model: Any) -> dict[str, Any]:
    """Return the options of ``add_method`` for ``specrs.generate``."""
    names = {option.name for option in fields(MethodOptions)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    return {**given, "draft_model": draft_model, "policy_options": policy_options(arguments.policy_option)}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def policy_options(words: list[str]) -> dict[str, Any]:
    """Return what ``--policy-option NAME=VALUE`` says: numbers, true and false as such, commas make lists."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"--policy-option must be NAME=VALUE, got {word!r}")
        parts = [_value(part) for part in value.split(",")]
        options[name.replace("-", "_")] = parts[0] if len(parts) == 1 else parts
    return options


def _value(word: str) -> Any:
    try:
        return json.loads(word.lower())
    except ValueError:
        return word
