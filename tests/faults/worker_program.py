"""
A worker of the fault run, with its parameters in environment variables: handler processes get them, too.

Each message says what its handler does. Every run of a handler is recorded in a file, before and after,
with single writes that survive the end of the process.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jetstream_sync.workers import Backoff, Context, Reject, Retry, Worker, dead_letters

#: The options of the handler; the verdict uses them, too.
ATTEMPTS: Final = 5
ACK_WAIT: Final = 3.0
TIMEOUT: Final = 6.0
#: Seconds between two checks for another attempt.
_POLL_S: Final = 0.05

_folder = Path(os.environ["FAULTS_FOLDER"])
#: Seconds after which another attempt of a message that is over its timeout must have begun.
_limit = float(os.environ["FAULTS_OVERDUE"])
_mistake = os.environ["FAULTS_MISTAKE"]
_records = os.open(_folder / "runs.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def record(event: str, task: dict[str, Any], ctx: Context) -> None:
    """Append a line to the file of all workers."""
    line = f"{time.time():.6f} {os.getpid()} {event} {task['number']} {ctx.attempt}\n"
    os.write(_records, line.encode())


def acknowledge_first(call: Callable[[], object], ctx: Context) -> object:
    """Acknowledge the message before its handler runs: the first deliberate mistake."""
    ctx.message.ack()
    return call()


def terminate_first(*args: Any, **kwargs: Any) -> None:
    """Terminate a message before its dead letter is stored: the second deliberate mistake."""
    args[1].msg.term()
    time.sleep(0.2)
    _write(*args, **kwargs)


def renew_always(call: Callable[[], object], ctx: Context) -> object:
    """Renew the lease regardless of the timeout: the third deliberate mistake."""
    ctx.extend(1e6)
    return call()


_write = dead_letters.DeadLetterWriter.write
_middleware = {"ack first": [acknowledge_first], "renew always": [renew_always]}
if _mistake == "term first":
    dead_letters.DeadLetterWriter.write = terminate_first  # type: ignore[method-assign]

worker = Worker(
    name=f"faults-{os.getpid()}",
    dead_letters="DEAD",
    drain_timeout=10.0,
    middleware=_middleware.get(_mistake, ()),
    connection={"reconnect_time_wait": 0.1, "ping_interval": 1.0},
)


@worker.handler(
    stream="WORK",
    consumer="W",
    concurrency=4,
    ack_wait=ACK_WAIT,
    timeout=TIMEOUT,
    retry=Backoff(first=0.2, factor=1.5, maximum=1.0, attempts=ATTEMPTS),
    decode="json",
    pool=os.environ["FAULTS_POOL"],
)
def handle(task: dict[str, Any], ctx: Context) -> None:
    """Act as the message says."""
    record("begin", task, ctx)
    try:
        work(task, ctx)
    except Exception:
        record("fail", task, ctx)
        raise
    record("ok", task, ctx)


def work(task: dict[str, Any], ctx: Context) -> None:
    """Succeed, fail or take long."""
    if task["kind"] == "hang":
        hang(task, ctx)
        return
    time.sleep(task["seconds"])
    if task["kind"] == "reject":
        raise Reject("not this one")
    if ctx.attempt <= task["failures"]:
        if ctx.attempt == 1:
            raise Retry("not yet", delay=0.2)
        raise RuntimeError(f"attempt {ctx.attempt}")


def hang(task: dict[str, Any], ctx: Context) -> None:
    """In the first run, return only after another run has begun: the lease must end at the timeout."""
    first, again = (_folder / f"{name}-{task['number']}" for name in ("first", "again"))
    try:
        first.touch(exist_ok=False)
    except FileExistsError:
        again.touch()
        return
    give_up = time.monotonic() + _limit
    while not again.exists():
        if time.monotonic() > give_up:
            record("stuck", task, ctx)
            return
        time.sleep(_POLL_S)
    if task["failures"]:
        raise RuntimeError("failed after its lease was lost")


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s")
    sys.exit(worker.run())
