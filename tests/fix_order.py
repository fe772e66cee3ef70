"""The order of the tests in several processes: those that may take long are the first of each process."""

from __future__ import annotations

import os

import pytest


def _limit(item: pytest.Item) -> float:
    """Return the seconds that a test may take, or 0 if it has the usual limit."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None and marker.args else 0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Move the tests with long limits to the start of the share that each process of xdist begins with.

    Such a test at the end would leave the other processes without work.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes == 1:
        return
    usual = config.getoption("timeout", None) or float(config.getini("timeout"))
    long = sorted((item for item in items if _limit(item) > usual), key=_limit, reverse=True)
    others = [item for item in items if _limit(item) <= usual]
    ordered = []
    for number in range(processes):
        start, end = (len(others) * item // processes for item in (number, number + 1))
        ordered += long[number::processes] + others[start:end]
    items[:] = ordered
