"""
Reports of running messages: the NATS service of a worker process, and the requests to all of them.

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
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from urllib.parse import quote

from .. import Listing, codec, errors
from ..converters import parsed
from .deliveries import LeasedMessage, lease_clock
from .logs import log
from .metrics import Snapshot

if TYPE_CHECKING:
    from .. import Connection, Msg
    from .operations.health import Monitor

#: The subject of requests to all workers.
RUNNING_SUBJECT: Final = "jetstream-worker.running"
#: The subject of requests to end the process that runs a call.
TERMINATE_SUBJECT: Final = "jetstream-worker.terminate"
#: How long to wait for the report of each further process, in seconds.
_STALL_S: Final = 0.3
#: The name of the service, and the version of its reports.
_SERVICE: Final = "jetstream-worker"
_VERSION: Final = "1.0.0"
#: The header of a reply that is an error (ADR-32).
_ERROR_HEADER: Final = "Nats-Service-Error"
#: Maximum number of messages, and of stacks with their innermost frames, in one report.
_MAX_MESSAGES: Final = 500
_MAX_STACKS: Final = 100
_MAX_FRAMES: Final = 30
#: Timeout of the end of the service, in seconds.
_STOP_S: Final = 1.0


class _Progress(TypedDict, total=False):
    progress: str
    """How far the run is, see `Context.progress`; older workers report none."""


class RunningMessage(_Progress):
    """A message whose handler runs."""

    handler: str
    stream: str
    consumer: str
    subject: str
    stream_seq: int
    attempt: int
    since: str
    """When the handler started."""
    seconds: float
    """How long it runs."""
    over_timeout: bool
    """Whether the handler exceeds its timeout."""
    lease_lost: bool
    """Whether the server delivers the message again."""
    thread: str
    """The name of the thread."""
    stack: str | None
    """The stack of the thread; ``None``: not requested, not enabled, or in another process."""


class ProcessReport(Snapshot):
    """What one worker process runs, with its health and numbers."""

    worker: str
    host: str
    pid: int
    started: str
    stacks: bool
    """Whether the worker shows stacks."""
    running: list[RunningMessage]
    """The messages whose handlers run, the oldest start first."""
    omitted: int
    """Number of running messages that are left out of a long report."""


def subject_of(worker: str) -> str:
    """Return the subject for the processes of one worker."""
    return f"{RUNNING_SUBJECT}.{quote(worker, safe='').replace('.', '%2E') or '%'}"


def request_reports(
    nc: Connection, worker: str | None = None, *, stacks: bool = False, timeout: float = 2.0
) -> Listing[ProcessReport]:
    """
    Return the reports of all worker processes, or of the processes of one worker, by name and process.

    A process that does not answer in time is left out: it is stopped, or a C function keeps its GIL. One
    that answers with something else is one of those that are missing.
    """
    subject = RUNNING_SUBJECT if worker is None else subject_of(worker)
    payload = b"stacks" if stacks else b""
    replies: list[Msg] = []
    with suppress(errors.NoRespondersError):
        replies += nc.request_many(subject, payload, timeout=timeout, stall=_STALL_S)
    reports: list[ProcessReport] = []
    missing: dict[str, str] = {}
    for number, reply in enumerate(replies, 1):
        failure = reply.headers.get(_ERROR_HEADER) if reply.headers else None
        found = _object(reply.data)
        if failure is not None:
            missing[f"process {number}"] = failure
            continue
        try:
            reports.append(parsed(ProcessReport, _known(ProcessReport, found)))
        except ValueError:
            if "worker" in found:  # else it is no worker: a stream may store the subjects
                name = f"{found['worker']} {found.get('host')}:{found.get('pid')}"
                missing[name] = "it reports as another version"
    reports.sort(key=lambda item: (item["worker"], item["host"], item["pid"]))
    return Listing(reports, "worker processes", missing, {}, 0, allow_incomplete=True)


def _known(kind: Any, value: Any) -> Any:
    """Return JSON without the keys that only a newer version knows."""
    if is_typeddict(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        return {name: _known(hints[name], item) for name, item in value.items() if name in hints}
    if get_origin(kind) is list and isinstance(value, list):
        return [_known(get_args(kind)[0], item) for item in value]
    return value


def terminate(nc: Connection, subject: str, timeout: float = 2.0) -> bool:
    """Have the worker that runs a call in a process end it; return whether one did."""
    try:
        replies = nc.request_many(
            TERMINATE_SUBJECT, subject.encode(), timeout=timeout, stall=_STALL_S
        )
        return any(_object(reply.data).get("terminated") is True for reply in replies)
    except errors.NoRespondersError:
        return False


def _object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a reply; empty: it has none, such as the error of a worker."""
    try:
        found = codec.loads(data)
    except errors.InvalidResponseError:
        return {}
    return found if isinstance(found, dict) else {}


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
            frame = None if runner.source.pool == "processes" else frames.get(delivery.thread)
            stack = None
            if frame is not None:
                stack = codec.encodable("".join(traceback.format_stack(frame, _MAX_FRAMES)))
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


def _message(delivery: LeasedMessage, now: float, thread: str, stack: str | None) -> RunningMessage:
    where = delivery.metadata
    seconds = max(0.0, now - delivery.started_at)
    since = datetime.now(timezone.utc) - timedelta(seconds=seconds)
    return {
        "handler": delivery.handler,
        "stream": where.stream,
        "consumer": where.consumer,
        "subject": codec.encodable(delivery.msg.subject),
        "stream_seq": where.stream_seq,
        "attempt": delivery.attempt,
        "since": since.isoformat(timespec="milliseconds"),
        "seconds": round(seconds, 3),
        "over_timeout": delivery.exceeds_timeout,
        "lease_lost": delivery.is_lost() and not delivery.is_settled,
        "thread": thread,
        "stack": stack,
        "progress": "" if delivery.progress is None else codec.encodable(str(delivery.progress)),
    }
