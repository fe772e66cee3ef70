"""``jsm stream info``, ``subjects``, ``gaps`` and ``schedules``: show a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from .. import PeerInfo, StreamConfig, StreamInfo, StreamSourceInfo
from ..durations import seconds_text
from .config import display_fields
from .names import optional_stream_argument, stream_of
from .output import count, counted, emit, emit_names, size, when
from .render import (
    Block,
    Field,
    Mark,
    bad,
    in_order,
    report_options,
    show_blocks,
    show_rows,
    warn,
    write_blocks,
)
from .settings import Settings, command
from .values import names_option, option


def replica_text(peer: PeerInfo) -> str | Mark:
    """Return the state of a replica in one line, coloured unless it is current."""
    parts = [peer.name, "current" if peer.current else "outdated"]
    if peer.offline:
        parts.append("OFFLINE")
    parts.append("not seen" if peer.seen_ago is None else f"seen {seconds_text(peer.seen_ago)} ago")
    if peer.lag:
        parts.append(f"{count(peer.lag)} operations behind")
    text = ", ".join(parts)
    if peer.offline or peer.seen_ago is None:
        return bad(text)
    return text if peer.current else warn(text)


#: The lines of the block with the leader and the replicas of a stream or consumer.
CLUSTER: Final = (
    Field("Name", "cluster.name"),
    Field(
        "Leader",
        lambda info: (
            (info.cluster.leader or bad("none")) if info.cluster and info.cluster.name else None
        ),
    ),
    Field("Replica", "cluster.replicas", replica_text, each=True),
)


def _source(source: StreamSourceInfo | None) -> str | Mark | None:
    if source is None:
        return None
    if source.seen_ago is None:
        parts = [source.name, "not seen yet"]
    else:
        parts = [source.name, f"{counted(source.lag, 'message')} behind"]
        parts.append(f"seen {seconds_text(source.seen_ago)} ago")
    if source.error is not None:
        parts.append(source.error.description or f"error {source.error.code}")
    text = ", ".join(parts)
    return (
        bad(text) if source.error is not None else warn(text) if source.seen_ago is None else text
    )


#: The lines of the block with the state of mirrors and sources.
REPLICATION: Final = (
    Field("Mirror", "mirror", _source, if_set=True),
    Field("Source", "sources", _source, each=True),
)


def lost_messages(info: StreamInfo) -> Mark:
    """Return the number of messages that the server has lost."""
    return bad(len((info.state.lost and info.state.lost.msgs) or ()))


def _state(settings: Settings) -> list[Field]:
    def at(seq: int, moment: Any) -> str:
        shown = f" @ {when(settings, moment)}" if moment is not None and moment.year > 1 else ""
        return f"{count(seq)}{shown}"

    return [
        Field("Messages", "state.messages"),
        Field("Bytes", "state.bytes", size),
        Field("FirstSeq", lambda info: at(info.state.first_seq, info.state.first_ts)),
        Field("LastSeq", lambda info: at(info.state.last_seq, info.state.last_ts)),
        Field("Deleted Messages", "state.num_deleted", if_set=True),
        Field("Lost Messages", lost_messages, if_set=True),
        Field("Subjects", "state.num_subjects", if_set=True),
        Field("Active Consumers", "state.consumer_count"),
        Field("Created", "created"),
    ]


def info_blocks(settings: Settings, info: StreamInfo) -> list[Block]:
    """Return the config and state of a stream."""
    return [
        Block("Configuration", display_fields(StreamConfig, without="name"), info.config),
        Block("Cluster", CLUSTER, info),
        Block("Replication", REPLICATION, info),
        Block("State", _state(settings), info),
    ]


def show_info(settings: Settings, info: StreamInfo, done: str = "") -> None:
    """Show the config and state of a stream, after a line with what was ``done``."""
    name = info.config.name
    heading = f"Information for stream {name}"
    heading = f"Stream {name} {done}\n\n{heading}" if done else heading
    show_blocks(settings, info, *info_blocks(settings, info), heading=heading)


def write_state(settings: Settings, info: StreamInfo) -> None:
    """Write the state of a stream to ``stdout``."""
    write_blocks(settings, Block(f"State of stream {info.config.name}", _state(settings), info))


@command()
@optional_stream_argument
@option("--state", "Show only the state.")
def info(settings: Settings, name: str | None, state: bool) -> None:
    """Show the config and state of a stream."""
    with stream_of(settings, name) as stream:
        found = stream.cached_info
    if state:
        emit(settings, found.state, lambda: write_state(settings, found))
    else:
        show_info(settings, found)


_SUBJECTS: Final = (
    Field("Subject", lambda row: row[0], sort="name"),
    Field("Messages", lambda row: row[1], sort="messages"),
)


@command()
@optional_stream_argument
@click.argument("pattern", required=False, default=">", metavar="[FILTER]")
@report_options(_SUBJECTS, "messages", repeats=False)
@names_option
def subjects(
    settings: Settings, name: str | None, pattern: str, sort: str, reverse: bool, names: bool
) -> None:
    """List the subjects of a stream with message counts; FILTER may contain wildcards."""
    with stream_of(settings, name) as stream:
        counts = stream.info(subjects_filter=pattern).state.subjects or {}
    found = in_order(sorted(counts.items()), _SUBJECTS, sort, reverse=reverse)
    if names:
        emit_names(settings, [subject for subject, _ in found])
        return
    title = f"Subjects of stream {stream.name}"
    show_rows(settings, found, _SUBJECTS, title=title, none="No subjects", document=dict(found))


@command()
@optional_stream_argument
@click.argument("pattern", required=False, default=">", metavar="[FILTER]")
def schedules(settings: Settings, name: str | None, pattern: str) -> None:
    """List the scheduled messages of a stream; FILTER may contain wildcards."""
    with stream_of(settings, name) as stream:
        found = stream.schedules(pattern)
    show_rows(
        settings,
        found,
        _SCHEDULES,
        title=f"Schedules of stream {stream.name}",
        none="No schedules",
        item=lambda item: {name: getattr(item, name) for name in _SCHEDULE},
    )


#: The fields of a schedule in JSON.
_SCHEDULE: Final = ("subject", "rule", "target", "time_zone", "source", "ttl", "rollup", "seq")
_SCHEDULES: Final = (
    Field("Subject", "subject"),
    Field("Rule", "rule"),
    Field("Time Zone", "time_zone"),
    Field("Target", "target"),
    Field("Source", "source"),
    Field("TTL", "ttl", drop=2),
    Field("Created", "created", drop=1),
)


@command()
@optional_stream_argument
def gaps(settings: Settings, name: str | None) -> None:
    """List the ranges of sequences whose messages were deleted from a stream."""
    with stream_of(settings, name) as stream:
        deleted = stream.info(deleted_details=True).state.deleted or ()
    found = [
        {"first": first, "last": last, "messages": last - first + 1}
        for first, last in _ranges(deleted)
    ]
    title = f"Gaps of stream {stream.name}"
    show_rows(settings, found, _GAPS, title=title, none=f"No gaps in stream {stream.name}")


_GAPS: Final = tuple(Field(name.capitalize(), name) for name in ("first", "last", "messages"))


def _ranges(sequences: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive sequences."""
    first = last = None
    for seq in sorted(sequences):
        if first is None or last is None or seq != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = seq
        last = seq
    if first is not None and last is not None:
        yield first, last
