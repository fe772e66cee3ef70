"""``jsm stream edit`` and ``seal``: change the config of a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ... import JetStream, Stream, StreamConfig
from ...errors import APIError
from ..completion import complete_stream
from ..config import (
    Difference,
    changed,
    config_of_file,
    differences,
    edit_options,
    in_editor,
    show_differences,
    update_error,
    warn_of_ignored,
    without_server_labels,
)
from ..names import STREAM_NAME
from ..output import counted, emit
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import ExitStatus
from ..terminology import find_stream, words
from .options import config_options, fields_of
from .show import write_info

__all__ = ["edit", "seal"]


@click.command()
@click.argument(
    "name", required=False, metavar="[STREAM]", type=STREAM_NAME, shell_complete=complete_stream
)
@edit_options
@click.option("--no-mirror", is_flag=True, help="Turn a mirror into a normal stream.")
@click.option("--no-transform", is_flag=True, help="Remove the subject transform.")
@click.option("--no-republish", is_flag=True, help="Remove the republish rule.")
@config_options
@common_options
def edit(
    settings: Settings,
    name: str | None,
    file: str | None,
    interactive: bool,
    dry_run: bool,
    exit_code: bool,
    force: bool,
    **options: Any,
) -> None:
    """
    Edit the config of a stream.

    Options change single fields. A config from a file or an editor replaces the whole config:
    fields that it does not contain get the defaults of the server. --metadata adds to the existing
    metadata; --metadata KEY= removes a key.
    """
    removed = {field: None for field, option in _REMOVABLE.items() if options.pop(option)}
    fields = {**removed, **fields_of(options)}
    ask = Asker(settings)
    if interactive and not ask.interactive:
        raise click.UsageError("--interactive needs a terminal")
    with settings.jetstream() as js:
        stream = find_stream(js, name, ask)
        before = stream.cached_info.config
        base = before
        if file is not None:
            base = config_of_file(settings, StreamConfig, file, {"name": before.name})
        after = changed(base, fields)
        if interactive:
            after = in_editor(after, {"name": before.name})
        found = differences(before, after)
        if dry_run:
            show_differences(settings, found)
            if exit_code and found:
                raise click.exceptions.Exit(ExitStatus.FAILED)
            return
        if found:
            if not settings.json:
                show_differences(settings, found)
            ask.confirm(f"Change {words().stream} {before.name}?", force=force)
            stream = _update(js, after, found)
            warn_of_ignored(settings, after, stream.cached_info.config)
    info = stream.cached_info

    def human() -> None:
        verb = "was changed" if found else "already has this config"
        settings.env.stdout.write(f"{words().stream} {before.name} {verb}\n\n")
        write_info(settings, info)

    emit(settings, info, human)


_REMOVABLE = {
    "mirror": "no_mirror",
    "subject_transform": "no_transform",
    "republish": "no_republish",
}


def _update(js: JetStream, config: StreamConfig, found: list[Difference]) -> Stream:
    try:
        return js.update_stream(without_server_labels(config))
    except APIError as error:
        raise update_error(words().stream, config.name, error, found) from error


@click.command()
@click.argument("name", metavar="STREAM", type=STREAM_NAME, shell_complete=complete_stream)
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def seal(settings: Settings, name: str, force: bool) -> None:
    """Make a stream read-only, permanently; messages can neither be added nor deleted."""
    with settings.jetstream() as js:
        stream = find_stream(js, name)
        info = stream.cached_info
        if not info.config.sealed:
            Asker(settings).confirm(
                f"Seal {words().stream} {name} with {counted(info.state.messages, 'message')} permanently?",
                force=force,
            )
            info = js.update_stream(replace(info.config, sealed=True)).cached_info

    def human() -> None:
        settings.env.stdout.write(f"{words().stream} {name} is sealed\n\n")
        write_info(settings, info)

    emit(settings, info, human)
