"""Cron rules, which are checked before the server sees them."""

from __future__ import annotations

import pytest

from jetstream_sync import InvalidOptionError
from jetstream_sync.workers import Worker
from jetstream_sync.workers.schedules import check_cron, clock_changes

GOOD = [
    *("0 3 * * *", "* * * JAN *", "* * * * mon", "*/5 * * * *", "5/10 * * * *", "1-5/2 * * * *"),
    *("* * 29 2 *", "1,2,3 * * * *", "? * * * *", "* * ? * *", "@daily", "@midnight", "@yearly"),
    *("1 0-59 0-23 1-31 1-12 0-6", "1,* * * * *", "01 * * * *", "*/100 * * * *"),
]
BAD = [
    *("* * * * 7", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *"),
    *("* * * * monday", "5-1 * * * *", "* * 30 2 *", "* * 31 4 *", "a * * * *", "*/0 * * * *"),
    *("* * L * *", "@reboot", "@every 5s", "1- * * * *", "1/ * * * *", "** * * * *"),
    *("* * * * MON#2", "1-2-3 * * * *", "0 5 * *", ""),
]


@pytest.mark.parametrize("cron", GOOD)
def test_valid_rules(cron):
    """Every form that the server accepts is accepted."""
    check_cron(cron)


@pytest.mark.parametrize("cron", BAD)
def test_invalid_rules(cron):
    """A rule that the server refuses is refused when it is defined."""
    with pytest.raises(InvalidOptionError, match="cron"):
        Worker(name="tests").schedule("report", subject="s", cron=cron)(bytes)


def test_options_of_times_are_checked():
    """Zones must exist and need a cron rule; an interval is at least a second."""
    worker = Worker(name="tests")
    for options in (
        {"cron": "0 3 * * *", "time_zone": "Mars/Base"},
        {"cron": "0 3 * * *", "time_zone": ""},
        {"every": 60, "time_zone": "UTC"},
        {"every": 0.5},
        {"every": "60"},
    ):
        with pytest.raises(InvalidOptionError):
            worker.task(name="report", **options)(lambda: None)  # type: ignore[call-overload]
        worker.queues.tasks.clear()
        worker.handlers[0].tasks.clear()


def test_changes_of_the_clock_are_found():
    """The hour that is missing, and the hour that comes twice; times outside of them are not named."""
    found = " ".join(clock_changes("30 2 * * *", "Europe/Berlin"))
    assert "is left out" in found
    assert "comes twice" in found
    for cron, zone in (
        ("30 4 * * *", "Europe/Berlin"),
        ("*/5 * * * *", "Europe/Berlin"),
        ("30 2 * * *", None),
        ("@daily", "Europe/Berlin"),
        ("30 2 * * *", "UTC"),
    ):
        assert clock_changes(cron, zone) == []
