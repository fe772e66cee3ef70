"""The heartbeat monitor: one timer, which checks a time stamp."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from jetstream_sync.jetstream import heartbeat
from jetstream_sync.jetstream.heartbeat import HeartbeatMonitor, HeartbeatTimeout


class FakeTimers:
    """A clock that is set by the test, and timers that run when it reaches them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.armed: list[float] = []

    def start_timer(self, name: str, seconds: float, target: Callable[[], None]) -> FakeTimer:
        assert name.startswith("heartbeat-")
        timer = FakeTimer(self.now + seconds, target)
        self.timers.append(timer)
        self.armed.append(seconds)
        return timer

    def until(self, moment: float) -> None:
        while due := [timer for timer in self.timers if timer.at <= moment]:
            timer = min(due, key=lambda timer: timer.at)
            self.timers.remove(timer)
            self.now = timer.at
            if not timer.cancelled:
                timer.target()
        self.now = moment


class FakeTimer:
    def __init__(self, at: float, target: Callable[[], None]) -> None:
        self.at = at
        self.target = target
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> FakeTimers:
    timers = FakeTimers()
    monkeypatch.setattr(heartbeat, "start_timer", timers.start_timer)
    monkeypatch.setattr(heartbeat, "monotonic", lambda: timers.now)
    return timers


def monitor(timers: FakeTimers, seen: Callable[[], float]) -> tuple[HeartbeatMonitor, list[float]]:
    alarms: list[float] = []
    patience = HeartbeatTimeout(5.0, 3)
    return HeartbeatMonitor("C", patience, seen, lambda: alarms.append(timers.now)), alarms


def test_the_alarm_comes_after_three_intervals(timers: FakeTimers) -> None:
    """Silence is reported after 3 intervals, and again after each further 3."""
    _, alarms = monitor(timers, lambda: 100.0)
    timers.until(114.9)
    assert alarms == []
    timers.until(150)
    assert alarms == [115, 130, 145]


def test_whatever_comes_puts_it_off(timers: FakeTimers) -> None:
    """Occasional deliveries prevent the report; after the last one it takes three intervals."""
    last = 100.0

    def seen() -> float:
        return min(timers.now - (timers.now % 5), last)

    _, alarms = monitor(timers, seen)
    last = 160.0
    timers.until(170)
    assert alarms == []
    timers.until(180)
    assert alarms == [175]


def test_it_is_armed_at_most_once_for_each_interval(timers: FakeTimers) -> None:
    """However busy a consumer is, the timer runs about once in two intervals."""
    _, alarms = monitor(timers, lambda: timers.now - 0.001)
    timers.until(200)
    assert alarms == []
    assert len(timers.armed) <= 100 / 5
    assert min(timers.armed) >= 5


def test_an_irregular_word_does_not_arm_it_more_often(timers: FakeTimers) -> None:
    """A timer that would have to run again very soon waits for an interval."""
    stamps = [100.0, 100.5, 114.0, 116.0, 129.0]
    _, _ = monitor(timers, lambda: max(stamp for stamp in stamps if stamp <= timers.now))
    timers.until(140)
    assert min(timers.armed) >= 5


def test_stopped_is_stopped(timers: FakeTimers) -> None:
    """After the end there is no report and no timer, also if one is just running."""
    watching, alarms = monitor(timers, lambda: 100.0)
    watching.stop()
    watching.stop()
    timers.until(200)
    assert alarms == []
    assert len(timers.armed) == 1

    ended: list[HeartbeatMonitor] = []

    def end() -> None:
        ended[0].stop()

    ended.append(HeartbeatMonitor("C", HeartbeatTimeout(5.0, 3), lambda: 100.0, end))
    timers.until(300)
    assert len(timers.armed) == 2


def test_in_a_forked_child_no_lock_of_the_parent_is_taken(timers: FakeTimers) -> None:
    """A missing thread may have held the lock."""
    watching, _ = monitor(timers, lambda: 100.0)
    watching._lock.acquire()
    watching.forked()
    watching.stop()
    assert watching._timer is None


def test_the_timer_is_a_daemon_with_a_name() -> None:
    """It is a `threading.Timer` that does not keep the program alive."""
    watching = HeartbeatMonitor("C", HeartbeatTimeout(100.0, 3), lambda: 0.0, lambda: None)
    timer = watching._timer
    assert isinstance(timer, threading.Timer)
    assert timer.daemon
    assert timer.name == "nats-heartbeat-C"
    watching.stop()
    timer.join(5)
    assert not timer.is_alive()


@pytest.mark.parametrize(("interval", "intervals", "limit"), [(5, 3, 15), (0.5, 2, 1), (2, 1.5, 3)])
def test_patience_is_a_number_of_intervals(interval: float, intervals: float, limit: float) -> None:
    """The number of silent intervals is defined in one place."""
    patience = HeartbeatTimeout(interval, intervals)
    assert patience.limit == limit
    error = patience.error("C")
    assert error.consumer == "C"
    assert error.seconds == limit
