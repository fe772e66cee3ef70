"""
The NATS service of a worker process that reports its running messages; `running` has the requests to it.

Rules:

1. Nothing is recorded for a report: the state is read from the held messages when a request arrives.
2. A worker runs without the service if that cannot start, or is not permitted.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from ... import errors
from ..leases import Delivery, DeliveryState, lease_clock
from ..logs import log
from ..running import RUNNING_SUBJECT, TERMINATE_SUBJECT, ProcessReport, RunningMessage, subject_of
from .health import Monitor

if TYPE_CHECKING:
    from ... import Connection

#: The name of the service, and the version of its reports.
_SERVICE: Final = "jetstream-worker"
_VERSION: Final = "1.0.0"
#: Maximum number of messages, and of stacks with their innermost frames, in one report.
_MAX_MESSAGES: Final = 500
_MAX_STACKS: Final = 100
_MAX_FRAMES: Final = 30
#: Timeout of the end of the service, in seconds.
_STOP_S: Final = 1.0


class RunningReporter:
    """Answers requests for the running messages of this process."""

    def __init__(self, worker: str, report: str | None, monitor: Monitor) -> None:
        self._worker = worker
        self._report = report
        self._monitor = monitor
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._host = platform.node()
        self._stop_service: Callable[[float], object] | None = None

    def start(self, nc: Connection) -> None:
        """Start the service, unless the worker has no reports."""
        if self._report is None:
            return
        metadata = {"worker": self._worker, "host": self._host, "pid": str(os.getpid())}
        text = "Running messages of workers of jetstream_sync"
        try:
            # Each process gets every request.
            service = nc.add_service(
                _SERVICE, _VERSION, text, metadata, queue_group="", stop_cb=self._stopped
            )
            self._stop_service = service.stop
            service.add_endpoint("running", self._respond, RUNNING_SUBJECT)
            service.add_endpoint("terminate", self._terminate, TERMINATE_SUBJECT)
            service.add_endpoint("running-of-worker", self._respond, subject_of(self._worker))
        except errors.Error as error:
            self._stopped(error)

    def _stopped(self, error: BaseException | None) -> None:
        if error is not None and not self._monitor.is_stopping:
            log.warning("worker %r does not report running messages: %s", self._worker, error)

    def stop(self) -> None:
        """Stop the service."""
        if self._stop_service is not None:
            with suppress(errors.Error):
                self._stop_service(_STOP_S)

    def _respond(self, request: Any) -> None:
        request.respond_json(self.report(stacks=request.data == b"stacks"))

    def _terminate(self, request: Any) -> None:
        subject = request.data.decode()
        found = any(runner.terminate(subject) for runner in self._monitor.runners)
        request.respond_json({"terminated": found})

    def report(self, *, stacks: bool = False) -> ProcessReport:
        """Return what this process runs."""
        now = lease_clock()
        running = [
            (delivery, runner)
            for runner in self._monitor.runners
            for delivery in runner.running()
            if delivery.started_at  # else its thread has just taken it
        ]
        running.sort(key=lambda item: item[0].started_at)
        stacks = stacks and self._report == "stacks"
        shown = running[: _MAX_STACKS if stacks else _MAX_MESSAGES]
        frames = sys._current_frames() if stacks else {}  # noqa: SLF001 - documented for this use
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        messages = []
        for delivery, runner in shown:
            frame = None if runner.handler.pool == "processes" else frames.get(delivery.thread)
            stack = None
            if frame is not None:
                stack = "".join(traceback.format_stack(frame, _MAX_FRAMES))
            messages.append(_message(delivery, now, names.get(delivery.thread, ""), stack))
        return {
            **self._monitor.snapshot(),
            "worker": self._worker,
            "host": self._host,
            "pid": os.getpid(),
            "started": self._started,
            "stacks": self._report == "stacks",
            "running": messages,
            "omitted": len(running) - len(shown),
        }


def _message(delivery: Delivery, now: float, thread: str, stack: str | None) -> RunningMessage:
    where = delivery.metadata
    seconds = max(0.0, now - delivery.started_at)
    since = datetime.now(timezone.utc) - timedelta(seconds=seconds)
    return {
        "handler": delivery.handler,
        "stream": where.stream,
        "consumer": where.consumer,
        "subject": delivery.msg.subject,
        "stream_seq": where.stream_seq,
        "attempt": delivery.attempt,
        "since": since.isoformat(timespec="milliseconds"),
        "seconds": round(seconds, 3),
        "over_timeout": delivery.exceeds_timeout,
        "lease_lost": delivery.state is DeliveryState.LOST or delivery.is_lost(),
        "thread": thread,
        "stack": stack,
    }
