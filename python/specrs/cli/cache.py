"""``specrs cache``: stores of finished text on disk, for cache drafting: build, add, merge, inspect, verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specrs.cli.arguments import one_of
from specrs.cli.table import render
from specrs.drafters.token_classes import tokenizer_fingerprint
from specrs.errors import InvalidInputError, ModelNotFoundError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from specrs.cache import CacheStore
    from specrs.cli.arguments import Parser
    from specrs.types import TokenArray

ACTIONS = ("build", "add", "merge", "inspect", "verify")
#: Tokens that become one segment at a time.
SEGMENT_TOKENS = 4_000_000


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs cache`` takes."""
    parser.add_argument("action", type=one_of("action", ACTIONS), metavar="|".join(ACTIONS))
    parser.add_argument("store", help="the store's folder")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="text (.txt, source code, ...), messages (.jsonl, a list or {'messages': [...]} a line), token ids (.npy)",
    )
    parser.add_argument("--tokenizer", metavar="FOLDER", help="folder of the model whose tokenizer makes the ids")
    parser.add_argument("--json", action="store_true", help="print the segments as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs cache``."""
    from specrs.cache import CacheStore

    adding = arguments.action in ("build", "add")
    if adding != bool(arguments.files):
        wanted = "needs at least one file" if adding else f"takes no file, got {arguments.files[0]!r}"
        raise InvalidInputError(f"`specrs cache {arguments.action}` {wanted}")
    files = [Path(name) for name in arguments.files]
    check_files(files, arguments.tokenizer)
    tokenizer = load_tokenizer(arguments.tokenizer)
    fingerprint = "" if tokenizer is None else tokenizer_fingerprint(tokenizer)
    make = CacheStore.create if arguments.action == "build" else CacheStore.open
    store = make(arguments.store, fingerprint)
    if adding:
        _add(store, files, tokenizer)
    elif arguments.action == "merge":
        store.merge()
    segments = store.verify() if arguments.action == "verify" else store.inspect()
    print(json.dumps(segments, indent=2) if arguments.json else _table(segments))
    return 0


def load_tokenizer(folder: str | None) -> Any:
    """Return the tokenizer of an embedded model or a folder; None for None."""
    if folder is None:
        return None
    from specrs.models import cache
    from specrs.models.catalog import CATALOG
    from specrs.models.loading import require_hf

    require_hf()
    from transformers import AutoTokenizer

    path = str(cache.dense_folder(CATALOG[folder])) if folder in CATALOG else folder
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"no tokenizer could be loaded from {folder!r} ({error})") from error


def check_files(files: list[Path], tokenizer: str | None) -> None:
    """Refuse, before a store is touched, what cannot be read."""
    for file in files:
        if not file.is_file():
            raise InvalidInputError(f"no file at {str(file)!r}")
        if file.suffix != ".npy" and tokenizer is None:
            raise InvalidInputError(f"{str(file)!r} holds text; name a tokenizer with --tokenizer, or pass .npy files")


def _add(store: CacheStore, files: list[Path], tokenizer: Any) -> None:
    from specrs.models import progress

    documents: list[TokenArray] = []
    held = 0
    sizes = [file.stat().st_size for file in files]
    with progress.terminal() as show:
        for number, file in enumerate(files):
            show("reading", sum(sizes[:number]), sum(sizes))
            for document in read_documents(file, tokenizer):
                documents.append(document)
                held += len(document)
                if held >= SEGMENT_TOKENS:
                    _write(store, documents)
                    documents, held = [], 0
        if documents:
            _write(store, documents)
        show("reading", sum(sizes), sum(sizes))


def _write(store: CacheStore, documents: list[TokenArray]) -> None:
    ends = np.cumsum([len(document) for document in documents])
    store.add(np.concatenate(documents), np.concatenate([[0], ends]).astype(np.int64))


def read_documents(path: Path, tokenizer: Any) -> Iterator[TokenArray]:
    """Yield the documents of one file as token ids."""
    try:
        if path.suffix == ".npy":
            ids = np.load(path, allow_pickle=False)
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise InvalidInputError(f"{path}: expected integers of shape (T,), got {ids.dtype} of {ids.shape}")
            yield ids.astype(np.uint32)
            return
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot read {str(path)!r}: {error}") from error
    if tokenizer is None:
        raise InvalidInputError(
            f"{str(path)!r} holds text; name a tokenizer with --tokenizer, or pass .npy files of ids"
        )
    for document in _conversations(path, text, tokenizer) if path.suffix == ".jsonl" else [text]:
        ids = tokenizer.encode(document, add_special_tokens=False)
        if ids:
            yield np.asarray(ids, np.uint32)


def _conversations(path: Path, text: str, tokenizer: Any) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            messages = row["messages"] if isinstance(row, dict) else row
            if getattr(tokenizer, "chat_template", None):
                yield str(tokenizer.apply_chat_template(messages, tokenize=False))
            else:
                yield "\n".join(message["content"] for message in messages)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{path}, line {number}: expected messages, got {line[:60]!r} ({error})") from error


def _table(segments: list[dict[str, str | int]]) -> str:
    header = ("segment", "tokens", "documents", "bytes")
    rows = [tuple(str(one[key]) for key in ("name", "tokens", "documents", "bytes")) for one in segments]
    return render(header, rows, right=frozenset(header[1:]))
