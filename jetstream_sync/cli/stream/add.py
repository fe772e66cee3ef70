"""``jsm stream add``, ``copy``, ``edit`` and ``seal``: create a stream and change its config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import click

from ... import JetStream, Stream, StreamConfig
from ...errors import StreamNotFoundError
from ...subjects import check_stream_name
from ..config import (
    config_of_file,
    edit_config,
    edit_options,
    without_server_labels,
    write_config,
)
from ..fields import changed, config_fields, config_options, option_type, parse_list, take_fields
from ..names import find_stream, optional_stream_argument, stream_argument
from ..output import counted, emit, say
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import FILE, STREAM_NAME
from .show import write_info

#: The verb for a stream that already exists and is not changed.
_EXISTS = "exists"
#: The fields that a terminal is asked for, with the answer for the server's default.
_PROMPTED: Final = {
    "storage": "file",
    "retention": "limits",
    "max_msgs": "-1",
    "max_bytes": "-1",
    "max_age": "-1",
    "max_msg_size": "-1",
}


@click.command()
@click.argument("name", required=False, type=STREAM_NAME)
@click.option(
    "--config",
    "file",
    type=FILE,
    metavar="FILE",
    help="Read the config from a file; '-' for standard input.",
)
@click.option(
    "--output",
    type=FILE,
    metavar="FILE",
    help="Write the config to a file without creating the stream.",
)
@click.option("--validate", is_flag=True, help="Check the config without creating the stream.")
@click.option("--defaults", is_flag=True, help="Use defaults instead of asking.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if a stream with this name exists.")
@click.option("--update", is_flag=True, help="Update the stream if it exists.")
@config_options(StreamConfig)
@common_options
def add(
    settings: Settings,
    name: str | None,
    file: str | None,
    output: str | None,
    validate: bool,
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
    if validate:
        emit(settings, config, lambda: say(settings, f"The config of {config.name} is valid"))
        return
    if output is not None:
        write_config(settings, config, output)
        return
    with settings.jetstream() as js:
        stream, verb = _create(js, config, if_not_exists=if_not_exists, update=update)
    _show(settings, stream, verb)


def _create(
    js: JetStream, config: StreamConfig, *, if_not_exists: bool, update: bool
) -> tuple[Stream, str]:
    """Create or update the stream; return it and the verb for the output."""
    try:
        found = js.get_stream(config.name)
    except StreamNotFoundError:
        return js.create_stream(config), "was created"
    if if_not_exists:
        return found, _EXISTS
    if update:
        return js.update_stream(config), "was updated"
    return js.create_stream(config), "is unchanged"  # the server refuses another config


def _show(settings: Settings, stream: Stream, done: str) -> None:
    """Write what was done with a stream, and its info."""
    info = stream.cached_info

    def human() -> None:
        settings.env.stdout.write(f"Stream {stream.name} {done}\n\n")
        write_info(settings, info)

    emit(settings, info, human)


def _prompt_for_config(
    settings: Settings, name: str | None, fields: dict[str, Any], *, defaults: bool
) -> StreamConfig:
    """Return the config from options and prompts; the prompts have the order of the 2020 CLI."""
    with Asker(settings) as ask:
        if defaults:
            ask.interactive = False
        name = ask.value(
            "Stream name",
            "NAME",
            check_stream_name,
            value=name,
            blank="",
        )
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
    if not has_origin:
        fields.setdefault("allow_direct", True)
    return changed(StreamConfig(name=check_stream_name(name)), fields)


@click.command()
@click.argument("source", type=STREAM_NAME)
@click.argument("destination", type=STREAM_NAME)
@config_options(StreamConfig)
@common_options
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
                f"two streams cannot both store {', '.join(config.subjects)}: use --subjects",
                ExitStatus.USAGE,
            )
        stream = js.create_stream(config)
    _show(settings, stream, f"was created as a copy of {source}")


@click.command()
@optional_stream_argument
@edit_options
@click.option("--no-mirror", is_flag=True, help="Turn a mirror into a normal stream.")
@click.option("--no-transform", is_flag=True, help="Remove the subject transform.")
@click.option("--no-republish", is_flag=True, help="Remove the republish rule.")
@config_options(StreamConfig)
@common_options
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
        stream = find_stream(js, name, Asker(settings))
        before = stream.cached_info.config
        updated = edit_config(
            settings,
            before,
            fields,
            {"name": before.name},
            js.update_stream,
            kind="Stream",
            name=before.name,
            confirm=f"Change Stream {before.name}?",
            options=options,
        )
    verb = "already has this config" if updated is None else "was changed"
    _show(settings, updated or stream, verb)


_REMOVABLE = {
    "mirror": "no_mirror",
    "subject_transform": "no_transform",
    "republish": "no_republish",
}


@click.command()
@stream_argument
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
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
    _show(settings, stream, "is sealed")
