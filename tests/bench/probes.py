"""The probes of ``limits``: each takes a server's address and a scale, and returns measures."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import jetstream_sync
from jetstream_sync import AckPolicy, Connection, ConsumerConfig, JetStream, PullConsumer
from jetstream_sync.options import TLSOptions
from jetstream_sync.server import NatsServer
from jetstream_sync.server.runtime import reserve_port

from .clients import ROOT
from .rows import MESSAGE_BYTES
from .verifier import NotDoneError, Verifier

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as PipeConnection

__all__ = ["PROBES", "SCALING", "Measure"]

_STREAM = "JETSTREAM_SYNC_LIMITS"
_SUBJECT = "jetstream_sync_limits.message"
_CONSUMER = "reader"
_TIMEOUT = 60.0

_BLOCK = 100_000
"""Messages that are put into a stream at a time."""
_WINDOW = 10_000
"""Messages that one cost per message is measured over."""
_PER_BLOCK = _BLOCK // _WINDOW
_COMPARED_BLOCKS = 3
"""Blocks that an old and a new process read in turn."""

_MIB = 1024 * 1024

_IMPORT = """
import json, os, time
start = time.perf_counter()
import jetstream_sync
seconds = time.perf_counter() - start
import threading
tasks = "/proc/self/task"
threads = len(os.listdir(tasks)) if os.path.exists(tasks) else threading.active_count()
print(json.dumps([seconds, threads]))
"""

_SUBSCRIBER = """
import socket, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
server = socket.create_connection((url.hostname, url.port))
server.sendall(b"CONNECT {}\\r\\nSUB %b 1\\r\\nPING\\r\\n" % sys.argv[2].encode())
print(server.recv(65536), flush=True)
while server.recv(65536):
    pass
"""


@dataclass(frozen=True)
class Measure:
    """One line of the table."""

    what: str
    value: float
    unit: str = ""
    aim: float | None = None
    """None: the number is for information."""
    at_least: bool = False
    """The aim is a lower limit; else it is an upper one."""
    digits: int = 1

    @property
    def reached(self) -> bool | None:
        """Whether the aim is reached; None when there is none."""
        if self.aim is None:
            return None
        return self.value >= self.aim if self.at_least else self.value <= self.aim

    def to_record(self) -> dict[str, Any]:
        """Return the measure for JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Measure:
        """Return the measure that `to_record` wrote."""
        return cls(**record)


def _import(url: str, scale: float) -> Sequence[Measure]:
    """Import the package in new interpreters, and count the remaining threads."""
    del url, scale
    seconds: list[float] = []
    threads = 0
    for _ in range(20):
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, cwd=ROOT, check=True
        )
        taken, alive = json.loads(done.stdout)
        seconds.append(taken)
        threads = max(threads, alive - 1)
    return [
        Measure("import jetstream_sync, median of 20", median(seconds) * 1e3, "ms", 80),
        Measure("import jetstream_sync, best of 20", min(seconds) * 1e3, "ms"),
        Measure("threads that the import starts", threads, "", 0, digits=0),
    ]


def _connect(url: str, scale: float) -> Sequence[Measure]:
    """Connect to a server on loopback, and close."""
    del scale
    connecting: list[float] = []
    closing: list[float] = []
    for _ in range(100):
        start = time.perf_counter()
        nc = jetstream_sync.connect(url)
        connected = time.perf_counter()
        nc.close()
        connecting.append(connected - start)
        closing.append(time.perf_counter() - connected)
    return [
        Measure("connect, median of 100", median(connecting) * 1e3, "ms", 5, digits=2),
        Measure("connect, slowest of 100", max(connecting) * 1e3, "ms", digits=2),
        Measure("close, median of 100", median(closing) * 1e3, "ms", digits=2),
    ]


def _threads(url: str, scale: float) -> Sequence[Measure]:
    """Publish with 1, 8 and 64 threads on one connection, waiting for each ack."""
    count = max(640, int(16_000 * scale)) // 64 * 64
    rates: dict[int, list[float]] = {1: [], 8: [], 64: []}
    costs: dict[int, list[float]] = {threads: [] for threads in rates}
    with Verifier(url) as verifier, jetstream_sync.connect(url) as nc:
        for _ in range(5):
            for threads, found in rates.items():
                verifier.make_stream(_STREAM, _SUBJECT)
                start = time.process_time()
                found.append(_publish_rate(nc, threads, count))
                costs[threads].append((time.process_time() - start) / count * 1e6)
                stored = verifier.api(f"STREAM.INFO.{_STREAM}")["state"]["messages"]
                if stored != count:
                    raise NotDoneError(f"{stored} of {count} messages are in the stream")
        verifier.delete_stream(_STREAM)
    # Within a round the machine is equally busy.
    ratio = median(eight / one for one, eight in zip(rates[1], rates[8], strict=True))
    cost = median(most / one for one, most in zip(costs[1], costs[64], strict=True))
    return [
        *(
            Measure(f"synchronous publishes, threads: {n}", median(rates[n]), "/s", digits=0)
            for n in rates
        ),
        Measure("8 threads / 1 thread", ratio, "", 3.0, at_least=True, digits=2),
        *(
            Measure(f"synchronous publish: cost, threads: {n}", median(costs[n]), "us")
            for n in costs
        ),
        Measure("cost with 64 threads / 1 thread", cost, "", 1.1, digits=2),
    ]


def _windows(url: str, scale: float) -> Sequence[Measure]:
    """Publish with windows of different sizes, without waiting for each ack."""
    count = max(10_000, int(100_000 * scale))
    costs: dict[int, list[float]] = {window: [] for window in (1, 100, 1_000, 10_000, 100_000)}
    with Verifier(url) as verifier, jetstream_sync.connect(url) as nc:
        for _ in range(5):
            for window, taken in costs.items():
                verifier.make_stream(_STREAM, _SUBJECT)
                js = nc.jetstream(timeout=_TIMEOUT, publish_async_max_pending=window)
                # With a window of 1, each message waits for the ack of the one before.
                number = count // 50 if window == 1 else count
                taken.append(_cost_per_message(partial(_publish_many, js, number), number))
        verifier.delete_stream(_STREAM)
    ratio = median(large / usual for usual, large in zip(costs[1_000], costs[100_000], strict=True))
    return [
        *(
            Measure(f"publish_async: cost, window {window:,}", median(taken), "us", digits=2)
            for window, taken in costs.items()
        ),
        Measure("window 100,000 / 1,000", ratio, "", 1.1, digits=2),
    ]


def _publish_many(js: JetStream, count: int) -> None:
    payload = b"x" * MESSAGE_BYTES
    for _ in range(count):
        js.publish_async(_SUBJECT, payload)
    js.publish_async_completed(_TIMEOUT)


def _publish_rate(nc: Connection, threads: int, count: int) -> float:
    js = nc.jetstream()
    payload = b"x" * MESSAGE_BYTES
    errors: list[Exception] = []
    barrier = threading.Barrier(threads + 1)

    def work() -> None:
        barrier.wait(_TIMEOUT)
        try:
            for _ in range(count // threads):
                js.publish(_SUBJECT, payload)
        except jetstream_sync.Error as error:
            errors.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait(_TIMEOUT)
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - start
    if errors:
        raise errors[0]
    return count / seconds


def _connection_memory(url: str, scale: float) -> Sequence[Measure]:
    """Hold 50 connections, each of which has made a request and a round trip."""
    del scale
    count = 50
    grown: list[float] = []
    for traced in (False, True):
        with ExitStack() as connections:
            _used_connection(url).close()
            with _memory(traced=traced) as memory:
                for _ in range(count):
                    connections.enter_context(_used_connection(url))
                grown.append(memory() / count / _MIB)
    resident, python = grown
    return [
        Measure("memory of a connection, resident", resident, "MiB", 1, digits=3),
        Measure("memory of a connection, traced", python, "MiB", 1, digits=3),
    ]


def _used_connection(url: str) -> Connection:
    nc = jetstream_sync.connect(url)
    nc.jetstream().account_info()
    nc.flush()
    return nc


def _future_memory(url: str, scale: float) -> Sequence[Measure]:
    """Hold futures of messages that nothing acknowledges; their payload is not counted."""
    count = max(2_000, int(100_000 * scale))
    grown: list[float] = []
    # A subscriber that only receives: without one, the server reports that there are no responders.
    command = [sys.executable, "-c", _SUBSCRIBER, url, _SUBJECT]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as subscriber:
        try:
            assert subscriber.stdout is not None
            subscriber.stdout.readline()
            for traced in (False, True):
                # The end of a `with` block would wait for the acknowledgements.
                with closing(jetstream_sync.connect(url)) as nc:
                    js = nc.jetstream(timeout=_TIMEOUT, publish_async_max_pending=2 * count)
                    js.publish_async(_SUBJECT, b"")
                    with _memory(traced=traced) as memory:
                        futures = [
                            js.publish_async(_SUBJECT, b"x" * MESSAGE_BYTES) for _ in range(count)
                        ]
                        nc.flush(timeout=_TIMEOUT)
                        grown.append(memory() / count - MESSAGE_BYTES)
                    if any(future.done() for future in futures):
                        raise NotDoneError("a message was acknowledged")
                del futures
        finally:
            subscriber.kill()
    return _message_memory("an outstanding future", grown, 1200)


def _waiting_memory(url: str, scale: float) -> Sequence[Measure]:
    """Keep messages pending in a core subscription; their payload is not counted."""
    count = max(2_000, int(1_000_000 * scale))
    grown: list[float] = []
    with Verifier(url) as verifier, jetstream_sync.connect(url) as nc:
        sub = nc.subscribe(_SUBJECT, pending_msgs_limit=2 * count, pending_bytes_limit=1024 * _MIB)
        nc.flush()
        # Tracing makes reading ten times slower.
        for traced, number in ((False, count), (True, count // 10)):
            with _memory(traced=traced) as memory:
                for start in range(0, number, _WINDOW):
                    verifier.publish(_SUBJECT, min(_WINDOW, number - start), MESSAGE_BYTES)
                    # The answer to the ping follows the messages. Without it, the server would
                    # disconnect a client that does not keep up.
                    nc.flush(timeout=_TIMEOUT)
                grown.append(memory() / number - MESSAGE_BYTES)
            # All of them are pending.
            for _ in range(number):
                sub.next_msg(timeout=1.0)
    return _message_memory("a message in a subscription", grown)


def _fetched_memory(url: str, scale: float) -> Sequence[Measure]:
    """Keep messages that one ``fetch`` has returned; their payload is not counted."""
    count = max(2_000, int(100_000 * scale))
    grown: list[float] = []
    with Verifier(url) as verifier, jetstream_sync.connect(url) as nc:
        for traced in (False, True):
            consumer = _make_filled_consumer(verifier, nc, count)
            with _memory(traced=traced) as memory:
                held = consumer.fetch(count, timeout=_TIMEOUT)
                grown.append(memory() / count - MESSAGE_BYTES)
            if len(held) != count:
                raise NotDoneError(f"fetched {len(held)} of {count} messages")
            del held
        verifier.delete_stream(_STREAM)
    return _message_memory("a fetched message", grown)


def _message_memory(what: str, grown: Sequence[float], aim: float = 400) -> Sequence[Measure]:
    return [
        Measure(f"memory of {what} above its payload, {way}", value, "bytes", aim, digits=0)
        for way, value in zip(("resident", "traced"), grown, strict=True)
    ]


def _pulled_ahead(url: str, scale: float) -> Sequence[Measure]:
    """Take one message of a continuous pull, stop reading, and read what the server has sent."""
    count = max(5_000, int(50_000 * scale))
    limit = 500
    with Verifier(url) as verifier, jetstream_sync.connect(url) as nc:
        consumer = _make_filled_consumer(verifier, nc, count)
        with consumer.messages(max_messages=limit) as messages:
            messages.next(timeout=5.0)
            # Two round trips: requests caused by the first message have been sent.
            nc.flush()
            nc.flush()
            sent = verifier.consumer_info(_STREAM, _CONSUMER)["delivered"]["consumer_seq"]
        verifier.delete_stream(_STREAM)
    what = f"messages ahead of a reader with max_messages={limit}"
    return [Measure(what, sent - 1, "", limit, digits=0)]


def _make_filled_consumer(verifier: Verifier, nc: Connection, count: int) -> PullConsumer:
    verifier.make_stream(_STREAM, _SUBJECT)
    verifier.fill(_SUBJECT, 1, count, MESSAGE_BYTES)
    return nc.jetstream().create_consumer(
        _STREAM, ConsumerConfig(durable_name=_CONSUMER, ack_policy=AckPolicy.NONE)
    )


def _flat_ordered(url: str, scale: float) -> Sequence[Measure]:
    """Read a million messages through one ordered consumer's iterator."""
    return _flat("ordered read", _ordered_reader, url, scale)


def _flat_fetch(url: str, scale: float) -> Sequence[Measure]:
    """Read a million messages through one consumer's ``fetch``, acking each."""
    return _flat("fetch(500), ack each", _fetching_reader, url, scale)


@contextmanager
def _ordered_reader(url: str, name: str) -> Iterator[Callable[[], None]]:
    """Provide a function that reads one window of messages through an iterator."""
    del name
    with jetstream_sync.connect(url) as nc:
        stream = nc.jetstream().get_stream(_STREAM)
        with stream.ordered_consumer().messages() as messages:

            def read() -> None:
                for _ in islice(messages, _WINDOW):
                    pass

            yield read


@contextmanager
def _fetching_reader(url: str, name: str) -> Iterator[Callable[[], None]]:
    """Provide a function that fetches one window of messages of a new consumer, and acks each."""
    with Verifier(url) as verifier:
        verifier.make_consumer(_STREAM, name)
    with jetstream_sync.connect(url) as nc:
        consumer = nc.jetstream().get_consumer(_STREAM, name)

        def read() -> None:
            left = _WINDOW
            while left:
                messages = consumer.fetch(min(500, left))
                for msg in messages:
                    msg.ack()
                left -= len(messages)

        yield read


_Reader = Callable[[str, str], AbstractContextManager[Callable[[], None]]]


def _flat(title: str, reader: _Reader, url: str, scale: float) -> Sequence[Measure]:
    blocks = max(3, int(1_000_000 * scale) // _BLOCK)
    costs: list[list[float]] = []
    resident: list[float] = []
    ratios: list[float] = []
    with Verifier(url) as verifier:
        _make_rolling_stream(verifier)
        with reader(url, _CONSUMER) as read:
            for _ in range(blocks):
                verifier.fill(_SUBJECT, 1, _BLOCK, MESSAGE_BYTES)
                costs.append([_cost_per_message(read, _WINDOW) for _ in range(_PER_BLOCK)])
                resident.append(_resident_bytes())
            with _new_process(reader, url) as cost_in_new_process:
                for _ in range(_COMPARED_BLOCKS):
                    verifier.fill(_SUBJECT, 1, _BLOCK, MESSAGE_BYTES)
                    for number in range(_PER_BLOCK):
                        if number % 2:  # the order changes, because the machine does, too
                            new, old = cost_in_new_process(), _cost_per_message(read, _WINDOW)
                        else:
                            old, new = _cost_per_message(read, _WINDOW), cost_in_new_process()
                        ratios.append(old / new)
        verifier.delete_stream(_STREAM)
    # The first 10,000 warm up the interpreter and the allocator.
    first, last = median(costs[0][1:]), median(costs[-1])
    total = f"{blocks * _BLOCK:,}"
    return [
        Measure(f"{title}: cost after 10,000 messages", first, "us", digits=2),
        Measure(f"{title}: cost after {total} messages", last, "us", digits=2),
        Measure(
            f"{title}: cost after {total} / in a new process", median(ratios), "", 1.1, digits=2
        ),
        Measure(
            f"{title}: memory grown since {2 * _BLOCK:,} messages",
            (resident[-1] - resident[1]) / _MIB,
            "MiB",
            8,
        ),
    ]


@contextmanager
def _new_process(reader: _Reader, url: str) -> Iterator[Callable[[], float]]:
    """
    Provide a function that reads a window in another process, and returns its cost per message.

    That process has read the messages in the stream before, as a warm-up.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read_on_request, args=(reader, url, theirs), daemon=True)
    process.start()
    theirs.close()
    ours.recv()

    def cost() -> float:
        ours.send(None)
        return float(ours.recv())

    try:
        yield cost
    finally:
        ours.close()
        process.join(_TIMEOUT)


def _read_on_request(reader: _Reader, url: str, pipe: PipeConnection[Any, Any]) -> None:
    with reader(url, f"{_CONSUMER}-new") as read:
        for _ in range(_PER_BLOCK):
            read()
        pipe.send(None)
        with suppress(EOFError):
            while True:
                pipe.recv()
                pipe.send(_cost_per_message(read, _WINDOW))


def _subscriptions(url: str, scale: float) -> Sequence[Measure]:
    """Read through two connections in turn, one of which has 10,000 more subscriptions."""
    rounds = max(3, int(10 * scale))
    costs: tuple[list[float], list[float]] = ([], [])
    with (
        Verifier(url) as verifier,
        jetstream_sync.connect(url) as few,
        jetstream_sync.connect(url) as many,
    ):
        subs = [many.subscribe(f"jetstream_sync_limits.idle.{n}") for n in range(9_999)]
        many.flush(timeout=_TIMEOUT)
        _make_rolling_stream(verifier)
        for number in range(rounds):
            verifier.fill(_SUBJECT, number * _BLOCK + 1, (number + 1) * _BLOCK, MESSAGE_BYTES)
            for nc, taken in zip((few, many), costs, strict=True):
                taken.append(_cost_per_message(partial(_read_block, nc), _BLOCK))
        for sub in subs:
            sub.unsubscribe()
        verifier.delete_stream(_STREAM)
    one, ten_thousand = median(costs[0]), median(costs[1])
    ratio = median(many / few for few, many in zip(*costs, strict=True))
    return [
        Measure("ordered read: cost with 1 subscription", one, "us", digits=2),
        Measure("ordered read: cost with 10,000", ten_thousand, "us", digits=2),
        Measure("10,000 subscriptions / 1", ratio, "", 1.1, digits=2),
    ]


def _read_block(nc: Connection) -> None:
    stream = nc.jetstream().get_stream(_STREAM)
    with stream.ordered_consumer().messages() as messages:
        for _ in islice(messages, _BLOCK):
            pass


def _transports(url: str, scale: float) -> Sequence[Measure]:
    """Read the same messages over TCP, TLS and WebSocket in turn, from a separate server."""
    del url
    rounds = max(3, int(9 * scale))
    rates: dict[str, list[float]] = {"TCP": [], "TLS": [], "WebSocket": []}
    costs: dict[str, list[float]] = {each: [] for each in rates}
    with ExitStack() as things:
        directory = Path(things.enter_context(tempfile.TemporaryDirectory()))
        port, holder = reserve_port()
        if holder is not None:
            things.enter_context(holder)
        tls = _certify(directory)
        config = f"{tls}\nallow_non_tls: true\nwebsocket {{ port: {port}, no_tls: true }}"
        server = things.enter_context(NatsServer(config=config))
        verifier = things.enter_context(Verifier(server.url))
        trusted = TLSOptions(ca_file=directory / "ca.pem")
        connections = {
            "TCP": things.enter_context(jetstream_sync.connect(server.url)),
            "TLS": things.enter_context(jetstream_sync.connect(server.url, tls=trusted)),
            "WebSocket": things.enter_context(jetstream_sync.connect(f"ws://127.0.0.1:{port}")),
        }
        _make_rolling_stream(verifier)
        verifier.fill(_SUBJECT, 1, _BLOCK, MESSAGE_BYTES)
        for nc in connections.values():
            _read_block(nc)
        for _ in range(rounds):
            for transport, nc in connections.items():
                start = time.perf_counter()
                costs[transport].append(_cost_per_message(partial(_read_block, nc), _BLOCK))
                rates[transport].append(_BLOCK / (time.perf_counter() - start))
    rate = {transport: median(taken) for transport, taken in rates.items()}
    cost = {transport: median(taken) for transport, taken in costs.items()}
    return [
        *(Measure(f"ordered read over {each}", rate[each], "/s", digits=0) for each in rate),
        Measure("TLS / TCP", rate["TLS"] / rate["TCP"], "", 0.6, at_least=True, digits=2),
        Measure("WebSocket / TCP", rate["WebSocket"] / rate["TCP"], "", digits=2),
        # The server's part, which is larger for TLS, is not included.
        *(Measure(f"ordered read: cost over {each}", cost[each], "us", digits=2) for each in cost),
    ]


def _certify(directory: Path) -> str:
    """Write an authority and a certificate into a directory; return the server's config for it."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    return f'tls {{ cert_file: "{directory}/server.pem", key_file: "{directory}/server.pem" }}'


def _make_rolling_stream(verifier: Verifier) -> None:
    # A block pushes the previous one, which has been read, out of the stream.
    verifier.make_stream(_STREAM, _SUBJECT, max_msgs=_BLOCK)


def _cost_per_message(work: Callable[[], None], count: int) -> float:
    """Return the processor time of this process in microseconds per message, all threads."""
    start = time.process_time()
    work()
    return (time.process_time() - start) / count * 1e6


@contextmanager
def _memory(*, traced: bool) -> Iterator[Callable[[], float]]:
    """Provide a function that returns the growth of the memory in bytes since the call."""
    gc.collect()
    if traced:
        tracemalloc.start()
    read = _traced_bytes if traced else _resident_bytes
    before = read()

    def grown() -> float:
        gc.collect()
        return read() - before

    try:
        yield grown
    finally:
        tracemalloc.stop()


def _traced_bytes() -> float:
    return tracemalloc.get_traced_memory()[0]


def _resident_bytes() -> float:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return float("nan")
    return int(statm.read_text().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))


PROBES: Mapping[str, Callable[[str, float], Sequence[Measure]]] = {
    "import": _import,
    "connect": _connect,
    "threads": _threads,
    "windows": _windows,
    "connection-memory": _connection_memory,
    "waiting-memory": _waiting_memory,
    "future-memory": _future_memory,
    "fetched-memory": _fetched_memory,
    "pulled-ahead": _pulled_ahead,
    "flat-ordered": _flat_ordered,
    "flat-fetch": _flat_fetch,
    "subscriptions": _subscriptions,
    "transports": _transports,
}
"""Names for ``--probes``, in the table's order."""

SCALING = (
    *("threads", "windows", "flat-ordered", "flat-fetch", "subscriptions"),
    *("future-memory", "waiting-memory"),
)
"""The probes of the cost and the memory as the work grows."""
