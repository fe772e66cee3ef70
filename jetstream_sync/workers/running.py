"""Reports of running messages, and the requests for them to all worker processes; see `reporter`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast
from urllib.parse import quote

from .. import errors
from .metrics import Snapshot

if TYPE_CHECKING:
    from .. import Connection

#: The subject of requests to all workers.
RUNNING_SUBJECT: Final = "jetstream-worker.running"
#: The subject of requests to end the process that runs a call.
TERMINATE_SUBJECT: Final = "jetstream-worker.terminate"
#: How long to wait for the report of each further process, in seconds.
_STALL_S: Final = 0.3


class RunningMessage(TypedDict):
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
) -> list[ProcessReport]:
    """
    Return the reports of all worker processes, or of those of one worker, by name and process.

    A process that does not answer in time is left out: it is stopped, or a C function keeps its GIL.
    """
    subject = RUNNING_SUBJECT if worker is None else subject_of(worker)
    payload = b"stacks" if stacks else b""
    try:
        replies = [*nc.request_many(subject, payload, timeout=timeout, stall=_STALL_S)]
    except errors.NoRespondersError:
        return []
    found = [_object(reply.data) for reply in replies]
    required = ProcessReport.__required_keys__
    reports = cast("list[ProcessReport]", [item for item in found if item.keys() >= required])
    return sorted(reports, key=lambda item: (item["worker"], item["host"], item["pid"]))


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
        found: Any = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
