"""``specrs bench``: methods times prompt sets in one process, plain decoding always among them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrs.cli import generation_options as shared
from specrs.cli.table import render
from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    import argparse

    from specrs.bench import Run
    from specrs.cli.arguments import Parser


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs bench`` takes."""
    shared.add_model(parser)
    shared.add_draft_length(parser)
    parser.add_argument(
        "--methods",
        default="none,cache",
        help="comma-separated: none, cache, cache-tree, model, hybrid, and the peers transformers, "
        "transformers-lookup, transformers-assisted; cache:NAME is cache with length policy NAME",
    )
    parser.add_argument("--prompts", default="benches/prompts", metavar="FOLDER", help="folder of prompt sets (JSONL)")
    parser.add_argument("--sets", metavar="NAMES", help="comma-separated names of sets; default: all in the folder")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N prompts of each set")
    parser.add_argument("--shortest", action="store_true", help="with --limit: the shortest prompts of each set")
    parser.add_argument("--peer-limit", type=int, metavar="N", help="peers on the first N prompts of each set only")
    parser.add_argument("--share-prompt", action="store_true", help="read each prompt once for all of our methods")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="default: each prompt's own")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="turns through all methods per prompt")
    parser.add_argument("--json", metavar="PATH", help="write settings, environment, runs and summary to this file")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs bench``."""
    from specrs import _core

    if _core.BUILD_PROFILE != "release":
        raise InvalidInputError(f"a bench needs a release build of the extension, this one is {_core.BUILD_PROFILE}")
    folder = Path(arguments.prompts)
    if not folder.is_dir():
        raise InvalidInputError(f"no folder of prompt sets at {arguments.prompts!r}; name one with --prompts")
    sets = arguments.sets.split(",") if arguments.sets else sorted(path.stem for path in folder.glob("*.jsonl"))
    methods = [name.strip() for name in arguments.methods.split(",")]
    from specrs.bench import against_peers, bench, environment, read_prompts, summarise

    prompts = read_prompts(folder, sets, arguments.limit, shortest=arguments.shortest)
    target, draft_model = shared.load_models(arguments)

    def keep(runs: list[Run]) -> None:
        if arguments.json:
            record = {
                "command": "specrs " + " ".join(sys.argv[1:]),
                "environment": environment(target, draft_model),
                "summary": summarise(runs),
                "against_peers": against_peers(runs),
                "runs": [asdict(one) for one in runs],
            }
            Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    runs = bench(
        target,
        prompts,
        methods,
        draft_model=draft_model,
        max_new_tokens=arguments.max_new_tokens,
        draft_tokens=arguments.draft_tokens,
        repeats=arguments.repeats,
        peer_limit=arguments.peer_limit,
        share_prompt=arguments.share_prompt,
        progress=_show_progress,
        keep=keep,
    )
    print(_table(summarise(runs)))
    if pairs := against_peers(runs):
        print(_pairs(pairs))
    return 0


def _show_progress(done: int, total: int, what: str) -> None:
    """Keep one line on the terminal up to date; on a pipe, print a line per run."""
    filled = 30 * done // max(total, 1)
    line = f"[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {what}"
    print(f"\r\033[K{line}" if sys.stderr.isatty() else line, end="" if done < total and sys.stderr.isatty() else "\n",
          file=sys.stderr, flush=True)  # fmt: skip


def _table(summary: list[dict[str, Any]]) -> str:
    header = (
        "set", "method", "prompts", "decode tok/s", "over plain", "least", "whole", "tokens/pass",
        "identical", "near-ties",
    )  # fmt: skip
    rows = [
        (
            row["set"],
            row["method"],
            str(row["prompts"]),
            f"{row['decode_tokens_per_second']:.2f}",
            f"{row['over_plain']:.2f}x",
            f"{row['least_over_plain']:.2f}x",
            f"{row['whole_over_plain']:.2f}x",
            "-" if row["tokens_per_pass"] is None else f"{row['tokens_per_pass']:.2f}",
            f"{row['identical']}/{row['runs']}",
            str(row["near_ties"]),
        )
        for row in summary
    ]
    return render(header, rows, right=frozenset(header[2:]))


def _pairs(rows: list[dict[str, Any]]) -> str:
    header = ("set", "method", "over peer", "prompts", "decode", "whole")
    cells = [
        (row["set"], row["method"], row["peer"], str(row["prompts"]), f"{row['decode']:.2f}x", f"{row['whole']:.2f}x")
        for row in rows
    ]
    return render(header, cells, right=frozenset(header[3:]))
