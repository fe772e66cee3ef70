"""Why a test was run again: its failure is shown, although it has passed in the end."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures that led to another run: a reason that can repeat is a bug."""
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
