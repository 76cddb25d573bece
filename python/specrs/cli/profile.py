"""``specrs profile``: measure what scoring and drafting cost on this machine; later runs start from it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.cli import generation_options as shared
from specrs.cli.table import render
from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser
    from specrs.policies.cost import CostTable


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs profile`` takes."""
    shared.add_model(parser)
    parser.add_argument("--rows", type=int, default=48, metavar="M", help="measure 1 to M rows; default: 48")
    parser.add_argument("--batches", default="1,2,4,8", metavar="LIST", help="requests at once; default: 1,2,4,8")
    parser.add_argument("--contexts", default="64,1024", metavar="LIST", help="tokens of text; default: 64,1024")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timings of each; the median counts")
    parser.add_argument("--out", metavar="FILE", help="write the table here too, for --cost-table")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs profile``."""
    batches, contexts = _counts("--batches", arguments.batches), _counts("--contexts", arguments.contexts)
    for name, value in (("--rows", arguments.rows), ("--repeats", arguments.repeats)):
        if value < 1:
            raise InvalidInputError(f"{name} must be >= 1, got {value}")
    target, draft_model = shared.load_models(arguments)
    from specrs.policies.cost import CostTable, fingerprint, stored_path

    def progress(what: str) -> None:
        print(f"measuring {what}", file=sys.stderr)

    table = CostTable.profile(
        target,
        batches=batches,
        contexts=contexts,
        rows=tuple(range(1, arguments.rows + 1)),
        repeats=arguments.repeats,
        progress=progress,
    )
    if draft_model is not None:
        progress(f"a drafted token of {draft_model.name}")
        table.step_seconds["model"] = step_seconds(draft_model, contexts[0])
    path = stored_path(fingerprint(target))
    table.save(path)
    if arguments.out:
        table.save(Path(arguments.out))
    print(json.dumps(table.to_dict(), indent=1) if arguments.json else _text(table, path))
    return 0


def step_seconds(model: Any, context: int, repeats: int = 16) -> float:
    """Return the median seconds of a forward over one row: what a drafter pays per token."""
    from specrs.ops import where
    from specrs.types import Draft

    state = model.new_state(context + repeats + 2)
    model.prefill(state, np.zeros(context, np.uint32))
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        where.wait_for(model.score([state], [np.zeros(1, np.uint32)], Draft.empty(1)).logits)
        state.commit(np.empty(0, np.int32), 1)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _counts(option: str, text: str) -> list[int]:
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise InvalidInputError(f"{option} must be whole numbers above 0, separated by commas, got {text!r}")
    return counts


def _text(table: CostTable, path: Path) -> str:
    shown = (1, 2, 4, 8, 16, 32, 48)
    rows = []
    for batch, context, seconds in table.core.cells():
        cells = [f"{1e3 * seconds[m - 1]:.1f}" if batch <= m <= len(seconds) else "" for m in shown]
        rows.append((str(batch), str(context), *cells))
    header = ("batch", "context", *(f"{m} rows" for m in shown))
    lines = ["milliseconds of a forward over so many rows in all", render(header, rows, right=frozenset(header))]
    lines += [f"a token of drafter {name}: {1e3 * value:.1f} ms" for name, value in table.step_seconds.items()]
    return "\n".join([*lines, f"kept in {path}"])
