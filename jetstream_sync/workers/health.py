"""
Health of a worker: whether it is alive and ready, over HTTP and to systemd.

A worker is *alive* unless a restart would help: a thread of the runtime has ended, every slot of a
handler is over its timeout, or the connection is closed for good. It stays alive while the server is
away. It is *ready* while it handles messages: connected, requesting messages from consumers that fit
their handlers, and not stopping.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from .http_server import HttpServer, Response
from .leases import LeaseKeeper, lease_clock
from .logs import log
from .metrics import (
    CONTENT_TYPE,
    GaugeSnapshot,
    HandlerSnapshot,
    Snapshot,
    combined,
    counts_of,
    metrics_text,
)
from .observer import Observer
from .spawn import spawn

if TYPE_CHECKING:
    from .. import Connection
    from .threads import HandlerThreads

#: Seconds without a check of the leases after which the worker is not alive. A check may wait for the
#: answer to a ping for a part of the shortest lease.
_MAX_LEASE_CHECK_S: Final = 30.0
#: Seconds to wait for the end of the server's thread.
_CLOSE_TIMEOUT_S: Final = 1.0


class Monitor:
    """
    Health and numbers of one run of a worker.

    Args:
        observer: the observer of the run.
        gauges: returns other numbers of the worker.

    Any thread may call `snapshot`.
    """

    def __init__(self, observer: Observer, gauges: Callable[[], list[GaugeSnapshot]]) -> None:
        self._observer = observer
        self._gauges = gauges
        #: ``starting``, ``running``, ``stopping`` or ``stopped``.
        self.phase: str = "starting"
        self._nc: Connection | None = None
        self._pools: Sequence[HandlerThreads] = ()
        self._services: Mapping[str, threading.Thread] = {}
        self._keeper: LeaseKeeper | None = None

    def attach(
        self,
        nc: Connection,
        keeper: LeaseKeeper,
        pools: Sequence[HandlerThreads],
        services: Mapping[str, threading.Thread],
    ) -> None:
        """
        Watch the parts of a worker that runs.

        Args:
            nc: the connection.
            keeper: the keeper of the leases.
            pools: the threads of the handlers.
            services: threads that run until the worker stops, by what they do.

        """
        keeper.checked_at = lease_clock()  # it may have waited long for the server
        self._nc, self._keeper, self._pools, self._services = nc, keeper, pools, services

    def not_live(self) -> list[str]:
        """Return the reasons why the process should be restarted; empty: it is alive."""
        if self._nc is None or self.phase == "stopped":
            return []
        found = [
            f"the thread that {what} has ended"
            for what, thread in self._services.items()
            if not thread.is_alive()
        ]
        if self._keeper is not None:
            limit = _MAX_LEASE_CHECK_S + max(each.shortest_wait for each in self._pools)
            idle = lease_clock() - self._keeper.checked_at
            if idle > limit:
                found.append(f"leases were not checked for {idle:.0f} s")
        for pool in self._pools:
            state = pool.state()
            if pool.is_stuck:
                found.append(f"{pool.handler.name}: all {state.slots} threads exceed the timeout")
            if not state.pull_alive and self.phase == "running":
                found.append(f"{pool.handler.name}: the thread that pulls messages has ended")
        if self._nc.is_closed:
            found.append("the connection is closed")
        return found

    def not_ready(self) -> list[str]:
        """Return the reasons why no messages are handled; empty: they are."""
        if self.phase != "running":
            return [f"the worker is {self.phase}"]
        found = self.not_live()
        if self._nc is not None and not self._nc.is_connected:
            found.append("the server is not connected")
        found += [
            f"{pool.handler.name}: cannot pull: {pool.pull_error}"
            for pool in self._pools
            if pool.pull_error
        ]
        found += [
            f"{pool.handler.name}: {each}" for pool in self._pools for each in pool.watch.mismatches
        ]
        return found

    def snapshot(self) -> Snapshot:
        """Return health and numbers of this process."""
        return {
            "not_live": self.not_live(),
            "not_ready": self.not_ready(),
            "handlers": [self._handler(pool) for pool in self._pools],
            "gauges": self._gauges(),
        }

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshot of the only process."""
        return [self.snapshot()]

    def metrics(self) -> str:
        """Return the text of the metrics."""
        return metrics_text(self.snapshots())

    def _handler(self, pool: HandlerThreads) -> HandlerSnapshot:
        handler, state, info = pool.handler, pool.state(), pool.info
        observer = self._observer.handler(handler)
        total = observer.total()
        return {
            "handler": handler.name,
            "stream": handler.stream,
            "consumer": handler.consumer,
            "counts": total.counts,
            "duration": combined(total.duration),
            "wait": combined(total.wait),
            "age": combined(total.age),
            "last_success": total.last_success or None,
            "running": state.running,
            "buffered": state.buffered,
            "paused": state.paused,
            "slots": state.slots,
            "delayed": observer.delayed,
            "pending": None if info is None else info.num_pending,
            "ack_pending": None if info is None else info.num_ack_pending,
            "mismatches": len(pool.watch.mismatches),
        }


class Processes:
    """
    Health and numbers of the processes of a supervisor.

    What an ended process has counted stays in the metrics: a counter must not fall.

    Args:
        expected: the number of processes that should handle messages.

    Any thread may call the methods.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._systemd = SystemdNotifier()
        self._lock = threading.Lock()
        # --- under _lock ---
        self._current: dict[int, Snapshot] = {}
        self._ended: dict[tuple[str, str, str], HandlerSnapshot] = {}
        self._ends = 0
        self._was_ready = False

    def report(self, number: int, snapshot: Snapshot) -> None:
        """Use a new snapshot of a process."""
        with self._lock:
            self._current[number] = snapshot
        if not self._was_ready and not self.not_ready():
            self._was_ready = True
            self._systemd.notify("READY=1")
        self._systemd.watchdog(lambda: not self.not_live())

    def stop(self) -> None:
        """Report to systemd that the supervisor is stopping."""
        self._systemd.notify("STOPPING=1")

    def end(self, number: int) -> None:
        """Keep only the counters of a process."""
        with self._lock:
            self._ends += 1
            last = self._current.pop(number, None)
            for each in () if last is None else last["handlers"]:
                key = (each["handler"], each["stream"], each["consumer"])
                before = [self._ended[key]] if key in self._ended else []
                self._ended[key] = counts_of([*before, each])

    def not_live(self) -> list[str]:
        """Return the reasons why the worker should be restarted."""
        with self._lock:
            return [
                f"process {number}: {reason}"
                for number, snapshot in self._current.items()
                for reason in snapshot["not_live"]
            ]

    def not_ready(self) -> list[str]:
        """Return the reasons why fewer processes than expected handle messages."""
        with self._lock:
            reasons = {number: each["not_ready"] for number, each in self._current.items()}
        ready = sum(not each for each in reasons.values())
        # While a process is being replaced there is one more.
        if ready >= self._expected:
            return []
        return [
            f"{ready} of {self._expected} processes handle messages",
            *(f"process {number}: {each}" for number, found in reasons.items() for each in found),
        ]

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots of all processes that run."""
        with self._lock:
            return list(self._current.values())

    def metrics(self) -> str:
        """Return the metrics of all processes together, also of those that have ended."""
        with self._lock:
            ended: Snapshot = {
                "not_live": [],
                "not_ready": [],
                "handlers": list(self._ended.values()),
                "gauges": [],
            }
            return metrics_text([*self._current.values(), ended], self._ends)


class _Source(Protocol):
    """What a `MonitoringServer` serves: a worker in this process, or several processes."""

    def not_live(self) -> list[str]:
        """Return the reasons for a failure of ``/livez``."""

    def not_ready(self) -> list[str]:
        """Return the reasons for a failure of ``/readyz``."""

    def snapshots(self) -> list[Snapshot]:
        """Return a snapshot of each process."""

    def metrics(self) -> str:
        """Return the text of ``/metrics``."""


class MonitoringServer(HttpServer):
    """
    Health checks and metrics over HTTP: ``/livez``, ``/readyz`` and ``/metrics``.

    Args:
        address: ``HOST:PORT``.
        source: what it serves.

    Raises:
        InvalidOptionError: the address has another form.
        OSError: the address cannot be used.

    """

    def __init__(self, address: str, source: _Source) -> None:
        self._source = source
        super().__init__(address, self._route)

    @contextmanager
    def serving(self, name: str) -> Iterator[None]:
        """
        Serve for the duration of a block.

        Args:
            name: what is served, for the log.

        """
        log.info("%s serves health checks and metrics at %s", name, self.url)
        thread = spawn("worker-http", self.run, lambda _error: None)
        try:
            yield
        finally:
            self.close()
            thread.join(_CLOSE_TIMEOUT_S)

    def _route(self, path: str, verbose: bool) -> Response:
        try:
            if path == "/livez":
                return self._health(self._source.not_live(), verbose=verbose)
            if path == "/readyz":
                return self._health(self._source.not_ready(), verbose=verbose)
            if path == "/metrics":
                return Response(200, self._source.metrics(), CONTENT_TYPE)
        except Exception:
            log.exception("the answer to %s failed", path)
            return Response(500, "internal error, see the log\n")
        return Response(404, "use /livez, /readyz or /metrics\n")

    def _health(self, reasons: list[str], *, verbose: bool) -> Response:
        status = 503 if reasons else 200
        if not verbose:
            return Response(status, "".join(f"{reason}\n" for reason in reasons) or "ok\n")
        histograms = {"duration", "wait", "age"}
        document = {
            "status": "failed" if reasons else "ok",
            "reasons": reasons,
            "processes": [
                [
                    {name: value for name, value in handler.items() if name not in histograms}
                    for handler in snapshot["handlers"]
                ]
                for snapshot in self._source.snapshots()
            ],
        }
        return Response(status, json.dumps(document, indent=2) + "\n", "application/json")


class SystemdNotifier:
    """
    Reports to systemd, if the environment asks for it, as the units ``Type=notify`` do.

    Args:
        environment: has ``NOTIFY_SOCKET``, and ``WATCHDOG_USEC`` if there is a watchdog.

    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        #: An abstract address starts with a zero byte, which the variable has as "@".
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._interval = 0.0
        self._due = 0.0
        own = environment.get("WATCHDOG_PID") in {None, str(os.getpid())}
        with suppress(ValueError):
            if own:
                self._interval = int(environment.get("WATCHDOG_USEC", "0")) / 2e6

    def notify(self, state: str) -> None:
        """Send a state, such as ``READY=1``; without systemd, or if it does not listen, do nothing."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(state.encode(), self._address)

    def watchdog(self, is_live: Callable[[], bool]) -> None:
        """Reset the watchdog if that is due and the worker is alive."""
        if not self._interval or not self._address:
            return
        now = time.monotonic()
        if now >= self._due and is_live():
            self._due = now + self._interval
            self.notify("WATCHDOG=1")
