"""``specrs chat``: a conversation that reads only what is new in each turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from specrs.cli import generation_options as shared
from specrs.cli.generate import show
from specrs.errors import UnsupportedModelError

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs chat`` takes."""
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    shared.add_model(parser)
    shared.add_method(parser)
    shared.add_law(parser)
    parser.add_argument("--quiet", action="store_true", help="no figures after each answer")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs chat``."""
    target, draft_model = shared.load_models(arguments)
    if not getattr(target.tokenizer, "chat_template", None):
        raise UnsupportedModelError(f"{target.name} has no chat template; use `specrs generate --raw`")
    from specrs.generation import stream
    from specrs.session import Session

    session = Session(target)
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    asking = sys.stdin.isatty()
    if asking:
        print("An empty line or end of input ends the chat; Ctrl-C stops an answer.", file=sys.stderr)
    while True:
        try:
            line = input("> " if asking else "")
        except EOFError:
            return 0
        if not line.strip():
            return 0
        messages.append({"role": "user", "content": line})
        running = stream(
            target, messages, session=session, **shared.method(arguments, draft_model), **shared.law(arguments)
        )
        show(running, sys.stdout)
        made = running.generations[0]
        messages.append({"role": "assistant", "content": made.text or ""})
        if not arguments.quiet:
            report = made.report
            speed = "-" if report.tokens_per_second is None else f"{report.tokens_per_second:.1f}"
            print(
                f"[{report.new_tokens} tokens, {speed} tokens/s, {report.target_passes} target passes, "
                f"{report.reused_tokens} of {report.prompt_tokens} prompt tokens reused]",
                file=sys.stderr,
            )
