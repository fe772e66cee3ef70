"""``jsm stream backup`` and ``restore``: a stream to a directory, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ... import (
    JetStream,
    Placement,
    RestoreNameInUseError,
    SnapshotBrokenError,
    SnapshotInfo,
    Stream,
    StreamConfig,
    StreamInfo,
)
from ...errors import APIError, ConnectionClosedError, Error, StreamNotFoundError, TimeoutError
from ..backups import Backup, check_target, open_backup, restore_backup, save_snapshot
from ..byte_progress import byte_progress
from ..completion.complete import complete_stream
from ..config.diff import differences
from ..config.files import config_of_file
from ..names import STREAM_NAME
from ..output import count, counted, emit, note, size
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus, exit_status, one_line
from ..terminology import find_stream, words
from ..values import SIZE
from .show import write_info

__all__ = ["back_up", "backup", "bring_back", "restore"]

#: Seconds that a check of all messages may take before the first of them comes.
_CHECKING = 600.0
#: What has to be as it was after a restore.
_ALIKE = ("messages", "first_seq", "last_seq", "num_deleted")

_progress = click.option(
    "--progress/--no-progress", default=True, help="Show progress on standard error."
)


@click.command()
@click.argument("name", metavar="STREAM", type=STREAM_NAME, shell_complete=complete_stream)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--consumers/--no-consumers", default=True, help="Save the consumers, too.")
@click.option("--check", is_flag=True, help="Have the server check every message first.")
@click.option(
    "--chunk-size", type=SIZE, help="The size of the pieces; the server's choice is 128KiB."
)
@click.option(
    "--window-size", type=SIZE, help="How much is on its way; the server's choice is 8MiB."
)
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Replace an older backup.")
@_progress
@common_options
def backup(
    settings: Settings,
    name: str,
    directory: Path,
    consumers: bool,
    check: bool,
    chunk_size: int | None,
    window_size: int | None,
    force: bool,
    progress: bool,
) -> None:
    """
    Save a stream to a directory.

    The directory is in the form of the nats command: backup.json and stream.tar.s2. It is there
    when the backup is whole, and not before; an interrupted one leaves nothing.
    """
    check_target(directory, replace=force)
    options: dict[str, Any] = {"consumers": consumers, "check": check}
    options.update(chunk_size=chunk_size, window_size=window_size)
    with settings.jetstream() as js:
        stream = find_stream(js, name)
        saved = back_up(
            settings, stream, directory, replace_it=force, quiet=not progress, **options
        )

    def human() -> None:
        what = f"{counted(saved.info.state.messages, 'message')}, {size(saved.size)} of data"
        settings.env.stdout.write(f"{words().stream} {name} was backed up to {directory}: {what}\n")

    emit(settings, _document(saved), human)


def _document(saved: Backup) -> dict[str, Any]:
    return {
        "stream": saved.info.config.name,
        "directory": str(saved.directory),
        "bytes": saved.size,
        "sha256": saved.sha256,
        "config": saved.info.config,
        "state": saved.info.state,
    }


def back_up(
    settings: Settings,
    stream: Stream,
    directory: Path,
    *,
    replace_it: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Backup:
    """
    Save a stream to a directory; see `save_snapshot`.

    Args:
        settings: of the command.
        stream: which one.
        directory: where to.
        replace_it: whether it may be an older backup.
        quiet: show no progress.
        **options: of `Stream.snapshot`.

    """
    patience = max(settings.timeout, _CHECKING if options.get("check") else 0.0)
    total = stream.cached_info.state.bytes
    title = f"Backing up {stream.name}"
    try:
        with (
            byte_progress(settings.env, title, total, about=True, quiet=quiet) as show,
            stream.snapshot(timeout=patience, **options) as snapshot,
        ):
            return save_snapshot(snapshot, directory, replace=replace_it, progress=show)
    except (ConnectionClosedError, TimeoutError, SnapshotBrokenError) as error:
        text = f"the backup of {stream.name} broke off: {one_line(error)}; nothing of it was kept"
        raise CommandError(text, exit_status(error)) from error


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--config", "file", metavar="FILE", help="Another config for it, with its name.")
@click.option("--replicas", type=int, help="How many servers hold it.")
@click.option("--cluster", metavar="NAME", help="Which cluster holds it.")
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="A tag its servers have; repeatable."
)
@click.option("--overwrite", is_flag=True, help="Delete a stream of that name first.")
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="With --overwrite: ask nothing.")
@_progress
@common_options
def restore(
    settings: Settings,
    directory: Path,
    file: str | None,
    replicas: int | None,
    cluster: str | None,
    tags: tuple[str, ...],
    overwrite: bool,
    force: bool,
    progress: bool,
) -> None:
    """
    Make a stream of a backup, of this command's or of nats.

    The backup is checked before anything is sent, and the stream is compared with it afterwards.
    When it fails, no part of a stream is left.
    """
    saved = open_backup(directory)
    config = saved.info.config
    if file is not None:
        config = config_of_file(settings, StreamConfig, file, {})
        if config.name != saved.info.config.name:
            raise CommandError(
                f"{file}: the name is {config.name}, and can not be another than in the backup: "
                f"{saved.info.config.name}",
                ExitStatus.USAGE,
            )
    if cluster or tags:
        config = replace(config, placement=Placement(cluster=cluster, tags=list(tags) or None))
    if replicas is not None:
        config = replace(config, num_replicas=replicas)
    # What the server made of part of the data can be removed only over another link.
    with settings.jetstream(allow_reconnect=True) as js:
        if overwrite:
            _make_room(settings, js, config.name, force=force)
        info = bring_back(settings, js, saved, config, quiet=not progress)

    def human() -> None:
        settings.env.stdout.write(f"{words().stream} {config.name} was restored\n\n")
        write_info(settings, info)

    emit(settings, info, human)


def _make_room(settings: Settings, js: JetStream, name: str, *, force: bool) -> None:
    try:
        found = js.get_stream(name).cached_info
    except StreamNotFoundError:
        return
    Asker(settings).confirm(
        f"Delete {words().stream} {name} with {counted(found.state.messages, 'message')}, "
        "for the one in the backup?",
        force=force,
    )
    js.delete_stream(name)


def bring_back(
    settings: Settings,
    js: JetStream,
    saved: Backup,
    config: StreamConfig,
    *,
    quiet: bool = False,
) -> StreamInfo:
    """
    Make a stream of a backup, and make sure that it is like it.

    Args:
        settings: of the command.
        js: where to; its connection should find another link when this one breaks.
        saved: the backup.
        config: what the stream is to be.
        quiet: show no progress.

    Raises:
        CommandError: it did not work; the message says what is left, if anything is.

    """
    info = SnapshotInfo(config=config, state=saved.info.state)
    title = f"Restoring {config.name}"
    try:
        with byte_progress(settings.env, title, saved.size, quiet=quiet) as show:
            stream = restore_backup(js, saved, info, settings.timeout, show)
    except RestoreNameInUseError as error:
        name = config.name
        raise CommandError(
            f"there is a {words().stream.lower()} {name}",
            ExitStatus.FAILED,
            hint="delete it, or use --overwrite of 'jsm stream restore'",
        ) from error
    except Error as error:
        if isinstance(error, APIError):
            raise
        raise _broken_off(js, config.name, error) from error
    found = stream.info()
    _compare(settings, saved, found)
    return found


def _broken_off(js: JetStream, name: str, error: Error) -> CommandError:
    """Say what became of a restore that broke off."""
    try:
        js.get_stream(name)
    except StreamNotFoundError:
        left = "nothing is left on the server"
    except Error:
        left = f"look for a part of it with 'jsm stream info {name}' once there is a server"
    else:
        left = f"a part is left on the server: delete it with 'jsm stream rm {name}'"
    text = f"the restore of {name} broke off: {one_line(error)}; {left}"
    return CommandError(text, exit_status(error))


def _compare(settings: Settings, saved: Backup, found: StreamInfo) -> None:
    """Make sure that a restored stream has what the backup has."""
    wrong = []
    # An empty stream has no first message: servers say 0, or one after the last.
    names = [name for name in _ALIKE if saved.info.state.messages or name != "first_seq"]
    for name in names:
        before, after = getattr(saved.info.state, name) or 0, getattr(found.state, name) or 0
        if before != after:
            wrong.append(f"{name} is {count(after)}, was {count(before)}")
    if not wrong:
        return
    text = f"{found.config.name} is not what the backup says: {', '.join(wrong)}"
    if found.config.max_age or differences(saved.info.config, found.config):
        # Messages are too old by now, or the config is another one: its limits are at work.
        note(settings, f"{text}; the limits of its config may be the reason")
        return
    raise CommandError(text, ExitStatus.FAILED)
