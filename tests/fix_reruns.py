"""
Reruns for busy machines, and the failures that led to them.

`JETSTREAM_SYNC_TEST_RERUNS` is how often a failed test may run again: 0 by default, and 2 in `.ci/run`.
It applies to the tests that use a server, threads, processes or Spark, which are those of all folders
and files but `_NEVER_RERUN`. They wait for sockets and processes with time limits, which a busy machine
can miss. Each rerun is reported with its failure, because a failure that repeats is a bug.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_RERUNS = int(os.environ.get("JETSTREAM_SYNC_TEST_RERUNS", "0"))

_HERE = Path(__file__).parent
#: Folders and files whose tests depend on no time limit.
_NEVER_RERUN = {"unit", "test_exports.py", "test_layers.py"}


def _may_rerun(path: Path) -> bool:
    """Return whether a failed test of this file may run again."""
    return path.is_relative_to(_HERE) and path.relative_to(_HERE).parts[0] not in _NEVER_RERUN


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Mark the tests that may run again.

    The option ``--reruns`` would apply to every test. It also costs 40 ms per test under xdist, where
    workers ask the main process for the count of failures.
    """
    if not _RERUNS:
        return
    for item in items:
        if _may_rerun(item.path):
            item.add_marker(pytest.mark.flaky(reruns=_RERUNS))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures that led to a rerun."""
    reports = [
        report
        for report in terminalreporter.getreports("rerun")
        if isinstance(report, pytest.TestReport)
    ]
    if not reports:
        return
    terminalreporter.section("why tests were run again")
    for report in reports:
        terminalreporter.section(f"{report.when} of {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
        terminalreporter.write_line(report.caplog[-4000:])
