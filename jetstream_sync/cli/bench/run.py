"""
Run and time the work of ``jsm bench``, with a connection and a thread for each client.

The stream and the consumer of a measurement are created before it and deleted after it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import Error, StreamNotFoundError
from ...net.clock import Deadline
from ..interruptible import pause
from ..status import CommandError, ExitStatus
from .work import BenchKind, Meter, Workload

if TYPE_CHECKING:
    from ... import Connection, JetStream
    from ..settings import Settings

_CONSUMER = "bench"
#: Maximum time for the server to process the last acknowledgements.
_ACKS_TIMEOUT_S = 10.0
_ACKS_POLL_INTERVAL_S = 0.05
_FILL_TIMEOUT_S = 120.0
#: Longer than any run: a message that a client has pulled and not read yet is not redelivered.
_ACK_WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class BenchStream:
    """A subject to publish to, and for some kinds of work a stream that stores it."""

    js: JetStream
    subject: str
    stream: str = ""
    consumer: str = ""

    def prepare(
        self, kind: BenchKind, messages: int, size: int, filled: Callable[[int], Any]
    ) -> None:
        """
        Bring the stream into the state that a kind of work needs; do nothing without a stream.

        Args:
            kind: the kind of work.
            messages: number of messages that the stream must hold if the work reads it.
            size: size of each message in bytes.
            filled: called regularly with the number of messages published so far.

        """
        if not self.stream:
            return
        stream = self.js.get_stream(self.stream)
        # Filling takes longer than reading, so the next kind of work reuses the messages.
        if not kind.reads:
            stream.purge()
        elif stream.info().state.messages != messages:
            stream.purge()
            _fill(self.js, self.subject, messages, size, filled)
        if kind.shares_consumer:
            with contextlib.suppress(Error):
                stream.delete_consumer(_CONSUMER)
            stream.create_consumer(
                durable_name=_CONSUMER,
                ack_policy="explicit",
                max_ack_pending=-1,
                ack_wait=_ACK_WAIT_S,
            )

    def verify(self, kind: BenchKind, messages: int) -> None:
        """
        Check on the server that the stream or its consumer processed every message.

        Raises:
            CommandError: messages are missing, not delivered or not acknowledged.

        """
        if not kind.needs_stream:
            return
        stream = self.js.get_stream(self.stream)
        found = stream.cached_info.state.messages
        if not kind.reads and found != messages:
            raise CommandError(
                f"the stream has {found:,} of {messages:,} messages", ExitStatus.FAILED
            )
        if not kind.shares_consumer:
            return
        consumer = stream.get_consumer(_CONSUMER)
        deadline = Deadline(_ACKS_TIMEOUT_S)
        while consumer.info().num_ack_pending and not deadline.expired():
            pause(_ACKS_POLL_INTERVAL_S)
        info = consumer.cached_info
        if info.num_ack_pending or info.num_pending:
            raise CommandError(
                f"{info.num_pending:,} messages were not delivered, "
                f"{info.num_ack_pending:,} not acknowledged",
                ExitStatus.FAILED,
            )


def _fill(
    js: JetStream, subject: str, messages: int, size: int, filled: Callable[[int], Any]
) -> None:
    payload = b"x" * size
    for number in range(messages):
        js.publish_async(subject, payload)
        if number % 1000 == 0:
            filled(number)
    js.publish_async_completed(_FILL_TIMEOUT_S)


@contextlib.contextmanager
def bench_stream(
    js: JetStream,
    *,
    needs_stream: bool,
    storage: str,
    replicas: int,
    subject: str | None,
    warn: Callable[[str], Any],
) -> Iterator[BenchStream]:
    """
    Create a stream with a generated name, and delete it however the block ends.

    Args:
        js: the context to create the stream with.
        needs_stream: create no stream if false.
        storage: ``memory`` or ``file``.
        replicas: number of replicas of the stream.
        subject: the subject if there is no stream; ``None`` generates one.
        warn: called with a line if the stream cannot be deleted.

    """
    own = uuid.uuid4().hex[:12]
    if not needs_stream:
        yield BenchStream(js=js, subject=subject or f"jsm.bench.{own}")
        return
    name = f"JSM_BENCH_{own}"
    try:
        js.create_stream(
            name=name,
            subjects=[f"jsm.bench.{own}"],
            storage=storage,
            num_replicas=replicas,
            description="temporary stream of jsm bench",
        )
        yield BenchStream(js=js, subject=f"jsm.bench.{own}", stream=name, consumer=_CONSUMER)
    finally:
        # A Ctrl-C may interrupt create_stream() after the server has created the stream.
        # The name is generated, so the stream cannot belong to another program.
        try:
            js.delete_stream(name)
        except StreamNotFoundError:
            pass
        except Error as error:
            warn(f"stream {name} could not be deleted: {error}")


_PROGRESS_INTERVAL_S: Final = 0.1
#: Time for the clients to stop by themselves before their connections are closed.
_STOP_TIMEOUT_S: Final = 2.0
#: Maximum time until every client thread is ready to start.
_READY_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class ClientResult:
    """The result of one client."""

    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of all clients."""

    name: str
    kind: BenchKind
    size: int
    clients: tuple[ClientResult, ...]
    seconds: float
    """From the start of the first client to the end of the last one."""
    latencies: Sequence[int]
    """In nanoseconds, in ascending order."""

    @property
    def messages(self) -> int:
        """Number of messages of all clients together."""
        return sum(each.messages for each in self.clients)

    @property
    def rate(self) -> float:
        """Messages per second of all clients together."""
        return self.messages / self.seconds if self.seconds else 0.0


class Interrupted(KeyboardInterrupt):
    """
    Ctrl-C was pressed while the clients worked.

    Args:
        outcome: the result up to that time.

    """

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
        self.failure: BaseException | None = None
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

    def result(self) -> ClientResult:
        """Return the result of this client."""
        meter = self.meter
        return ClientResult(messages=meter.done, seconds=max(0.0, meter.ended - meter.started))


def run_clients(
    settings: Settings,
    name: str,
    kind: BenchKind,
    workloads: Sequence[Workload],
    *,
    show: Callable[[int], Any],
    helper: Callable[[], AbstractContextManager[Callable[[], None]]],
) -> Outcome:
    """
    Run all clients at the same time, each with its workload.

    Args:
        settings: provides the login.
        name: the name of the kind of work.
        kind: the kind of work.
        workloads: one for each client.
        show: called several times per second with the number of processed messages.
        helper: returns a context manager that is open while the clients work. It yields a function
            that is called when they start.

    Raises:
        Interrupted: Ctrl-C was pressed; the clients have stopped.
        CommandError, Error: the first error of a client.

    """
    with ExitStack() as connections:
        # The clients are connected at this point; only the start of their threads takes time.
        gate = threading.Barrier(len(workloads) + 1, timeout=_READY_TIMEOUT_S)
        clients = [
            _Client(
                settings, connections.enter_context(settings.connection()), kind, workload, gate
            )
            for workload in workloads
        ]
        for client in clients:
            client.thread.start()
        try:
            with helper() as begin:
                gate.wait()
                begin()
                _watch(clients, show)
        except KeyboardInterrupt:
            _stop(clients, gate)
            raise Interrupted(_outcome(name, kind, workloads, clients)) from None
        except threading.BrokenBarrierError:
            _stop(clients, gate)
            late = f"the clients were not ready within {_READY_TIMEOUT_S:g} s"
            raise CommandError(late, ExitStatus.TIMED_OUT) from None
        except BaseException:
            _stop(clients, gate)
            raise
        _raise_failure(clients)
        return _outcome(name, kind, workloads, clients)


def _watch(clients: Sequence[_Client], show: Callable[[int], Any]) -> None:
    """Wait until all clients have ended; raise the error of a client that failed."""
    working = list(clients)
    while working:
        working[0].ended.wait(_PROGRESS_INTERVAL_S)
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
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for client in clients:
        client.ended.wait(max(0.0, deadline - time.monotonic()))
    for client in clients:
        client.nc.close()
        client.ended.wait(_STOP_TIMEOUT_S)


def _outcome(
    name: str, kind: BenchKind, workloads: Sequence[Workload], clients: Sequence[_Client]
) -> Outcome:
    meters = [client.meter for client in clients]
    started = min((meter.started for meter in meters if meter.started), default=0.0)
    ended = max((meter.ended for meter in meters), default=0.0)
    samples: list[int] = []
    for meter in meters:
        samples += meter.samples
    return Outcome(
        name=name,
        kind=kind,
        size=workloads[0].size,
        clients=tuple(client.result() for client in clients),
        seconds=max(0.0, ended - started) if started else 0.0,
        latencies=sorted(samples),
    )


def split(workload: Workload, clients: int, *, each: bool) -> Iterator[Workload]:
    """
    Yield the workload of each client.

    Args:
        workload: the whole work.
        clients: the number of clients.
        each: give the whole work to each client, instead of dividing it.

    Raises:
        CommandError: there are fewer messages than clients.

    """
    if workload.count < clients:
        raise CommandError(
            f"--msgs {workload.count} is too few for {clients} clients: each needs at least one message",
            ExitStatus.USAGE,
        )
    for number in range(clients):
        extra = number < workload.count % clients
        count = workload.count if each else workload.count // clients + extra
        rate = workload.rate / clients if workload.rate is not None else None
        yield replace(workload, count=count, rate=rate)
