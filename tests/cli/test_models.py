"""``specrs models``."""

import json

import pytest

from specrs.cli import main
from specrs.models.catalog import CATALOG


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_table_has_a_line_per_model(capsys):
    assert main(["models"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "download", "on", "disk", "dtype", "licence", "state", "path"]
    assert [line.split()[0] for line in lines] == list(CATALOG)
    assert all(line.split()[-2:] == ["absent", "-"] for line in lines)


def test_json_tells_the_same(capsys):
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(facts["name"], facts["state"], facts["path"]) for facts in listed] == [
        (name, "absent", None) for name in CATALOG
    ]


def test_states_follow_the_cache(cache_folder, capsys):
    model = CATALOG["smollm2-135m"]
    gguf = cache_folder / "gguf" / "smollm2-135m.gguf"
    gguf.parent.mkdir(parents=True)
    with gguf.open("wb") as file:
        file.truncate(model.file_bytes)
    folder = cache_folder / "models" / "gemma3-270m"
    folder.mkdir(parents=True)
    record = {"format": 1, "sha256": CATALOG["gemma3-270m"].sha256, "dtype": "float32"}
    (folder / "specrs.json").write_text(json.dumps(record))
    main(["models", "--json"])
    found = {facts["name"]: (facts["state"], facts["path"]) for facts in json.loads(capsys.readouterr().out)}
    assert found["smollm2-135m"] == ("fetched", str(gguf))
    assert found["gemma3-270m"] == ("ready", str(folder))
    assert found["qwen2.5-coder-0.5b"] == ("absent", None)
    with gguf.open("ab") as file:
        file.write(b"x")  # not the file it should be
    main(["models", "--json"])
    assert json.loads(capsys.readouterr().out)[0]["state"] == "absent"


def test_fetch_makes_each_named_model_ready_and_lists_them(monkeypatch, capsys):
    convert = pytest.importorskip("specrs.models.convert")
    asked = []
    monkeypatch.setattr(convert, "ensure", lambda name, progress: asked.append(name))
    assert main(["models", "fetch", "gemma3-270m", "smollm2-135m"]) == 0
    assert asked == ["gemma3-270m", "smollm2-135m"]
    assert len(capsys.readouterr().out.splitlines()) == 3
