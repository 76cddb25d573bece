"""Plain text tables: columns as wide as their widest cell."""

from __future__ import annotations

from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()) -> str:
    """Return ``rows`` under ``header`` as aligned text; the columns named in ``right`` are right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if title in right else cell.ljust(width)
            for cell, width, title in zip(row, widths, header, strict=True)
        ).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)
