"""cache and selftest."""

import json

import numpy as np
import pytest

from specrs import CacheStore, SuffixCache
from specrs.cli import main


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(100, 160, dtype=np.int64))
    return str(path)


def test_a_store_is_built_added_to_merged_and_verified(tmp_path, token_file, capsys):
    store = str(tmp_path / "store")
    assert main(["cache", "build", store, token_file]) == 0
    assert main(["cache", "add", store, token_file, "--json"]) == 0
    segments = json.loads(capsys.readouterr().out.partition("[")[2].join(["[", ""]))
    assert [one["tokens"] for one in segments] == [segments[0]["tokens"]] * 2
    assert main(["cache", "merge", store]) == 0
    assert main(["cache", "verify", store, "--json"]) == 0
    assert len(CacheStore.open(store).inspect()) == 1
    cache = SuffixCache()
    CacheStore.open(store).load_into(cache)
    cache.start(1, np.array([7, 110, 111, 112]))
    assert cache.draft(1, 4)[0].tolist()[:1] == [113]


def test_text_and_messages_need_and_use_a_tokenizer(tmp_path, capsys, smollm2):
    text, chats = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("The quick brown fox jumps over the lazy dog.\n" * 3)
    chats.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello there, how are you?"}]}) + "\n")
    store = str(tmp_path / "store")
    assert main(["cache", "build", store, str(text)]) == 2
    assert "--tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
    other = str(tmp_path / "other")
    assert main(["cache", "build", other, str(text), str(chats), "--tokenizer", str(smollm2)]) == 0
    assert CacheStore.open(other).inspect()[0]["documents"] == 2
    assert len(CacheStore.open(other).fingerprint) == 32


def test_wrong_files_and_stores_are_named(tmp_path, token_file, capsys):
    store = str(tmp_path / "store")
    assert main(["cache", "build", store]) == 2
    assert main(["cache", "inspect", str(tmp_path / "absent")]) == 1
    assert main(["cache", "build", store, str(tmp_path / "absent.npy")]) == 2
    assert "absent.npy" in capsys.readouterr().err
    assert main(["cache", "bild", store, token_file]) == 2
    assert "build" in capsys.readouterr().err


def test_selftest_finds_every_rule_exact(capsys):
    assert main(["selftest", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert len(findings) >= 6
    assert all(one["passed"] for one in findings)
