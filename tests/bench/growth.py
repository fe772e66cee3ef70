"""
Measure start-up and memory, and how the cost of an operation grows with the number of messages, subscriptions and the like.

Run it from the project's root::

    python -m tests.bench.growth                          # a few minutes
    python -m tests.bench.growth --probes messages keys
    python -m tests.bench.growth --scale 0.05             # fewer messages: a look, not a measurement

Each line is a number with its unit and the aim. Each probe has a process of its own, so that no number has
another probe's memory in it. Memory is what Python objects take (tracemalloc), without the stacks of threads
and the waste of the allocator. Cost is the processor time of the process for each operation, all threads.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from statistics import median
from threading import Semaphore
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker

from ..fixtures.rawnats import RawClient
from .raw import NotDoneError, fill, make_stream
from .report import ROOT, align, measured_copy

_STREAM = "JETSTREAM_SYNC_GROWTH"
_SUBJECT = "jetstream_sync_growth.message"
_SIZE = 128
_TIMEOUT_S = 60.0
#: Messages that are put into a stream at a time.
_BLOCK = 100_000


def publish(raw: RawClient, subject: str, count: int, size: int) -> None:
    """Publish messages; the server has them when this returns."""
    head = f"PUB {subject} {size}\r\n".encode()
    raw.send((head + b"x" * size + b"\r\n") * count + b"PING\r\n")
    raw.expect(b"PONG\r\n")


class Measure(NamedTuple):
    """One line of the table."""

    what: str
    value: float
    unit: str
    #: The largest value that is aimed at; ``None``: the number is for information.
    aim: float | None = None


Measures = Iterator[Measure]


def _start(server: NatsServer, _scale: float) -> Measures:
    """Start interpreters that import the package, and connect; processor time."""
    for name, code, aim in (
        ("python -c pass", "pass", None),
        ("import connect", "from jetstream_sync import connect", 90),
    ):
        taken = []
        # The first start writes the byte code.
        env = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
        for _ in range(20):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=env)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            taken.append(used)
        yield Measure(f"{name}, lowest decile of 20", sorted(taken)[1] * 1e3, "ms", aim)
    taken = []
    for _ in range(100):
        start = time.process_time()
        with jetstream_sync.connect(server.url):
            taken.append(time.process_time() - start)
    yield Measure("connect, median of 100", median(taken) * 1e3, "ms", 1)


@contextmanager
def _growth() -> Iterator[Callable[[], float]]:
    """Provide a function that returns the growth of the memory in bytes since the call."""
    gc.collect()
    tracemalloc.start()

    def grown() -> float:
        gc.collect()
        return float(tracemalloc.get_traced_memory()[0])

    try:
        yield grown
    finally:
        tracemalloc.stop()


def _memory(server: NatsServer, _scale: float) -> Measures:
    """Hold 50 connections, each of which has made a request and a round trip."""

    def used_connection() -> Connection:
        nc = jetstream_sync.connect(server.url)
        nc.jetstream().account_info()
        nc.flush()
        return nc

    used_connection().close()
    with ExitStack() as connections, _growth() as grown:
        for _ in range(50):
            connections.enter_context(used_connection())
        yield Measure("memory of a connection", grown() / 50 / 1024, "KiB", 1024)


def _waiting_memory(server: NatsServer, scale: float) -> Measures:
    """Keep messages pending in a core subscription; their payload is not counted."""
    count = max(2_000, int(100_000 * scale))
    with RawClient(server.port, 30) as raw, jetstream_sync.connect(server.url) as nc:
        sub = nc.subscribe(_SUBJECT, pending_msgs_limit=2 * count, pending_bytes_limit=2**30)
        nc.flush()
        with _growth() as grown:
            for start in range(0, count, 10_000):
                publish(raw, _SUBJECT, min(10_000, count - start), _SIZE)
                # The reply follows the messages. Without it, the server would disconnect a client that
                # does not keep up.
                nc.flush(timeout=_TIMEOUT_S)
            size = grown() / count - _SIZE
        if sub.pending_msgs != count:
            raise NotDoneError(f"{sub.pending_msgs} of {count} messages are pending")
        yield Measure("a message in a subscription, above its payload", size, "B", 400)


def _future_memory(server: NatsServer, scale: float) -> Measures:
    """Hold futures of messages that nothing acknowledges; their payload is not counted."""
    count = max(2_000, int(100_000 * scale))
    # A subscriber: without one, the server reports that there are no responders. The end of a `with` block
    # of the publisher would wait for the acknowledgements.
    with (
        jetstream_sync.connect(server.url) as other,
        closing(jetstream_sync.connect(server.url)) as nc,
    ):
        other.subscribe(_SUBJECT, cb=lambda _: None, pending_msgs_limit=0)
        other.flush()
        js = nc.jetstream(timeout=_TIMEOUT_S, publish_async_max_pending=2 * count)
        js.publish_async(_SUBJECT, b"")
        with _growth() as grown:
            futures = [js.publish_async(_SUBJECT, b"x" * _SIZE) for _ in range(count)]
            nc.flush(timeout=_TIMEOUT_S)
            size = grown() / count - _SIZE
        if any(future.done() for future in futures):
            raise NotDoneError("a message was acknowledged")
        yield Measure("an outstanding future, above its payload", size, "B", 1200)


def _messages(server: NatsServer, scale: float) -> Measures:
    """Read messages through one ordered consumer's iterator."""
    blocks, costs = max(4, int(5_000_000 * scale) // _BLOCK), []
    with RawClient(server.port, 30) as raw, jetstream_sync.connect(server.url) as nc:
        # A block pushes the previous one, which has been read, out of the stream.
        make_stream(raw, _STREAM, _SUBJECT, max_msgs=_BLOCK)
        with nc.jetstream().ordered_consumer(_STREAM).messages() as messages:
            for _ in range(blocks):
                fill(raw, _SUBJECT, _BLOCK, _SIZE)
                costs.append(_read_cost(messages))
    # The first block warms up the interpreter and the allocator.
    yield _flat(
        "an ordered read", f"{blocks * _BLOCK:,} messages / 100,000", costs[1:4], costs[-3:]
    )


def _subscriptions(server: NatsServer, scale: float) -> Measures:
    """Read through two connections in turn, one of which has 10,000 more subscriptions."""
    costs: tuple[list[float], list[float]] = ([], [])
    with (
        RawClient(server.port, 30) as raw,
        jetstream_sync.connect(server.url) as few,
        jetstream_sync.connect(server.url) as many,
    ):
        for number in range(9_999):
            many.subscribe(f"jetstream_sync_growth.idle.{number}")
        many.flush(timeout=_TIMEOUT_S)
        make_stream(raw, _STREAM, _SUBJECT)
        fill(raw, _SUBJECT, _BLOCK, _SIZE)
        for _ in range(max(3, int(10 * scale))):
            for nc, taken in zip((few, many), costs, strict=True):
                with nc.jetstream().ordered_consumer(_STREAM).messages() as messages:
                    taken.append(_read_cost(messages))
    yield _flat("an ordered read", "10,000 subscriptions / 1", *costs)


def _consumers(server: NatsServer, scale: float) -> Measures:
    """Read messages of ten or of 1,000 consumers of one process."""
    costs: tuple[list[float], list[float]] = ([], [])
    count, block = max(10, int(1_000 * scale)), 20_000
    with (
        RawClient(server.port, 60) as raw,
        jetstream_sync.connect(server.url) as nc,
        ExitStack() as stack,
    ):
        make_stream(raw, _STREAM, f"{_SUBJECT}.*")
        js = nc.jetstream(timeout=_TIMEOUT_S)
        waiting = Semaphore(0)
        for number in range(count):
            consumer = js.create_consumer(
                _STREAM, filter_subject=f"{_SUBJECT}.{number}", ack_policy="none", mem_storage=True
            )
            stack.enter_context(consumer.consume(lambda _: waiting.release()))
        for _ in range(max(3, int(6 * scale))):
            for used, taken in zip((10, count), costs, strict=True):
                # This thread's own time does not count.
                start = time.process_time() - time.thread_time()
                # The cost depends on how many messages arrive at a time, here 20 for each of ten consumers.
                for turn in range(block // 200):
                    for number in range(10):
                        subject = f"{_SUBJECT}.{(10 * turn + number) % used}"
                        publish(raw, subject, 20, _SIZE)
                    for _ in range(200):
                        waiting.acquire()
                end = time.process_time() - time.thread_time()
                taken.append((end - start) / block * 1e6)
    yield _flat("a message of consume()", f"{count:,} consumers / 10", *costs)


def _keys(server: NatsServer, scale: float) -> Measures:
    """Handle messages of one key, or of 10,000 keys, in a worker that keeps the order of each key."""
    costs: tuple[list[float], list[float]] = ([], [])
    block = max(2_000, int(20_000 * scale))
    worker = Worker(server.url, name="growth")

    @worker.handler(
        stream=_STREAM,
        consumer="growth",
        filter_subjects=[f"{_SUBJECT}.>"],
        key=lambda msg: msg.subject,
        concurrency=4,
    )
    def ignore(data: bytes) -> None:
        pass

    with RawClient(server.port, 60) as raw:
        make_stream(raw, _STREAM, f"{_SUBJECT}.>")
        for _ in range(max(3, int(6 * scale))):
            for keys, taken in zip((1, 10_000), costs, strict=True):
                for number in range(min(keys, block)):
                    publish(raw, f"{_SUBJECT}.{number}", max(1, block // keys), _SIZE)
                start = time.process_time()
                assert worker.run(burst=True) == 0
                taken.append((time.process_time() - start) / block * 1e6)
    yield _flat("a handler's run", "10,000 keys / 1", *costs)


def _listing(server: NatsServer, scale: float) -> Measures:
    """List 1,000 and then 10,000 streams."""
    costs = []
    with RawClient(server.port, 60) as raw, jetstream_sync.connect(server.url) as nc:
        js, made = nc.jetstream(timeout=_TIMEOUT_S), 0
        for count in (max(100, int(1_000 * scale)), max(1_000, int(10_000 * scale))):
            for number in range(made, count):
                make_stream(raw, f"{_STREAM}_{number}", f"{_SUBJECT}.{number}")
            made = count
            taken = []
            for _ in range(3):
                start = time.process_time()
                assert len(js.list_streams()) == count
                taken.append((time.process_time() - start) / count * 1e6)
            costs.append(taken)
    yield _flat("an info in a listing", "10,000 streams / 1,000", *costs)


def _flat(what: str, growth: str, first: Sequence[float], last: Sequence[float]) -> Measure:
    """Return a cost, and how much it has grown."""
    name = f"{what}, {median(first):.1f} us: {growth}"
    return Measure(name, median(last) / median(first), "", 1.1)


def _read_cost(messages: Iterator[Any]) -> float:
    """Read a block; return the processor microseconds of this process per message, all threads."""
    start = time.process_time()
    for _ in islice(messages, _BLOCK):
        pass
    return (time.process_time() - start) / _BLOCK * 1e6


PROBES: Mapping[str, Callable[[NatsServer, float], Measures]] = {
    "start": _start,
    "connection-memory": _memory,
    "waiting-memory": _waiting_memory,
    "future-memory": _future_memory,
    "messages": _messages,
    "subscriptions": _subscriptions,
    "consumers": _consumers,
    "keys": _keys,
    "listing": _listing,
}


def _run(probe: str, scale: float) -> list[Measure]:
    with NatsServer() as server:
        return list(PROBES[probe](server, scale))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the probes and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.growth", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument("--probes", nargs="+", choices=PROBES, default=PROBES, metavar="PROBE")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the messages")
    options = parser.parse_args(arguments)
    lines = [["", "measured", "aim"]]
    # A new process for each probe.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for found in [pool.apply_async(_run, (probe, options.scale)) for probe in options.probes]:
            for what, value, unit, aim in found.get():
                limit = "" if aim is None else f"<= {aim:,g} {unit}".rstrip()
                lines.append([what, f"{value:,.2f} {unit}".rstrip(), limit])
    print(measured_copy())
    print(align(lines))


if __name__ == "__main__":
    main()
