"""``jsm stream add``, ``copy``, ``edit`` and ``seal``: create a stream and change its config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import click

from ... import JetStream, RetentionPolicy, Stream, StreamConfig
from ...errors import StreamNotFoundError
from ...subjects import check_stream_name
from ..completion import optional_stream_argument, stream_argument
from ..config import (
    changed,
    config_of_file,
    edit_config,
    edit_options,
    subjects_of,
    warn_of_ignored,
    write_config,
)
from ..names import find_stream
from ..output import counted, emit, say
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import FILE, STREAM_NAME, parse_limit, parse_limited_duration, parse_limited_size
from .options import STORAGE, config_options, fields_of
from .show import write_info

#: The verb for a stream that already exists and is not changed.
_EXISTS = "exists"
_RETENTIONS = {
    "Limits": RetentionPolicy.LIMITS,
    "Interest": RetentionPolicy.INTEREST,
    "Work Queue": RetentionPolicy.WORK_QUEUE,
    "Stream": RetentionPolicy.LIMITS,
}

#: The prompts for limits: field, question, parser of the answer, help.
_LIMITS: Final[tuple[tuple[str, str, Callable[[str], Any], str], ...]] = (
    ("max_msgs", "Message count limit", parse_limit, "Maximum number of messages"),
    (
        "max_bytes",
        "Message size limit",
        parse_limited_size,
        "Maximum total size, such as 10GB",
    ),
    (
        "max_age",
        "Maximum message age limit",
        parse_limited_duration,
        "Maximum age of a message, such as 30d or 1y",
    ),
    (
        "max_msg_size",
        "Maximum individual message size",
        parse_limited_size,
        "Maximum size of a message, such as 1MB",
    ),
)


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
@config_options
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
    fields = fields_of(options)
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
    if verb != _EXISTS:
        warn_of_ignored(settings, config, stream.cached_info.config)
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
            help="Name of the stream",
        )
        has_origin = "mirror" in fields or "sources" in fields
        if "subjects" not in fields and not has_origin:
            fields["subjects"] = ask.value(
                "Subjects to consume",
                "--subjects",
                _subjects,
                default=name if defaults and name else None,
                blank=_subjects(""),
                help="Subjects to store, separated by commas; wildcards are allowed",
            )
        if ask.interactive:
            _ask_limits(ask, fields)
    if not has_origin:
        fields.setdefault("allow_direct", True)
    return StreamConfig(name=check_stream_name(name), **fields)


def _subjects(text: str) -> list[str]:
    return subjects_of([text])


def _ask_limits(ask: Asker, fields: dict[str, Any]) -> None:
    fields["storage"] = ask.value(
        "Storage backend",
        "--storage",
        STORAGE.parse,
        value=fields.get("storage"),
        default="file",
        blank="file",
        help="Storage of the messages: file or memory",
    )
    fields["retention"] = ask.choice(
        "Retention Policy",
        _RETENTIONS,
        "--retention",
        value=fields.get("retention"),
        default="Limits",
        help="Limits keeps messages until a limit is reached, Interest until all consumers have "
        "acknowledged them, Work Queue until the first acknowledgement",
    )
    for field, label, convert, text in _LIMITS:
        flag = f"--{field.replace('_', '-')}"
        help_text = f"{text}; -1 means no limit"
        given = fields.get(field)
        fields[field] = ask.value(
            label, flag, convert, value=given, default="-1", blank=convert("-1"), help=help_text
        )


@click.command()
@click.argument("source", type=STREAM_NAME)
@click.argument("destination", type=STREAM_NAME)
@config_options
@common_options
def copy(settings: Settings, source: str, destination: str, **options: Any) -> None:
    """
    Create a stream with the config of another one; messages and consumers are not copied.

    Two streams cannot have the same subjects, so --subjects is required unless SOURCE is a mirror.
    """
    fields = fields_of(options)
    check_stream_name(destination)
    with settings.jetstream() as js:
        base = find_stream(js, source).cached_info.config
        labels = {
            key: text for key, text in (base.metadata or {}).items() if not key.startswith("_nats.")
        }
        config = changed(replace(base, name=destination, metadata=labels, sealed=None), fields)
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
@config_options
@common_options
def edit(settings: Settings, name: str | None, **options: Any) -> None:
    """
    Edit the config of a stream.

    Options change single fields. A config from a file or an editor replaces the whole config:
    fields that it does not contain get the defaults of the server. --metadata adds to the existing
    metadata; --metadata KEY= removes a key.
    """
    removed = {field: None for field, option in _REMOVABLE.items() if options.pop(option)}
    fields = {**removed, **fields_of(options)}
    with settings.jetstream() as js:
        stream = find_stream(js, name, Asker(settings))
        before = stream.cached_info.config

        def update(config: StreamConfig) -> Stream:
            updated = js.update_stream(config)
            warn_of_ignored(settings, config, updated.cached_info.config)
            return updated

        updated = edit_config(
            settings,
            before,
            fields,
            {"name": before.name},
            update,
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
