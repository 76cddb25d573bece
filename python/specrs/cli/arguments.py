"""What every sub-command's options have in common: wrong ones are refused with a suggestion."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from specrs.errors import UnknownNameError


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations (they change meaning when an option is added) that suggests."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def refuse(self, word: str) -> NoReturn:
        """Exit because ``word`` means nothing here."""
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        known = [option for option in self._option_string_actions if option.startswith("--")]
        self.error(str(UnknownNameError.among("option", word.partition("=")[0], known)))

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line that says why."""
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` lists what there is\n")


def one_of(kind: str, names: Iterable[str]) -> Callable[[str], str]:
    """Return an argument type that takes one of ``names`` and suggests the nearest for any other word."""
    known = list(names)

    def check(word: str) -> str:
        if word not in known:
            raise argparse.ArgumentTypeError(str(UnknownNameError.among(kind, word, known)))
        return word

    return check
