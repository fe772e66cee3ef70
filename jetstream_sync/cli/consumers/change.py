"""``jsm consumer add``, ``edit`` and ``copy``: create and change a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from ... import ConsumerConfig, ConsumerInfo, DeliverPolicy, StreamConfig, errors
from ...declare import CREATE, NOTHING, Declared, Step
from ...differences import without_server_labels
from ...durations import duration_text
from ...subjects import check_consumer_name, filter_fields, subjects_overlap
from ..shared.config import (
    ask_for_field,
    changed,
    check_updates,
    config_fields,
    config_of_file,
    config_options,
    creation_options,
    edit_config,
    edit_options,
    take_fields,
    write_config,
)
from ..shared.names import (
    complete_consumer,
    complete_stream,
    consumer_arguments,
    consumer_of,
    find_stream,
    title,
)
from ..shared.prompts import Asker
from ..shared.settings import Settings, command
from ..shared.status import CommandError, FailedError
from ..shared.values import UNTIL, Parsed, allow_one, option, parse_time
from .consumers import show

if TYPE_CHECKING:
    from ... import JetStream, PullConsumer

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
        fields.update(filter_fields(fields["filter_subjects"]))
    if fields.get("deliver_subject", "").lower() in ("", "pull") and "deliver_subject" in fields:
        fields["deliver_subject"] = None
    if pull:
        allow_one({"--pull": pull, "--target": fields.get("deliver_subject")})
        fields["deliver_subject"] = None
    return fields


#: The headings of the options for the fields of a consumer, and the parameters below each.
_HEADINGS: Final = {
    "Common options": "pull ephemeral filter_subjects deliver_policy ack_policy ack_wait max_deliver "
    "max_ack_pending description inactive_threshold metadata",
    "Redelivery and limits": "backoff max_waiting max_batch max_expires max_bytes sample_freq pause_until "
    "replay_policy headers_only",
    "Push consumers": "deliver_subject deliver_group flow_control idle_heartbeat rate_limit_bps",
    "Priority groups": "priority_groups priority_policy priority_timeout",
    "Storage and servers": "num_replicas mem_storage",
    "Files and prompts": "",
}


@command(headings=_HEADINGS)
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.argument("consumer", required=False)
@option("--pull", "Create a pull consumer.")
@option("--ephemeral", "Create an ephemeral consumer; the name is optional.")
@_config_options
@creation_options
@option("--update", "Update the consumer if it exists.")
def add(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    pull: bool,
    ephemeral: bool,
    file: str | None,
    output: str | None,
    defaults: bool,
    update: bool,
    **options: Any,
) -> None:
    """Create a CONSUMER on a STREAM. On a terminal, prompt for missing values."""
    fields = _fields_of(options, pull=pull)
    base = ConsumerConfig()
    if file is not None:
        base = config_of_file(settings, ConsumerConfig, file, {})
    with settings.jetstream() as js:
        ask = settings.ask()
        if stream is None:
            stream = ask.select("Select a stream", js.stream_names, "STREAM")
        name = _name(ask, consumer, base, ephemeral=ephemeral)
        ask.done()
        if defaults or file is not None:
            ask.interactive = False
        _ask_for_rest(ask, fields)
        config = changed(base, {**fields, **name})
        try:
            check_against_stream(settings, config, find_stream(js, stream).cached_info.config)
        except errors.RequestTimeoutError:
            if output is not None:
                raise
            # The creation tells why there was no reply.
        if output is not None:
            write_config(settings, config, output)
            return
        info = _create(js, stream, config, update=update)
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
    declared = {field.name: field for field in config_fields(ConsumerConfig)}
    if ask.interactive and fields.get("ack_policy") == "none":
        fields.setdefault("max_deliver", -1)  # no message is delivered again
    for name, (default, push_only) in _PROMPTED.items() if ask.interactive else ():
        if name in fields or (push_only and fields["deliver_subject"] is None):
            continue
        field = declared[name]
        value = ask_for_field(ask, field, default, kind=_TYPES.get(name))
        fields.update(_fields_of({name: (value,) if field.many else value}))


def check_against_stream(settings: Settings, config: ConsumerConfig, stream: StreamConfig) -> None:
    """Warn about a delivery loop and about filters that match no subject of the stream."""
    subjects = list(stream.subjects or ())
    target = config.deliver_subject
    overlapping = [subject for subject in subjects if target and subjects_overlap(target, subject)]
    if overlapping:
        settings.note(
            f"warning: stream {stream.name} stores {overlapping[0]}, which includes deliveries to {target}"
        )
    if stream.sources or stream.mirror or stream.subject_transform:
        return  # messages may have other subjects
    for item in config.filters if subjects else ():
        if any(subjects_overlap(item, subject) for subject in subjects):
            continue
        known = ", ".join(subjects)
        settings.note(
            f"warning: filter {item} matches no subject: stream {stream.name} stores {known}"
        )


def _create(js: JetStream, stream: str, config: ConsumerConfig, *, update: bool) -> ConsumerInfo:
    """Create or update a pull or push consumer."""
    declared = Declared(config=config, stream=stream)
    name = config.durable_name or config.name
    step = Step(action=CREATE, declared=declared)
    if update and name is not None:
        with suppress(errors.ConsumerNotFoundError):
            present = js.consumer_info(stream, name)
            step = declared.change_from(present.config)
            if step.action == NOTHING:
                return present
    try:
        result = step.run(js)
        check_updates(js, [(step, result)])
        return _info_of(result)
    except errors.ConsumerExistsError as error:
        raise FailedError(
            f"consumer {name} exists with another configuration",
            hint="change it with 'edit' or --update",
            cause=error,
        ) from error


def _info_of(found: PullConsumer | ConsumerInfo) -> ConsumerInfo:
    return found if isinstance(found, ConsumerInfo) else found.cached_info


def _warn_inactive(settings: Settings, info: ConsumerInfo) -> None:
    """Warn that an ephemeral push consumer without a subscriber will be deleted."""
    config = info.config
    if config.durable_name or not config.deliver_subject or info.push_bound:
        return
    within = duration_text(config.inactive_threshold) if config.inactive_threshold else "5s"
    settings.note(
        f"warning: no subscriber on {config.deliver_subject}: subscribe within {within}, "
        f"or the server deletes consumer {title(info)}"
    )


@command(headings=_HEADINGS)
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

        def check(config: ConsumerConfig) -> None:
            stored = js.get_stream(info.stream_name).cached_info.config
            check_against_stream(settings, config, stored)

        updated = edit_config(
            settings, js, info.config, fields, options=options, stream=info.stream_name, check=check
        )
    if updated is None:
        show(settings, info, "is unchanged")
    else:
        show(settings, _info_of(updated), "was changed")


@command(headings=_HEADINGS)
@click.argument("stream", shell_complete=complete_stream)
@click.argument("consumer", metavar="SOURCE", shell_complete=complete_consumer)
@click.argument("destination")
@option("--pull", "Make the copy a pull consumer.")
@_config_options
def copy(
    settings: Settings, *, stream: str, consumer: str, destination: str, pull: bool, **options: Any
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
            settings.note(f"warning: both deliver to {same}; set another subject with --target")
        info = _create(js, stream, config, update=False)
    show(settings, info, f"was copied from {title(source)}")
