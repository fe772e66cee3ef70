"""
One client of ``jsm bench`` in a process of its own: ``python -m jetstream_sync.cli.bench.child``.

It reads a job from a line of standard input, connects, writes ``ready``, waits for the next line,
works, and writes a line with what it measured. All of it is JSON. `bench_nats_py` does the same with
another library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from ... import __version__, connect
from ...errors import Error
from ..status import CommandError, ExitStatus, exit_status, one_line
from .work import KINDS, Cell, Meter, stamped_publish

__all__ = ["STAMPED", "Job", "Measured", "Talk", "main"]

#: The kind of work of somebody who publishes for ``bench sub``.
STAMPED = "stamped"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a client in another process has to do."""

    kind: str
    servers: list[str]
    login: dict[str, str]
    """Options of `connect()` that are text."""
    domain: str | None
    prefix: str | None
    cell: dict[str, Any]

    def to_json(self) -> str:
        """Return it as a line."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What it measured; ``error`` says why there is nothing."""

    seconds: float = 0.0
    samples: list[int] | None = None
    version: str = ""
    error: str = ""
    status: int = int(ExitStatus.FAILED)
    """What ``jsm`` exits with when there is an error."""


class Talk:
    """The child's side of the conversation."""

    def __init__(self) -> None:
        self.job = Job(**json.loads(sys.stdin.readline()))
        self.cell = Cell(**self.job.cell)

    def ready(self) -> None:
        """Say that the work can begin, and wait until it may."""
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            # Whoever started this is gone.
            sys.exit(1)

    def done(self, measured: Measured) -> None:
        """Say what was measured."""
        sys.stdout.write(json.dumps(asdict(measured)) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Do the job on standard input."""
    talk = Talk()
    job, cell, meter = talk.job, talk.cell, Meter()
    options: dict[str, Any] = {"allow_reconnect": False, **job.login}
    try:
        with connect(job.servers, name="jsm bench", **options) as nc:
            run: Callable[[], None]
            if job.kind == STAMPED:

                def run() -> None:
                    stamped_publish(nc, cell)
            else:
                js = nc.jetstream(domain=job.domain, prefix=job.prefix)
                run = KINDS[job.kind].start(nc, js, cell, meter)
            talk.ready()
            started = monotonic()
            run()
            seconds = monotonic() - started
            talk.done(Measured(seconds=seconds, samples=meter.samples, version=__version__))
    except (Error, CommandError) as error:
        talk.done(Measured(error=one_line(error), status=int(exit_status(error))))


if __name__ == "__main__":
    main()
