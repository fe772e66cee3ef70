"""
Tests under gevent: the same ones, in a process that was monkey-patched before pytest started.

``python -m gevent.monkey --module pytest tests/...`` runs them; the environment in tox is
``gevent``. Tests that cannot work there are left out by the table below, and listed in the
summary. ``tests/greenlets`` is for such a process only.
"""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path
from types import FrameType

import pytest

__all__ = ["UNDER_GEVENT"]

_monkey = sys.modules.get("gevent.monkey")
#: Whether the process was monkey-patched before pytest started.
UNDER_GEVENT = _monkey is not None and _monkey.is_module_patched("threading")

#: Tests that are left out: a pattern for the start of their names, and the reason.
LEFT_OUT: dict[str, str] = {
    r"thread/test_direct_reads\.py::": "under gevent only the reader reads the socket",
    r"thread/test_races\.py::test_(a_closed_connection_always_has_its_reason|close_at_the_moment_of_a_reconnect|pings_while_disconnected)": (
        "it spins until another thread has done something, and greenlets do not take turns by themselves"
    ),
    r"server/test_reconnect_scripted\.py::test_reconnect_again_and_again": (
        "no greenlet gives way between two of its calls, so all of them end the same link"
    ),
    r"server/test_publish_async\.py::test_a_hundred_thousand_messages_are_counted": (
        "greenlets that compute for seconds share a window so unevenly that one may wait for too long"
    ),
}

_left_out = pytest.StashKey[list[str]]()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore ``tests/greenlets`` in processes that are not patched."""
    return True if collection_path.name == "greenlets" and not UNDER_GEVENT else None


def _reason(item: pytest.Item) -> str | None:
    name = item.nodeid.removeprefix("tests/")
    return next((why for pattern, why in LEFT_OUT.items() if re.match(pattern, name)), None)


if UNDER_GEVENT:
    from greenlet import greenlet

    _of_system_threads = sys._current_frames

    def _frames() -> dict[int, FrameType]:
        """Return the frame of each thread, also of those that are greenlets."""
        greenlets = [entry for entry in gc.get_objects() if isinstance(entry, greenlet)]
        frames = {id(entry): entry.gr_frame for entry in greenlets if entry.gr_frame is not None}
        return {**frames, **_of_system_threads()}

    # Tests look for threads that wait in a function, and pytest-timeout shows all stacks.
    sys._current_frames = _frames

    def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out the tests of the table."""
        reasons = {item: _reason(item) for item in items}
        config.stash[_left_out] = [
            f"{entry.nodeid}: {why}" for entry, why in reasons.items() if why
        ]
        config.hook.pytest_deselected(items=[item for item, why in reasons.items() if why])
        items[:] = [item for item, why in reasons.items() if not why]

    def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
        """List the tests that were left out."""
        terminalreporter.section("not under gevent")
        for line in terminalreporter.config.stash.get(_left_out, []):
            terminalreporter.write_line(line)
