"""The collection of tests without the garbage collector, which would take a third of its time."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """
    Collect the tests, and exempt what exists then from garbage collection.

    Modules and tests live as long as the process. Each ``gc.collect()`` of a test would visit them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
