"""The collection of tests without the garbage collector, the cases of the full list, and counts by part."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator
from pathlib import Path

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every case of a test but its first as ``full``, if the test is marked ``matrix``."""
    seen = set()
    for item in items:
        if item.get_closest_marker("matrix") is None:
            continue
        test = item.nodeid.partition("[")[0]
        if test in seen:
            item.add_marker("full")
        seen.add(test)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of tests that passed, by folder."""
    parts = Counter(
        Path(report.nodeid.partition("::")[0]).parts[1]
        for report in terminalreporter.getreports("passed")
        if isinstance(report, pytest.TestReport)
        and report.when == "call"
        and report.nodeid.startswith("tests/")
    )
    if parts:
        counts = ", ".join(f"{part} {count}" for part, count in sorted(parts.items()))
        terminalreporter.write_line(f"passed tests by part: {counts}")
