"""A worker that holds all messages: the first one is never done."""

from __future__ import annotations

import os
import sys
import threading

from jetstream_sync.workers import Worker

from .record import record, url

worker = Worker(url, drain_timeout=0)


@worker.handler(
    stream="BENCH", consumer="C", prefetch=int(os.environ["BENCH_PREFETCH"]), timeout=3600
)
def handle() -> None:
    """Hold the message."""
    record(0)
    threading.Event().wait()


if __name__ == "__main__":
    sys.exit(worker.run())
