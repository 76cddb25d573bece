"""``specrs train payoff``: fit the predictor of Hybrid Verified Decoding to text, by replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specrs.errors import InvalidInputError

if TYPE_CHECKING:
    import argparse

    from specrs.cli.arguments import Parser

#: Every so many documents, one is kept for the report.
HELD_OUT = 5


def add_arguments(parser: Parser) -> None:
    """Add what ``specrs train payoff`` takes."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="text, messages (.jsonl) or token ids (.npy): outputs to be replayed"
    )
    parser.add_argument("--out", required=True, metavar="PATH", help="the predictor's file")
    parser.add_argument("--tokenizer", metavar="NAME", help="embedded name or folder of the model that makes the ids")
    parser.add_argument("--store", metavar="FOLDER", help="cache store with older text")
    parser.add_argument("--epochs", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=42, metavar="S")


def run(arguments: argparse.Namespace) -> int:
    """Run ``specrs train payoff``."""
    import numpy as np

    from specrs import CacheStore, SuffixCache
    from specrs.cli.cache import check_files, load_tokenizer, read_documents
    from specrs.cli.table import render
    from specrs.drafters.token_classes import token_classes, tokenizer_fingerprint
    from specrs.models import progress
    from specrs.train.payoff import fit, quality, replay, save

    if arguments.epochs < 1:
        raise InvalidInputError(f"--epochs must be >= 1, got {arguments.epochs}")
    files = [Path(name) for name in arguments.files]
    check_files(files, arguments.tokenizer)
    tokenizer = load_tokenizer(arguments.tokenizer)
    fingerprint = "" if tokenizer is None else tokenizer_fingerprint(tokenizer)
    cache, classes = SuffixCache(), None
    if arguments.store:
        CacheStore.open(arguments.store, fingerprint).load_into(cache)
    if tokenizer is not None:
        classes = token_classes(tokenizer, max(tokenizer.get_vocab().values()) + 1)
    documents = [document for file in files for document in read_documents(file, tokenizer)]
    with progress.terminal() as show:
        replayed = replay(
            documents, cache=cache, classes=classes, progress=lambda done: show("replaying", done, len(documents))
        )
        held = replayed[HELD_OUT - 1 :: HELD_OUT]
        rest = [one for at, one in enumerate(replayed) if at % HELD_OUT != HELD_OUT - 1]
        if not sum(len(labels) for _, labels in rest):
            raise InvalidInputError(f"{len(documents)} documents gave no example: expected text that repeats itself")
        predictor = fit(
            np.concatenate([features for features, _ in rest]),
            np.concatenate([labels for _, labels in rest]),
            epochs=arguments.epochs,
            seed=arguments.seed,
            fingerprint=fingerprint,
            progress=lambda done, total: show("training", done, total),
        )
    save(predictor, arguments.out)
    header = ("drafts", "examples", "error, tokens", "precision", "recall")
    rows = []
    for name, part in (("trained on", rest), ("held out", held)):
        if part:
            features, labels = (np.concatenate(column) for column in zip(*part, strict=True))
            made = quality([predictor.predict(one) for one in features], labels)
            cells = (made.mean_absolute_error, made.precision, made.recall)
            rows.append((name, str(made.examples), *(f"{cell:.3f}" for cell in cells)))
    print(render(header, rows, right=frozenset(header[1:])))
    return 0
