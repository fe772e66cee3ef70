"""``jsm consumer edit`` and ``copy``: change or copy the config of a consumer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ... import ConsumerConfig, ConsumerInfo
from ...errors import APIError
from ...subjects import check_consumer_name
from ..completion import complete_consumer, complete_stream
from ..config import (
    Difference,
    changed,
    config_of_file,
    differences,
    edit_options,
    in_editor,
    show_differences,
    update_error,
    without_server_labels,
)
from ..output import emit, note
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..terminology import words
from .add import check_against_stream, put
from .find import consumer_arguments, find, title
from .options import config_options, fields_of
from .show import show

if TYPE_CHECKING:
    from ... import JetStream

__all__ = ["copy", "edit"]


@click.command()
@consumer_arguments
@edit_options
@config_options
@common_options
def edit(
    settings: Settings,
    *,
    stream: str | None,
    consumer: str | None,
    file: str | None,
    interactive: bool,
    dry_run: bool,
    exit_code: bool,
    force: bool,
    **options: Any,
) -> None:
    """
    Change the configuration of a CONSUMER of a STREAM.

    Options change single fields. A config from a file or an editor replaces the whole configuration:
    missing fields get the server's defaults. Metadata is merged; --metadata KEY= removes a key.
    """
    fields = fields_of(options)
    ask = Asker(settings)
    if interactive and not ask.interactive:
        raise click.UsageError("--interactive needs a terminal")
    with settings.jetstream() as js:
        info = find(settings, js, stream, consumer)
        before = info.config
        names: dict[str, Any] = {"durable_name": before.durable_name, "name": before.name}
        base = before
        if file is not None:
            # The file may contain another name, such as that of the original consumer.
            base = replace(config_of_file(settings, ConsumerConfig, file, {"name": None}), **names)
        after = changed(base, fields)
        if interactive:
            after = in_editor(after, {key: text for key, text in names.items() if text})
        found = differences(before, after)
        if dry_run:
            show_differences(settings, found)
            if exit_code and found:
                raise click.exceptions.Exit(ExitStatus.FAILED)
            return
        if found:
            check_against_stream(
                settings, after, js.get_stream(info.stream_name).cached_info.config
            )
            if not settings.json:
                show_differences(settings, found)
            ask.confirm(f"Change {words().consumer.lower()} {title(info)}?", force=force)
            info = _update(js, info, after, found)
    verb = "was changed" if found else "is unchanged"

    def human() -> None:
        settings.env.stdout.write(f"{words().consumer} {title(info)} {verb}\n\n")
        show(settings, info)

    emit(settings, info, human)


def _update(
    js: JetStream, info: ConsumerInfo, config: ConsumerConfig, found: list[Difference]
) -> ConsumerInfo:
    config = without_server_labels(config)
    try:
        if config.deliver_subject is not None:
            return js.update_push_consumer(info.stream_name, config)
        return js.update_consumer(info.stream_name, config).cached_info
    except APIError as error:
        raise update_error(words().consumer, title(info), error, found) from error


@click.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("consumer", metavar="SOURCE", shell_complete=complete_consumer)
@click.argument("destination")
@click.option("--pull", is_flag=True, help="Make the copy a pull consumer.")
@config_options
@common_options
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
    fields = fields_of(options)
    check_consumer_name(destination)
    if pull:
        if fields.get("deliver_subject"):
            raise click.UsageError("--pull and --target exclude each other")
        # These fields are for push consumers only.
        fields |= dict.fromkeys(
            ("deliver_subject", "deliver_group", "flow_control", "idle_heartbeat", "rate_limit_bps")
        )
    with settings.jetstream() as js:
        source = find(settings, js, stream, consumer)
        if destination == source.name:
            raise CommandError("the destination must differ from the source", ExitStatus.USAGE)
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

    def human() -> None:
        noun = words().consumer
        settings.env.stdout.write(f"{noun} {title(info)} was copied from {title(source)}\n\n")
        show(settings, info)

    emit(settings, info, human)
