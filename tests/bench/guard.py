"""
Compare the processor time per message of two commits, to find out whether a change made a path slower.

Run it from the project's root, with git::

    python -m tests.bench.guard main                # main against the files of this checkout
    python -m tests.bench.guard v0.1 main           # two commits
    python -m tests.bench.guard main --rounds 200 --workloads 'ordered consumer'

Both are installed into temporary directories, with the C extension if there is a C compiler. Each workload
runs in two processes, one for each commit, each against a fake server in another process that
holds its answers in memory: no time of a real server, no disk and no other client is in the numbers. The two
take turns every few thousand messages, so that a slow phase of the machine hits both; the ratio is the median
of the ratios of these pairs. Rates say nothing on a busy machine; these ratios repeat to a few percent.

The exit status is 1 when a workload takes more processor time than before, by more than the limit.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from jetstream_sync import Connection, PubAck

__all__ = ["main"]

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
    slower = False
    with ExitStack() as trees:
        old = trees.enter_context(_installed(options.old))
        new = trees.enter_context(_installed(options.new))
        print(f"{'processor time per message, us':32}{'before':>8}{'after':>8}{'ratio':>8}")
        for workload in options.workloads:
            before, after = _compare(old, new, workload, options.rounds)
            ratio = median(b / a for a, b in zip(before, after, strict=True))
            verdict = "slower" if ratio > 1 + options.limit else ""
            slower = slower or bool(verdict)
            line = f"{workload:32}{median(before):8.2f}{median(after):8.2f}{ratio:8.2f}  {verdict}"
            print(line.rstrip(), flush=True)
    return 1 if slower else 0


def _compare(old: Path, new: Path, workload: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return the processor microseconds per message of each round, for both directories."""
    costs: tuple[list[float], list[float]] = ([], [])
    with _Child(old, workload) as before, _Child(new, workload) as after:
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


class _Child:
    """A process that runs a workload, step by step, with the package in a directory."""

    def __init__(self, tree: Path, workload: str) -> None:
        self._tree = tree
        self._workload = workload
        self._server = _FakeServer()

    def __enter__(self) -> Self:
        self._server.__enter__()
        command = [sys.executable, __file__, "-", "--child", self._workload]
        self._process = subprocess.Popen(
            [*command, "--url", self._server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(self._tree)},
            cwd=self._tree,
        )
        self.step()  # a warm-up
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
        self._server.__exit__()


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

    with jetstream_sync.connect(url) as nc:
        for _ in sys.stdin:
            start = time.process_time()
            _WORKLOADS[workload](nc, _STEP)
            print((time.process_time() - start) / _STEP * 1e6, flush=True)


def _publish_async(nc: Connection, count: int) -> None:
    js = nc.jetstream()
    futures: list[Future[PubAck]] = [js.publish_async("guard", _PAYLOAD) for _ in range(count)]
    for future in futures:
        future.result()


def _fetch(nc: Connection, count: int) -> None:
    consumer = nc.jetstream().get_consumer("S", "C")
    for _ in range(count // _BATCH):
        for msg in consumer.fetch(_BATCH):
            msg.ack()
    nc.flush()


def _messages(nc: Connection, count: int) -> None:
    with nc.jetstream().get_consumer("S", "C").messages() as messages:
        for msg in islice(messages, count):
            msg.ack()
    nc.flush()


def _ordered(nc: Connection, count: int) -> None:
    with nc.jetstream().ordered_consumer("S").messages() as messages:
        for _ in islice(messages, count):
            pass


def _core(nc: Connection, count: int) -> None:
    with nc.subscribe("guard.core") as sub:
        for _ in range(count // _BATCH):
            for _ in range(_BATCH):
                nc.publish("guard.core", _PAYLOAD)
            for _ in range(_BATCH):
                sub.next_msg(timeout=30.0)


_WORKLOADS: Mapping[str, Callable[[Connection, int], None]] = {
    "publish_async, results read": _publish_async,
    "fetch(500), ack each": _fetch,
    "messages(), ack each": _messages,
    "ordered consumer": _ordered,
    "core publish and subscribe": _core,
}


# --- the fake server ------------------------------------------------------------------------------


class _FakeServer:
    """A process that serves one client as far as the workloads need it."""

    def __enter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        program = f"import sys; sys.path[0] = {str(Path(__file__).parent)!r}; import guard"
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{program}; guard.serve({listener.fileno()})"],
            pass_fds=[listener.fileno()],
        )
        listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def serve(listener: int) -> None:
    """Accept one connection and serve it until it ends."""
    with socket.socket(fileno=listener) as listening:
        connection, _ = listening.accept()
    _Peer(connection).run()


class _Peer:
    """Answers the commands of one client."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sids: dict[bytes, bytes] = {}
        self._answers: list[bytes] = []
        self._stored = 0
        self._consumer: dict[str, Any] = {}
        self._delivered = 0

    def run(self) -> None:
        info = {
            "server_id": "guard",
            "version": "2.12.0",
            "proto": 1,
            "headers": True,
            "jetstream": True,
            "max_payload": 1024 * 1024,
        }
        self._connection.sendall(b"INFO " + json.dumps(info).encode() + b"\r\n")
        rest = b""
        while data := self._connection.recv(1024 * 1024):
            rest = self._serve(rest + data)
            self._connection.sendall(b"".join(self._answers))
            self._answers.clear()

    def _serve(self, data: bytes) -> bytes:
        """Answer the complete commands; return the rest."""
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split(b" ")
            at_next = end + 2
            if words[0] in {b"PUB", b"HPUB"}:
                at_next += int(words[-1]) + 2
                if at_next > len(data):
                    break
                self._publish(words, data[end + 2 : at_next - 2])
            elif words[0] == b"SUB":
                self._sids[words[1]] = words[-1]
            elif words[0] == b"PING":
                self._answers.append(b"PONG\r\n")
            at = at_next
        return data[at:]

    def _publish(self, words: list[bytes], payload: bytes) -> None:
        subject, reply = words[1], words[2] if len(words) == 4 else b""
        if subject == b"guard":
            self._stored += 1
            self._answer(reply, b'{"stream":"S","seq":%d}' % self._stored)
        elif subject == b"guard.core":
            self._answer(subject, payload)
        elif subject.startswith(b"$JS.API.CONSUMER.MSG.NEXT."):
            self._deliver(reply, json.loads(payload)["batch"])
        elif subject.startswith(b"$JS.API.CONSUMER.CREATE."):
            self._consumer = json.loads(payload)["config"]
            self._delivered = 0
            self._answer(reply, self._info(self._consumer["name"], self._consumer))
        elif subject.startswith(b"$JS.API.CONSUMER.INFO."):
            self._delivered = 0
            self._answer(reply, self._info("C", {"durable_name": "C", "ack_policy": "explicit"}))
        elif reply:
            self._answer(reply, b'{"success":true}')

    def _info(self, name: str, config: dict[str, Any]) -> bytes:
        state = {"consumer_seq": 0, "stream_seq": 0}
        fields = {"stream_name": "S", "name": name, "created": "2024-01-01T00:00:00Z"}
        counts = {"num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 0, "num_pending": 0}
        states = {"delivered": state, "ack_floor": state}
        return json.dumps({**fields, **counts, **states, "config": config}).encode()

    def _deliver(self, reply: bytes, count: int) -> None:
        sid = self._sid(reply)
        first = self._delivered + 1
        self._delivered += count
        tail = b"1700000000000000000.0 %d\r\n%b\r\n" % (len(_PAYLOAD), _PAYLOAD)
        self._answers += [
            b"MSG guard %b $JS.ACK.S.C.1.%d.%d.%b" % (sid, number, number, tail)
            for number in range(first, first + count)
        ]

    def _answer(self, reply: bytes, payload: bytes) -> None:
        self._answers.append(
            b"MSG %b %b %d\r\n%b\r\n" % (reply, self._sid(reply), len(payload), payload)
        )

    def _sid(self, subject: bytes) -> bytes:
        sid = self._sids.get(subject)
        return self._sids[subject.rpartition(b".")[0] + b".*"] if sid is None else sid


if __name__ == "__main__":
    sys.exit(main())
