"""``jsm consumer report``: compare the consumers of one or all streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ..completion import complete_stream
from ..output import count, duration, emit, emit_line, limit
from ..render import Table, write_table
from ..settings import Settings, common_options
from ..terminology import words
from ..values import PAUSE
from ..watch import rounds
from .find import title
from .list import ago, infos_of

if TYPE_CHECKING:
    from ... import ConsumerInfo

__all__ = ["report"]

#: Sort keys of the table; numbers sort in descending order.
_SORTS: Final[dict[str, Callable[[ConsumerInfo], Any]]] = {
    "name": lambda info: (info.stream_name, info.name),
    "unprocessed": lambda info: -info.num_pending,
    "pending": lambda info: -info.num_ack_pending,
    "redelivered": lambda info: -info.num_redelivered,
    "waiting": lambda info: -info.num_waiting,
    "delivered": lambda info: -info.delivered.consumer_seq,
}


@click.command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.option(
    "--sort",
    type=click.Choice(list(_SORTS)),
    default="name",
    show_default=True,
    help="Sort by this column.",
)
@click.option("-R", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("--watch", type=PAUSE, metavar="TIME", help="Refresh at this interval.")
@common_options
def report(
    settings: Settings,
    *,
    stream: str | None,
    sort: str,
    reverse: bool,
    watch: timedelta | None,
) -> None:
    """Compare the consumers of a STREAM, or of all streams, in a table."""
    with settings.jetstream() as js:
        for _ in rounds(settings, watch):
            found = sorted(infos_of(js, stream), key=_SORTS[sort], reverse=reverse)
            rows = [_document(info) for info in found]
            if not settings.json:
                _show(settings, stream, found)
            elif watch is None:
                emit(settings, rows, lambda: None)
            else:
                emit_line(settings, rows)


def _document(info: ConsumerInfo) -> dict[str, Any]:
    """Return the numbers of a consumer by the names of the server."""
    config = info.config
    return {
        "stream_name": info.stream_name,
        "name": info.name,
        "mode": "push" if config.deliver_subject else "pull",
        "ack_policy": str(config.ack_policy),
        "num_pending": info.num_pending,
        "num_ack_pending": info.num_ack_pending,
        "num_redelivered": info.num_redelivered,
        "num_waiting": info.num_waiting,
        "push_bound": bool(info.push_bound),
        "paused": bool(info.paused),
        "delivered": info.delivered.consumer_seq,
        "delivered_stream_seq": info.delivered.stream_seq,
        "ack_floor_stream_seq": info.ack_floor.stream_seq,
        "leader": info.cluster.leader if info.cluster is not None else None,
    }


def _show(settings: Settings, stream: str | None, found: list[ConsumerInfo]) -> None:
    noun = words()
    if not found:
        settings.env.stdout.write(f"No {noun.consumers} defined\n")
        return
    rows = [
        [
            info.name if stream is not None else title(info),
            _mode(info),
            str(info.config.ack_policy),
            duration(info.config.ack_wait),
            f"{count(info.num_ack_pending)} of {limit(info.config.max_ack_pending)}",
            count(info.num_redelivered),
            _unprocessed(info),
            count(info.ack_floor.stream_seq),
            ago(info),
        ]
        for info in found
    ]
    columns = [noun.consumer, "Mode", "Ack", "Ack Wait", "Ack Pending", "Redelivered"]
    columns += ["Unprocessed", "Ack Floor", "Last Delivery"]
    where = f"{noun.stream} {stream}" if stream is not None else f"all {noun.streams}"
    heading = f"{noun.consumers} of {where}"
    write_table(Table(title=heading, columns=columns, rows=rows, left=3), settings.env)


def _mode(info: ConsumerInfo) -> str:
    if info.paused:
        return "paused"
    if not info.config.deliver_subject:
        return f"pull, {count(info.num_waiting)} waiting"
    return "push" if info.push_bound else "push, unbound"


def _unprocessed(info: ConsumerInfo) -> str:
    """Return the number of unprocessed messages and their share of all messages."""
    total = info.num_pending + info.delivered.stream_seq
    if not info.num_pending or not total:
        return count(info.num_pending)
    return f"{count(info.num_pending)} / {100 * info.num_pending / total:.0f}%"
