"""The command line: finds the sub-command, reads its options, turns errors into one line and an exit code.

A sub-command is one module of this package with ``add_arguments(parser)`` and ``run(arguments) -> int``, and one line
in ``COMMANDS``. Only the module of the chosen sub-command is imported.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from specrs import SpecrsError, __version__
from specrs.cli.arguments import Parser
from specrs.errors import InvalidInputError, UnknownNameError

#: Name and summary of each sub-command, in the order that the help shows.
COMMANDS: dict[str, str] = {
    "generate": "stream an answer to a prompt and print what it cost",
    "chat": "talk to a model; each turn reads only what is new",
    "compare": "hold a method against plain decoding with identical parameters",
    "bench": "measure methods and peers on prompt sets, side by side",
    "profile": "measure what drafting and scoring cost here",
    "cache": "build and look after stores of finished text for cache drafting",
    "train": "learn once what every run uses",
    "info": "show what works with a model, before its weights are loaded",
    "models": "list the embedded models and fetch them",
    "selftest": "enumerate every exact verification rule on this machine",
    "doctor": "show versions, processor, backends and cached models",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (the process's own by default) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except KeyboardInterrupt:
        print("specrs: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`specrs models | head -1`); Python would complain again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except InvalidInputError as error:
        print(f"specrs: {error}", file=sys.stderr)
        return 2
    except SpecrsError as error:
        print(f"specrs: {error}", file=sys.stderr)
        return 1
    except SystemExit as stop:  # argparse, after --help, --version or wrong usage
        return stop.code if isinstance(stop.code, int) else 2


def _run(words: list[str]) -> int:
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen is not None and chosen not in COMMANDS:
        raise UnknownNameError.among("command", chosen, COMMANDS)
    parser = Parser(prog="specrs", description="Makes language models answer faster without changing their answers.")
    parser.add_argument("--version", action="version", version=f"specrs {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        command.set_defaults(parser=command)
        if name == chosen:
            module = importlib.import_module(f"specrs.cli.{name}")
            module.add_arguments(command)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        getattr(arguments, "parser", parser).refuse(unknown[0])
    if chosen is None:
        parser.print_help()
        return 0
    with _log_on_stderr():
        code: int = module.run(arguments)
    sys.stdout.flush()  # here, where a broken pipe is caught
    return code


@contextlib.contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Show what the library logs while it works: a person wants to see it, on a pipe too."""
    log, handler = logging.getLogger("specrs"), logging.StreamHandler(sys.stderr)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
