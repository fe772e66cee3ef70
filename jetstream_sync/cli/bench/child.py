"""
The publisher of ``jsm bench sub``, in its own process: ``python -m jetstream_sync.cli.bench.child``.

It reads a job from the first line of standard input, connects, writes ``ready``, waits for the next
line and publishes. If it fails, it writes a line with the failure. Lines are JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from ... import connect
from ...errors import Error
from ..status import CommandError, exit_status, one_line
from .work import Workload, publish_timestamped

__all__ = ["WorkerFailure", "WorkerJob", "main"]


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
