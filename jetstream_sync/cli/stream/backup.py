"""``jsm stream backup`` and ``restore``: save a stream to a directory and restore it."""

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
from ..completion.complete import complete_stream
from ..config.diff import differences
from ..config.files import config_of_file
from ..names import STREAM_NAME
from ..output import count, counted, emit, note, size
from ..progress import show_progress
from ..prompts import Asker
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus, exit_status, one_line
from ..terminology import find_stream, words
from ..values import SIZE
from .show import write_info

__all__ = ["back_up", "backup", "bring_back", "restore"]

#: Maximum time of the server's check of all messages, which precedes the first chunk.
_CHECK_TIMEOUT_S = 600.0
#: Fields of the state that a restore must reproduce.
_COMPARED_FIELDS = ("messages", "first_seq", "last_seq", "num_deleted")

_progress = click.option(
    "--progress/--no-progress", default=True, help="Show progress on standard error."
)


@click.command()
@click.argument("name", metavar="STREAM", type=STREAM_NAME, shell_complete=complete_stream)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--consumers/--no-consumers", default=True, help="Save the consumers too.")
@click.option("--check", is_flag=True, help="Let the server check every message first.")
@click.option("--chunk-size", type=SIZE, help="Size of a chunk; the server default is 128KiB.")
@click.option(
    "--window-size", type=SIZE, help="Maximum data in flight; the server default is 8MiB."
)
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Replace an existing backup.")
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

    The directory has the format of the nats CLI: backup.json and stream.tar.s2. It is created only
    when the backup is complete; an interrupted backup leaves nothing behind.
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
        settings: the settings of the command.
        stream: the stream to save.
        directory: the directory to create.
        replace_it: replace an existing backup.
        quiet: show no progress.
        **options: the options of `Stream.snapshot`.

    """
    timeout = max(settings.timeout, _CHECK_TIMEOUT_S if options.get("check") else 0.0)
    total = stream.cached_info.state.bytes
    title = f"Backing up {stream.name}"
    try:
        with (
            show_progress(
                settings.env, title, total, in_bytes=True, about=True, quiet=quiet
            ) as shown,
            stream.snapshot(timeout=timeout, **options) as snapshot,
        ):
            return save_snapshot(snapshot, directory, replace=replace_it, progress=shown.show)
    except (ConnectionClosedError, TimeoutError, SnapshotBrokenError) as error:
        text = f"the backup of {stream.name} failed: {one_line(error)}; the incomplete data was deleted"
        raise CommandError(text, exit_status(error)) from error


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--config",
    "file",
    metavar="FILE",
    help="Restore with this config; its name must match the backup.",
)
@click.option("--replicas", type=int, help="Number of replicas.")
@click.option("--cluster", metavar="NAME", help="Cluster to place the stream in.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="Tag that its servers must have; repeatable.",
)
@click.option("--overwrite", is_flag=True, help="Delete an existing stream with this name first.")
@click.option(
    "-f",
    "--force",
    "-y",
    "--yes",
    is_flag=True,
    help="With --overwrite: do not ask for confirmation.",
)
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
    Restore a stream from a backup of jsm or the nats CLI.

    Checks the backup before it sends anything, and compares the stream with the backup afterwards.
    A restore that fails leaves no partial stream behind.
    """
    saved = open_backup(directory)
    config = saved.info.config
    if file is not None:
        config = config_of_file(settings, StreamConfig, file, {})
        if config.name != saved.info.config.name:
            raise CommandError(
                f"{file}: the name {config.name} differs from the stream in the backup, "
                f"{saved.info.config.name}: a restore cannot rename a stream",
                ExitStatus.USAGE,
            )
    if cluster or tags:
        config = replace(config, placement=Placement(cluster=cluster, tags=list(tags) or None))
    if replicas is not None:
        config = replace(config, num_replicas=replicas)
    # After a lost connection, deleting a partial stream needs a new connection.
    with settings.jetstream(allow_reconnect=True) as js:
        if overwrite:
            _delete_existing(settings, js, config.name, force=force)
        info = bring_back(settings, js, saved, config, quiet=not progress)

    def human() -> None:
        settings.env.stdout.write(f"{words().stream} {config.name} was restored\n\n")
        write_info(settings, info)

    emit(settings, info, human)


def _delete_existing(settings: Settings, js: JetStream, name: str, *, force: bool) -> None:
    try:
        found = js.get_stream(name).cached_info
    except StreamNotFoundError:
        return
    Asker(settings).confirm(
        f"Delete {words().stream} {name} with {counted(found.state.messages, 'message')} "
        "and replace it with the backup?",
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
    Restore a stream from a backup, and verify its state.

    Args:
        settings: the settings of the command.
        js: the context of the account; its connection should be allowed to reconnect.
        saved: the backup.
        config: the config of the stream.
        quiet: show no progress.

    Raises:
        CommandError: the restore failed; the error says whether a partial stream is left.

    """
    info = SnapshotInfo(config=config, state=saved.info.state)
    title = f"Restoring {config.name}"
    try:
        with show_progress(settings.env, title, saved.size, in_bytes=True, quiet=quiet) as shown:
            stream = restore_backup(js, saved, info, settings.timeout, shown.show)
    except RestoreNameInUseError as error:
        name = config.name
        raise CommandError(
            f"{words().stream.lower()} {name} already exists",
            ExitStatus.FAILED,
            hint="delete it, or use 'jsm stream restore --overwrite'",
        ) from error
    except Error as error:
        if isinstance(error, APIError):
            raise
        raise _restore_error(js, config.name, error) from error
    found = stream.info()
    _compare(settings, saved, found)
    return found


def _restore_error(js: JetStream, name: str, error: Error) -> CommandError:
    """Return the error of a failed restore, which says what is left on the server."""
    try:
        js.get_stream(name)
    except StreamNotFoundError:
        left = "nothing is left on the server"
    except Error:
        left = f"check with 'jsm stream info {name}' whether a partial stream is left"
    else:
        left = f"a partial stream is left on the server: delete it with 'jsm stream rm {name}'"
    text = f"the restore of {name} failed: {one_line(error)}; {left}"
    return CommandError(text, exit_status(error))


def _compare(settings: Settings, saved: Backup, found: StreamInfo) -> None:
    """Compare the state of a restored stream with the backup."""
    wrong = []
    # The first sequence of an empty stream is 0 or the last sequence plus one.
    names = [name for name in _COMPARED_FIELDS if saved.info.state.messages or name != "first_seq"]
    for name in names:
        before, after = getattr(saved.info.state, name) or 0, getattr(found.state, name) or 0
        if before != after:
            wrong.append(f"{name} is {count(after)}, was {count(before)}")
    if not wrong:
        return
    text = f"{found.config.name} differs from the backup: {', '.join(wrong)}"
    if found.config.max_age or differences(saved.info.config, found.config):
        # Messages may have expired since the backup, or the new config has other limits.
        note(settings, f"{text}; the limits of its config may be the reason")
        return
    raise CommandError(text, ExitStatus.FAILED)
