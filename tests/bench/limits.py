"""
Measure what is not a rate: start-up, memory, and cost that does not grow with the work.

Run it from the project's root::

    python -m tests.bench.limits                          # a minute or two
    python -m tests.bench.limits --probes import connect
    python -m tests.bench.limits --scale 0.05             # fewer messages: a look, not a measurement

Each line is a number with its unit and the aim. Each probe has a process of its own, so that no number has
another probe's memory in it. Memory is what Python objects take (tracemalloc), without the stacks of threads
and the waste of the allocator. Cost is the processor time of the process for each message, all threads.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.server import NatsServer

from ..fixtures.rawnats import RawClient
from .raw import NotDoneError, fill, make_stream, publish
from .report import ROOT, align

_STREAM = "JETSTREAM_SYNC_LIMITS"
_SUBJECT = "jetstream_sync_limits.message"
_SIZE = 128
_TIMEOUT_S = 60.0
#: Messages that are put into a stream at a time.
_BLOCK = 100_000


class Measure(NamedTuple):
    """One line of the table."""

    what: str
    value: float
    unit: str
    #: The largest value that is aimed at; ``None``: the number is for information.
    aim: float | None = None


Measures = Iterator[Measure]

_IMPORT = """
import json, threading, time
start = time.perf_counter()
import jetstream_sync
print(json.dumps([time.perf_counter() - start, threading.active_count()]))
"""


def _import(_server: NatsServer, _scale: float) -> Measures:
    """Import the package in new interpreters, and count the remaining threads."""
    command = [sys.executable, "-c", _IMPORT]
    texts = [subprocess.check_output(command, text=True, cwd=ROOT) for _ in range(20)]
    seconds, alive = zip(*map(json.loads, texts), strict=True)
    yield Measure("import jetstream_sync, median of 20", median(seconds) * 1e3, "ms", 80)
    yield Measure("threads that the import starts", max(alive) - 1, "", 0)


def _connect(server: NatsServer, _scale: float) -> Measures:
    """Connect to a server on loopback."""
    taken = []
    for _ in range(100):
        start = time.perf_counter()
        with jetstream_sync.connect(server.url):
            taken.append(time.perf_counter() - start)
    yield Measure("connect, median of 100", median(taken) * 1e3, "ms", 5)


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


def _flat(server: NatsServer, scale: float) -> Measures:
    """Read a million messages through one ordered consumer's iterator."""
    blocks, costs = max(4, int(1_000_000 * scale) // _BLOCK), []
    with RawClient(server.port, 30) as raw, jetstream_sync.connect(server.url) as nc:
        # A block pushes the previous one, which has been read, out of the stream.
        make_stream(raw, _STREAM, _SUBJECT, max_msgs=_BLOCK)
        with nc.jetstream().ordered_consumer(_STREAM).messages() as messages:
            for _ in range(blocks):
                fill(raw, _SUBJECT, _BLOCK, _SIZE)
                costs.append(_read_cost(messages))
    # The first block warms up the interpreter and the allocator.
    first, last = median(costs[1:3]), median(costs[-2:])
    yield Measure("ordered read: cost after 100,000 messages", first, "us")
    yield Measure(f"ordered read: cost after {blocks * _BLOCK:,} / then", last / first, "", 1.1)


def _subscriptions(server: NatsServer, scale: float) -> Measures:
    """Read through two connections in turn, one of which has 10,000 more subscriptions."""
    costs: tuple[list[float], list[float]] = ([], [])
    with (
        RawClient(server.port, 30) as raw,
        jetstream_sync.connect(server.url) as few,
        jetstream_sync.connect(server.url) as many,
    ):
        for number in range(9_999):
            many.subscribe(f"jetstream_sync_limits.idle.{number}")
        many.flush(timeout=_TIMEOUT_S)
        make_stream(raw, _STREAM, _SUBJECT)
        fill(raw, _SUBJECT, _BLOCK, _SIZE)
        for _ in range(max(3, int(10 * scale))):
            for nc, taken in zip((few, many), costs, strict=True):
                with nc.jetstream().ordered_consumer(_STREAM).messages() as messages:
                    taken.append(_read_cost(messages))
    ratio = median(many / few for few, many in zip(*costs, strict=True))
    yield Measure("ordered read: cost with 10,000 subscriptions / 1", ratio, "", 1.1)


def _read_cost(messages: Iterator[Any]) -> float:
    """Read a block; return the processor microseconds of this process per message, all threads."""
    start = time.process_time()
    for _ in islice(messages, _BLOCK):
        pass
    return (time.process_time() - start) / _BLOCK * 1e6


PROBES: Mapping[str, Callable[[NatsServer, float], Measures]] = {
    "import": _import,
    "connect": _connect,
    "connection-memory": _memory,
    "waiting-memory": _waiting_memory,
    "future-memory": _future_memory,
    "flat": _flat,
    "subscriptions": _subscriptions,
}


def _run(probe: str, scale: float) -> list[Measure]:
    with NatsServer() as server:
        return list(PROBES[probe](server, scale))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the probes and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.limits", description=(__doc__ or "").strip().splitlines()[0]
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
    print(align(lines))


if __name__ == "__main__":
    main()
