"""Fixtures that several test folders share."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from specrs import SpecrsError

# One of several processes that share the cores: read by torch when a test imports it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the demo model. Without it a test skips on a laptop and fails where CI is true."""
    return _embedded("smollm2-135m")


def _embedded(name: str) -> Path:
    missing = [package for package in ("torch", "transformers", "gguf") if find_spec(package) is None]
    if missing:
        return _without(f"{name} needs {', '.join(missing)}: pip install 'specrs[hf]'")
    from specrs.models.convert import ensure

    try:
        return ensure(name)
    except SpecrsError as error:
        return _without(f"{name} is not available: {error}")


def _without(reason: str) -> Path:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
