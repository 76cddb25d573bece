"""Tiny models and one torch thread, as for the engine's tests."""

from tests.engine.conftest import _one_thread, kind  # noqa: F401
