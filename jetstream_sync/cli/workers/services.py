"""``jsm service`` and ``jsm counter``: discover services, and read and change counters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from ... import errors
from ...codec import decode, encode, loads
from ...net.clock import monotonic
from ...services import ServicePing
from ...subjects import SERVICES_PREFIX
from ..shared.env import single_line, visible
from ..shared.names import named_stream
from ..shared.output import emit_item, emit_text
from ..shared.render import Block, Field, Table, bad, show_blocks, show_rows
from ..shared.settings import Settings, command
from ..shared.status import AbsentError, FailedError, one_line
from ..shared.values import option

if TYPE_CHECKING:
    from ... import Connection, CounterEntry, Counters

#: How long to wait for each further instance, in seconds.
_STALL_S: Final = 0.3

_INSTANCES: Final = (
    Field("Name", "name"),
    Field("Version", "version"),
    Field("ID", "id"),
    Field("Endpoints", lambda info: len(info.endpoints or ())),
    Field("Description", "description", drop=1),
)
_ENDPOINT: Final = (
    Field("Name", "name"),
    Field("Subject", "subject"),
    Field("Queue Group", "queue_group"),
)
_STATS: Final = (
    Field("Service", lambda row: row[0].name),
    Field("ID", lambda row: row[0].id, drop=2),
    Field("Endpoint", lambda row: row[1].name),
    Field("Requests", lambda row: row[1].num_requests),
    Field("Errors", lambda row: bad(row[1].num_errors)),
    Field("Time", lambda row: row[1].processing_time, drop=1),
    Field("Average", lambda row: row[1].average_processing_time),
    Field("Last Error", lambda row: row[1].last_error, drop=3),
)

_name = click.argument("name", required=False)
_id = click.argument("instance", required=False, metavar="[ID]")


@command()
@_name
def ls(settings: Settings, *, name: str | None) -> None:
    """List the running instances of all services, or of one."""
    with _asked(settings) as (nc, _):
        found = nc.service_info(name, timeout=settings.timeout, stall=_STALL_S)
        show_rows(settings, found, Table(_INSTANCES, "Services", "No services"))


@command()
@click.argument("name")
@_id
def info(settings: Settings, *, name: str, instance: str | None) -> None:
    """Show the description and the endpoints of a service."""
    with _asked(settings) as (nc, _):
        found = nc.service_info(name, instance, timeout=settings.timeout, stall=_STALL_S)
        _must_exist(found, name, instance)
        blocks = []
        for item in found:
            title = f"Instance {single_line(item.id)} of {item.name}"
            blocks.append(Block(title, _DESCRIPTION, item))
            blocks += [Block("Endpoint", _ENDPOINT, endpoint) for endpoint in item.endpoints or ()]
        show_blocks(settings, found, *blocks)


_DESCRIPTION: Final = (
    Field("Version", "version"),
    Field("Description", "description"),
    Field("Metadata", "metadata", each=True),
)


@command()
@_name
@_id
def stats(settings: Settings, *, name: str | None, instance: str | None) -> None:
    """Show the requests, errors and processing times of endpoints."""
    with _asked(settings) as (nc, _):
        found = nc.service_stats(name, instance, timeout=settings.timeout, stall=_STALL_S)
        if name is not None:
            _must_exist(found, name, instance)
        rows = [(item, endpoint) for item in found for endpoint in item.endpoints or ()]
        table = Table(_STATS, "Service statistics", "No endpoints" if found else "No services")
        show_rows(settings, rows, table, document=found)


@command()
@_name
def ping(settings: Settings, *, name: str | None) -> None:
    """Measure the time until each instance of all services, or of one, replies."""
    subject = ".".join([SERVICES_PREFIX, "PING", *([] if name is None else [name])])
    count = 0
    with _asked(settings) as (nc, failed), contextlib.suppress(errors.NoRespondersError):
        started = monotonic()
        for reply in nc.request_many(subject, timeout=settings.timeout, stall=_STALL_S):
            took = (monotonic() - started) * 1000
            count += 1
            try:
                found = decode(ServicePing, loads(reply.data))
            except errors.InvalidResponseError as error:
                failed.append(error)
                continue
            shown = single_line(f"{found.name} {found.version} {found.id}")
            document = {**encode(found), "rtt_ms": round(took, 3)}
            emit_item(settings, document, f"{shown} in {took:.2f} ms")
    if not count:
        raise AbsentError("no services" if name is None else f"no service {visible(name)!r}")


@contextlib.contextmanager
def _asked(settings: Settings) -> Iterator[tuple[Connection, list[Exception]]]:
    """
    Open a connection for a ``with`` block, and yield it with a list of its errors.

    At the end of the block, raise an error if replies of services cannot be read.
    """
    found: list[Exception] = []
    with settings.connection(on_error=found.append) as nc:
        yield nc, found
    unread = (errors.InvalidResponseError, errors.ServiceError)
    failed = [error for error in found if isinstance(error, unread)]
    if failed:
        raise FailedError(f"{len(failed)} of the replies cannot be read: {one_line(failed[0])}")


def _must_exist(found: list[Any], name: str, instance: str | None) -> None:
    if not found:
        about = f" with the ID {visible(instance)!r}" if instance is not None else ""
        raise AbsentError(f"no service {visible(name)!r}{about}")


# --- counters -----------------------------------------------------------------------------------

_COUNTERS: Final = (
    Field("Subject", "subject"),
    Field("Value", "value", str, right=True),
    Field(
        "Last Increment",
        "increment",
        lambda value: "" if value is None else f"{value:+d}",
        right=True,
    ),
    Field("Changed", "time", drop=1),
)


@contextlib.contextmanager
def _counters(settings: Settings, stream: str) -> Iterator[Counters]:
    """Open a connection for a ``with`` block, and yield the counters of a stream."""
    with settings.jetstream() as js:
        named_stream(settings, js, stream)
        try:
            yield js.counters(stream)
        except errors.KeyNotFoundError as error:
            raise AbsentError(f"stream {stream} has no counter {error.key!r}") from error


def _counter_document(entry: CounterEntry) -> dict[str, Any]:
    # As text, because other programs round large integers.
    return {
        "subject": visible(entry.subject),
        "value": str(entry.value),
        "increment": None if entry.increment is None else str(entry.increment),
        "sources": {
            name: {subject: str(value) for subject, value in totals.items()}
            for name, totals in entry.sources.items()
        },
        "seq": entry.seq,
        "time": entry.time.isoformat(),
    }


@command("ls")
@click.argument("stream")
@click.argument("pattern", required=False, default=">", metavar="[FILTER]")
def list_counters(settings: Settings, *, stream: str, pattern: str) -> None:
    """List the counters of a stream; FILTER may contain wildcards."""
    with _counters(settings, stream) as counters:
        found = sorted(counters.items(pattern), key=lambda item: item.subject)
    table = Table(_COUNTERS, f"Counters of stream {stream}", "No counters")
    show_rows(settings, found, table, item=_counter_document)


@command("get")
@click.argument("stream")
@click.argument("subject")
def get_counter(settings: Settings, *, stream: str, subject: str) -> None:
    """Show the value of a counter."""
    with _counters(settings, stream) as counters:
        found = counters.get(subject)
    emit_text(settings, _counter_document(found), str(found.value))


@command("add", context_settings={"ignore_unknown_options": True})
@click.argument("stream")
@click.argument("subject")
@click.argument("value", type=int, default=1, required=False)
@option("--msg-id ID", "Add nothing if this id was used before.")
def add_counter(
    settings: Settings, *, stream: str, subject: str, value: int, msg_id: str | None
) -> None:
    """Add VALUE, by default 1, to a counter and show the new value."""
    with _counters(settings, stream) as counters:
        total = counters.add(subject, value, msg_id)
    emit_text(settings, {"subject": subject, "value": str(total)}, str(total))


@command("reset")
@click.argument("stream")
@click.argument("subject")
def reset_counter(settings: Settings, *, stream: str, subject: str) -> None:
    """Set a counter to 0 and delete its history."""
    with _counters(settings, stream) as counters:
        value = counters.reset(subject)
    document = {"subject": subject, "subtracted": str(value)}
    emit_text(settings, document, f"Reset {single_line(subject)}, which was {value}")
