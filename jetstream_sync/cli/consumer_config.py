"""``jsm consumer add``, ``edit`` and ``copy``, and the text of ``info``: show and change a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import click

from .. import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    JetStream,
    PriorityGroupState,
    SequenceInfo,
    StreamConfig,
)
from ..differences import without_server_labels
from ..durations import duration_text, seconds_text
from ..errors import ConsumerExistsError, ConsumerNotFoundError, StreamNotFoundError
from ..subjects import check_consumer_name, subjects_overlap
from .config import (
    changed,
    config_fields,
    config_of_file,
    config_options,
    display_fields,
    edit_config,
    edit_options,
    option_type,
    take_fields,
    write_config,
)
from .names import (
    complete_consumer,
    complete_stream,
    consumer_arguments,
    consumer_of,
    no_stream,
    title,
)
from .output import count, note, when
from .prompts import Asker
from .render import Block, Field, bad, show_blocks, warn
from .settings import Settings, command
from .status import CommandError, ExitStatus
from .stream_config import CLUSTER
from .values import FILE, Parsed, option, parse_duration, parse_time


def info_blocks(settings: Settings, info: ConsumerInfo) -> list[Block]:
    """Return the config and state of a consumer."""
    state = Block("State", _state(settings), info)
    return [config_block(info.config), Block("Cluster", CLUSTER, info), state]


def show(
    settings: Settings, info: ConsumerInfo, done: str = "", *, state_only: bool = False
) -> None:
    """Show a consumer, or only its state, after a line with what was ``done``."""
    blocks = info_blocks(settings, info)
    heading = f"Information for consumer {title(info)}"
    heading = f"Consumer {title(info)} {done}\n\n{heading}" if done else heading
    show_blocks(settings, info, *(blocks[-1:] if state_only else blocks), heading=heading)


def filters_of(config: ConsumerConfig) -> list[str]:
    """Return the filter subjects of a consumer; empty: all subjects."""
    if config.filter_subject:
        return [config.filter_subject]
    return list(config.filter_subjects or ())


def config_block(config: ConsumerConfig) -> Block:
    """Return the configuration of a consumer."""
    mode = Field("Mode", lambda config: "push" if config.deliver_subject else "pull")
    name = Field("Name", lambda config: config.name if config.name != config.durable_name else None)
    others = display_fields(ConsumerConfig, without="name")
    return Block("Configuration", [name, mode, *others], config)


def _state(settings: Settings) -> list[Field]:
    def group(state: PriorityGroupState) -> str:
        pinned = state.pinned_client_id
        since = f" since {when(settings, state.pinned_ts)}" if pinned else ""
        return f"{state.group}: {pinned or 'no pinned client'}{since}"

    def paused(info: ConsumerInfo) -> object:
        if not info.paused:
            return None
        left = info.pause_remaining
        rest = f", for another {duration_text(left)}" if left else ""
        return warn(f"until {when(settings, info.config.pause_until)}{rest}")

    return [
        Field("Last Delivered Message", lambda info: _position(info, info.delivered)),
        Field("Acknowledgment floor", lambda info: _position(info, info.ack_floor)),
        Field("Pending Messages", _pending),
        Field("Redelivered Messages", "num_redelivered"),
        Field("Unprocessed Messages", "num_pending"),
        Field("Waiting Pulls", _waiting),
        Field("Active Interest", _interest),
        Field("Paused", paused),
        Field("Priority Group", "priority_groups", group, each=True),
    ]


def _pending(info: ConsumerInfo) -> object:
    most = info.config.max_ack_pending or 0
    if info.config.ack_policy == AckPolicy.NONE or most <= 0:
        return info.num_ack_pending
    text = f"{count(info.num_ack_pending)} delivered and not acknowledged, of {count(most)} at most"
    return bad(text) if info.num_ack_pending >= most else text


def _waiting(info: ConsumerInfo) -> str | None:
    if info.config.deliver_subject:
        return None
    most = info.config.max_waiting
    return count(info.num_waiting) + (f" of {count(most)}" if most else "")


def _interest(info: ConsumerInfo) -> object:
    if not info.config.deliver_subject:
        return None
    if not info.push_bound:
        return bad("false: no subscriber on the delivery subject")
    group = info.config.deliver_group
    return f"true in queue group {group}" if group else "true"


def _position(info: ConsumerInfo, position: SequenceInfo) -> str:
    text = (
        f"Consumer sequence: {count(position.consumer_seq)} "
        f"Stream sequence: {count(position.stream_seq)}"
    )
    if position.last_active is not None and info.ts is not None:
        ago = timedelta(milliseconds=(info.ts - position.last_active) // timedelta(milliseconds=1))
        text += f" Last activity: {seconds_text(ago)} ago"
    return text


_STARTS: Final[Mapping[str, DeliverPolicy]] = {
    "all": DeliverPolicy.ALL,
    "deliverall": DeliverPolicy.ALL,
    "last": DeliverPolicy.LAST,
    "deliverlast": DeliverPolicy.LAST,
    "new": DeliverPolicy.NEW,
    "next": DeliverPolicy.NEW,
    "subject": DeliverPolicy.LAST_PER_SUBJECT,
    "last_per_subject": DeliverPolicy.LAST_PER_SUBJECT,
}


def parse_deliver(text: str) -> dict[str, Any]:
    """
    Return the config fields for the start of a consumer.

    The text is ``all``, ``last``, ``new``, ``subject``, a sequence, a time, or a duration before now.
    """
    given = text.strip()
    fields: dict[str, Any] = {"opt_start_seq": None, "opt_start_time": None}
    policy = _STARTS.get(given.lower())
    if policy is not None:
        return {**fields, "deliver_policy": policy}
    if given.isdecimal():
        if not int(given):
            raise ValueError("invalid sequence '0': the first sequence is 1")
        policy = DeliverPolicy.BY_START_SEQUENCE
        return {**fields, "deliver_policy": policy, "opt_start_seq": int(given)}
    try:
        start = parse_time(given)
    except ValueError:
        raise ValueError(
            f"invalid start {text!r}: expected all, last, new, subject, a sequence such as 10, "
            "a duration such as 1h, or a time such as 2026-01-02T15:04:05Z"
        ) from None
    return {**fields, "deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": start}


def _until(text: str) -> datetime:
    """Return the end of a pause: a time, or a duration from now; or raise `ValueError`."""
    now = datetime.now(timezone.utc)
    try:
        return now + parse_duration(text)
    except ValueError:
        return parse_time(text, now)


#: The end of a pause: a time, or a duration from now.
UNTIL: Final = Parsed("time", _until)
#: The types of options that differ from those of the fields.
_TYPES: Final = {
    "deliver_policy": Parsed("start", parse_deliver, ["all", "last", "new", "subject"]),
    "pause_until": UNTIL,
}
#: The fields that a terminal is asked for, with the default answer, and whether only for push consumers.
_PROMPTED: Final = {
    "deliver_subject": ("", False),
    "deliver_policy": ("all", False),
    "ack_policy": ("explicit", True),
    "replay_policy": ("instant", True),
    "filter_subjects": ("", False),
    "max_deliver": ("-1", False),
}
_config_options = config_options(ConsumerConfig, _TYPES)


def _fields_of(options: dict[str, Any], *, pull: bool = False) -> dict[str, Any]:
    """Remove the options of a config from ``options``, and return the fields they set."""
    fields = take_fields(ConsumerConfig, options)
    fields.update(fields.pop("deliver_policy", {}))
    if "filter_subjects" in fields:
        fields.update(_filters(fields["filter_subjects"]))
    if fields.get("deliver_subject", "").lower() in ("", "pull") and "deliver_subject" in fields:
        fields["deliver_subject"] = None
    if pull:
        if fields.get("deliver_subject"):
            raise click.UsageError("--pull and --target exclude each other")
        fields["deliver_subject"] = None
    return fields


def _filters(subjects: list[str]) -> dict[str, Any]:
    if len(subjects) > 1:
        return {"filter_subject": None, "filter_subjects": subjects}
    return {"filter_subject": subjects[0] if subjects else None, "filter_subjects": None}


@command()
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumer", required=False)
@option("--pull", "Create a pull consumer.")
@option("--ephemeral", "Create an ephemeral consumer; the name is optional.")
@_config_options
@option("--config FILE", "Read the config from FILE; - is stdin.", FILE, to="config_file")
@option("--output FILE", "Write the config to FILE instead of creating it.", FILE)
@option("--defaults", "Use defaults instead of prompts.")
@option("--update", "Update the consumer if it exists.")
def add(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    pull: bool,
    ephemeral: bool,
    config_file: str | None,
    output: str | None,
    defaults: bool,
    update: bool,
    **options: Any,
) -> None:
    """
    Create a CONSUMER on a STREAM. On a terminal, prompt for missing values.

    \b
    Examples:
      jsm consumer add ORDERS NEW --filter ORDERS.received --ack explicit --pull --deliver all
      jsm consumer add ORDERS MONITOR --ack none --target monitor.ORDERS --deliver last --filter ''
      jsm consumer add ORDERS --pull --ephemeral --deliver 1h --defaults
    """  # noqa: D301 - click requires the character, not the escape
    fields = _fields_of(options, pull=pull)
    base = ConsumerConfig()
    if config_file is not None:
        base = config_of_file(settings, ConsumerConfig, config_file, {})
    with settings.jetstream() as js:
        ask = Asker(settings)
        if stream is None:
            stream = ask.select("Select a stream", js.stream_names, "STREAM")
        name = _name(ask, consumer, base, ephemeral=ephemeral)
        ask.done()
        if defaults or config_file is not None:
            ask.interactive = False
        _ask_for_rest(ask, fields)
        config = changed(base, {**fields, **name})
        try:
            stream_config = js.get_stream(stream).cached_info.config
        except StreamNotFoundError as error:
            raise no_stream(js, stream, error) from error
        check_against_stream(settings, config, stream_config)
        if output is not None:
            write_config(settings, config, output)
            return
        info = put(js, stream, config, update=update)
        show(settings, info)
        _warn_inactive(settings, info)


def _name(
    ask: Asker, given: str | None, base: ConsumerConfig, *, ephemeral: bool
) -> dict[str, Any]:
    """Return the config fields with the name."""
    known = given or base.durable_name or base.name
    if ephemeral:
        return {"durable_name": None, "name": known}
    if known is None:
        known = ask.value("Consumer name", "CONSUMER", check_consumer_name, blank="")
        return {"durable_name": known or None, "name": None}
    if given is None and base.durable_name is None:
        return {}
    return {"durable_name": known, "name": None}


def _ask_for_rest(ask: Asker, fields: dict[str, Any]) -> None:
    """Prompt for values that were not given, in the order of the tool of 2020."""
    declared = {each.name: each for each in config_fields(ConsumerConfig)}
    if ask.interactive and fields.get("ack_policy") == "none":
        fields.setdefault("max_deliver", -1)  # no message is delivered again
    for name, (default, push_only) in _PROMPTED.items() if ask.interactive else ():
        if name in fields or (push_only and fields["deliver_subject"] is None):
            continue
        each = declared[name]
        kind = _TYPES.get(name) or option_type(each)
        parse = str if kind is None else kind.parse
        value = ask.value(each.title, each.flags[0], parse, default=default, blank=parse(default))
        fields.update(_fields_of({name: (value,) if each.many else value}))


def check_against_stream(settings: Settings, config: ConsumerConfig, stream: StreamConfig) -> None:
    """Warn about a delivery loop and about filters that match no subject of the stream."""
    subjects = list(stream.subjects or ())
    target = config.deliver_subject
    overlapping = [each for each in subjects if target and subjects_overlap(target, each)]
    if overlapping:
        note(
            settings,
            f"warning: stream {stream.name} stores {overlapping[0]}, which includes deliveries to {target}",
        )
    if stream.sources or stream.mirror or stream.subject_transform:
        return  # messages may have other subjects
    for each in filters_of(config) if subjects else ():
        if any(subjects_overlap(each, subject) for subject in subjects):
            continue
        known = ", ".join(subjects)
        note(
            settings,
            f"warning: filter {each} matches no subject: stream {stream.name} stores {known}",
        )


def put(js: JetStream, stream: str, config: ConsumerConfig, *, update: bool) -> ConsumerInfo:
    """Create or update a pull or push consumer."""
    name = config.durable_name or config.name
    if update and name is not None:
        try:
            js.consumer_info(stream, name)
        except ConsumerNotFoundError:
            pass
        else:
            return _update(js, stream, config)
    try:
        if config.deliver_subject is not None:
            return js.create_push_consumer(stream, config)
        return js.create_consumer(stream, config).cached_info
    except ConsumerExistsError as error:
        raise CommandError(
            f"consumer {name} exists with another configuration",
            ExitStatus.FAILED,
            hint="change it with 'edit' or --update",
            cause=error,
        ) from error


def _warn_inactive(settings: Settings, info: ConsumerInfo) -> None:
    """Warn that an ephemeral push consumer without a subscriber will be deleted."""
    config = info.config
    if config.durable_name or not config.deliver_subject or info.push_bound:
        return
    within = duration_text(config.inactive_threshold) if config.inactive_threshold else "5s"
    note(
        settings,
        f"warning: no subscriber on {config.deliver_subject}: subscribe within {within}, "
        f"or the server deletes consumer {title(info)}",
    )


@command()
@consumer_arguments
@edit_options
@_config_options
def edit(settings: Settings, *, stream: str | None, consumer: str | None, **options: Any) -> None:
    """
    Change the configuration of a CONSUMER of a STREAM.

    Options change single fields. A config from a file or an editor replaces the whole configuration:
    missing fields get the server's defaults. Metadata is merged; --metadata KEY= removes a key.
    """
    fields = _fields_of(options)
    with consumer_of(settings, stream, consumer) as (js, info):
        before = info.config

        def check(config: ConsumerConfig) -> None:
            stored = js.get_stream(info.stream_name).cached_info.config
            check_against_stream(settings, config, stored)

        updated = edit_config(
            settings,
            before,
            fields,
            {"durable_name": before.durable_name, "name": before.name},
            lambda config: _update(js, info.stream_name, config),
            title=f"consumer {title(info)}",
            check=check,
            options=options,
        )
    verb = "is unchanged" if updated is None else "was changed"
    show(settings, updated or info, verb)


def _update(js: JetStream, stream: str, config: ConsumerConfig) -> ConsumerInfo:
    if config.deliver_subject is not None:
        return js.update_push_consumer(stream, config)
    return js.update_consumer(stream, config).cached_info


@command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("consumer", metavar="SOURCE", shell_complete=complete_consumer)
@click.argument("destination")
@option("--pull", "Make the copy a pull consumer.")
@_config_options
def copy(
    settings: Settings,
    *,
    stream: str,
    consumer: str,
    destination: str,
    pull: bool,
    **options: Any,
) -> None:
    """
    Copy the consumer SOURCE of a STREAM to DESTINATION; options change the copy.

    Only the configuration is copied, not the delivery state.
    """
    fields = _fields_of(options, pull=pull)
    check_consumer_name(destination)
    if pull:
        # These fields are for push consumers only.
        fields |= dict.fromkeys(
            ("deliver_group", "flow_control", "idle_heartbeat", "rate_limit_bps")
        )
    with consumer_of(settings, stream, consumer) as (js, source):
        if destination == source.name:
            raise CommandError("the destination must differ from the source")
        base = replace(
            without_server_labels(source.config),
            durable_name=destination,
            name=None,
            pause_until=fields.get("pause_until"),
        )
        config = changed(base, fields)
        check_against_stream(settings, config, js.get_stream(stream).cached_info.config)
        same = config.deliver_subject
        if same is not None and same == source.config.deliver_subject:
            note(settings, f"warning: both deliver to {same}; set another subject with --target")
        info = put(js, stream, config, update=False)
    show(settings, info, f"was copied from {title(source)}")
