"""
Hold jetstream_sync against its own limits: start-up, threads, memory, and cost that stays flat.

Run it from the project's root::

    python -m tests.bench.limits                   # some minutes
    python -m tests.bench.limits --rows scaling    # cost and memory as the work grows
    python -m tests.bench.limits --rows flat --scale 5    # five million messages
    python -m tests.bench.limits --rows import connect
    python -m tests.bench.limits --scale 0.05      # fewer messages: a look, not a measurement

Each line of the table is a number with its unit, the aim, and whether it is reached. Each probe has
a process of its own, so that no number has another probe's memory or threads in it; the functions of
the probes say what they do.

Memory is measured twice, because each way misses something: ``traced`` is what Python objects take
(tracemalloc), ``resident`` is by how much the process grew (thread stacks and the allocator's waste
are in it; Linux only). Cost per message is processor time of the client's process, all threads, so
that a busy machine does not look like a slow client.

The exit status is 1 when a probe failed, whatever the aims.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync import Connection, JetStream
from jetstream_sync.options import TLSOptions
from jetstream_sync.server import NatsServer
from jetstream_sync.server.runtime import reserve_port

from ..rawnats import RawClient
from .raw import NotDoneError, api, fill, make_stream, publish
from .report import ROOT, align

_STREAM = "JETSTREAM_SYNC_LIMITS"
_SUBJECT = "jetstream_sync_limits.message"
_SIZE = 128
_TIMEOUT_S = 60.0
_PROBE_LIMIT_S = 600.0
#: Messages that are put into a stream at a time.
_BLOCK = 100_000
_MIB = 1024 * 1024


class Measure(NamedTuple):
    """One line of the table."""

    what: str
    value: float
    unit: str = ""
    #: ``None``: the number is for information.
    aim: float | None = None
    #: The aim is a lower limit; else it is an upper one.
    at_least: bool = False

    def line(self) -> list[str]:
        """Return the cells of the line."""
        digits = 0 if abs(self.value) >= 100 else 2
        shown = f"{self.value:,.{digits}f} {self.unit}".rstrip()
        if self.aim is None:
            return [self.what, shown, "", ""]
        reached = self.value >= self.aim if self.at_least else self.value <= self.aim
        sign = ">=" if self.at_least else "<="
        aim = f"{sign} {self.aim:,g} {self.unit}".rstrip()
        return [self.what, shown, aim, "reached" if reached else "not reached"]


Measures = Iterator[Measure]


# --- start-up -------------------------------------------------------------------------------------

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


def _import(_server: NatsServer, _scale: float) -> Measures:
    """Import the package in new interpreters, and count the remaining threads."""
    command = [sys.executable, "-c", _IMPORT]
    texts = [subprocess.check_output(command, text=True, cwd=ROOT) for _ in range(20)]
    seconds, alive = zip(*map(json.loads, texts), strict=True)
    yield Measure("import jetstream_sync, median of 20", median(seconds) * 1e3, "ms", 80)
    yield Measure("threads that the import starts", max(alive) - 1, "", 0)


def _connect(server: NatsServer, _scale: float) -> Measures:
    """Connect to a server on loopback, and close."""
    connecting, closing = [], []
    for _ in range(100):
        start = time.perf_counter()
        nc = jetstream_sync.connect(server.url)
        connected = time.perf_counter()
        nc.close()
        connecting.append(connected - start)
        closing.append(time.perf_counter() - connected)
    yield Measure("connect, median of 100", median(connecting) * 1e3, "ms", 5)
    yield Measure("connect, slowest of 100", max(connecting) * 1e3, "ms")
    yield Measure("close, median of 100", median(closing) * 1e3, "ms")


# --- publishing -----------------------------------------------------------------------------------


def _threads(server: NatsServer, scale: float) -> Measures:
    """Publish with 1, 8 and 64 threads on one connection, waiting for each ack."""
    count = max(640, int(16_000 * scale)) // 64 * 64
    rates: dict[int, list[float]] = {1: [], 8: [], 64: []}
    costs: dict[int, list[float]] = {threads: [] for threads in rates}
    with RawClient(server.port, 30) as raw, jetstream_sync.connect(server.url) as nc:
        for _ in range(5):
            for threads, found in rates.items():
                make_stream(raw, _STREAM, _SUBJECT)
                start = time.process_time()
                found.append(_publish_rate(nc, threads, count))
                costs[threads].append((time.process_time() - start) / count * 1e6)
                stored = api(raw, f"STREAM.INFO.{_STREAM}")["state"]["messages"]
                if stored != count:
                    raise NotDoneError(f"{stored} of {count} messages are in the stream")
    for threads, found in rates.items():
        yield Measure(f"synchronous publishes, threads: {threads}", median(found), "/s")
    # Within a round the machine is equally busy.
    ratio = median(eight / one for one, eight in zip(rates[1], rates[8], strict=True))
    yield Measure("8 threads / 1 thread", ratio, "", 3.0, at_least=True)
    cost = median(most / one for one, most in zip(costs[1], costs[64], strict=True))
    yield Measure("synchronous publish: cost", median(costs[1]), "us")
    yield Measure("cost with 64 threads / 1 thread", cost, "", 1.1)


def _publish_rate(nc: Connection, threads: int, count: int) -> float:
    js, payload = nc.jetstream(), b"x" * _SIZE
    barrier = threading.Barrier(threads + 1)

    def work() -> None:
        barrier.wait(_TIMEOUT_S)
        for _ in range(count // threads):
            js.publish(_SUBJECT, payload)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait(_TIMEOUT_S)
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return count / (time.perf_counter() - start)


def _windows(server: NatsServer, scale: float) -> Measures:
    """Publish with windows of different sizes, without waiting for each ack."""
    count = max(10_000, int(100_000 * scale))
    costs: dict[int, list[float]] = {window: [] for window in (1, 100, 1_000, 10_000, 100_000)}
    with RawClient(server.port, 30) as raw, jetstream_sync.connect(server.url) as nc:
        for _ in range(5):
            for window, taken in costs.items():
                make_stream(raw, _STREAM, _SUBJECT)
                js = nc.jetstream(timeout=_TIMEOUT_S, publish_async_max_pending=window)
                # With a window of 1, each message waits for the ack of the one before.
                number = count // 50 if window == 1 else count
                taken.append(_cost(partial(_publish_many, js, number), number))
    for window, taken in costs.items():
        yield Measure(f"publish_async: cost, window {window:,}", median(taken), "us")
    ratio = median(large / usual for usual, large in zip(costs[1_000], costs[100_000], strict=True))
    yield Measure("window 100,000 / 1,000", ratio, "", 1.1)


def _publish_many(js: JetStream, count: int) -> None:
    for _ in range(count):
        js.publish_async(_SUBJECT, b"x" * _SIZE)
    js.publish_async_completed(_TIMEOUT_S)


# --- memory ---------------------------------------------------------------------------------------


def _memory(server: NatsServer, _scale: float) -> Measures:
    """Hold 50 connections, each of which has made a request and a round trip."""

    def used_connection() -> Connection:
        nc = jetstream_sync.connect(server.url)
        nc.jetstream().account_info()
        nc.flush()
        return nc

    for way in ("resident", "traced"):
        with ExitStack() as connections:
            used_connection().close()
            with _growth(way) as grown:
                for _ in range(50):
                    connections.enter_context(used_connection())
                yield Measure(f"memory of a connection, {way}", grown() / 50 / _MIB, "MiB", 1)


def _waiting_memory(server: NatsServer, scale: float) -> Measures:
    """Keep messages pending in a core subscription; their payload is not counted."""
    count = max(2_000, int(1_000_000 * scale))
    with RawClient(server.port, 30) as raw, jetstream_sync.connect(server.url) as nc:
        sub = nc.subscribe(_SUBJECT, pending_msgs_limit=2 * count, pending_bytes_limit=1024 * _MIB)
        nc.flush()
        # Tracing makes reading ten times slower.
        for way, number in (("resident", count), ("traced", count // 10)):
            with _growth(way) as grown:
                for start in range(0, number, 10_000):
                    publish(raw, _SUBJECT, min(10_000, number - start), _SIZE)
                    # The answer to the ping follows the messages. Without it, the server would
                    # disconnect a client that does not keep up.
                    nc.flush(timeout=_TIMEOUT_S)
                each = grown() / number - _SIZE
            yield Measure(f"a message in a subscription above its payload, {way}", each, "B", 400)
            # All of them are pending.
            for _ in range(number):
                sub.next_msg(timeout=1.0)


def _future_memory(server: NatsServer, scale: float) -> Measures:
    """Hold futures of messages that nothing acknowledges; their payload is not counted."""
    count = max(2_000, int(100_000 * scale))
    # A subscriber: without one, the server reports that there are no responders.
    with jetstream_sync.connect(server.url) as other:
        other.subscribe(_SUBJECT, cb=lambda _: None, pending_msgs_limit=0)
        other.flush()
        for way in ("resident", "traced"):
            # The end of a `with` block would wait for the acknowledgements.
            with closing(jetstream_sync.connect(server.url)) as nc:
                js = nc.jetstream(timeout=_TIMEOUT_S, publish_async_max_pending=2 * count)
                js.publish_async(_SUBJECT, b"")
                with _growth(way) as grown:
                    futures = [js.publish_async(_SUBJECT, b"x" * _SIZE) for _ in range(count)]
                    nc.flush(timeout=_TIMEOUT_S)
                    each = grown() / count - _SIZE
                yield Measure(f"an outstanding future above its payload, {way}", each, "B", 1200)
                if any(future.done() for future in futures):
                    raise NotDoneError("a message was acknowledged")


def _object_memory(server: NatsServer, scale: float) -> Measures:
    """Put and get an object that is generated piece by piece."""
    pieces, piece = max(16, int(1024 * scale)), os.urandom(_MIB)
    with jetstream_sync.connect(server.url) as nc:
        store = nc.jetstream().create_object_store(bucket="LIMITS")
        for warm_up in (True, False):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            store.put("large", [piece] * (4 if warm_up else pieces))
            with store.open("large") as file:
                while file.read(_MIB):
                    pass
    # In KiB on Linux.
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    yield Measure(f"put and get of {pieces:,} MiB, resident at the peak", peak, "MiB", 40)


@contextmanager
def _growth(way: str) -> Iterator[Callable[[], float]]:
    """Provide a function that returns the growth of the memory in bytes since the call."""
    gc.collect()
    read = _resident
    if way == "traced":
        tracemalloc.start()
        read = _traced
    before = read()

    def grown() -> float:
        gc.collect()
        return read() - before

    try:
        yield grown
    finally:
        tracemalloc.stop()


def _traced() -> float:
    return tracemalloc.get_traced_memory()[0]


def _resident() -> float:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return float("nan")
    return int(statm.read_text().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))


# --- reading --------------------------------------------------------------------------------------


def _flat(server: NatsServer, scale: float) -> Measures:
    """Read a million messages through one ordered consumer's iterator."""
    blocks, costs, resident = max(4, int(1_000_000 * scale) // _BLOCK), [], []
    with RawClient(server.port, 30) as raw, jetstream_sync.connect(server.url) as nc:
        # A block pushes the previous one, which has been read, out of the stream.
        make_stream(raw, _STREAM, _SUBJECT, max_msgs=_BLOCK)
        stream = nc.jetstream().get_stream(_STREAM)
        with stream.ordered_consumer().messages() as messages:
            for _ in range(blocks):
                fill(raw, _SUBJECT, _BLOCK, _SIZE)
                costs.append(_cost(partial(_read, messages), _BLOCK))
                resident.append(_resident())
    # The first block warms up the interpreter and the allocator.
    first, last = median(costs[1:3]), median(costs[-2:])
    yield Measure("ordered read: cost after 100,000 messages", first, "us")
    yield Measure(f"ordered read: cost after {blocks * _BLOCK:,} / then", last / first, "", 1.1)
    yield Measure("ordered read: memory grown", (resident[-1] - resident[1]) / _MIB, "MiB", 8)


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
                taken.append(_cost(partial(_read_block, nc), _BLOCK))
    ratio = median(many / few for few, many in zip(*costs, strict=True))
    yield Measure("ordered read: cost with 1 subscription", median(costs[0]), "us")
    yield Measure("10,000 subscriptions / 1", ratio, "", 1.1)


def _transports(_server: NatsServer, scale: float) -> Measures:
    """Read the same messages over TCP, TLS and WebSocket in turn, from a separate server."""
    import trustme  # not in the environment of the other probes

    rates: dict[str, list[float]] = {"TCP": [], "TLS": [], "WebSocket": []}
    costs: dict[str, list[float]] = {each: [] for each in rates}
    with ExitStack() as things:
        directory = Path(things.enter_context(tempfile.TemporaryDirectory()))
        port, holder = reserve_port()
        if holder is not None:
            things.enter_context(holder)
        authority, pem = trustme.CA(), directory / "server.pem"
        authority.cert_pem.write_to_path(directory / "ca.pem")
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(pem)
        tls = f'tls {{ cert_file: "{pem}", key_file: "{pem}" }}'
        config = f"{tls}\nallow_non_tls: true\nwebsocket {{ port: {port}, no_tls: true }}"
        server = things.enter_context(NatsServer(config=config))
        raw = things.enter_context(RawClient(server.port, 30))
        trusted = TLSOptions(ca_file=directory / "ca.pem")
        connections = {
            "TCP": things.enter_context(jetstream_sync.connect(server.url)),
            "TLS": things.enter_context(jetstream_sync.connect(server.url, tls=trusted)),
            "WebSocket": things.enter_context(jetstream_sync.connect(f"ws://127.0.0.1:{port}")),
        }
        make_stream(raw, _STREAM, _SUBJECT)
        fill(raw, _SUBJECT, _BLOCK, _SIZE)
        for nc in connections.values():
            _read_block(nc)
        for _ in range(max(3, int(9 * scale))):
            for transport, nc in connections.items():
                start = time.perf_counter()
                costs[transport].append(_cost(partial(_read_block, nc), _BLOCK))
                rates[transport].append(_BLOCK / (time.perf_counter() - start))
    rate = {transport: median(taken) for transport, taken in rates.items()}
    for transport, value in rate.items():
        yield Measure(f"ordered read over {transport}", value, "/s")
    yield Measure("TLS / TCP", rate["TLS"] / rate["TCP"], "", 0.6, at_least=True)
    yield Measure("WebSocket / TCP", rate["WebSocket"] / rate["TCP"])
    # The server's part, which is larger for TLS, is not included.
    for transport, taken in costs.items():
        yield Measure(f"ordered read: cost over {transport}", median(taken), "us")


def _read_block(nc: Connection) -> None:
    with nc.jetstream().ordered_consumer(_STREAM).messages() as messages:
        _read(messages)


def _read(messages: Any) -> None:
    for _ in islice(messages, _BLOCK):
        pass


def _cost(work: Callable[[], None], count: int) -> float:
    """Return the processor time of this process in microseconds per message, all threads."""
    start = time.process_time()
    work()
    return (time.process_time() - start) / count * 1e6


# --- the program ----------------------------------------------------------------------------------

PROBES: Mapping[str, Callable[[NatsServer, float], Measures]] = {
    "import": _import,
    "connect": _connect,
    "threads": _threads,
    "windows": _windows,
    "connection-memory": _memory,
    "waiting-memory": _waiting_memory,
    "future-memory": _future_memory,
    "object-memory": _object_memory,
    "flat": _flat,
    "subscriptions": _subscriptions,
    "transports": _transports,
}
#: The probes of the cost and the memory as the work grows.
SCALING = ("threads", "windows", "flat", "subscriptions", "future-memory", "waiting-memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probes, print the table and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.limits", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=[*PROBES, "scaling"],
        default=list(PROBES),
        metavar="PROBE",
        help=f"of {', '.join(PROBES)}; scaling: {', '.join(SCALING)}; default: all",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="FACTOR", help="factor on the messages"
    )
    parser.add_argument("--child", choices=list(PROBES), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        with NatsServer() as server:
            print(json.dumps(list(PROBES[options.child](server, options.scale))))
        return 0
    lines = [["", "measured", "aim", ""]]
    failures: list[str] = []
    for probe in [
        each for row in options.rows for each in (SCALING if row == "scaling" else [row])
    ]:
        print(probe, file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "tests.bench.limits", "--child", probe]
        done = subprocess.run(
            [*command, "--scale", str(options.scale)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=_PROBE_LIMIT_S * max(1.0, options.scale),
            check=False,
        )
        if done.returncode == 0:
            lines += [Measure(*each).line() for each in json.loads(done.stdout)]
        else:
            failures.append(f"{probe} failed: {done.stderr.strip()[-1500:]}")
    print(align(lines))
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
