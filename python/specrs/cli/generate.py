"""``specrs generate``: stream an answer to a prompt and print what it cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs.cli import generation_options as shared
from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser
    from specrs.generation import Stream


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs generate`` takes."""
    parser.add_argument("prompt", nargs="?", help="the text; '-' or nothing reads standard input")
    parser.add_argument("--file", metavar="PATH", help="append this file's text to the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    shared.add_model(parser)
    shared.add_method(parser)
    shared.add_law(parser)
    parser.add_argument("--json", action="store_true", help="print text, ids and report as JSON instead of streaming")
    parser.add_argument("--quiet", action="store_true", help="print the text alone")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs generate``."""
    text = read_prompt(arguments)
    target, draft_model = shared.load_models(arguments)
    chat = bool(getattr(target.tokenizer, "chat_template", None)) and not arguments.raw
    prompt: Any = [{"role": "user", "content": text}] if chat else text
    from specrs.generation import stream

    running = stream(target, prompt, **shared.method(arguments, draft_model), **shared.law(arguments))
    interrupted = show(running, sys.stderr if arguments.json else sys.stdout)
    made = running.generations[0]
    if arguments.json:
        print(json.dumps({"text": made.text, "ids": made.ids, "finish_reason": made.finish_reason,
                          "report": made.report.to_dict()}, indent=2))  # fmt: skip
    elif not arguments.quiet:
        print(f"\n{made.report}", file=sys.stderr)
    return 130 if interrupted else 0


def show(running: Stream, out: Any) -> bool:
    """Print the chunks as they come; return whether the user interrupted. What was produced stays printed."""
    try:
        for chunk in running:
            out.write(chunk.text)
            out.flush()
    except KeyboardInterrupt:
        running.close()
        out.write(" [interrupted]\n")
        return True
    out.write("\n")
    return False


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
