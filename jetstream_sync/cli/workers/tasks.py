"""``jsm task``: list and show the calls of tasks, from the buckets of their results."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ... import codec, errors
from ...durations import counted, time_from_text
from ...subjects import KV_PREFIX
from ...workers import CallProgress
from ...workers.call_messages import CallRecord, CallStatus
from ...workers.calls import PROGRESS_KEY, RESULTS_MARK, CallBucket
from ...workers.errors import NoCallError
from ...workers.flows import CallTree, Flows
from ..shared.env import readable, visible
from ..shared.names import complete_bucket
from ..shared.render import Block, Field, Table, bad, show_blocks, show_rows, warn
from ..shared.settings import Settings, command
from ..shared.status import AbsentError
from ..shared.values import FROM_1, TIME, allow_one, option

if TYPE_CHECKING:
    from ... import Connection, JetStream, KeyValueEntry

#: Shown in place of arguments and return values.
_MASK: Final = "***"
#: Maximum number of unreadable records that an error names.
_MAX_NAMED: Final = 10


class StoredCall(NamedTuple):
    """A call in a bucket."""

    changed: datetime
    """When its record was stored last."""
    id: str
    document: dict[str, Any]
    """The call as JSON."""


def _call(bucket: str, entry: KeyValueEntry, *, mask: bool = False) -> StoredCall:
    """Return the call of an entry, without values if ``mask``; raise `NoCallError` if it has other data."""
    record = CallRecord.from_json(entry.key, entry.value)
    document = {"bucket": bucket, "changed": entry.created.isoformat(), **codec.encode(record)}
    document.pop("flow", None)  # it has the arguments of other calls
    if mask:
        document |= dict.fromkeys(("args", "kwargs", "return_value"), _MASK)
    return StoredCall(entry.created, record.id, document)


def stored_calls(
    js: JetStream,
    bucket: str,
    timeout: float,
    *,
    mask: bool = False,
    newest: int | None = None,
    unreadable: list[str] | None = None,
) -> Iterator[StoredCall]:
    """
    Yield the calls in a bucket, the last changed ones at the end; ``newest``: among that many changes.

    The keys of records that cannot be read are added to ``unreadable``.
    """
    start = None
    if newest is not None:
        state = js.get_stream(f"{KV_PREFIX}{bucket}").cached_info.state
        start = max(1, state.last_seq - newest + 1)
    kv = js.key_value(bucket)
    with kv.watch(ignore_deletes=True, resume_from_revision=start) as watch:
        for entry in watch.initial(timeout):
            try:
                yield _call(bucket, entry, mask=mask)
            except NoCallError:
                # The parts of a call, such as its progress, have its id and more tokens.
                if unreadable is not None and "." not in entry.key:
                    unreadable.append(f"{bucket} > {entry.key}")


def _buckets(js: JetStream, given: Sequence[str]) -> list[str]:
    """Return the buckets with results; those that are given, or all that workers have created."""
    if given:
        return list(given)
    listing = js.list_key_values(allow_incomplete=True)
    listing.check()
    marked = [item.bucket for item in listing if RESULTS_MARK in (item.config.metadata or {})]
    if not marked:
        raise AbsentError("no bucket of results is known: --bucket names one that is not marked")
    return marked


_bucket_option = option(
    "--bucket BUCKET",
    "A bucket of results; may be repeated. [default: those that workers have created]",
    multiple=True,
    shell_complete=complete_bucket,
)


def _status(call: Mapping[str, Any]) -> Any:
    status = call.get("status")
    if status == CallStatus.FAILED:
        return bad(status)
    return warn(status) if status in {CallStatus.CANCELLED, CallStatus.EXPIRED} else status


def _time(name: str) -> Callable[[Mapping[str, Any]], datetime | None]:
    def of(call: Mapping[str, Any]) -> datetime | None:
        try:
            return time_from_text(call.get(name) or "")
        except ValueError:  # absent, or written by another program
            return None

    return of


def _took(call: Mapping[str, Any]) -> timedelta | None:
    began, ended = _time("started_at")(call), _time("finished_at")(call)
    return None if began is None or ended is None else ended - began


def _error(call: Mapping[str, Any]) -> str | None:
    """Return the class and the text of the last error, if any."""
    if not call.get("errors"):
        return None
    last = call["errors"][-1]
    return f"{last.get('exception_class_path', '').rpartition('.')[2]}: {last.get('text', '')}"


#: The columns of calls.
CALLS: Final = (
    Field("Call", "id"),
    Field("Task", "task"),
    Field("Status", _status),
    Field("Attempts", lambda call: len(call.get("worker_ids", ())), drop=3),
    Field("Changed", _time("changed")),
    Field("Took", _took, drop=2),
    Field("Error", _error, drop=1),
)


@command()
@_bucket_option
@option("--name TEXT", "Only tasks whose name contains TEXT.")
@option("--failed", "Only failed calls.")
@option(
    "--status STATUS",
    "Only calls with this status.",
    click.Choice([str(item) for item in CallStatus], case_sensitive=False),
)
@option(
    "--since TIME",
    "Only calls that were changed since then: a time, or a duration such as 1h.",
    TIME,
)
@option("--mask", "Do not show arguments and return values, which --json has.")
@option("--limit N", "Show at most N calls, the newest ones.", FROM_1, default=100)
def ls(
    settings: Settings,
    *,
    bucket: Sequence[str],
    name: str | None,
    failed: bool,
    status: str | None,
    since: datetime | None,
    mask: bool,
    limit: int,
) -> None:
    """
    List the calls of tasks with results, the last changed one first.

    A call is listed as long as the bucket keeps it, for a day by default. Calls of tasks without results are
    messages of their stream, and have no history.
    """
    allow_one({"--failed": failed, "--status": status})
    wanted = CallStatus.FAILED.value if failed else status

    def fits(call: StoredCall) -> bool:
        return (
            (name is None or name.lower() in call.document["task"].lower())
            and (wanted is None or call.document.get("status") == wanted)
            and (since is None or call.changed >= since)
        )

    found: list[StoredCall] = []
    unreadable: list[str] = []
    count = 0
    with settings.jetstream() as js:
        for item in _buckets(js, bucket):
            calls = stored_calls(js, item, settings.timeout, mask=mask, unreadable=unreadable)
            for call in filter(fits, calls):
                count += 1
                push = heapq.heappush if len(found) < limit else heapq.heappushpop
                push(found, call)
    rows = [call.document for call in sorted(found, reverse=True)]
    show_rows(settings, rows, Table(CALLS, "Calls", "No calls"))
    if count > len(rows):
        settings.note(f"{count - len(rows):,} older calls are left out; --limit shows more")
    if unreadable:
        text = ", ".join(unreadable[:_MAX_NAMED])
        text += f" and {more:,} more" if (more := len(unreadable) - _MAX_NAMED) > 0 else ""
        settings.note(f"{counted(len(unreadable), 'record')} cannot be read as a call: {text}")


# --- show ---------------------------------------------------------------------------------------


def _json(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    def of(call: Mapping[str, Any]) -> str | None:
        value = call.get(name)
        return readable(codec.dumps(value)) if value not in (None, [], {}) else None

    return of


_CALL: Final = (
    *CALLS[:4],
    Field("Bucket", "bucket"),
    Field("Sent", _time("enqueued_at")),
    Field("Not Before", _time("eta")),
    Field("Started", _time("started_at")),
    Field("Last Attempt", _time("last_attempted_at")),
    Field("Finished", _time("finished_at")),
    CALLS[5],
    Field("Progress", "progress"),
    Field("Flow", lambda call: call.get("flow", []), each=True),
    Field("Processes", lambda call: call.get("worker_ids", []), each=True),
    Field("Arguments", _json("args")),
    Field("Named Arguments", _json("kwargs")),
    Field("Return Value", _json("return_value")),
)
_FAILURE: Final = (
    Field("Error", lambda item: item.get("exception_class_path")),
    Field("Text", lambda item: item.get("text")),
    Field("Traceback", lambda item: item.get("traceback", "").rstrip()),
)


def call_blocks(call: Mapping[str, Any]) -> Iterator[Block]:
    """Yield everything that is known of a call."""
    yield Block("", _CALL, call)
    failures = call.get("errors", ())
    for number, failure in enumerate(failures, 1):
        yield Block(f"Failed attempt {number} of {len(failures)}", _FAILURE, failure)


@command()
@click.argument("call", metavar="ID")
@_bucket_option
@option("--mask", "Do not show arguments and the return value.")
def show(settings: Settings, *, call: str, bucket: Sequence[str], mask: bool) -> None:
    """
    Show a call of a task with results: its state, times, arguments, and the errors of its attempts.

    ID is that of 'jsm task ls', or the id of the result in the program. For the last call of a chain or a group,
    all calls of the flow are listed. An error text or traceback may quote
    values of the program, also with --mask.
    """
    with settings.connection() as nc:
        js, flows = settings.jetstream_on(nc), _StoredFlows(nc)
        for item in _buckets(js, bucket):
            document = _document(js, flows, item, call, mask=mask)
            if document is not None:
                show_blocks(settings, document, *call_blocks(document))
                return
    raise AbsentError(f"no call {visible(call)!r} is stored")


def _document(
    js: JetStream, flows: Flows, bucket: str, call: str, *, mask: bool
) -> dict[str, Any] | None:
    """Return a call with its flow; ``None``: the bucket has neither."""
    document, unreadable = None, None
    try:
        found = _read(js, bucket, call, mask)
        document = None if found is None else found.document
    except NoCallError as error:
        unreadable = error
    try:
        tree = flows.tree(flows.states(bucket), call)
    except (errors.KeyNotFoundError, NoCallError):
        if unreadable is not None:
            raise unreadable from None
        return document
    if tree.before or tree.parts:
        document = document or {"bucket": bucket, "id": call, "task": tree.task}
        document["flow"] = list(_lines(tree))
    return document


class _StoredFlows(Flows):
    """Reads flows."""

    def __init__(self, nc: Connection) -> None:
        self._nc = nc

    def states(self, results: str) -> CallBucket:
        """Return the states of the calls of a bucket, which is not created."""
        return CallBucket(lambda: self._nc, results, lambda _nc, _resources: None)


def _lines(tree: CallTree, depth: int = 0) -> Iterator[str]:
    """Yield a line for each call of a flow, those before it and its members first."""
    for part in tree.before:
        yield from _lines(part, depth)
    for part in tree.parts:
        yield from _lines(part, depth + 1)
    yield f"{'- ' * depth}{tree.task or '?'} {tree.id}: {tree.status or 'not begun'}"


def _read(js: JetStream, bucket: str, call: str, mask: bool) -> StoredCall | None:
    """Return a call with its progress; ``None``: the bucket does not have it; raise as `_call`."""
    kv = js.key_value(bucket)
    try:
        found = _call(bucket, kv.get(call, consistent=True), mask=mask)
    except (errors.KeyNotFoundError, errors.InvalidNameError):
        return None
    with suppress(errors.KeyNotFoundError, errors.InvalidResponseError, TypeError):
        progress = codec.loads(kv.get(f"{call}.{PROGRESS_KEY}").value)
        found.document["progress"] = str(CallProgress(*progress))
    return found
