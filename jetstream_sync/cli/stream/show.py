"""``jsm stream info``, ``state``, ``subjects`` and ``gaps``: show the config and the state of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

import click

from ... import PeerInfo, StreamConfig, StreamInfo, StreamSourceInfo
from ..fields import display_fields
from ..names import find_stream, optional_stream_argument
from ..output import count, counted, emit, seconds_text, size, when
from ..prompts import Asker
from ..render import Block, Field, Mark, bad, show_rows, warn, write_blocks
from ..sanitize import readable
from ..settings import Settings, common_options


def replica_text(peer: PeerInfo) -> str | Mark:
    """Return the state of a replica in one line, coloured unless it is current."""
    parts = [peer.name, "current" if peer.current else "outdated"]
    if peer.offline:
        parts.append("OFFLINE")
    parts.append(f"seen {seconds_text(peer.active)} ago")
    if peer.lag:
        parts.append(f"{count(peer.lag)} operations behind")
    text = ", ".join(parts)
    return bad(text) if peer.offline else text if peer.current else warn(text)


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
    seen = seconds_text(source.active) if source.active >= timedelta(0) else ""
    parts = [source.name, f"{counted(source.lag, 'message')} behind"]
    parts.append(f"seen {seen} ago" if seen else "never seen")
    if source.error is not None:
        parts.append(source.error.description or f"error {source.error.code}")
    text = ", ".join(parts)
    return bad(text) if source.error is not None or not seen else text


#: The lines of the block with the state of mirrors and sources.
REPLICATION: Final = (
    Field("Mirror", "mirror", _source, if_set=True),
    Field("Source", "sources", _source, each=True),
)


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
        Field(
            "Lost Messages",
            lambda info: bad(len(info.state.lost.msgs or ())) if info.state.lost else None,
        ),
        Field("Subjects", "state.num_subjects", if_set=True),
        Field("Active Consumers", "state.consumer_count"),
        Field("Created", "created"),
    ]


def write_info(settings: Settings, info: StreamInfo) -> None:
    """Write the config and state of a stream to ``stdout``, as ``jsm stream info`` does."""
    write_blocks(
        settings,
        Block("Configuration", display_fields(StreamConfig)[1:], info.config),
        Block("Cluster", CLUSTER, info),
        Block("Replication", REPLICATION, info),
        Block("State", _state(settings), info),
        heading=f"Information for stream {info.config.name}",
    )


def write_state(settings: Settings, info: StreamInfo) -> None:
    """Write the state of a stream to ``stdout``."""
    heading = f"State of stream {info.config.name}"
    write_blocks(settings, Block("State", _state(settings), info), heading=heading)


@click.command()
@optional_stream_argument
@click.option("--state", "only_state", is_flag=True, help="Show only the state.")
@common_options
def info(settings: Settings, name: str | None, only_state: bool) -> None:
    """Show the config and state of a stream."""
    _info(settings, name, only_state=only_state)


@click.command()
@optional_stream_argument
@common_options
def state(settings: Settings, name: str | None) -> None:
    """Show the state of a stream."""
    _info(settings, name, only_state=True)


def _info(settings: Settings, name: str | None, *, only_state: bool) -> None:
    with settings.jetstream() as js:
        found = find_stream(js, name, Asker(settings)).cached_info
    if only_state:
        emit(settings, found.state, lambda: write_state(settings, found))
    else:
        emit(settings, found, lambda: write_info(settings, found))


@click.command()
@optional_stream_argument
@click.argument("pattern", required=False, default=">", metavar="[FILTER]")
@click.option(
    "--sort",
    type=click.Choice(["messages", "count", "name", "subjects"]),
    default="messages",
    help="Sort by number of messages, descending, or by name.",
)
@click.option("-R", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("-n", "--names", is_flag=True, help="Show only the subjects, one per line.")
@common_options
def subjects(
    settings: Settings, name: str | None, pattern: str, sort: str, reverse: bool, names: bool
) -> None:
    """List the subjects of a stream with message counts; FILTER may contain wildcards."""
    with settings.jetstream() as js:
        stream = find_stream(js, name, Asker(settings))
        counts = stream.info(subjects_filter=pattern).state.subjects or {}
    by_name = sort in ("name", "subjects")
    ordered = sorted(
        counts.items(),
        key=(lambda item: (0, item[0])) if by_name else (lambda item: (-item[1], item[0])),
        reverse=reverse,
    )
    out = settings.env.stdout
    if names:
        listed = [subject for subject, _ in ordered]
        emit(settings, listed, lambda: out.writelines(f"{readable(each)}\n" for each in listed))
        return

    show_rows(
        settings,
        ordered,
        _SUBJECTS,
        title=f"Subjects of stream {stream.name}",
        none="No subjects",
        document=dict(ordered),
    )


_SUBJECTS: Final = (
    Field("Subject", lambda row: row[0]),
    Field("Messages", lambda row: row[1]),
)


@click.command()
@optional_stream_argument
@common_options
def gaps(settings: Settings, name: str | None) -> None:
    """List the deleted sequences between the first and the last message of a stream."""
    with settings.jetstream() as js:
        stream = find_stream(js, name, Asker(settings))
        state = stream.info(deleted_details=True).state
    found = _ranges(state.deleted or ())
    document: dict[str, Any] = {
        "stream": stream.name,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "deleted": sum(last - first + 1 for first, last in found),
        "gaps": [{"first_seq": first, "last_seq": last} for first, last in found],
    }

    show_rows(
        settings,
        found,
        _GAPS,
        title=f"Gaps in stream {stream.name}",
        none=f"Stream {stream.name} has no gaps",
        document=document,
    )


_GAPS: Final = (
    Field("First", lambda gap: gap[0]),
    Field("Last", lambda gap: gap[1]),
    Field("Messages", lambda gap: gap[1] - gap[0] + 1),
)


def _ranges(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last sequence of each range of consecutive sequences."""
    ranges: list[tuple[int, int]] = []
    for seq in sequences:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = ranges[-1][0], seq
        else:
            ranges.append((seq, seq))
    return ranges
