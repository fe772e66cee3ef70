"""``jsm stream report``: compare the streams of the account in a table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ..output import count, emit, emit_line, seconds_text, size
from ..render import Table, write_table
from ..settings import Settings, common_options
from ..terminology import words
from ..values import PAUSE
from ..watch import rounds
from .ls import is_internal
from .show import STORAGES

if TYPE_CHECKING:
    from ... import JetStream, StreamInfo

__all__ = ["report"]

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
@click.option(
    "-a",
    "--all",
    "everything",
    is_flag=True,
    help="Include internal streams, such as those of buckets.",
)
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
    with settings.jetstream() as js:
        for _ in rounds(settings, watch):
            found = sorted(
                _found(js, subject, cluster, everything=everything), key=key, reverse=reverse
            )
            rows = [_row(info) for info in found]
            if watch is not None and settings.json:
                emit_line(settings, rows)
            else:
                emit(settings, rows, lambda found=found: _show(settings, found, raw=raw))  # type: ignore[misc]


def _found(
    js: JetStream, subject: str | None, cluster: str | None, *, everything: bool
) -> list[StreamInfo]:
    infos = js.list_streams(subject)
    return [
        info
        for info in infos
        if (everything or not is_internal(info.config.name))
        and (cluster is None or (info.cluster is not None and info.cluster.name == cluster))
    ]


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
    noun = words()
    if not found:
        settings.env.stdout.write(f"No {noun.streams} defined\n")
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
    columns = [noun.stream, "Storage", "Replicas", noun.consumers, "Messages", "Bytes"]
    columns += ["Subjects", "Deleted", "Lost"]
    if clustered:
        columns.insert(2, "Servers")
    left = 3 if clustered else 2
    title = f"{noun.streams} of the account"
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
        columns = [words().stream, "Kind", "From", "Error", "Lag", "Seen"]
        write_table(Table(title="Replication", columns=columns, rows=rows, left=4), settings.env)
