"""The heartbeat monitor: one timer, which checks a time stamp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from jetstream_sync.client.threads import Signal
from jetstream_sync.jetstream import heartbeat
from jetstream_sync.jetstream.heartbeat import HeartbeatMonitor, HeartbeatTimeout


class FakeTimers:
    """A clock that is set by the test, and timers that run when it reaches them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []
        self.armed: list[float] = []

    def start_timer(
        self,
        name: str,
        seconds: float,
        target: Callable[[], float | None],
        cancelled: Signal,
        crashed: Callable[[BaseException], None],
    ) -> None:
        assert name.startswith("heartbeat-")
        assert crashed is not None
        self.start(seconds, target, cancelled)

    def start(self, seconds: float, target: Callable[[], float | None], cancelled: Signal) -> None:
        self.timers.append(FakeTimer(self.now + seconds, target, cancelled))
        self.armed.append(seconds)

    def until(self, moment: float) -> None:
        while due := [timer for timer in self.timers if timer.at <= moment]:
            timer = min(due, key=lambda timer: timer.at)
            self.timers.remove(timer)
            self.now = timer.at
            if not timer.cancelled.is_set():
                seconds = timer.target()
                if seconds is not None and not timer.cancelled.is_set():
                    self.start(seconds, timer.target, timer.cancelled)
        self.now = moment


@dataclass
class FakeTimer:
    at: float
    target: Callable[[], float | None]
    cancelled: Signal


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> FakeTimers:
    timers = FakeTimers()
    monkeypatch.setattr(heartbeat, "start_timer", timers.start_timer)
    monkeypatch.setattr(heartbeat, "monotonic", lambda: timers.now)
    return timers


def _fail(error: BaseException) -> None:
    pytest.fail(f"the monitor raised {error!r}")


def monitor(timers: FakeTimers, seen: Callable[[], float]) -> tuple[HeartbeatMonitor, list[float]]:
    alarms: list[float] = []
    patience = HeartbeatTimeout(5.0, 3)
    watching = HeartbeatMonitor("C", patience, seen, lambda: alarms.append(timers.now), _fail)
    watching.start()
    return watching, alarms


def test_the_alarm_comes_after_three_intervals(timers):
    """Silence is reported after 3 intervals, and again after each further 3."""
    _, alarms = monitor(timers, lambda: 100.0)
    timers.until(114.9)
    assert alarms == []
    timers.until(150)
    assert alarms == [115, 130, 145]


def test_deliveries_postpone_the_report(timers):
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


def test_the_timer_runs_at_most_once_for_each_interval(timers):
    """However busy a consumer is, the timer runs about once in two intervals."""
    _, alarms = monitor(timers, lambda: timers.now - 0.001)
    timers.until(200)
    assert alarms == []
    assert len(timers.armed) <= 100 / 5
    assert min(timers.armed) >= 5


def test_stopped_is_stopped(timers):
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

    ended.append(HeartbeatMonitor("C", HeartbeatTimeout(5.0, 3), lambda: 100.0, end, _fail))
    ended[0].start()
    timers.until(300)
    assert len(timers.armed) == 2
