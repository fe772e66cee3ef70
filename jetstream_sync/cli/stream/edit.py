"""``jsm stream edit`` and ``seal``: change what a stream is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from ... import JetStream, Stream, StreamConfig
from ...errors import APIError
from ..completion.complete import complete_stream
from ..config.diff import Difference, differences, warn_of_ignored, without_server_labels
from ..config.edit import edit_options, in_editor, show_differences, update_error
from ..config.fields import changed
from ..config.files import config_of_file
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
@click.option("--no-mirror", is_flag=True, help="Make an ordinary stream of a mirror.")
@click.option("--no-transform", is_flag=True, help="Give messages no other subject any more.")
@click.option("--no-republish", is_flag=True, help="Publish nothing again any more.")
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
    Change a stream's config.

    Options change single fields. A config in a file, or in an editor, takes the place of the whole
    one: what it does not say gets the server's default. Labels are added to those that there are;
    --metadata KEY= takes one away.
    """
    gone = {field: None for field, option in _REMOVABLE.items() if options.pop(option)}
    fields = {**gone, **fields_of(options)}
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
        verb = "was changed" if found else "is like that already"
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
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Ask nothing; do it.")
@common_options
def seal(settings: Settings, name: str, force: bool) -> None:
    """Let nothing in or out any more, for ever; messages can still be read."""
    with settings.jetstream() as js:
        stream = find_stream(js, name)
        info = stream.cached_info
        if not info.config.sealed:
            Asker(settings).confirm(
                f"Seal {words().stream} {name} with {counted(info.state.messages, 'message')} for ever?",
                force=force,
            )
            info = js.update_stream(replace(info.config, sealed=True)).cached_info

    def human() -> None:
        settings.env.stdout.write(f"{words().stream} {name} is sealed\n\n")
        write_info(settings, info)

    emit(settings, info, human)
