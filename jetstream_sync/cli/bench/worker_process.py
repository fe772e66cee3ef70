"""
The publisher of ``jsm bench sub``, in its own process: ``python -m jetstream_sync.cli.bench.worker_process``.

It reads a job from the first line of standard input, connects, writes ``ready``, waits for the next
line and publishes. If it fails, it writes a line with the failure. Lines are JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from ... import connect
from ...errors import Error
from ..status import CommandError, ExitStatus, exit_status, one_line
from .work import Workload, publish_timestamped

if TYPE_CHECKING:
    from ..settings import Settings


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """The work of a publisher in another process."""

    servers: list[str]
    login: dict[str, str]
    """Options of `connect()` that are text."""
    workload: dict[str, Any]

    def to_json(self) -> str:
        """Return the job as a line."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """Why the publisher failed."""

    error: str
    status: int
    """The exit status of ``jsm`` for this error."""


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


_MODULE: Final = "jetstream_sync.cli.bench.worker_process"
#: Time for the process to end by itself before it is killed.
_EXIT_TIMEOUT_S: Final = 5.0


def worker_job(settings: Settings, workload: Workload) -> WorkerJob:
    """
    Return the job of a publisher in another process.

    Raises:
        CommandError: another process cannot use the login.

    """
    login = settings.login()
    options = login.options()
    text_options = {name: value for name, value in options.items() if isinstance(value, str)}
    text_options.pop("name", None)
    if text_options.keys() != options.keys() - {"name"}:
        raise CommandError(
            "the publisher runs in another process, which cannot use these login options: use a "
            "user, a token, a credentials file or an nkey, without TLS options",
            ExitStatus.USAGE,
        )
    return WorkerJob(
        servers=login.servers,
        login=text_options,
        workload=asdict(workload),
    )


class WorkerProcess:
    """
    A publisher in another process; a ``with`` block ends it.

    Args:
        job: what to publish.

    """

    def __init__(self, job: WorkerJob) -> None:
        package = str(Path(__file__).parents[3])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Only the parent receives Ctrl-C; it then ends this process.
            start_new_session=True,
        )
        self._send(job.to_json())

    def ready(self) -> None:
        """
        Wait until the publisher is connected.

        Raises:
            CommandError: the publisher failed to connect, or ended.

        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line == "ready\n":
            return
        try:
            failure = WorkerFailure(**json.loads(line))
        except (ValueError, TypeError) as error:
            status = self._process.wait(_EXIT_TIMEOUT_S)
            raise CommandError(
                f"the publisher in another process ended with status {status}", ExitStatus.FAILED
            ) from error
        raise CommandError(failure.error, ExitStatus(failure.status))

    def start_publishing(self) -> None:
        """Tell the publisher to start."""
        self._send("start\n")

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the last line of its output has the reason
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the process; terminate it first if the block failed."""
        process = self._process
        if kind is not None:
            process.terminate()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> None:
    """Run the job that standard input describes."""
    job = WorkerJob(**json.loads(sys.stdin.readline()))
    options: dict[str, Any] = {"allow_reconnect": False, **job.login}
    try:
        with connect(job.servers, name="jsm bench", **options) as nc:
            _write("ready")
            # An empty result is the end of the input: the parent process has ended.
            if sys.stdin.readline():
                publish_timestamped(nc, Workload(**job.workload))
    except (Error, CommandError) as error:
        failure = WorkerFailure(error=one_line(error), status=int(exit_status(error)))
        _write(json.dumps(asdict(failure)))


if __name__ == "__main__":
    main()
