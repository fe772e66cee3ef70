"""Run and time the work of ``jsm bench``, with a connection and a thread for each client."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import Error, StreamNotFoundError
from ..output import note
from ..status import CommandError, ExitStatus
from .work import BenchKind, Meter, Workload

if TYPE_CHECKING:
    from ... import Connection
    from ..settings import Settings

_PROGRESS_INTERVAL_S: Final = 0.1
#: Time for the clients to stop by themselves before their connections are closed.
_STOP_TIMEOUT_S: Final = 2.0
#: Maximum time until every client thread is ready to start.
_READY_TIMEOUT_S: Final = 30.0


@contextlib.contextmanager
def prepared(settings: Settings, kind: BenchKind, workload: Workload) -> Iterator[None]:
    """Create the stream or bucket of the work, verify it at the end, and delete it however the block ends."""
    if kind.prepare is None:
        yield
        return
    with settings.jetstream() as js:
        try:
            kind.prepare(js, workload)
            yield
            found = js.get_stream(workload.name).cached_info.state.messages if kind.stores else 0
            if kind.stores and found != workload.count:
                raise CommandError(
                    f"the stream has {found:,} of {workload.count:,} messages", ExitStatus.FAILED
                )
        finally:
            # A Ctrl-C may interrupt the creation after the server has created the stream.
            # The name is generated, so the stream cannot belong to another program.
            for name in (workload.name, f"KV_{workload.name}"):
                try:
                    js.delete_stream(name)
                except StreamNotFoundError:
                    pass
                except Error as error:
                    note(settings, f"warning: stream {name} could not be deleted: {error}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of all clients."""

    #: Number of messages of each client.
    messages: Sequence[int]
    #: From the start of the first client to the end of the last one.
    seconds: float
    #: Latencies in nanoseconds.
    samples: list[int]

    @property
    def total(self) -> int:
        """Number of messages of all clients together."""
        return sum(self.messages)

    @property
    def rate(self) -> float:
        """Messages per second of all clients together."""
        return self.total / self.seconds if self.seconds else 0.0


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed while the clients worked."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class _Client:
    """One client: its connection, its thread and its measurements."""

    def __init__(
        self,
        settings: Settings,
        nc: Connection,
        kind: BenchKind,
        workload: Workload,
        gate: threading.Barrier,
    ) -> None:
        self.meter = Meter()
        self.nc = nc
        self.failure: Exception | None = None
        # Not Thread.join(timeout): before CPython 3.13 a Ctrl-C in it marks a running thread as stopped.
        self.ended = threading.Event()
        self._gate = gate
        self._run = kind.start(nc, settings.jetstream_on(nc), workload, self.meter)
        self.thread = threading.Thread(target=self._work, name="jsm-bench", daemon=True)

    def _work(self) -> None:
        meter = self.meter
        try:
            self._gate.wait()
            meter.started = time.monotonic()
            self._run()
        except (Error, CommandError, threading.BrokenBarrierError) as error:
            self.failure = error
        finally:
            meter.ended = time.monotonic()
            self.ended.set()


def run_clients(
    settings: Settings,
    kind: BenchKind,
    workloads: Sequence[Workload],
    show: Callable[[int], Any],
) -> Outcome:
    """Run all clients at the same time, each with its workload."""
    with ExitStack() as connections:
        # The clients are connected at this point; only the start of their threads takes time.
        gate = threading.Barrier(len(workloads) + 1, timeout=_READY_TIMEOUT_S)
        clients = [
            _Client(
                settings, connections.enter_context(settings.connection()), kind, workload, gate
            )
            for workload in workloads
        ]
        try:
            for client in clients:
                client.thread.start()
            gate.wait()
            _watch(clients, show)
        except KeyboardInterrupt:
            _stop(clients, gate)
            raise Interrupted(_outcome(clients)) from None
        except threading.BrokenBarrierError:
            _stop(clients, gate)
            late = f"the clients were not ready within {_READY_TIMEOUT_S:g} s"
            raise CommandError(late, ExitStatus.TIMED_OUT) from None
        except BaseException:
            _stop(clients, gate)
            raise
        return _outcome(clients)


def _watch(clients: Sequence[_Client], show: Callable[[int], Any]) -> None:
    """Wait until all clients have ended; raise the error of a client that failed."""
    working = list(clients)
    while working:
        working[0].ended.wait(_PROGRESS_INTERVAL_S)
        working = [client for client in working if not client.ended.is_set()]
        show(sum(client.meter.done for client in clients))
        for client in clients:
            if client.failure is not None:
                raise client.failure


def _stop(clients: Sequence[_Client], gate: threading.Barrier) -> None:
    gate.abort()
    for client in clients:
        client.meter.stopped = True
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for client in clients:
        client.ended.wait(max(0.0, deadline - time.monotonic()))
    for client in clients:
        client.nc.close()
        client.ended.wait(_STOP_TIMEOUT_S)


def _outcome(clients: Sequence[_Client]) -> Outcome:
    meters = [client.meter for client in clients]
    started = min((meter.started for meter in meters if meter.started), default=0.0)
    ended = max(meter.ended for meter in meters)
    return Outcome(
        messages=[meter.done for meter in meters],
        seconds=max(0.0, ended - started) if started else 0.0,
        samples=[sample for meter in meters for sample in meter.samples],
    )


def split(workload: Workload, clients: int, *, each: bool) -> Iterator[Workload]:
    """Yield the workload of each client: a part of the work, or with ``each`` all of it."""
    if workload.count < clients:
        raise CommandError(
            f"--msgs {workload.count} is too few for {clients} clients: each needs at least one message"
        )
    for number in range(clients):
        extra = number < workload.count % clients
        count = workload.count if each else workload.count // clients + extra
        rate = workload.rate / clients if workload.rate is not None else None
        yield replace(workload, count=count, rate=rate)
