"""Cron rules, which are checked before the server sees them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from jetstream_sync import InvalidOptionError
from jetstream_sync.workers import Worker
from jetstream_sync.workers.schedules import check_cron, clock_changes, either_day

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
        ("45 1 * * *", "Australia/Lord_Howe"),  # its clock is changed by half an hour
        ("45 1 * * *", "America/St_Johns"),
        ("30 2 * * *", "Australia/Adelaide"),
    ):
        assert clock_changes(cron, zone), (cron, zone)
    for cron, zone in (
        ("45 2 * * *", "Australia/Lord_Howe"),
        ("30 2 1 1 *", "Europe/Berlin"),  # the clock is not changed on that day
        ("30 2 * * *", "Asia/Kolkata"),
        ("30 4 * * *", "Europe/Berlin"),
        ("*/5 * * * *", "Europe/Berlin"),
        ("30 2 * * *", None),
        ("@daily", "Europe/Berlin"),
        ("30 2 * * *", "UTC"),
    ):
        assert clock_changes(cron, zone) == []


def test_times_of_calls_may_be_timedeltas():
    """`countdown` and `expires` take seconds, or a timedelta."""
    task = Worker(name="tests").task(name="task")(lambda: None)
    now = datetime.now(timezone.utc)
    record, at = task.record((), {}, timedelta(minutes=1), None, timedelta(minutes=2))
    assert at is not None
    assert 59 <= (at - now).total_seconds() <= 70
    assert record.expires is not None
    assert 119 <= record.expires - now.timestamp() <= 130
    with pytest.raises(InvalidOptionError):
        task.record((), {}, timedelta(seconds=-1))


def test_days_of_the_month_and_of_the_week_are_named():
    """The server takes them as "or"; Celery takes them as "and"."""
    (text,) = either_day("0 6 1-7 * mon")
    assert "on each of its days of the week as well" in text
    for cron in ("0 6 1-7 * *", "0 6 * * mon", "@daily", "0 6 * * *"):
        assert either_day(cron) == []
