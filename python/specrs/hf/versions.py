"""Which versions of transformers the adapters are tested with."""

from __future__ import annotations

import re

import transformers

from specrs.errors import MissingExtraError

#: The oldest version that the tests pass on, and the first that nobody has tried.
OLDEST, BEYOND = (5, 0), (6, 0)


def require_supported_transformers(version: str | None = None) -> None:
    """Refuse a version of transformers outside the tested range.

    Raises
    ------
    MissingExtraError
        Naming the version found, the range, and the command that installs one of it.
    """
    found = transformers.__version__ if version is None else version
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or not OLDEST <= tuple(map(int, numbers.groups())) < BEYOND:
        raise MissingExtraError(
            f"specrs.hf works with transformers >= {OLDEST[0]}.{OLDEST[1]} and < {BEYOND[0]}, found {found}; "
            "install one with: pip install 'specrs[hf]'"
        )
