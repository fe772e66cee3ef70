"""``jsm stream info``, ``state``, ``subjects`` and ``gaps``: show the config and the state of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

from ... import (
    Placement,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
    StreamSource,
    StreamSourceInfo,
    StreamState,
)
from ..completion import optional_stream_argument
from ..names import find_stream
from ..output import (
    Block,
    count,
    counted,
    duration,
    emit,
    joined,
    limit,
    seconds_text,
    size,
    when,
    write_blocks,
    yes,
)
from ..prompts import Asker
from ..render import Table, write_table
from ..sanitize import readable
from ..settings import Settings, common_options

#: Display names of policies.
RETENTIONS: dict[str, str] = {
    RetentionPolicy.LIMITS: "Limits",
    RetentionPolicy.INTEREST: "Interest",
    RetentionPolicy.WORK_QUEUE: "Work Queue",
}
STORAGES: dict[str, str] = {StorageType.FILE: "File", StorageType.MEMORY: "Memory"}

#: Flags that are shown if they are set, with their labels.
_FLAG_LABELS = (
    ("sealed", "Sealed"),
    ("allow_direct", "Direct Get"),
    ("mirror_direct", "Mirror Direct Get"),
    ("allow_rollup_hdrs", "Allows Rollups"),
    ("deny_delete", "Denies Message Delete"),
    ("deny_purge", "Denies Purge"),
    ("allow_msg_ttl", "Allows Message TTL"),
    ("allow_atomic", "Allows Atomic Batches"),
    ("allow_batched", "Allows Fast Batches"),
    ("allow_msg_counter", "Allows Counters"),
    ("allow_msg_schedules", "Allows Schedules"),
)


def write_info(settings: Settings, info: StreamInfo) -> None:
    """Write the config and state of a stream to ``stdout``, as ``jsm stream info`` does."""
    heading = f"Information for stream {info.config.name}"
    blocks = [
        _configuration(info.config),
        _options(info.config),
        cluster_block(info),
        replication_block(info),
        state_block(settings, info),
    ]
    write_blocks(settings.env, *blocks, heading=heading)


def write_state(settings: Settings, info: StreamInfo) -> None:
    """Write the state of a stream to ``stdout``."""
    heading = f"State of stream {info.config.name}"
    write_blocks(settings.env, state_block(settings, info), heading=heading)


def _configuration(config: StreamConfig) -> Block:
    block = Block("Configuration")
    if config.description:
        block.add("Description", config.description)
    block.add("Subjects", joined(config.subjects) or "-")
    block.add("Acknowledgements", yes(not config.no_ack))
    block.add("Storage", STORAGES.get(str(config.storage), config.storage))
    block.add("Retention", RETENTIONS.get(str(config.retention), config.retention))
    block.add("Replicas", config.num_replicas or 1)
    block.add("Discard Policy", str(config.discard or "old").capitalize())
    if config.duplicate_window is not None:
        block.add("Duplicate Window", duration(config.duplicate_window))
    block.add("Maximum Messages", limit(config.max_msgs))
    if config.max_msgs_per_subject is not None and config.max_msgs_per_subject > 0:
        block.add("Maximum Per Subject", count(config.max_msgs_per_subject))
    block.add("Maximum Bytes", _bytes(config.max_bytes))
    block.add("Maximum Age", duration(config.max_age or timedelta(0), unlimited=True))
    block.add("Maximum Message Size", _bytes(config.max_msg_size))
    block.add("Maximum Consumers", limit(config.max_consumers))
    return block


def _bytes(value: int | None) -> str:
    return limit(value) if value is None or value < 0 else size(value)


def _options(config: StreamConfig) -> Block:
    block = Block("Options")
    for name, label in _FLAG_LABELS:
        if getattr(config, name):
            block.add(label, yes(True))
    if config.compression not in (None, "none"):
        block.add("Compression", config.compression)
    if config.first_seq:
        block.add("First Sequence", count(config.first_seq))
    if config.discard_new_per_subject:
        block.add("Discard Per Subject", yes(True))
    if config.persist_mode not in (None, "default"):
        block.add("Persist Mode", config.persist_mode)
    if config.subject_delete_marker_ttl:
        block.add("Delete Marker TTL", duration(config.subject_delete_marker_ttl))
    if config.consumer_limits is not None:
        if config.consumer_limits.inactive_threshold:
            block.add("Consumer Inactive", duration(config.consumer_limits.inactive_threshold))
        if config.consumer_limits.max_ack_pending:
            block.add("Consumer Ack Pending", count(config.consumer_limits.max_ack_pending))
    if config.mirror is not None:
        block.add("Mirror", source_text(config.mirror))
    for source in config.sources or ():
        block.add("Source", source_text(source))
    if config.subject_transform is not None:
        rule = config.subject_transform
        block.add("Subject Transform", f"{rule.src or '>'} to {rule.dest}")
    if config.republish is not None:
        rest = " (headers only)" if config.republish.headers_only else ""
        block.add("Republish", f"{config.republish.src or '>'} to {config.republish.dest}{rest}")
    if config.placement is not None:
        block.add("Placement", _placement(config.placement))
    labels = config.metadata or {}
    own = sorted(f"{key}: {value}" for key, value in labels.items() if not key.startswith("_nats."))
    if own:
        block.add("Metadata", "\n".join(own))
    return block


def source_text(source: StreamSource) -> str:
    """Return the description of a mirror or source, in one line."""
    parts = [source.name]
    if source.external is not None:
        parts.append(f"API prefix {source.external.api}")
    if source.filter_subject:
        parts.append(f"subject {source.filter_subject}")
    parts += [f"{rule.src or '>'} to {rule.dest}" for rule in source.subject_transforms or ()]
    if source.opt_start_seq:
        parts.append(f"from sequence {count(source.opt_start_seq)}")
    if source.opt_start_time is not None:
        parts.append(f"from {source.opt_start_time.isoformat()}")
    return ", ".join(parts)


def _placement(placement: Placement) -> str:
    parts = [f"cluster {placement.cluster}"] if placement.cluster else []
    parts += [f"tag {tag}" for tag in placement.tags or ()]
    return ", ".join(parts)


def cluster_block(info: StreamInfo) -> Block:
    """Return the block with the replicas of a stream; without a cluster it has no rows."""
    block = Block("Cluster")
    cluster = info.cluster
    if cluster is None or not cluster.name:
        return block
    block.add("Name", cluster.name)
    block.add("Leader", cluster.leader or "-")
    for peer in cluster.replicas or ():
        parts = [peer.name, "current" if peer.current else "outdated"]
        if peer.offline:
            parts.append("OFFLINE")
        parts.append(f"seen {seconds_text(peer.active)} ago")
        if peer.lag:
            parts.append(f"{count(peer.lag)} operations behind")
        block.add("Replica", ", ".join(parts))
    return block


def replication_block(info: StreamInfo) -> Block:
    """Return the block with the state of mirrors and sources; without any it has no rows."""
    block = Block("Replication")
    if info.mirror is not None:
        block.add("Mirror", _lag(info.mirror))
    for source in info.sources or ():
        block.add("Source", _lag(source))
    return block


def _lag(source: StreamSourceInfo) -> str:
    seen = (
        "never seen" if source.active < timedelta(0) else f"seen {seconds_text(source.active)} ago"
    )
    parts = [source.name, f"{counted(source.lag, 'message')} behind", seen]
    if source.error is not None:
        parts.append(source.error.description or f"error {source.error.code}")
    return ", ".join(parts)


def state_block(settings: Settings, info: StreamInfo) -> Block:
    """Return the block with the state of a stream."""
    state: StreamState = info.state
    block = Block("State")
    block.add("Messages", count(state.messages))
    block.add("Bytes", size(state.bytes))
    block.add("FirstSeq", count(state.first_seq) + _at(settings, state, first=True))
    block.add("LastSeq", count(state.last_seq) + _at(settings, state, first=False))
    if state.num_deleted:
        block.add("Deleted Messages", count(state.num_deleted))
    if state.lost is not None:
        block.add("Lost Messages", count(len(state.lost.msgs or ())))
    if state.num_subjects:
        block.add("Subjects", count(state.num_subjects))
    block.add("Active Consumers", count(state.consumer_count))
    block.add("Created", when(settings, info.created))
    return block


def _at(settings: Settings, state: StreamState, *, first: bool) -> str:
    moment = state.first_ts if first else state.last_ts
    if moment is None or moment.year <= 1:
        return ""
    return f" @ {when(settings, moment)}"


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

    def human() -> None:
        if not ordered:
            out.write("No subjects\n")
            return
        rows = [[subject, count(number)] for subject, number in ordered]
        title = f"Subjects of stream {stream.name}"
        write_table(Table(title=title, columns=["Subject", "Messages"], rows=rows), settings.env)

    emit(settings, dict(ordered), human)


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

    def human() -> None:
        if not found:
            settings.env.stdout.write(f"Stream {stream.name} has no gaps\n")
            return
        rows = [[count(first), count(last), count(last - first + 1)] for first, last in found]
        title = f"Gaps in stream {stream.name}"
        table = Table(title=title, columns=["First", "Last", "Messages"], rows=rows, left=0)
        write_table(table, settings.env)

    emit(settings, document, human)


def _ranges(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last sequence of each range of consecutive sequences."""
    ranges: list[tuple[int, int]] = []
    for seq in sequences:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = ranges[-1][0], seq
        else:
            ranges.append((seq, seq))
    return ranges
