"""
Health of a worker: whether it is alive and ready, for HTTP (``/livez``, ``/readyz`` and ``/metrics``) and systemd.

A worker is *alive* unless a restart would help: a thread of the runtime has ended, every slot of a
handler is over its timeout, or the connection is closed for good. It stays alive while the server is
unavailable. It is *ready* while it handles messages: connected, requesting messages from consumers that fit
their handlers, and not stopping.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from ...locks import new_lock
from ...net.clock import FOREVER, Deadline
from ..deliveries import LeaseKeeper, lease_clock
from ..metrics import (
    GaugeSnapshot,
    HandlerSnapshot,
    Snapshot,
    counts_of,
    handler_snapshots,
    metrics_text,
)

if TYPE_CHECKING:
    from ..runtime.threads import Runner

#: Seconds without a check of the leases after which the worker is not alive. A check may wait for the
#: reply to a ping for a part of the shortest lease.
_MAX_LEASE_CHECK_S: Final = 30.0
#: Seconds without a report after which a process does not count as ready: it reports every second.
_SILENCE_S: Final = 5.0


class WorkerPhase(Enum):
    """What a worker, or a supervisor, is doing; the value is shown to users."""

    STARTING = "starting"
    """It waits for the server, or its threads start."""
    RUNNING = "running"
    """Messages are handled."""
    STOPPING = "stopping"
    """The handlers end."""
    STOPPED = "stopped"
    """They have ended."""


#: What systemd is told in these phases.
_SYSTEMD_STATES: Final = {WorkerPhase.STARTING: "", WorkerPhase.RUNNING: "READY=1"}


class HealthSource:
    """
    What the views of a worker's health show: `MonitoringServer`, and systemd.

    systemd is told here, if the environment asks for it, as by the units with ``Type=notify``.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        #: Reported by `tell_systemd`; a phase never follows a later one.
        self.phase: WorkerPhase = WorkerPhase.STARTING
        path = environment.get("NOTIFY_SOCKET", "")
        # An abstract address starts with a zero byte, which the variable has as "@".
        self._socket = f"\0{path[1:]}" if path.startswith("@") else path
        #: The last state that systemd was told.
        self._told = ""
        self._watchdog_s = 0.0
        self._watchdog_at = FOREVER
        with suppress(KeyError, ValueError):
            if environment.get("WATCHDOG_PID") in {None, str(os.getpid())}:
                self._watchdog_s = int(environment["WATCHDOG_USEC"]) / 2e6
                self._watchdog_at = Deadline(0)

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, or has stopped."""
        return self.phase in {WorkerPhase.STOPPING, WorkerPhase.STOPPED}

    def not_live(self) -> list[str]:
        """Return the reasons why the process should be restarted; empty: it is alive."""
        raise NotImplementedError

    def enter(self, phase: WorkerPhase) -> None:
        """Begin a phase."""
        self.phase = phase

    def tell_systemd(self) -> None:
        """Report a new state, and reset the watchdog if that is due and the worker is alive; call it often."""
        if not self._socket:
            return
        state = _SYSTEMD_STATES.get(self.phase, "STOPPING=1")
        if state != self._told:
            self._told = state
            self._notify(state)
        if self._watchdog_at.expired() and not self.not_live():
            self._watchdog_at = Deadline(self._watchdog_s)
            self._notify("WATCHDOG=1")

    def _notify(self, state: str) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(state.encode(), self._socket)


class Monitor(HealthSource):
    """Health and numbers of one run of a worker."""

    def __init__(
        self, gauges: Callable[[], list[GaugeSnapshot]], environment: Mapping[str, str]
    ) -> None:
        super().__init__(environment)
        self._gauges = gauges
        # What renews the leases of a worker that runs, and its thread.
        self._keeper: LeaseKeeper | None = None
        self._thread: threading.Thread
        #: The handlers of a worker that runs.
        self.runners: Sequence[Runner] = ()

    def attach(
        self, keeper: LeaseKeeper, runners: Sequence[Runner], thread: threading.Thread
    ) -> None:
        """Watch the parts of a worker that runs."""
        keeper.checked_at = lease_clock()  # it may have waited long for the server
        self.runners, self._thread, self._keeper = runners, thread, keeper

    def not_live(self) -> list[str]:
        """Return the reasons why the process should be restarted; empty: it is alive."""
        if self._keeper is None or self.phase is WorkerPhase.STOPPED:
            return []
        found = []
        if not self._thread.is_alive():
            found.append("the thread that renews leases has ended")
        longest = max(runner.consumer.times.shortest for runner in self.runners)
        idle = lease_clock() - self._keeper.checked_at
        if idle > _MAX_LEASE_CHECK_S + longest:
            found.append(f"leases were not checked for {idle:.0f} s")
        for runner in self.runners:
            name, threads = runner.source.name, runner.source.concurrency
            if runner.is_stuck:
                found.append(f"{name}: all {threads} threads exceed the timeout")
            if not runner.pull_alive and self.phase is WorkerPhase.RUNNING:
                found.append(f"{name}: the thread that pulls messages has ended")
        if self._keeper.nc.is_closed:
            found.append("the connection is closed")
        return found

    def not_ready(self) -> list[str]:
        """Return the reasons why no messages are handled; empty: they are."""
        if self.phase is not WorkerPhase.RUNNING:
            return [f"the worker is {self.phase.value}"]
        found = self.not_live()
        if self._keeper is not None and not self._keeper.nc.is_connected:
            found.append("the server is not connected")
        found += [
            f"{runner.source.name}: cannot pull: {runner.puller.error}"
            for runner in self.runners
            if runner.puller.error
        ]
        found += [
            f"{runner.source.name}: {mismatch}"
            for runner in self.runners
            for mismatch in runner.consumer.mismatches
        ]
        return found

    def snapshot(self) -> Snapshot:
        """Return health and numbers of this process."""
        return {
            "not_live": self.not_live(),
            "not_ready": self.not_ready(),
            "handlers": [item for runner in self.runners for item in handler_snapshots(runner)],
            "gauges": self._gauges(),
        }

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshot of the only process."""
        return [self.snapshot()]

    def metrics(self, *, openmetrics: bool = False) -> str:
        """Return the text of the metrics."""
        return metrics_text(self.snapshots(), openmetrics=openmetrics)


class Processes(HealthSource):
    """
    Health and numbers of the processes of a supervisor.

    What an ended process has counted stays in the metrics: a counter must not fall.
    """

    def __init__(self, expected: int) -> None:
        super().__init__(os.environ)
        self._expected = expected
        self._lock = new_lock()
        # --- under _lock ---
        # The last snapshots, and when each of them came, by the monotonic clock.
        self._current: dict[int, tuple[Snapshot, float]] = {}
        self._ended: dict[tuple[str, str, str], HandlerSnapshot] = {}
        self._ends = 0

    def report(self, number: int, snapshot: Snapshot) -> None:
        """Use a new snapshot of a process."""
        with self._lock:
            self._current[number] = snapshot, time.monotonic()
        if self.phase is WorkerPhase.STARTING and not self.not_ready():
            self.enter(WorkerPhase.RUNNING)

    def stop(self) -> None:
        """Report that the supervisor is stopping."""
        self.enter(WorkerPhase.STOPPING)
        self.tell_systemd()

    def end(self, number: int) -> None:
        """Keep only the counters of a process."""
        with self._lock:
            self._ends += 1
            last = self._current.pop(number, None)
            for item in () if last is None else last[0]["handlers"]:
                key = (item["handler"], item["stream"], item["consumer"])
                before = [self._ended[key]] if key in self._ended else []
                self._ended[key] = counts_of([*before, item])

    def not_live(self) -> list[str]:
        """Return the reasons why the worker should be restarted."""
        with self._lock:
            return [
                f"process {number}: {reason}"
                for number, (snapshot, _) in self._current.items()
                for reason in snapshot["not_live"]
            ]

    def not_ready(self) -> list[str]:
        """Return the reasons why fewer processes than expected handle messages."""
        with self._lock:
            reasons = {}
            for number, (snapshot, heard_at) in self._current.items():
                found = reasons[number] = [*snapshot["not_ready"]]
                silence = time.monotonic() - heard_at
                if silence > _SILENCE_S:
                    found.append(f"it has reported nothing for {silence:.0f} s")
        ready = sum(not reason for reason in reasons.values())
        # While a process is being replaced there is one more.
        if ready >= self._expected:
            return []
        return [
            f"{ready} of {self._expected} processes handle messages",
            *(f"process {number}: {item}" for number, found in reasons.items() for item in found),
        ]

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots of all processes that run."""
        with self._lock:
            return [snapshot for snapshot, _ in self._current.values()]

    def metrics(self, *, openmetrics: bool = False) -> str:
        """Return the metrics of all processes together, also of those that have ended."""
        with self._lock:  # a process that ends is not counted twice
            snapshots = [snapshot for snapshot, _ in self._current.values()]
            handlers = list(self._ended.values())
            snapshots.append({"not_live": [], "not_ready": [], "handlers": handlers, "gauges": []})
            return metrics_text(snapshots, self._ends, openmetrics=openmetrics)
