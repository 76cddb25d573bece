"""``specrs generate``: stream an answer to a prompt and print what it cost."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from specrs.cli import generation_options as shared

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser
    from specrs.streaming import Stream


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs generate`` takes."""
    shared.add_prompt(parser)
    shared.add_model(parser)
    shared.add_method(parser)
    shared.add_law(parser)
    parser.add_argument("--json", action="store_true", help="print text, ids and report as JSON instead of streaming")
    parser.add_argument("--quiet", action="store_true", help="print the text alone")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs generate``."""
    text = shared.read_prompt(arguments)
    target, draft_model = shared.load_models(arguments)
    prompt = shared.as_prompt(text, target, arguments)
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
