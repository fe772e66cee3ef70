"""
Health of a worker: whether it is alive and ready, over HTTP and to systemd.

A worker is *alive* unless a restart would help: a thread of the runtime has ended, every slot of a
handler is over its timeout, or the connection is closed for good. It stays alive while the server is
away. It is *ready* while it handles messages: connected, requesting messages, and not stopping.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from .http_server import HttpServer, Response
from .leases import LeaseKeeper, lease_clock
from .logs import log
from .metrics import CONTENT_TYPE, HandlerSnapshot, Snapshot, combined, metrics_text
from .observer import Observer

if TYPE_CHECKING:
    from .. import Connection
    from .threads import HandlerThreads

__all__ = ["Monitor", "MonitoringServer", "SystemdNotifier"]

#: Seconds without a check of the leases after which the worker is not alive. A check may wait for the
#: answer to a ping for a part of the shortest lease.
_MAX_LEASE_CHECK_S: Final = 30.0


class Monitor:
    """
    Health and numbers of one run of a worker.

    Args:
        observer: the observer of the run.

    Any thread may call `snapshot`.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
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
        self.phase = "running"

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
            if state.stuck >= state.slots:
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
        found = []
        if self._nc is not None and not self._nc.is_connected:
            found.append("the server is not connected")
        found += [
            f"{pool.handler.name}: cannot pull: {pool.pull_error}"
            for pool in self._pools
            if pool.pull_error
        ]
        return found

    def snapshot(self) -> Snapshot:
        """Return health and numbers of this process."""
        not_live = self.not_live()
        return {
            "not_live": not_live,
            "not_ready": not_live + self.not_ready(),
            "handlers": [self._handler(pool) for pool in self._pools],
        }

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
            "slots": state.slots,
            "delayed": observer.delayed,
            "pending": None if info is None else info.num_pending,
            "ack_pending": None if info is None else info.num_ack_pending,
        }


class MonitoringServer(HttpServer):
    """
    Health checks and metrics over HTTP: ``/livez``, ``/readyz`` and ``/metrics``.

    Args:
        address: ``HOST:PORT``.
        snapshots: returns the snapshots of all processes of the worker. It must not block.
        restarts: returns how many processes were replaced; ``None``: there is no supervisor.

    Raises:
        InvalidOptionError: the address has another form.
        OSError: the address cannot be used.

    """

    def __init__(
        self,
        address: str,
        snapshots: Callable[[], Sequence[Snapshot]],
        restarts: Callable[[], int] | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._restarts = restarts
        super().__init__(address, self._route)

    def _route(self, path: str, verbose: bool) -> Response:
        if path not in {"/livez", "/readyz", "/metrics"}:
            return Response(404, "use /livez, /readyz or /metrics\n")
        try:
            snapshots = self._snapshots()
            if path == "/metrics":
                restarts = None if self._restarts is None else self._restarts()
                return Response(200, metrics_text(snapshots, restarts), CONTENT_TYPE)
            return _health(path, snapshots, verbose=verbose)
        except Exception:
            log.exception("the answer to %s failed", path)
            return Response(500, "internal error, see the log\n")


def _health(path: str, snapshots: Sequence[Snapshot], *, verbose: bool) -> Response:
    key = "not_live" if path == "/livez" else "not_ready"
    reasons = [
        reason if len(snapshots) == 1 else f"process {number}: {reason}"
        for number, snapshot in enumerate(snapshots, 1)
        for reason in snapshot[key]  # type: ignore[literal-required]
    ]
    if not snapshots:
        reasons = ["no process runs"] if key == "not_ready" else []
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
            for snapshot in snapshots
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
