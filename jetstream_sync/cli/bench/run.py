"""Runs the work of ``jsm bench``: a connection and a thread for each client, and the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import Error
from ..status import CommandError, ExitStatus
from .work import Cell, Kind, Meter

if TYPE_CHECKING:
    from ... import Connection
    from ..settings import Settings

__all__ = ["Interrupted", "Outcome", "Share", "run_clients", "split"]

#: Seconds between two looks at how far the clients are.
_LOOK: Final = 0.1
#: Seconds that clients get to stop after a Ctrl-C, before their connections are closed.
_GOODBYE: Final = 2.0
#: Seconds until every client must stand ready to begin.
_READY: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one client did."""

    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What all clients did."""

    name: str
    kind: Kind
    size: int
    shares: tuple[Share, ...]
    seconds: float
    """From the first one's start to the last one's end."""
    latencies: Sequence[int]
    """Nanoseconds in ascending order."""

    @property
    def messages(self) -> int:
        """Of all clients."""
        return sum(share.messages for share in self.shares)

    @property
    def rate(self) -> float:
        """Messages a second, of all clients together."""
        return self.messages / self.seconds if self.seconds else 0.0


class Interrupted(KeyboardInterrupt):
    """
    Ctrl-C came while the clients worked.

    Args:
        outcome: what they had done by then.

    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class _Client:
    """One client: its connection, its thread, and what it measures."""

    def __init__(
        self, settings: Settings, nc: Connection, kind: Kind, cell: Cell, gate: threading.Barrier
    ) -> None:
        self.meter = Meter()
        self.nc = nc
        self.failure: BaseException | None = None
        # Not Thread.join(timeout): before CPython 3.13 a Ctrl-C in it marks a running thread as stopped.
        self.ended = threading.Event()
        self._gate = gate
        self._run = kind.start(nc, settings.jetstream_on(nc), cell, self.meter)
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

    def share(self) -> Share:
        """Return what it did."""
        meter = self.meter
        return Share(messages=meter.done, seconds=max(0.0, meter.ended - meter.started))


def run_clients(
    settings: Settings,
    name: str,
    kind: Kind,
    cells: Sequence[Cell],
    *,
    show: Callable[[int], Any],
    helped: Callable[[], AbstractContextManager[Callable[[], None]]],
) -> Outcome:
    """
    Let every client do its cell, all at the same time.

    Args:
        settings: has the login.
        name: of the kind of work.
        kind: of the work.
        cells: one for each client.
        show: called with the number of messages that are done, several times a second.
        helped: lends a function that is called when they have begun, and ends when they have ended.

    Raises:
        Interrupted: Ctrl-C; the clients have ended.
        CommandError, Error: why a client could not do its work.

    """
    with ExitStack() as open_ones:
        # All are connected by then: what is waited for is that threads get their turn.
        gate = threading.Barrier(len(cells) + 1, timeout=_READY)
        clients = [
            _Client(settings, open_ones.enter_context(settings.connection()), kind, cell, gate)
            for cell in cells
        ]
        for client in clients:
            client.thread.start()
        try:
            with helped() as begin:
                gate.wait()
                begin()
                _watch(clients, show)
        except KeyboardInterrupt:
            _stop(clients, gate)
            raise Interrupted(_outcome(name, kind, cells, clients)) from None
        except threading.BrokenBarrierError:
            _stop(clients, gate)
            late = f"the clients were not ready within {_READY:g} s"
            raise CommandError(late, ExitStatus.TIMED_OUT) from None
        except BaseException:
            _stop(clients, gate)
            raise
        _raise_failure(clients)
        return _outcome(name, kind, cells, clients)


def _watch(clients: Sequence[_Client], show: Callable[[int], Any]) -> None:
    """Wait until all clients have ended, or one has failed."""
    working = list(clients)
    while working:
        working[0].ended.wait(_LOOK)
        working = [client for client in working if not client.ended.is_set()]
        show(sum(client.meter.done for client in clients))
        _raise_failure(clients)


def _raise_failure(clients: Sequence[_Client]) -> None:
    for client in clients:
        if client.failure is not None:
            raise client.failure


def _stop(clients: Sequence[_Client], gate: threading.Barrier) -> None:
    gate.abort()
    for client in clients:
        client.meter.stopped = True
    give_up = time.monotonic() + _GOODBYE
    for client in clients:
        client.ended.wait(max(0.0, give_up - time.monotonic()))
    for client in clients:
        client.nc.close()
        client.ended.wait(_GOODBYE)


def _outcome(name: str, kind: Kind, cells: Sequence[Cell], clients: Sequence[_Client]) -> Outcome:
    meters = [client.meter for client in clients]
    started = min((meter.started for meter in meters if meter.started), default=0.0)
    ended = max((meter.ended for meter in meters), default=0.0)
    samples: list[int] = []
    for meter in meters:
        samples += meter.samples
    return Outcome(
        name=name,
        kind=kind,
        size=cells[0].size,
        shares=tuple(client.share() for client in clients),
        seconds=max(0.0, ended - started) if started else 0.0,
        latencies=sorted(samples),
    )


def split(cell: Cell, clients: int, *, each: bool) -> Iterator[Cell]:
    """
    Yield the cells of several clients.

    Args:
        cell: all of the work.
        clients: how many there are.
        each: whether each does all of it; else it is shared out.

    Raises:
        CommandError: there is less than a message for each.

    """
    if cell.count < clients:
        raise CommandError(f"{cell.count} messages for {clients} clients", ExitStatus.USAGE)
    for number in range(clients):
        extra = number < cell.count % clients
        count = cell.count if each else cell.count // clients + extra
        rate = cell.rate / clients if cell.rate is not None else None
        yield replace(cell, count=count, rate=rate)
