"""Options that generate, chat, compare and bench share: the model, the method, the law, the ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from specrs.cli.arguments import one_of
from specrs.errors import InvalidInputError
from specrs.methods import DRAFTERS, LOADS_OWN_MODEL
from specrs.models.loading import BACKENDS
from specrs.policies.registry import DEFAULT, POLICIES

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser


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
    from specrs.models.loading import load, require_hf

    options = {"dtype": arguments.dtype, "device": arguments.device, "backend": arguments.backend}
    if arguments.backend == "transformers":
        require_hf()
        from transformers.utils import logging

        logging.disable_progress_bar()  # our own line says what is being loaded
        options["accelerate"] = not arguments.no_accelerate
    elif arguments.no_accelerate:
        raise InvalidInputError(f"--no-accelerate is for backend 'transformers', got backend {arguments.backend!r}")
    with progress.terminal() as show:
        target = load(arguments.model, threads=arguments.threads, progress=show, **options)
        drafting = arguments.draft_model
        if drafting and getattr(arguments, "drafter", None) not in LOADS_OWN_MODEL:
            threads = arguments.threads if arguments.backend != "transformers" else None  # torch's are process-wide
            drafting = load(arguments.draft_model, threads=threads, progress=show, **options)
    return target, drafting


def method(arguments: argparse.Namespace, draft_model: Any) -> dict[str, Any]:
    """Return the options of ``add_method`` for ``specrs.generate``."""
    return {
        "drafter": arguments.drafter,
        "draft_model": draft_model,
        "draft_tokens": arguments.draft_tokens,
        "draft_shape": arguments.draft_shape,
        "policy": arguments.policy,
        "policy_options": policy_options(arguments.policy_option),
        "cost_table": arguments.cost_table,
        "payoff": arguments.payoff,
        "fan_out": arguments.fan_out,
        "fallback": arguments.fallback,
        "saguaro": arguments.saguaro,
        "overlap": arguments.overlap,
    }


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
