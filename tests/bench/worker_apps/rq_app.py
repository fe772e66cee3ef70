"""An RQ worker without a process per job, which is its fastest."""

from __future__ import annotations

import sys

from redis import Redis
from rq import Queue, SimpleWorker

from .record import record, url


def handle(number: int) -> None:
    """Do nothing."""
    record(number)


if __name__ == "__main__":
    connection = Redis.from_url(url)
    worker = SimpleWorker([Queue("bench", connection=connection)], connection=connection)
    sys.exit(not worker.work(logging_level="WARNING"))
