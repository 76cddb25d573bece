"""The metadata reader agrees with the reference writer and refuses damage."""

import pytest

from specrs.errors import CorruptFileError
from specrs.models.gguf_header import read_metadata

gguf = pytest.importorskip("gguf")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "any.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_int64("a.negative", -5)
    writer.add_bool("a.flag", True)
    writer.add_float32("a.number", 0.5)
    writer.add_array("a.texts", ["é", "", "x"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.fractions", [0.25, -1.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_kind_is_read(file):
    found = read_metadata(file)
    assert found["general.architecture"] == "llama"
    assert (found["a.count"], found["a.negative"], found["a.flag"], found["a.number"]) == (7, -5, True, 0.5)
    assert found["a.texts"] == ["é", "", "x"]
    assert found["a.numbers"] == [1, 2, 3]
    assert found["a.fractions"] == [0.25, -1.5]


def test_a_file_that_ends_early_is_refused_wherever_it_ends(file):
    data = file.read_bytes()
    for length in range(4, len(data) - 1, 7):
        file.write_bytes(data[:length])
        with pytest.raises(CorruptFileError, match="is damaged"):
            read_metadata(file)


def test_another_version_is_refused(file):
    data = file.read_bytes()
    file.write_bytes(data[:4] + b"\x09\x00\x00\x00" + data[8:])
    with pytest.raises(CorruptFileError, match="GGUF version 9, expected 2 or 3"):
        read_metadata(file)
