"""``jsm stream ls``, ``info``, ``subjects``, ``gaps``, ``schedules``, ``rm`` and ``purge``: the streams of the account."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ... import ClusterInfo, PeerInfo, StreamConfig, StreamInfo, StreamSourceInfo, errors
from ...durations import counted, seconds_text
from ..shared.listings import (
    Listed,
    Lister,
    in_parallel,
    is_internal,
    lister,
    long_option,
    missing_stream,
    show_listed,
)
from ..shared.names import complete_stream, optional_stream_argument, stream_of, suggesting
from ..shared.output import Missing, count, deletions, emit, emit_names, emit_text, size, when
from ..shared.render import (
    Block,
    Field,
    Mark,
    ReportOptions,
    Table,
    bad,
    report_options,
    show_blocks,
    show_rows,
    warn,
    write_blocks,
)
from ..shared.settings import Settings, command
from ..shared.status import about, one_line
from ..shared.values import (
    DURATION,
    FROM_0,
    FROM_1,
    STREAM_NAME,
    allow_one,
    force_option,
    names_option,
    option,
    with_options,
)

if TYPE_CHECKING:
    from ... import JetStream


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
    from ..shared.config import display_fields  # noqa: PLC0415 - listings need no configs

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
    settings: Settings, name: str | None, pattern: str, names: bool, **options: Any
) -> None:
    """List the subjects of a stream with message counts; FILTER may contain wildcards."""
    with stream_of(settings, name) as stream:
        counts = stream.info(subjects_filter=pattern).state.subjects or {}
    found = ReportOptions(**options).in_order(sorted(counts.items()), _SUBJECTS)
    if names:
        emit_names(settings, [subject for subject, _ in found])
        return
    title = f"Subjects of stream {stream.name}"
    show_rows(settings, found, Table(_SUBJECTS, title, "No subjects"), document=dict(found))


@command()
@optional_stream_argument
@click.argument("pattern", required=False, default=">", metavar="[FILTER]")
def schedules(settings: Settings, name: str | None, pattern: str) -> None:
    """List the scheduled messages of a stream; FILTER may contain wildcards."""
    with stream_of(settings, name) as stream:
        found = stream.schedules(pattern)
    table = Table(_SCHEDULES, f"Schedules of stream {stream.name}", "No schedules")
    show_rows(
        settings, found, table, item=lambda item: {key: getattr(item, key) for key in _SCHEDULE}
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
    show_rows(settings, found, Table(_GAPS, title, f"No gaps in stream {stream.name}"))


_GAPS: Final = tuple(Field(name.capitalize(), name) for name in ("first", "last", "messages"))


def _ranges(sequences: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive sequences."""
    # In a run, the sequence minus its position is constant.
    pairs = enumerate(sorted(sequences))
    for _, run in itertools.groupby(pairs, lambda pair: pair[1] - pair[0]):
        found = [seq for _, seq in run]
        yield found[0], found[-1]


InfoT = TypeVar("InfoT")

_LIST: Final = (
    Field("Name", "config.name"),
    Field("Description", "config.description", drop=3),
    Field("Created", "created", drop=2),
    Field("Messages", "state.messages"),
    Field("Size", "state.bytes", size),
    Field("Last Message", "state.last_ts", drop=1),
)

#: The options that select streams, for `find_streams`.
find_options: Final = with_options(
    option("--empty", "Streams without messages."),
    option("--idle", "Streams without new messages and deliveries for this time.", DURATION),
    option("--consumers N", "Streams with at most N consumers.", FROM_0),
    option("--replicas N", "Streams with at most N replicas.", FROM_1),
    option("--subject SUBJECT", "Streams that store this subject."),
    option("--leader SERVER", "Streams with this leader."),
    option("--invert", "Invert each of these conditions."),
)


def find_streams(lists: Lister, options: dict[str, Any], *, everything: bool) -> Listed[StreamInfo]:
    """Return the streams that match all of the `find_options`; without any, all of them."""
    given = given_conditions(options)
    if given.keys() <= {"subject"}:
        return lists.streams(given.get("subject"), everything=everything)
    listed = lists.streams(everything=everything)
    if "subject" in given:
        given["subject"] = set(lists.js.stream_names(given["subject"]))

    def missing(info: StreamInfo, reason: str) -> Missing:
        return missing_stream(info.config.name, reason)

    return select(lists.js, listed, _CONDITIONS, given, missing=missing)


def given_conditions(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return {
        name: value for name, value in options.items() if value is not None and value is not False
    }


def select(
    js: JetStream,
    listed: Listed[InfoT],
    conditions: Mapping[str, Callable[[JetStream, InfoT, Any], bool | None]],
    given: Mapping[str, Any],
    *,
    missing: Callable[[InfoT, str], Missing],
) -> Listed[InfoT]:
    """
    Return the infos that meet the conditions of all options that were given.

    The option ``invert`` inverts each condition. A condition of ``None`` does not apply to an info, which does not match
    either way. An info whose condition raises an error is ``missing``: whether it matches is not known. A
    duration is passed to its condition as the time that long ago.
    """
    now = datetime.now(timezone.utc)
    values = {
        name: now - value if isinstance(value, timedelta) else value
        for name, value in given.items()
        if name != "invert"
    }
    invert = "invert" in given

    def matches(info: InfoT) -> bool | errors.Error:
        met = (conditions[name](js, info, value) for name, value in values.items())
        try:
            return all(item is not None and item is not invert for item in met)
        except (errors.ConnectionClosedError, errors.InvalidNameError):
            raise
        except errors.Error as error:
            return error

    infos = listed.found
    results = [*(in_parallel(matches, infos) if "idle" in given else map(matches, infos))]
    pairs = list(zip(infos, results, strict=True))
    failed = [(info, result) for info, result in pairs if isinstance(result, errors.Error)]
    return listed.select(
        [info for info, result in pairs if result is True],
        [missing(info, one_line(error)) for info, error in failed],
    )


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
        consumers = js.list_consumers(info.config.name, allow_incomplete=True)
    except (errors.StreamNotFoundError, errors.InvalidNameError):
        return False  # the stream was deleted meanwhile, or has a name that this client rejects
    moments = (consumer.delivered.last_active for consumer in consumers)
    if any(moment is not None and moment > since for moment in moments):
        return False
    consumers.check()
    return True


#: Whether a stream meets the condition of an option with some value.
_CONDITIONS: Final[dict[str, Callable[[JetStream, StreamInfo, Any], bool | None]]] = {
    "empty": lambda _, info, __: not info.state.messages,
    "idle": _idle,
    "consumers": lambda _, info, most: info.state.consumer_count <= most,
    "replicas": lambda _, info, most: (info.config.num_replicas or 1) <= most,
    "leader": lambda _, info, name: info.cluster is not None and info.cluster.leader == name,
    "subject": lambda _, info, names: info.config.name in names,
}


def _behind(info: StreamInfo) -> Mark | None:
    """Return how many messages of its mirror or sources a stream lacks."""
    origins = list(info.sources or ()) if info.mirror is None else [info.mirror]
    if not origins:
        return None
    if any(origin.error for origin in origins):
        return bad("failed")
    if any(origin.seen_ago is None for origin in origins):
        return warn("?")  # a mirror that was just created reports a lag of 0
    return warn(max(origin.lag for origin in origins))


def servers_of(cluster: ClusterInfo | None) -> list[str | Mark]:
    """Return the servers of a stream or consumer: ``*`` marks the leader, ``!`` a replica that lags behind."""
    if cluster is None or not cluster.name:
        return []
    leader = f"{cluster.leader}*" if cluster.leader else bad("no leader")
    return [leader, *(_replica(peer) for peer in cluster.replicas or ())]


def _replica(peer: PeerInfo) -> str | Mark:
    if peer.offline or peer.seen_ago is None:
        return bad(f"{peer.name}!")
    return peer.name if peer.current else warn(f"{peer.name}!")


_LONG: Final = (
    Field("Stream", "config.name", sort="name"),
    Field("Storage", "config.storage", str, drop=3, sort="storage"),
    Field("Servers", lambda info: servers_of(info.cluster), drop=1),
    Field("Replicas", lambda info: info.config.num_replicas or 1, drop=4),
    Field("Consumers", "state.consumer_count", drop=2, sort="consumers"),
    Field("Messages", "state.messages", sort="messages"),
    Field("Bytes", "state.bytes", size, sort="bytes"),
    Field("Subjects", "state.num_subjects", drop=5, if_set=True, sort="subjects"),
    Field("Deleted", "state.num_deleted", drop=6, if_set=True, sort="deleted"),
    Field("Lost", lost_messages, drop=1, if_set=True),
    Field("Behind", _behind, drop=1, right=True),
    Field("Created", "created", drop=7, sort="created"),
)


@command()
@names_option
@option("-a, --all", "Include internal streams, such as buckets.", to="everything")
@long_option
@find_options
@report_options(_LONG, "name")
def ls(settings: Settings, *, names: bool, everything: bool, long: bool, **options: Any) -> None:
    """
    List the streams of the account, or those that match all conditions.

    A stream whose servers do not answer is listed with that state; it matches no condition. The exit status is
    then 1.
    """
    report = ReportOptions.pop_from(options)
    conditions = given_conditions(options)
    with lister(settings, repeats=report.watch is not None) as lists:
        if names and conditions.keys() <= {"subject"}:
            # All names are known, also those of streams that cannot be reached.
            found = lists.js.stream_names(conditions.get("subject"))
            emit_names(settings, [name for name in found if everything or not is_internal(name)])
            return
        take = partial(find_streams, lists, options, everything=everything)
        none = "No streams match" if conditions else "No streams defined"
        table = Table(_LONG if long else _LIST, "Streams", none)
        key = attrgetter("config.name")
        show_listed(settings, take, table, report, key=key, sortable=_LONG, names=names)


@command()
@click.argument(
    "names", nargs=-1, metavar="[STREAM]...", type=STREAM_NAME, shell_complete=complete_stream
)
@force_option
@option("--ignore-missing", "Ignore streams that do not exist.")
def rm(settings: Settings, names: tuple[str, ...], force: bool, ignore_missing: bool) -> None:
    """
    Delete streams with their messages and consumers.

    With --force, a stream whose servers are lost is deleted, too.
    """
    ask = settings.ask()
    with settings.jetstream() as js:
        if not names:
            names = (ask.choose("Select a stream", js.stream_names, "STREAM"),)
        found = _existing(js, names, force=force, ignore_missing=ignore_missing)
        if found:
            kind = "Stream" if len(found) == 1 else "Streams"
            held = counted(sum(found.values()), "message")
            ask.confirm(f"Delete {kind} {', '.join(found)} with {held}?", force=force)
        with deletions(settings, "Stream {} was deleted".format) as deleted:
            for name in found:
                with (
                    about(f"stream {name}"),
                    suppress(*([errors.StreamNotFoundError] if ignore_missing else [])),
                ):
                    _delete(js, name)
                    deleted.append(name)


def _existing(
    js: JetStream, names: tuple[str, ...], *, force: bool, ignore_missing: bool
) -> dict[str, int]:
    """
    Return the streams with their numbers of messages; raise for an unknown name before anything is deleted.

    `force`: the number for a stream whose servers do not answer is 0.
    """
    found = {}
    absent = [errors.StreamNotFoundError] if ignore_missing else []
    for name in dict.fromkeys(names):
        try:
            with suggesting(js, name), suppress(*absent), about(f"stream {name}"):
                found[name] = js.get_stream(name).cached_info.state.messages
        except errors.RequestTimeoutError:
            if not force or _is_listed(js, name) is not True:
                raise
            found[name] = 0
    return found


def _delete(js: JetStream, name: str) -> None:
    try:
        js.delete_stream(name)
    except errors.RequestTimeoutError:
        # The servers of the stream confirm its deletion by the meta leader, which has the names.
        if _is_listed(js, name) is not False:
            raise


def _is_listed(js: JetStream, name: str) -> bool | None:
    """Return whether there is a stream with a name; ``None``: this is not known."""
    try:
        return name in js.stream_names()
    except errors.Error:
        return None


@command()
@optional_stream_argument
@option("--subject SUBJECT", "Delete only messages of this subject.")
@option("--seq", "Delete only messages before this sequence.", FROM_1)
@option("--keep N", "Keep the newest N messages.", FROM_0)
@force_option
def purge(
    settings: Settings,
    name: str | None,
    subject: str | None,
    seq: int | None,
    keep: int | None,
    force: bool,
) -> None:
    """Delete all or some messages of a stream; the stream remains."""
    allow_one({"--seq": seq, "--keep": keep})
    with stream_of(settings, name) as stream:
        held = counted(stream.cached_info.state.messages, "message")
        part = "" if (subject, seq, keep) == (None, None, None) else "some of "
        settings.ask().confirm(f"Purge {part}{held} from {stream.name}?", force=force)
        purge_some = partial(stream.purge, subject, seq, keep)
        try:
            purged = purge_some(force=force)
        except errors.PendingAcksError as error:
            settings.ask().confirm(f"{error}. Purge anyway?", force=False)
            purged = purge_some(force=True)
        document = {"success": True, "purged": purged}
        emit_text(settings, document, f"Purged {counted(purged, 'message')}\n")
        if not settings.json:
            write_state(settings, stream.info())
