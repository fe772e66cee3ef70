"""``jsm stream add``, ``edit``, ``copy`` and ``seal``: create and change a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from ... import StreamConfig, errors
from ...differences import without_server_labels
from ...durations import counted
from ...subjects import check_stream_name
from ..shared.config import (
    ask_for_field,
    changed,
    config_fields,
    config_of_file,
    config_options,
    creation_options,
    edit_config,
    edit_options,
    parse_list,
    take_fields,
    write_config,
)
from ..shared.names import find_stream, named_stream, optional_stream_argument, stream_argument
from ..shared.settings import Settings, command
from ..shared.status import CommandError
from ..shared.values import STREAM_NAME, allow_one, force_option, option
from .streams import show_info

if TYPE_CHECKING:
    from ... import JetStream, Stream

#: The fields that a terminal is asked for, with the answer for the server's default.
_PROMPTED: Final = {
    "storage": "file",
    "retention": "limits",
    "max_msgs": "-1",
    "max_bytes": "-1",
    "max_age": "-1",
    "max_msg_size": "-1",
}


#: The headings of the options for the fields of a stream, and the parameters below each.
_HEADINGS: Final = {
    "Common options": "subjects storage retention max_age max_msgs max_bytes num_replicas description "
    "discard duplicate_window metadata",
    "Limits": "max_msg_size max_msgs_per_subject max_consumers discard_new_per_subject first_seq "
    "consumer_limits_inactive_threshold consumer_limits_max_ack_pending deny_delete deny_purge",
    "Mirror and sources": "mirror sources mirror_direct no_mirror",
    "Storage and servers": "compression placement_cluster placement_tags persist_mode",
    "Subjects": "republish_dest republish_src republish_headers_only subject_transform_src "
    "subject_transform_dest no_republish no_transform",
    "Features": "allow_direct allow_rollup_hdrs allow_msg_ttl subject_delete_marker_ttl allow_msg_counter "
    "allow_atomic allow_msg_schedules allow_batched no_ack",
    "Files and prompts": "",
}


@command(headings=_HEADINGS)
@click.argument("name", required=False, type=STREAM_NAME)
@creation_options
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
    """
    allow_one({"--if-not-exists": if_not_exists, "--update": update})
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
    js: JetStream,
    config: StreamConfig,
    created: str = "was created",
    *,
    if_not_exists: bool = False,
    update: bool = False,
) -> tuple[Stream, str]:
    """Create or update the stream; return it and the verb for the output."""
    try:
        found = js.get_stream(config.name)
    except errors.StreamNotFoundError:
        return js.create_stream(config), created
    except errors.RequestTimeoutError:
        # The stream's servers do not reply, or there is no such stream and no meta leader. The creation tells which.
        if if_not_exists or update:
            raise
        return js.create_stream(config), f"{created} or is unchanged"
    if if_not_exists:
        return found, "exists"
    if update:
        return js.update_stream(config), "was updated"
    return js.create_stream(config), "is unchanged"  # the server refuses another config


def _prompt_for_config(
    settings: Settings, name: str | None, fields: dict[str, Any], *, defaults: bool
) -> StreamConfig:
    """Return the config from options and prompts; the prompts have the order of the 2020 CLI."""
    ask = settings.ask()
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
    declared = {field.name: field for field in config_fields(StreamConfig)}
    for field, default in _PROMPTED.items() if ask.interactive else ():
        fields[field] = ask_for_field(ask, declared[field], default, value=fields.get(field))
    ask.done()
    if not has_origin:
        fields.setdefault("allow_direct", True)
    return changed(StreamConfig(name=check_stream_name(name)), fields)


@command(headings=_HEADINGS)
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
        stream, verb = _create(js, config, f"was created as a copy of {source}")
    show_info(settings, stream.cached_info, verb)


@command(headings=_HEADINGS)
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
        updated = edit_config(settings, js, stream.cached_info.config, fields, options=options)
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
    from ...declare import Declared  # noqa: PLC0415 - not needed for help

    with settings.jetstream() as js:
        stream = find_stream(js, name)
        info = stream.cached_info
        if not info.config.sealed:
            settings.ask().confirm(
                f"Seal Stream {name} with {counted(info.state.messages, 'message')} permanently?",
                force=force,
            )
            sealed = Declared(config=replace(info.config, sealed=True))
            stream = sealed.change_from(info.config).run(js)
    show_info(settings, stream.cached_info, "is sealed")
