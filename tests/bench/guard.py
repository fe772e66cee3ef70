"""
Compare the processor time per message of two commits, to find out whether a change made a path slower.

Run it from the project's root, with git::

    python -m tests.bench.guard main                # main against the files of this checkout
    python -m tests.bench.guard v0.1 main           # two commits
    python -m tests.bench.guard main --rounds 200 --workloads 'ordered consumer'

Both are installed into temporary directories, with the C extension if there is a C compiler. Each workload
runs in two processes, one for each commit, on a server with streams in memory; the time of the server is not
in the numbers. The two take turns every few thousand messages, so that a slow phase of the machine hits both;
the ratio is the median of the ratios of these pairs. Rates say nothing on a busy machine; these ratios repeat
to a few percent.

The exit status is 1 when a workload takes more processor time than before, by more than the limit.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import Self

if TYPE_CHECKING:
    from jetstream_sync import Connection, PubAckFuture, PullConsumer
    from jetstream_sync.workers import Task, Worker

__all__ = ["main"]

#: Does some operations, of at most the given number; returns how many if they were fewer.
Workload: TypeAlias = Callable[["Connection", int], "int | None"]

_ROOT = Path(__file__).resolve().parents[2]
_STEP = 10_000
"""Messages of one step."""
_BATCH = 500
_PAYLOAD = b"x" * 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two commits, print the table and return the exit status."""
    options = _parser().parse_args(arguments)
    if options.child is not None:
        _run_steps(options.child, options.url)
        return 0
    from .report import machine_state  # the children, which run this file alone, do not have it

    slower = False
    with ExitStack() as trees:
        old = trees.enter_context(_installed(options.old))
        new = trees.enter_context(_installed(options.new))
        url = trees.enter_context(_filled_server())
        print(f"{options.old}, and {options.new or 'this checkout'}; {machine_state()}")
        print(f"{'processor time per message, us':38}{'before':>8}{'after':>8}{'ratio':>8}")
        for workload in options.workloads:
            before, after = _compare(old, new, workload, url, options.rounds)
            ratio = median(b / a for a, b in zip(before, after, strict=True))
            verdict = "slower" if ratio > 1 + options.limit else ""
            slower = slower or bool(verdict)
            line = f"{workload:38}{median(before):8.2f}{median(after):8.2f}{ratio:8.2f}  {verdict}"
            print(line.rstrip(), flush=True)
    return 1 if slower else 0


def _compare(
    old: Path, new: Path, workload: str, url: str, rounds: int
) -> tuple[list[float], list[float]]:
    """Return the processor microseconds per message of each round, for both directories."""
    costs: tuple[list[float], list[float]] = ([], [])
    with _Child(old, workload, url) as before, _Child(new, workload, url) as after:
        turns = list(zip((before, after), costs, strict=True))
        for _ in range(rounds):
            for child, taken in turns:
                taken.append(child.step())
            turns.reverse()
    return costs


@contextmanager
def _installed(commit: str | None) -> Iterator[Path]:
    """Install a commit, or the checkout, into a directory for the duration of a block."""
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory, "source"), Path(directory, "target")
        if commit is None:
            # A copy, because setuptools leaves files beside what it builds.
            shutil.copytree(_ROOT / "jetstream_sync", source / "jetstream_sync")
            for path in _ROOT.iterdir():
                if path.is_file():
                    shutil.copy(path, source)
        else:
            git = ["git", "-C", str(_ROOT), "archive", commit]
            archive = subprocess.run(git, stdout=subprocess.PIPE, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(source, filter="data")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(target), str(source)], check=True)
        yield target


@contextmanager
def _filled_server() -> Iterator[str]:
    """Run a server with the streams of the workloads, and yield its URL."""
    # The children, which run this file alone, have no such modules.
    import trustme

    from jetstream_sync.server import NatsServer

    from ..fixtures.rawnats import RawClient
    from .raw import fill, make_stream

    with ExitStack() as stack:
        certificate = Path(stack.enter_context(tempfile.TemporaryDirectory()), "server.pem")
        issued = trustme.CA().issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(certificate)
        # Connections with and without TLS, so that all workloads have one server.
        config = (
            f'tls {{ cert_file: "{certificate}", key_file: "{certificate}" }}\nallow_non_tls: true'
        )
        server = stack.enter_context(NatsServer(config=config))
        with RawClient(server.port, 30) as raw:
            make_stream(raw, "G", "guard", max_msgs=1)
            make_stream(raw, "S", "guard.stored")
            fill(raw, "guard.stored", _STEP, len(_PAYLOAD))
        yield server.url


class _Child:
    """A process that runs a workload, step by step, with the package in a directory."""

    def __init__(self, tree: Path, workload: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "-", "--child", workload, "--url", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(tree)},
            cwd=tree,
        )
        self.step()  # a warm-up

    def __enter__(self) -> Self:
        return self

    def step(self) -> float:
        """Do one step; return the processor microseconds per message, all threads."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.guard", description=(__doc__ or "").strip().splitlines()[0]
    )
    parser.add_argument("old", help="the commit to compare with")
    parser.add_argument("new", nargs="?", help="default: the files of this checkout")
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="default 60")
    parser.add_argument(
        "--limit", type=float, default=0.08, metavar="SHARE", help="allowed increase; default 0.08"
    )
    parser.add_argument(
        "--workloads", nargs="+", choices=list(_WORKLOADS), default=list(_WORKLOADS), metavar="NAME"
    )
    parser.add_argument("--child", choices=list(_WORKLOADS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    return parser


# --- the workloads, in a child process with the package of one commit -----------------------------


def _run_steps(workload: str, url: str) -> None:
    """Do one step for each line of standard input, and print the cost of each."""
    import jetstream_sync

    options: dict[str, Any] = {}
    if workload.endswith("over TLS"):
        # The certificate is not verified: the cost of that is one of the connection.
        options["tls"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        options["tls"].check_hostname, options["tls"].verify_mode = False, ssl.CERT_NONE
    with jetstream_sync.connect(url, **options) as nc:
        for _ in sys.stdin:
            start = time.process_time()
            done = _WORKLOADS[workload](nc, _STEP) or _STEP
            print((time.process_time() - start) / done * 1e6, flush=True)


def _publish_async(nc: Connection, count: int) -> None:
    js = nc.jetstream()
    futures: list[PubAckFuture] = [js.publish_async("guard", _PAYLOAD) for _ in range(count)]
    for future in futures:
        future.result()


@contextmanager
def _consumer(nc: Connection) -> Iterator[PullConsumer]:
    """Create a consumer of the stored messages for the duration of a block."""
    js = nc.jetstream()
    yield js.create_consumer("S", durable_name="C", max_ack_pending=_STEP)
    nc.flush()
    js.delete_consumer("S", "C")


def _fetch(nc: Connection, count: int) -> None:
    with _consumer(nc) as consumer:
        for _ in range(count // _BATCH):
            for msg in consumer.fetch(_BATCH):
                msg.ack()


def _messages(nc: Connection, count: int) -> None:
    with _consumer(nc) as consumer, consumer.messages() as messages:
        for msg in islice(messages, count):
            msg.ack()


def _ordered(nc: Connection, count: int) -> None:
    with nc.jetstream().ordered_consumer("S").messages() as messages:
        for _ in islice(messages, count):
            pass


def _in_threads(count: int, threads: int, work: Callable[[int], None]) -> None:
    """Do a part of the work in each of some threads."""
    workers = [threading.Thread(target=work, args=(count // threads,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _publish_core(threads: int, payload: bytes = _PAYLOAD) -> Workload:
    def publish(nc: Connection, count: int) -> None:
        def work(share: int) -> None:
            for _ in range(share):
                nc.publish("guard.nowhere", payload)

        _in_threads(count, threads, work)
        nc.flush(timeout=60.0)

    return publish


def _publish_async_in(threads: int) -> Workload:
    return lambda nc, count: _in_threads(count, threads, lambda share: _publish_async(nc, share))


def _publish_headers(nc: Connection, count: int) -> None:
    for _ in range(count):
        nc.publish("guard.nowhere", b"", headers={"Trace": "1"})
    nc.flush(timeout=60.0)


def _publish_at(rate: int) -> Workload:
    """Return the workload of a fifth of a second at a rate of messages."""

    def publish(nc: Connection, count: int) -> int:
        done = min(count, rate // 5)
        for _ in range(done):
            nc.publish("guard.nowhere", _PAYLOAD)
            time.sleep(1 / rate)
        return done

    return publish


def _publish_sync(nc: Connection, count: int) -> int:
    js = nc.jetstream()
    for _ in range(count // 20):
        js.publish("guard", _PAYLOAD)
    return count // 20


def _small_objects(nc: Connection, count: int) -> int:
    js = nc.jetstream()
    store = js.create_object_store(bucket="GUARD", storage="memory")
    store.put("small", b"x" * 100)
    for _ in range(count // 100):
        store.get_bytes("small")
    js.delete_object_store("GUARD")
    return count // 100


def _get_many(nc: Connection, count: int) -> int:
    js = nc.jetstream()
    bucket = js.create_key_value(bucket="GUARD", storage="memory")
    keys = [f"k{number}" for number in range(min(count, 1000))]
    for key in keys:
        js.publish_async(f"$KV.GUARD.{key}", _PAYLOAD)
    js.publish_async_completed(timeout=30.0)
    for _ in range(10):
        bucket.get_many(keys)
    js.delete_key_value("GUARD")
    return 10 * len(keys)


def _ordered_empty(nc: Connection, count: int) -> None:
    """Read messages that have headers and an empty payload."""
    js = nc.jetstream()
    with js.ordered_consumer("S", headers_only=True).messages() as messages:
        for _ in islice(messages, count):
            pass


def _core(nc: Connection, count: int) -> None:
    with nc.subscribe("guard.core") as sub:
        for _ in range(count // _BATCH):
            for _ in range(_BATCH):
                nc.publish("guard.core", _PAYLOAD)
            for _ in range(_BATCH):
                sub.next_msg(timeout=30.0)


@cache
def _task(url: str, *, results: bool) -> tuple[Worker, Task[[int], int]]:
    """Return a worker and its task; each process has its own queue, in a stream that all share."""
    from jetstream_sync.workers import Worker

    program = f"guard-{os.getpid()}"
    worker = Worker(url, name=program, program=program)

    @worker.task(name="double", results=program if results else None)
    def double(number: int) -> int:
        return 2 * number

    return worker, double


def _delay(*, results: bool) -> Workload:
    """Return the workload of sending calls, which no worker runs."""

    def send(nc: Connection, count: int) -> int:
        done = count // 40
        _, task = _task(nc.connected_url or "", results=results)
        for number in range(done):
            task.delay(number)
        return done

    return send


@cache
def _running_task(url: str) -> Task[[int], int]:
    """Return a task whose worker runs in a thread, for as long as the process lives."""
    worker, task = _task(url, results=True)
    threading.Thread(target=worker.run, daemon=True).start()
    return task


def _run_tasks(nc: Connection, count: int) -> int:
    done = count // 40
    task = _running_task(nc.connected_url or "")
    calls = [task.delay(number) for number in range(done)]
    for call in calls:
        call.get(timeout=60.0)
    return done


_WORKLOADS: Mapping[str, Workload] = {
    "publish_async, results read": _publish_async,
    "fetch(500), ack each": _fetch,
    "messages(), ack each": _messages,
    "ordered consumer": _ordered,
    "ordered consumer, headers only": _ordered_empty,
    "core publish and subscribe": _core,
    "core publish": _publish_core(1),
    "core publish, 2 threads": _publish_core(2),
    "core publish, 8 threads": _publish_core(8),
    "core publish, 4 KiB": _publish_core(1, b"x" * 4096),
    "core publish, headers, empty payload": _publish_headers,
    "core publish, 64 KiB": lambda nc, count: (
        _publish_core(1, b"x" * 65536)(nc, count // 20) or count // 20
    ),
    "core publish, 20 a second": _publish_at(20),
    "core publish, 500 a second": _publish_at(500),
    "publish_async, 2 threads": _publish_async_in(2),
    "publish_async, 8 threads": _publish_async_in(8),
    "publish, wait for each ack": _publish_sync,
    "publish, wait for each ack, over TLS": _publish_sync,
    "core publish, over TLS": _publish_core(1),
    "delay() of a task": _delay(results=False),
    "delay() of a task with results": _delay(results=True),
    "task with results: sent, run, read": _run_tasks,
    "get of an object of 100 bytes": _small_objects,
    "get_many of 1,000 keys": _get_many,
}


if __name__ == "__main__":
    sys.exit(main())
