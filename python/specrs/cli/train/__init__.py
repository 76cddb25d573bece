"""``specrs train``: train the small parts that methods decide by. A module of this package per part."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from specrs.cli.arguments import Parser
from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    import argparse

#: What can be trained. Each is a module here with ``add_arguments(parser)`` and ``run(arguments) -> int``.
PARTS: dict[str, str] = {
    "ensemble": "the head that weighs target against draft for relaxed verification (DIVERSED)",
}


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs train`` takes."""
    parts = parser.add_subparsers(title="parts", metavar="PART", dest="part", parser_class=Parser)
    for name, summary in PARTS.items():
        part = parts.add_parser(name, help=summary, description=f"Train {summary}.")
        part.set_defaults(parser=part)
        importlib.import_module(f"specrs.cli.train.{name}").add_arguments(part)


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs train``."""
    if arguments.part is None:
        raise InvalidInputError(f"`specrs train` needs one of {', '.join(PARTS)}")
    code: int = importlib.import_module(f"specrs.cli.train.{arguments.part}").run(arguments)
    return code
