"""``jsm stream info``, ``state``, ``subjects``, ``gaps``, ``add``, ``edit``, ``copy`` and ``seal``: show and change a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import click

from .. import JetStream, PeerInfo, Stream, StreamConfig, StreamInfo, StreamSourceInfo
from ..differences import without_server_labels
from ..durations import seconds_text
from ..errors import StreamNotFoundError
from ..subjects import check_stream_name
from .config import (
    changed,
    config_fields,
    config_of_file,
    config_options,
    display_fields,
    edit_config,
    edit_options,
    option_type,
    parse_list,
    take_fields,
    write_config,
)
from .names import find_stream, named_stream, optional_stream_argument, stream_argument, stream_of
from .output import count, counted, emit, emit_names, size, when
from .prompts import Asker
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
from .status import CommandError
from .values import FILE, STREAM_NAME, force_option, names_option, option


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
        item=lambda each: {name: getattr(each, name) for name in _SCHEDULE},
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


#: The fields that a terminal is asked for, with the answer for the server's default.
_PROMPTED: Final = {
    "storage": "file",
    "retention": "limits",
    "max_msgs": "-1",
    "max_bytes": "-1",
    "max_age": "-1",
    "max_msg_size": "-1",
}


@command()
@click.argument("name", required=False, type=STREAM_NAME)
@option("--config FILE", "Read the config from a file; '-' for standard input.", FILE, to="file")
@option("--output FILE", "Write the config to a file without creating the stream.", FILE)
@option("--defaults", "Use defaults instead of asking.")
@option("--if-not-exists", "Do nothing if a stream with this name exists.")
@option("--update", "Update the stream if it exists.")
@config_options(StreamConfig)
def add(
    settings: Settings,
    name: str | None,
    file: str | None,
    output: str | None,
    defaults: bool,
    if_not_exists: bool,
    update: bool,
    **options: Any,
) -> None:
    """
    Create a stream.

    On a terminal, asks for the options that are not given; elsewhere the defaults of the server
    apply. Succeeds without a change if the stream already exists with the same config.

    \b
      jsm stream add ORDERS --subjects "ORDERS.*" --max-age 1y
      jsm stream add --config orders.json
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    if if_not_exists and update:
        raise click.UsageError("--if-not-exists and --update exclude each other")
    fields = take_fields(StreamConfig, options)
    if file is not None:
        base = config_of_file(settings, StreamConfig, file, {"name": name} if name else {})
        config = changed(base, fields)
    else:
        config = _prompt_for_config(settings, name, fields, defaults=defaults)
    if output is not None:
        write_config(settings, config, output)
        return
    with settings.jetstream() as js:
        stream, verb = _create(js, config, if_not_exists=if_not_exists, update=update)
    show_info(settings, stream.cached_info, verb)


def _create(
    js: JetStream, config: StreamConfig, *, if_not_exists: bool, update: bool
) -> tuple[Stream, str]:
    """Create or update the stream; return it and the verb for the output."""
    try:
        found = js.get_stream(config.name)
    except StreamNotFoundError:
        return js.create_stream(config), "was created"
    if if_not_exists:
        return found, "exists"
    if update:
        return js.update_stream(config), "was updated"
    return js.create_stream(config), "is unchanged"  # the server refuses another config


def _prompt_for_config(
    settings: Settings, name: str | None, fields: dict[str, Any], *, defaults: bool
) -> StreamConfig:
    """Return the config from options and prompts; the prompts have the order of the 2020 CLI."""
    ask = Asker(settings)
    if defaults:
        ask.interactive = False
    name = ask.value("Stream name", "NAME", check_stream_name, value=name, blank="")
    has_origin = "mirror" in fields or "sources" in fields
    if "subjects" not in fields and not has_origin:
        fields["subjects"] = ask.value(
            "Subjects to consume",
            "--subjects",
            parse_list,
            default=name if defaults and name else None,
            blank=parse_list(""),
        )
    declared = {each.name: each for each in config_fields(StreamConfig)}
    for field, default in _PROMPTED.items() if ask.interactive else ():
        kind = option_type(declared[field])
        fields[field] = ask.value(
            declared[field].title,
            declared[field].flags[0],
            kind.parse,
            value=fields.get(field),
            default=default,
            blank=kind.parse(default),
        )
    ask.done()
    if not has_origin:
        fields.setdefault("allow_direct", True)
    return changed(StreamConfig(name=check_stream_name(name)), fields)


@command()
@click.argument("source", type=STREAM_NAME)
@click.argument("destination", type=STREAM_NAME)
@config_options(StreamConfig)
def copy(settings: Settings, source: str, destination: str, **options: Any) -> None:
    """
    Create a stream with the config of another one; messages and consumers are not copied.

    Two streams cannot have the same subjects, so --subjects is required unless SOURCE is a mirror.
    """
    fields = take_fields(StreamConfig, options)
    check_stream_name(destination)
    with settings.jetstream() as js:
        base = find_stream(js, source).cached_info.config
        base = without_server_labels(base)
        config = changed(replace(base, name=destination, sealed=None), fields)
        if config.subjects and config.subjects == base.subjects:
            raise CommandError(
                f"two streams cannot both store {', '.join(config.subjects)}: use --subjects"
            )
        stream = js.create_stream(config)
    show_info(settings, stream.cached_info, f"was created as a copy of {source}")


@command()
@optional_stream_argument
@edit_options
@option("--no-mirror", "Turn a mirror into a normal stream.")
@option("--no-transform", "Remove the subject transform.")
@option("--no-republish", "Remove the republish rule.")
@config_options(StreamConfig)
def edit(settings: Settings, name: str | None, **options: Any) -> None:
    """
    Edit the config of a stream.

    Options change single fields. A config from a file or an editor replaces the whole config:
    fields that it does not contain get the defaults of the server. --metadata adds to the existing
    metadata; --metadata KEY= removes a key.
    """
    removed = {field: None for field, option in _REMOVABLE.items() if options.pop(option)}
    fields = {**removed, **take_fields(StreamConfig, options)}
    with settings.jetstream() as js:
        stream = named_stream(settings, js, name)
        before = stream.cached_info.config
        updated = edit_config(
            settings,
            before,
            fields,
            {"name": before.name},
            js.update_stream,
            title=f"stream {before.name}",
            options=options,
        )
    verb = "already has this config" if updated is None else "was changed"
    show_info(settings, (updated or stream).cached_info, verb)


_REMOVABLE = {
    "mirror": "no_mirror",
    "subject_transform": "no_transform",
    "republish": "no_republish",
}


@command()
@stream_argument
@force_option
def seal(settings: Settings, name: str, force: bool) -> None:
    """Make a stream read-only, permanently; messages can neither be added nor deleted."""
    with settings.jetstream() as js:
        stream = find_stream(js, name)
        info = stream.cached_info
        if not info.config.sealed:
            Asker(settings).confirm(
                f"Seal Stream {name} with {counted(info.state.messages, 'message')} permanently?",
                force=force,
            )
            stream = js.update_stream(replace(info.config, sealed=True))
    show_info(settings, stream.cached_info, "is sealed")
