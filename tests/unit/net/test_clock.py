"""Deadlines: made from a timeout once, and queried for the remaining time."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.net import clock
from jetstream_sync.net.clock import FOREVER, BackoffDelay, Deadline, seconds


class Time:
    """A monotonic clock that is set by the test."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    stopped = Time()
    monkeypatch.setattr(clock, "monotonic", stopped)
    return stopped


@pytest.mark.parametrize("timeout", [2, 2.0, timedelta(seconds=2)])
def test_a_deadline_comes_when_the_time_is_over(time, timeout):
    """The remaining time decreases with the clock, and is never below 0."""
    deadline = Deadline(timeout)
    assert (deadline.left(), deadline.lock_timeout(), deadline.expired()) == (2.0, 2.0, False)
    time.now += 1.5
    assert (deadline.left(), deadline.lock_timeout(), deadline.expired()) == (0.5, 0.5, False)
    time.now += 0.5
    assert (deadline.left(), deadline.lock_timeout(), deadline.expired()) == (0.0, 0.0, True)
    time.now += 1
    assert (deadline.left(), deadline.lock_timeout(), deadline.expired()) == (0.0, 0.0, True)


@pytest.mark.usefixtures("time")
@pytest.mark.parametrize("timeout", [0, 0.0, -1, -0.5, timedelta(0), timedelta(-1), float("-inf")])
def test_zero_or_less_has_come(timeout):
    """Such a timeout means: do not wait."""
    deadline = Deadline(timeout)
    assert (deadline.left(), deadline.lock_timeout(), deadline.expired()) == (0.0, 0.0, True)


@pytest.mark.parametrize("deadline", [Deadline(None), FOREVER])
def test_none_never_comes(time, deadline):
    """There is no limit; for a lock that is -1."""
    time.now += 1e12
    assert (deadline.left(), deadline.lock_timeout(), deadline.expired()) == (None, -1, False)


@pytest.mark.usefixtures("time")
@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400, timedelta.max])
def test_a_lock_can_wait_for_any_timeout(timeout):
    """A timeout above the maximum of a lock becomes that maximum."""
    left = Deadline(timeout).lock_timeout()
    assert 200 * 365 * 86400 < left <= threading.TIMEOUT_MAX
    assert threading.Lock().acquire(timeout=left)


@pytest.mark.parametrize("timeout", [True, False, float("nan"), "1", b"1", 1j, []])
def test_an_invalid_time_is_refused(timeout):
    """The error names the option of the time."""
    with pytest.raises(InvalidOptionError) as caught:
        Deadline(timeout)
    assert caught.value.option == "timeout"
    with pytest.raises(InvalidOptionError) as caught:
        seconds(timeout, "max_wait")
    assert caught.value.option == "max_wait"


@pytest.mark.parametrize("timeout", [1, 0, -2.5])
def test_seconds_and_timedeltas_are_converted(timeout):
    """A number of seconds is unchanged, a `timedelta` is converted."""
    assert seconds(timeout) == timeout
    assert seconds(timedelta(milliseconds=1500)) == 1.5


@pytest.mark.usefixtures("time")
@pytest.mark.parametrize(
    ("first", "second", "left"),
    [(5, 1, 1.0), (1, 5, 1.0), (None, 5, 5.0), (5, -1, 0.0), (0, 5, 0.0), (5, timedelta(0), 0.0)],
)
def test_sooner_keeps_the_earlier_limit(first, second, left):
    """A step of a longer task has its own limit, and that of the task."""
    assert Deadline(first).sooner(second).left() == left


def test_a_deadline_is_made_once(time):
    """A deadline derived from another one does not restart the time."""
    deadline = Deadline(2)
    time.now += 1
    assert deadline.sooner(5).left() == 1.0
    assert deadline.sooner(0.5).left() == 0.5
    assert deadline.left() == 1.0


def test_a_backoff_doubles_up_to_its_maximum_and_starts_again():
    """Each delay is twice the last one, at most the maximum; `reset()` begins with the first."""
    backoff = BackoffDelay(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert (backoff.delay, backoff.next(), backoff.delay) == (0.5, 0.5, 1.0)


def test_a_backoff_returns_the_delay_after_a_counted_number_of_failures():
    """As the delays of `next()`, without a state, for numbers of failures that are stored elsewhere."""
    backoff = BackoffDelay(0.5, 30.0)
    assert [backoff.after(failures) for failures in (0, 1, 2, 6, 10_000)] == [
        0.5,
        1.0,
        2.0,
        30.0,
        30.0,
    ]
    assert backoff.delay == 0.5


def test_the_jitter_of_a_backoff_takes_a_random_part_of_the_delay():
    """With jitter, the delays differ and stay below those without it, which grow all the same."""
    backoff = BackoffDelay(1.0, 4.0, jitter=True)
    delays = [backoff.next() for _ in range(100)]
    assert all(0 <= delay <= limit for delay, limit in zip(delays, [1, 2, *[4] * 98], strict=True))
    assert len(set(delays)) > 90
    assert backoff.delay == 4.0
