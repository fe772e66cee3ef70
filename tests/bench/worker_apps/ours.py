"""A worker of this package."""

from __future__ import annotations

import os
import sys

from jetstream_sync.workers import Worker

from .record import record, url

worker = Worker(url)


@worker.handler(
    stream="BENCH",
    consumer="C",
    concurrency=int(os.environ["BENCH_THREADS"]),
    decode="json",
)
def handle(number: int) -> None:
    """Do nothing."""
    record(number)


if __name__ == "__main__":
    sys.exit(worker.run())
