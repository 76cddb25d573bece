"""Settings from the environment."""

from pathlib import Path

import pytest

from specrs import config


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SPECRS_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, Path("/a/b")),
        ({"SPECRS_CACHE": "~/b"}, Path("/home/me/b")),
        ({"SPECRS_CACHE": "", "XDG_CACHE_HOME": "/x"}, Path("/x/specrs")),
        ({"XDG_CACHE_HOME": "relative"}, Path("/home/me/.cache/specrs")),
        ({}, Path("/home/me/.cache/specrs")),
    ],
)
def test_cache_folder(monkeypatch, variables, expected):
    for name in ("SPECRS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert config.cache_folder() == expected
