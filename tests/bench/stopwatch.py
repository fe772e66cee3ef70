"""The duration of a piece of work, and its processor time by thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Stopwatch", "Timing", "processor_seconds_of"]


@dataclass(frozen=True)
class Timing:
    """The result of a `Stopwatch`."""

    seconds: float

    processor: Mapping[str, float]
    """
    Processor seconds, user and system, by thread: ``caller``, ``reader``, ``flusher``, ``acks``, ...

    ``other`` is the time of threads that have ended, or of all threads on platforms without a clock
    for each thread.
    """


class Stopwatch:
    """Measures the work of this process between its creation and `stop`."""

    def __init__(self) -> None:
        self._before = _thread_seconds()
        self._process = time.process_time()
        self._start = time.perf_counter()

    def stop(self) -> Timing:
        """Return the times so far; the stopwatch continues."""
        seconds = time.perf_counter() - self._start
        process = time.process_time() - self._process
        threads: dict[str, float] = {}
        for thread, total in _thread_seconds().items():
            taken = total - self._before.get(thread, 0.0)
            threads[thread[0]] = threads.get(thread[0], 0.0) + taken
        threads["other"] = max(0.0, process - sum(threads.values()))
        return Timing(seconds, {role: taken for role, taken in threads.items() if taken > 0.0})


def processor_seconds_of(pid: int | None) -> float | None:
    """Return the processor seconds of another process, to the hundredth; ``None``: unknown."""
    stat = Path(f"/proc/{pid}/stat")
    if pid is None or not stat.exists():
        return None
    # The second field is the name of the program, which may contain spaces.
    fields = stat.read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _thread_seconds() -> dict[tuple[str, int], float]:
    """Return the processor seconds of each running thread, by role and identifier."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return {}
    seconds: dict[tuple[str, int], float] = {}
    for thread in threading.enumerate():
        ident = thread.ident
        if ident is not None:
            clock = time.pthread_getcpuclockid(ident)
            seconds[_role(thread), ident] = time.clock_gettime(clock)
    return seconds


def _role(thread: threading.Thread) -> str:
    if thread is threading.main_thread():
        return "caller"
    name = thread.name.split("-")
    return name[1] if name[0] == "nats" else "workers"
