"""``jsm stream ls``, ``find`` and ``report``: list and compare the streams of the account."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import click

from ... import JetStream, StreamInfo
from ...errors import InvalidNameError, StreamNotFoundError
from ..interruptible import write_reports
from ..long_running import failover_options
from ..output import count, emit, emit_names, seconds_text, size, when
from ..render import Table, write_table
from ..settings import Settings, common_options
from ..values import DURATION, PAUSE
from .show import STORAGES

#: Name prefixes of the streams of key-value buckets, object stores and MQTT.
_INTERNAL_PREFIXES = ("KV_", "OBJ_", "$MQTT_")


def is_internal(name: str) -> bool:
    """Return whether a stream belongs to a key-value bucket, an object store or MQTT."""
    return name.startswith(_INTERNAL_PREFIXES)


_all_option = click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Include internal streams, such as those of buckets.",
)
_names_option = click.option(
    "-n", "--names", is_flag=True, help="Show only the names, one per line."
)


@click.command()
@_names_option
@_all_option
@click.option("--subject", metavar="SUBJECT", help="List only streams that store this subject.")
@common_options
def ls(settings: Settings, names: bool, everything: bool, subject: str | None) -> None:
    """List the streams of the account."""
    with settings.jetstream() as js:
        if names:
            emit_names(
                settings,
                [name for name in js.stream_names(subject) if everything or not is_internal(name)],
            )
            return
        infos = _infos(js, subject, everything=everything)
    emit(settings, infos, lambda: list_text(settings, infos))


def _infos(js: JetStream, subject: str | None = None, *, everything: bool) -> list[StreamInfo]:
    """Return the streams of the account, or those that store a subject."""
    return [
        info for info in js.list_streams(subject) if everything or not is_internal(info.config.name)
    ]


def list_text(settings: Settings, infos: list[StreamInfo], none: str = "defined") -> None:
    """
    Write streams as a table.

    Args:
        settings: the settings of the command.
        infos: the streams.
        none: the verb if there are no streams, as in "No Streams defined".

    """
    out = settings.env.stdout
    if not infos:
        out.write(f"No Streams {none}\n")
        return
    rows = [
        [
            each.config.name,
            each.config.description or "",
            when(settings, each.created),
            count(each.state.messages),
            size(each.state.bytes),
            when(settings, each.state.last_ts),
        ]
        for each in infos
    ]
    columns = ["Name", "Description", "Created", "Messages", "Size", "Last Message"]
    write_table(Table(title="Streams", columns=columns, rows=rows, left=3), settings.env)


#: Return whether a stream matches.
Check = Callable[[StreamInfo], bool]


@click.command()
@click.option("--empty", is_flag=True, help="Streams without messages.")
@click.option(
    "--idle", type=DURATION, help="Streams without new messages and deliveries for this time."
)
@click.option("--created", type=DURATION, help="Streams that are older than this.")
@click.option(
    "--consumers", type=click.IntRange(0), metavar="N", help="Streams with at most N consumers."
)
@click.option(
    "--messages", type=click.IntRange(0), metavar="N", help="Streams with at most N messages."
)
@click.option(
    "--replicas", type=click.IntRange(1), metavar="N", help="Streams with at most N replicas."
)
@click.option("--subject", metavar="SUBJECT", help="Streams that store this subject.")
@click.option("--sourced", is_flag=True, help="Streams that have sources.")
@click.option("--mirrored", is_flag=True, help="Streams that are mirrors.")
@click.option("--sealed", is_flag=True, help="Streams that are sealed.")
@click.option("--leader", metavar="SERVER", help="Streams with this leader.")
@click.option("--cluster", metavar="REGEX", help="Streams in a cluster with a matching name.")
@click.option("--server-name", metavar="REGEX", help="Streams on a server with a matching name.")
@click.option("--invert", is_flag=True, help="Invert each of these conditions.")
@_names_option
@_all_option
@common_options
def find(settings: Settings, names: bool, everything: bool, invert: bool, **options: Any) -> None:
    """Find streams that match all options; without options, list all streams."""
    with settings.jetstream() as js:
        checks = _checks(js, options, datetime.now(timezone.utc))
        found = [
            info
            for info in _infos(js, everything=everything)
            if all(check(info) is not invert for check in checks)
        ]
    if names:
        emit_names(settings, [info.config.name for info in found])
    else:
        none = "match" if checks else "defined"
        emit(settings, found, lambda: list_text(settings, found, none))


def _checks(js: JetStream, options: dict[str, Any], now: datetime) -> list[Check]:
    """Return a check for each given option."""
    known: dict[str, Callable[[Any], Check]] = {
        "empty": lambda _: lambda info: not info.state.messages,
        "idle": lambda span: lambda info: _idle(js, info, now - span),
        "created": lambda span: lambda info: info.created < now - span,
        "consumers": lambda most: lambda info: info.state.consumer_count <= most,
        "messages": lambda most: lambda info: info.state.messages <= most,
        "replicas": lambda most: lambda info: (info.config.num_replicas or 1) <= most,
        "subject": lambda subject: _stores_subject(js, subject),
        "sourced": lambda _: lambda info: bool(info.config.sources),
        "mirrored": lambda _: lambda info: info.config.mirror is not None,
        "sealed": lambda _: lambda info: bool(info.config.sealed),
        "leader": lambda name: (
            lambda info: info.cluster is not None and info.cluster.leader == name
        ),
        "cluster": lambda text: _has_name("--cluster", text, _cluster_name),
        "server_name": lambda text: _has_name("--server-name", text, _server_names),
    }
    return [
        make(options[name])
        for name, make in known.items()
        if options[name] is not None and options[name] is not False
    ]


def _idle(js: JetStream, info: StreamInfo, since: datetime) -> bool:
    last = info.state.last_ts
    if last is not None and last > since:
        return False
    # A stream that is younger than the time cannot have been idle for it.
    if info.created > since:
        return False
    if not info.state.consumer_count:
        return True
    try:
        consumers = js.list_consumers(info.config.name)
    except (StreamNotFoundError, InvalidNameError):
        return False  # the stream was deleted meanwhile, or has a name that this client rejects
    moments = (each.delivered.last_active for each in consumers)
    return not any(moment is not None and moment > since for moment in moments)


def _stores_subject(js: JetStream, subject: str) -> Check:
    names = set(js.stream_names(subject))
    return lambda info: info.config.name in names


def _has_name(option: str, text: str, names: Callable[[StreamInfo], list[str]]) -> Check:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint=option) from None
    return lambda info: any(pattern.search(name) for name in names(info))


def _cluster_name(info: StreamInfo) -> list[str]:
    return [info.cluster.name] if info.cluster is not None and info.cluster.name else []


def _server_names(info: StreamInfo) -> list[str]:
    if info.cluster is None:
        return []
    leader = [info.cluster.leader] if info.cluster.leader else []
    return leader + [peer.name for peer in info.cluster.replicas or ()]


#: Sort keys of the table; numbers are sorted in descending order.
_SORTS: Final[dict[str, Callable[[StreamInfo], Any]]] = {
    "name": lambda info: info.config.name,
    "messages": lambda info: -info.state.messages,
    "bytes": lambda info: -info.state.bytes,
    "consumers": lambda info: -info.state.consumer_count,
    "subjects": lambda info: -(info.state.num_subjects or 0),
    "deleted": lambda info: -(info.state.num_deleted or 0),
    "storage": lambda info: (str(info.config.storage), info.config.name),
    "created": lambda info: info.created,
}


def _sorted_by(key: str, *flags: str) -> Callable[[Any], Any]:
    return click.option(*flags, "sort", flag_value=key, default=None, help=f"Same as --sort {key}.")


@click.command()
@click.option(
    "--sort",
    "wanted",
    type=click.Choice(list(_SORTS)),
    help="Column to sort by; numbers are in descending order.  [default: bytes]",
)
@_sorted_by("consumers", "-o", "--consumers")
@_sorted_by("messages", "-m", "--messages")
@_sorted_by("name", "-n", "--name")
@_sorted_by("storage", "-t", "--storage")
@click.option("-R", "--reverse", is_flag=True, help="Reverse the order.")
@_all_option
@click.option("--subject", metavar="SUBJECT", help="Include only streams that store this subject.")
@click.option("--cluster", metavar="NAME", help="Include only streams in this cluster.")
@click.option("-r", "--raw", is_flag=True, help="Show numbers without separators and units.")
@click.option("--watch", type=PAUSE, metavar="TIME", help="Repeat the report with this interval.")
@common_options
def report(
    settings: Settings,
    wanted: str | None,
    sort: str | None,
    reverse: bool,
    everything: bool,
    subject: str | None,
    cluster: str | None,
    raw: bool,
    watch: timedelta | None,
) -> None:
    """Compare the streams of the account in a table."""
    key = _SORTS[wanted or sort or "bytes"]
    with settings.jetstream(**failover_options(settings)) as js:

        def take() -> list[StreamInfo]:
            found = [
                info
                for info in _infos(js, subject, everything=everything)
                if cluster is None or (info.cluster is not None and info.cluster.name == cluster)
            ]
            return sorted(found, key=key, reverse=reverse)

        write_reports(settings, watch, take, _row, lambda found: _show(settings, found, raw=raw))


def _row(info: StreamInfo) -> dict[str, Any]:
    """Return the JSON object of a stream, with the field names of the server."""
    cluster, state = info.cluster, info.state
    lost = state.lost
    row: dict[str, Any] = {
        "name": info.config.name,
        "storage": str(info.config.storage),
        "retention": str(info.config.retention),
        "num_replicas": info.config.num_replicas or 1,
        "consumer_count": state.consumer_count,
        "messages": state.messages,
        "bytes": state.bytes,
        "num_subjects": state.num_subjects or 0,
        "num_deleted": state.num_deleted or 0,
        "lost": len(lost.msgs or ()) if lost is not None else 0,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "cluster": cluster.name if cluster is not None else None,
        "leader": cluster.leader if cluster is not None else None,
        "replicas": [peer.name for peer in cluster.replicas or ()] if cluster is not None else [],
    }
    origins = [info.mirror] if info.mirror is not None else list(info.sources or ())
    row["sources"] = [
        {
            "name": each.name,
            "lag": each.lag,
            "active": each.active // timedelta(microseconds=1) * 1000,
        }
        for each in origins
    ]
    return row


def _show(settings: Settings, found: list[StreamInfo], *, raw: bool) -> None:
    if not found:
        settings.env.stdout.write("No Streams defined\n")
        return
    number, amount = (str, str) if raw else (count, size)
    clustered = any(info.cluster is not None and info.cluster.name for info in found)
    rows = []
    for info in found:
        state, lost = info.state, info.state.lost
        row = [
            info.config.name,
            STORAGES.get(str(info.config.storage), str(info.config.storage)),
            number(info.config.num_replicas or 1),
            number(state.consumer_count),
            number(state.messages),
            amount(state.bytes),
            number(state.num_subjects or 0),
            number(state.num_deleted or 0),
            number(len(lost.msgs or ()) if lost is not None else 0),
        ]
        if clustered:
            row.insert(2, _peers(info))
        rows.append(row)
    columns = ["Stream", "Storage", "Replicas", "Consumers", "Messages", "Bytes"]
    columns += ["Subjects", "Deleted", "Lost"]
    if clustered:
        columns.insert(2, "Servers")
    left = 3 if clustered else 2
    title = "Streams of the account"
    write_table(Table(title=title, columns=columns, rows=rows, left=left), settings.env)
    _show_replication(settings, found)


def _peers(info: StreamInfo) -> str:
    """Return the servers of a stream: ``*`` marks the leader, ``!`` an outdated or offline replica."""
    cluster = info.cluster
    if cluster is None:
        return ""
    names = [f"{cluster.leader}*"] if cluster.leader else []
    names += [
        peer.name + ("" if peer.current and not peer.offline else "!")
        for peer in cluster.replicas or ()
    ]
    return ", ".join(names)


def _show_replication(settings: Settings, found: list[StreamInfo]) -> None:
    rows = []
    for info in found:
        origins = [("Mirror", info.mirror)] if info.mirror is not None else []
        origins += [("Source", each) for each in info.sources or ()]
        for kind, each in origins:
            seen = seconds_text(each.active) if each.active >= timedelta(0) else "never"
            error = each.error.description if each.error is not None else None
            rows.append([info.config.name, kind, each.name, error or "", count(each.lag), seen])
    if rows:
        settings.env.stdout.write("\n")
        columns = ["Stream", "Kind", "From", "Error", "Lag", "Seen"]
        write_table(Table(title="Replication", columns=columns, rows=rows, left=4), settings.env)
