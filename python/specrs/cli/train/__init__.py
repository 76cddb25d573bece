"""``specrs train``: learn once what every run uses. One module per thing, and one line in ``TRAININGS``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from specrs.cli.arguments import Parser

if TYPE_CHECKING:
    import argparse

#: What can be trained, in the order that the help shows.
TRAININGS: dict[str, str] = {
    "ensemble": "the head that weighs target against draft for relaxed verification (DIVERSED)",
    "payoff": "predict how much of a cache draft will be accepted, for drafter hybrid",
}


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs train`` takes: one sub-command per thing."""
    things = parser.add_subparsers(title="what to train", metavar="WHAT", required=True, parser_class=Parser)
    for name, summary in TRAININGS.items():
        thing = things.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        module = importlib.import_module(f"specrs.cli.train.{name}")
        module.add_arguments(thing)
        thing.set_defaults(parser=thing, train=module.run)


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs train``."""
    code: int = arguments.train(arguments)
    return code
