"""A task of a worker of this package, with all defaults."""

from __future__ import annotations

import sys

from jetstream_sync.workers import Worker

from .record import record, url

worker = Worker(url, name="bench", program="bench")


@worker.task(name="handle")
def handle(number: int) -> None:
    """Do nothing."""
    record(number)


if __name__ == "__main__":
    sys.exit(worker.run())
