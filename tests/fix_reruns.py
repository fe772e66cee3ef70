"""
Reruns of tests that use sockets, threads and processes, and the failures that led to them.

On a busy machine such a test can miss a deadline, so tox allows it two more runs. Unit tests get no rerun.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: How often a failed test may run again; only the tests that `_may_rerun` accepts.
_RERUNS = int(os.environ.get("JETSTREAM_SYNC_TEST_RERUNS", "0"))

_HERE = Path(__file__).parent
#: Folders and files whose tests depend on no deadline.
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
    """Show the failures that led to a rerun: a reason that can repeat is a bug."""
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
