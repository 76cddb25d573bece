"""``specrs models``: the embedded models, where they are, and how to get them."""

from __future__ import annotations

import argparse
import json
from typing import Any

from specrs.cli.arguments import Parser, one_of
from specrs.cli.table import render
from specrs.errors import InvalidInputError
from specrs.models import cache, progress
from specrs.models.catalog import CATALOG, EmbeddedModel


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs models`` takes."""
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        type=one_of("action", ["list", "fetch"]),
        metavar="list|fetch",
        help="list them (default), or fetch and convert the named ones",
    )
    parser.add_argument(
        "names", nargs="*", type=one_of("model", CATALOG), metavar="NAME", help=f"to fetch: {', '.join(CATALOG)}"
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs models``."""
    if arguments.action == "fetch":
        _fetch(arguments.names)
    elif arguments.names:
        raise InvalidInputError(f"`specrs models list` takes no name, got {arguments.names[0]!r}; `fetch` does")
    models = [_facts(model) for model in CATALOG.values()]
    if arguments.action == "fetch":
        models = [facts for facts in models if facts["name"] in arguments.names]
    print(json.dumps(models, indent=2) if arguments.json else _table(models))
    return 0


def _fetch(names: list[str]) -> None:
    if not names:
        raise InvalidInputError(f"`specrs models fetch` needs a name: {', '.join(CATALOG)}")
    # A list must not cost the import of a framework, so only fetching brings it.
    from specrs.models.convert import ensure

    with progress.terminal() as show:
        for name in names:
            ensure(name, progress=show)


def _facts(model: EmbeddedModel) -> dict[str, Any]:
    state = cache.state(model)
    path = {"ready": cache.dense_folder(model), "fetched": cache.gguf_path(model)}.get(state)
    return {
        "name": model.name,
        "title": model.title,
        "download_bytes": model.file_bytes,
        "dense_bytes": model.dense_bytes,
        "dtype": model.dtype,
        "chat": model.chat,
        "licence": model.licence,
        "state": state,
        "path": None if path is None else str(path),
    }


def _table(models: list[dict[str, Any]]) -> str:
    rows = [
        (
            facts["name"],
            f"{facts['download_bytes'] / 1e6:.0f} MB",
            f"{facts['dense_bytes'] / 1e6:.0f} MB",
            facts["dtype"],
            facts["licence"],
            facts["state"],
            facts["path"] or "-",
        )
        for facts in models
    ]
    header = ("name", "download", "on disk", "dtype", "licence", "state", "path")
    return render(header, rows, right=frozenset({"download", "on disk"}))
