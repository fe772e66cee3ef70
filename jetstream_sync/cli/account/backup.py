"""``jsm account backup`` and ``restore``: back up and restore all streams of an account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...errors import APIError
from ..backups import Backup, check_target, open_backup
from ..output import counted, emit, note, size
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus, one_line
from ..stream.backup import back_up, bring_back
from ..terminology import words

__all__ = ["backup", "restore"]

#: The file that every backup directory has.
_INFO_FILE = "backup.json"

_progress = click.option(
    "--progress/--no-progress", default=True, help="Show progress on standard error."
)
_directory = click.argument("directory", type=click.Path(path_type=Path))


@click.command()
@_directory
@click.option("--consumers/--no-consumers", default=True, help="Include the consumers.")
@click.option("--check", is_flag=True, help="Verify all messages on the server first.")
@click.option("-f", "--force", "-y", "--yes", is_flag=True, help="Replace older backups.")
@_progress
@common_options
def backup(
    settings: Settings,
    *,
    directory: Path,
    consumers: bool,
    check: bool,
    force: bool,
    progress: bool,
) -> None:
    """
    Back up all streams to a directory, each in its own subdirectory.

    Backups have the format of the nats command. A failed stream does not stop the others; all failed streams
    are listed at the end.
    """
    results: list[dict[str, Any]] = []
    with settings.jetstream() as js:
        names = js.stream_names()
        for name in names:
            check_target(directory / name, replace=force)

        def save(name: str) -> dict[str, Any]:
            saved = back_up(
                settings,
                js.get_stream(name),
                directory / name,
                replace_it=force,
                quiet=not progress,
                consumers=consumers,
                check=check,
            )
            return {"bytes": saved.size, "messages": saved.info.state.messages}

        directory.mkdir(parents=True, exist_ok=True)
        results = [_attempt(settings, name, directory / name, save) for name in names]
    _report(settings, results, f"backed up to {directory}", "backed up")


@click.command()
@_directory
@_progress
@common_options
def restore(settings: Settings, *, directory: Path, progress: bool) -> None:
    """
    Restore the streams from a backup made by this command or by nats.

    All backups are verified before the first restore. Existing streams are not changed; they are listed at the
    end, after the others were restored.
    """
    if not directory.is_dir():
        raise CommandError(f"{directory}: not a directory", ExitStatus.USAGE)
    # Names that begin with a dot are incomplete backups.
    found = sorted(
        path.parent
        for path in directory.glob(f"*/{_INFO_FILE}")
        if not path.parent.name.startswith(".")
    )
    if not found:
        raise CommandError(f"no backup found in {directory}", ExitStatus.NOT_FOUND)
    saved: dict[str, Backup] = {}
    for each in map(open_backup, found):
        other = saved.setdefault(each.info.config.name, each)
        if other is not each:
            raise CommandError(
                f"{other.directory} and {each.directory} are both backups of stream {each.info.config.name}",
                ExitStatus.USAGE,
            )
    # A partly restored stream can only be removed over a new connection.
    with settings.jetstream(allow_reconnect=True) as js:

        def make(name: str) -> dict[str, Any]:
            one = saved[name]
            info = bring_back(settings, js, one, one.info.config, quiet=not progress)
            return {"bytes": one.size, "messages": info.state.messages}

        results = [_attempt(settings, name, each.directory, make) for name, each in saved.items()]
    _report(settings, results, "restored", "restored")


def _attempt(
    settings: Settings, name: str, directory: Path, do: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Run an operation on a stream and return its result; connection errors are raised."""
    result = {"stream": name, "directory": str(directory)}
    try:
        return {**result, **do(name), "ok": True}
    except (APIError, CommandError) as error:
        if isinstance(error, CommandError) and error.status is not ExitStatus.FAILED:
            raise
        note(settings, f"{name}: {one_line(error)}")
        return {**result, "ok": False, "error": one_line(error)}


def _report(settings: Settings, results: list[dict[str, Any]], done: str, undone: str) -> None:
    good = [each for each in results if each["ok"]]
    bad = [each["stream"] for each in results if not each["ok"]]
    noun = words().streams if len(good) != 1 else words().stream

    def human() -> None:
        messages = counted(sum(each["messages"] for each in good), "message")
        data = size(sum(each["bytes"] for each in good))
        settings.env.stdout.write(f"{len(good)} {noun} {done}: {messages}, {data} of data\n")

    emit(settings, results, human)
    if bad:
        raise CommandError(f"not {undone}: {', '.join(bad)}", ExitStatus.FAILED)
