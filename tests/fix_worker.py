"""Workers under test: in a thread of this process, and as processes that record what they handle."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from fix_apps import Program
from fix_threads import SCALE, wait_until

from jetstream_sync import ConsumerNotFoundError, JetStream, Stream
from jetstream_sync.workers import Backoff, Worker

__all__ = [
    "FAST",
    "RunningWorker",
    "WorkerProgram",
    "dead_letters",
    "exists",
    "is_settled",
    "publish_numbers",
    "publish_texts",
    "running",
]

#: Three attempts, one right after the other.
FAST = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=3)

_HEAD = """
import logging, os, signal, sys, threading, time
import jetstream_sync
from jetstream_sync.workers import Backoff, Context, Reject, Retry, Worker

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(levelname)s %(message)s")

def record(text):
    with open("runs.txt", "a") as file:
        file.write(f"{text}\\n")

"""
_TAIL = """
if __name__ == "__main__":
    sys.exit(worker.run())
"""


class RunningWorker:
    """A worker that runs in a thread of this process."""

    def __init__(self, worker: Worker, *, burst: bool = False) -> None:
        self.worker = worker
        self._burst = burst
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run, name="worker-main", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.status = self.worker.run(burst=self._burst)

    def ended(self, limit: float = 20.0) -> int:
        """Wait for the end of the worker, and return its status."""
        self._thread.join(limit * SCALE)
        assert self.status is not None, "the worker did not end"
        return self.status

    def stop(self) -> int:
        """Stop the worker, and return its status."""
        self.worker.stop()
        return self.ended()


@contextlib.contextmanager
def running(worker: Worker) -> Iterator[RunningWorker]:
    """Run a worker in a thread for the duration of a block."""
    run = RunningWorker(worker)
    try:
        yield run
    finally:
        if run.status is None:
            run.stop()


class WorkerProgram(Program):
    """
    A worker as a process.

    Args:
        code: defines ``worker``; ``record(text)`` appends a line to a file.
        url: the address of the nats-server.
        folder: where it runs; several programs may share it, and the file.
        options: of ``python -m jetstream_sync.workers``; ``None``: the module is run as a script.

    """

    def __init__(
        self, code: str, url: str, folder: Path, options: Sequence[str] | None = None
    ) -> None:
        self._app = folder / f"app_{len(list(folder.glob('app_*.py')))}.py"
        self.write(code)
        self._runs = folder / "runs.txt"
        command = [str(self._app)]
        if options is not None:
            command = ["-m", "jetstream_sync.workers", f"{self._app.stem}:worker", *options]
        super().__init__(command, url, folder)
        self.wait_for("is ready")

    def write(self, code: str) -> None:
        """Replace the code in the file; a running process has the former one."""
        self._app.write_text(f"{_HEAD}{code}{_TAIL}")

    @property
    def runs(self) -> list[str]:
        """The recorded lines."""
        return self._runs.read_text().splitlines() if self._runs.exists() else []

    def wait_runs(self, count: int, limit: float = 20.0) -> list[str]:
        """Wait until this number of lines is recorded, and return them."""
        wait_until(lambda: len(self.runs) >= count, limit)
        return self.runs


def publish_numbers(js: JetStream, stream: Stream, count: int, first: int = 0) -> None:
    """Publish messages to a stream, each with its number."""
    for number in range(first, first + count):
        js.publish(f"{stream.name}.a", b"%d" % number)


def publish_texts(js: JetStream, stream: Stream, *texts: str) -> None:
    """Publish a message to a stream for each text."""
    for text in texts:
        js.publish(f"{stream.name}.a", text.encode())


def exists(pid: int) -> bool:
    """Return whether there is a process with an id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def dead_letters(js: JetStream) -> int:
    """Return the number of messages in the stream DEAD, which may not exist yet."""
    return js.get_stream("DEAD").info().state.messages if "DEAD" in js.stream_names() else 0


def is_settled(stream: Stream, consumer: str = "C") -> bool:
    """Return whether a consumer has delivered everything and nothing waits for an acknowledgement."""
    try:
        info = stream.consumer_info(consumer)
    except ConsumerNotFoundError:
        return False  # the worker has not created it yet
    return not info.num_pending and not info.num_ack_pending
