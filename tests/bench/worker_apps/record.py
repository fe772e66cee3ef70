"""How every program records a message: one line with the time, appended to a file of all processes."""

from __future__ import annotations

import os
import time

__all__ = ["record", "url"]

url = os.environ["BENCH_URL"]
_file = os.open(os.environ["BENCH_RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def record(number: int) -> None:
    """Record that a message is handled now."""
    os.write(_file, b"%d %d\n" % (number, time.monotonic_ns()))
