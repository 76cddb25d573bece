"""The store on disk: round trips, damage of every kind, crashes during every write, two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from specrs import CacheStore, SuffixCache
from specrs.errors import CorruptFileError, FileAccessError, InvalidInputError


def documents(seed: int, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 50, rng.integers(1, 80), dtype=np.uint32) for _ in range(count)]
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)])


def drafts_of(cache: SuffixCache) -> list[list[int]]:
    rng = np.random.default_rng(7)
    cache.start(1, [])
    got = [cache.step(1, rng.integers(0, 50, 2), 8, shape="tree", min_prob=0.0)[0].tolist() for _ in range(60)]
    cache.abort(1)
    return got


def test_a_store_answers_as_the_cache_it_came_from(tmp_path: Path) -> None:
    tokens, ptr = documents(1)
    cache = SuffixCache()
    cache.add_many(tokens, ptr)
    store = CacheStore.create(tmp_path / "store", "abc")
    store.add_cache(cache)
    again = SuffixCache()
    CacheStore.open(tmp_path / "store", "abc").load_into(again)
    assert drafts_of(again) == drafts_of(cache)
    assert again.stats()["cached_tokens"] == len(tokens)
    assert store.verify() == store.inspect()
    assert store.inspect()[0]["tokens"] == len(tokens)
    assert CacheStore.open(tmp_path / "store").fingerprint == "abc"


def test_merging_keeps_all_documents_and_one_file(tmp_path: Path) -> None:
    store = CacheStore.create(tmp_path)
    for seed in range(4):
        store.add(*documents(seed))
    before = SuffixCache()
    store.load_into(before)
    total = sum(row["tokens"] for row in store.inspect())
    store.merge()
    (row,) = store.verify()
    assert row["tokens"] == total
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "manifest", row["name"]]
    # Maps of removed files go on serving.
    after = SuffixCache()
    store.load_into(after)
    for pattern in ([1], [1, 2], [3, 4, 5]):
        assert before.count(pattern) == after.count(pattern)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    """B65: foreign, damaged and empty files are refused with the reason."""
    with pytest.raises(FileAccessError, match="not a cache store"):
        CacheStore.open(tmp_path)
    CacheStore.create(tmp_path, "one")
    with pytest.raises(InvalidInputError, match="a cache store already"):
        CacheStore.create(tmp_path)
    with pytest.raises(CorruptFileError, match="made with tokenizer one, expected two"):
        CacheStore.open(tmp_path, "two")
    with pytest.raises(InvalidInputError, match="fingerprint"):
        CacheStore.create(tmp_path / "other", "with space")
    (tmp_path / "manifest").write_text("hello\n")
    with pytest.raises(CorruptFileError, match="first line"):
        CacheStore.open(tmp_path)
    with pytest.raises(InvalidInputError, match="rise"):
        CacheStore.create(tmp_path / "third").add([1, 2], [0, 1])


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    store = CacheStore.create(tmp_path)
    store.add([1, 2, 3, 1, 2, 70_000], [0, 3, 6])
    for name in ("manifest", store.inspect()[0]["name"]):
        path = tmp_path / str(name)
        good = path.read_bytes()
        for at in range(len(good)):
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
            with pytest.raises((CorruptFileError, FileAccessError)):
                store.load_into(SuffixCache())
            path.write_bytes(good[:at])
            with pytest.raises((CorruptFileError, FileAccessError)):
                store.load_into(SuffixCache())
        path.write_bytes(good + b"\0")
        with pytest.raises(CorruptFileError):
            store.load_into(SuffixCache())
        path.write_bytes(good)
        store.load_into(SuffixCache())


def test_a_lying_order_is_found_by_verify(tmp_path: Path) -> None:
    import zlib

    store = CacheStore.create(tmp_path)
    store.add([1, 2, 3, 1, 2, 9], [0, 3, 6])
    path = tmp_path / str(store.inspect()[0]["name"])
    data = bytearray(path.read_bytes())
    words = np.frombuffer(data, dtype="<u4", offset=128).copy()
    words[-6], words[-1] = words[-1], words[-6]
    data[128:] = words.tobytes()
    data[48:52] = zlib.crc32(words[-6:].tobytes()).to_bytes(4, "little")
    data[124:128] = zlib.crc32(bytes(data[:124])).to_bytes(4, "little")
    path.write_bytes(data)
    store.load_into(SuffixCache())  # checksums fit
    with pytest.raises(CorruptFileError, match="out of order"):
        store.verify()


WRITER = """
import sys, numpy as np
from specrs import CacheStore
store = CacheStore.open(sys.argv[1])
rng = np.random.default_rng(int(sys.argv[2]))
print("go", flush=True)
while True:
    store.add(rng.integers(0, 500, 20_000), [0, 5_000, 20_000])
    if len(store.inspect()) > 4:
        store.merge()
"""


def spawn(folder: Path, seed: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(seed)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    return process


def test_kill_during_writes_leaves_a_sound_store(tmp_path: Path) -> None:
    """SPECRS_KILLS sets how often (6 by default)."""
    store = CacheStore.create(tmp_path)
    rng = np.random.default_rng(0)
    for seed in range(int(os.environ.get("SPECRS_KILLS", "6"))):
        with spawn(tmp_path, seed) as process:
            time.sleep(float(rng.uniform(0, 0.15)))
            process.send_signal(signal.SIGKILL)
            process.wait()
        rows = store.verify()
        assert all(row["tokens"] % 20_000 == 0 for row in rows)
    store.merge()
    assert all(".tmp" not in path.name for path in tmp_path.iterdir())


def test_two_writers_and_a_reader(tmp_path: Path) -> None:
    store = CacheStore.create(tmp_path)
    writers = [spawn(tmp_path, seed) for seed in (1, 2)]
    try:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            store.load_into(SuffixCache())
    finally:
        for writer in writers:
            writer.kill()
            with writer:
                pass
    store.verify()


@pytest.mark.skipif(not Path("/dev/full").exists() or os.geteuid() != 0, reason="needs root and a small file system")
def test_disk_full_leaves_the_old_store(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        store = CacheStore.create(small / "store")
        store.add(*documents(1, 50))
        before = store.inspect()
        with pytest.raises(FileAccessError):
            store.add(np.arange(100_000), [0, 100_000])
        assert store.verify() == before
        assert all(".tmp" not in path.name for path in (small / "store").iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_file_size_limit_leaves_the_old_store(tmp_path: Path) -> None:
    store = CacheStore.create(tmp_path)
    store.add(*documents(1, 50))
    before = store.inspect()
    code = (
        "import resource, signal, sys; import numpy as np; from specrs import CacheStore\n"
        "from specrs.errors import FileAccessError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: CacheStore.open(sys.argv[1]).add(np.arange(100_000), [0, 100_000])\n"
        "except FileAccessError as error: print(error); sys.exit(7)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 7, result.stderr
    assert "large" in result.stdout.lower()
    assert store.verify() == before
    assert all(".tmp" not in path.name for path in tmp_path.iterdir())
