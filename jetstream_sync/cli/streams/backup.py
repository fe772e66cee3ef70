"""
Backups of streams, in the format of the ``nats`` command, and the commands that write and restore them.

A backup is a directory with ``backup.json``, the stream's config and state, and ``stream.tar.s2``, the
data as the server sent it. Its content is internal to the server. ``SHA256SUMS`` has the checksums in the
format of ``sha256sum``; backups of other programs do not have it.

A backup is written to a directory with ``.partial-`` in its name, and renamed when it is complete. An
existing directory is kept, since it may be a mount point: the files are moved into it, and
``backup.json``, without which a backup is invalid, is moved last. Only the owner can read the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from ... import SnapshotInfo, StreamConfig, StreamInfo, StreamSnapshot, errors
from ...codec import decode, encode, loads
from ...differences import differences
from ...durations import counted
from ...exit_status import ExitStatus
from ...subjects import check_stream_name
from ..shared.config import config_of_file
from ..shared.listings import lister
from ..shared.long_running import failover
from ..shared.names import find_stream, stream_argument
from ..shared.output import count, emit_text, size, to_json
from ..shared.render import show_progress
from ..shared.settings import Settings, command
from ..shared.status import (
    AbsentError,
    CommandError,
    FailedError,
    exit_status,
    file_errors,
    one_line,
)
from ..shared.values import FILE, SIZE, NonEmptyPath, force_option_for, option
from .streams import show_info

if TYPE_CHECKING:
    from ... import Connection, JetStream, Stream

_INFO: Final = "backup.json"
_DATA: Final = "stream.tar.s2"
_SUMS: Final = "SHA256SUMS"
#: The key of the server's version in backup.json, which the nats CLI does not write and ignores.
_VERSION: Final = "server_version"
#: The file in the backup of an account with the names of the streams that are not saved.
# A name that no stream can have.
_INCOMPLETE: Final = "INCOMPLETE.txt"
_BUFFER_BYTES: Final = 1024 * 1024
#: Maximum time of the server's check of all messages, which precedes the first chunk.
_CHECK_TIMEOUT_S: Final = 600.0
#: Fields of the state that a restore must reproduce.
_COMPARED_FIELDS: Final = ("messages", "first_seq", "last_seq", "num_deleted")
#: Part of the name of an incomplete backup directory.
_PARTIAL: Final = ".partial-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup on disk that has passed the integrity checks."""

    directory: Path
    info: SnapshotInfo
    #: The version of the server that the backup was made through; empty: not known.
    version: str
    #: The size of the data file in bytes, and its checksum.
    size: int
    sha256: str


def _error(path: Path, reason: object) -> CommandError:
    return CommandError(f"{path}: {reason}")


# --- writing ---------------------------------------------------------------------------------


def check_target(directory: Path, *, force: bool) -> None:
    """Check that a backup may be written to a directory."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise _error(directory, "not a directory")
    with file_errors(directory):
        held = {path.name for path in directory.iterdir() if _PARTIAL not in path.name}
    if held and not (force and held <= {_INFO, _DATA, _SUMS}):
        hint = (
            "use --force to replace an older backup" if _INFO in held else "it contains other files"
        )
        raise _error(directory, f"the directory is not empty; {hint}")


def back_up(
    settings: Settings,
    stream: Stream,
    directory: Path,
    *,
    version: str,
    force: bool,
    check: bool = False,
    **options: Any,
) -> Backup:
    """Save a stream to a directory; after a failure the directory is unchanged."""
    timeout = max(settings.timeout, _CHECK_TIMEOUT_S if check else 0.0)
    total, title = stream.cached_info.state.bytes, f"Backing up {stream.name} (estimated size)"

    def save() -> Backup:
        check_target(directory, force=force)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with (
            show_progress(settings.env, title, total, in_bytes=True) as show,
            stream.snapshot(timeout=timeout, check=check, **options) as snapshot,
            _partial(directory) as partial,
        ):
            backup = _write(snapshot, version, partial, show)
            _put_in_place(partial, directory)
        return replace(backup, directory=directory)

    try:
        with file_errors(directory, ExitStatus.FAILED):
            return failover(save, settings.timeout)
    except (errors.ConnectionClosedError, errors.TimeoutError, errors.SnapshotBrokenError) as error:
        text = f"the backup of {stream.name} failed: {one_line(error)}; the incomplete data was deleted"
        raise CommandError(text, exit_status(error)) from error


@contextlib.contextmanager
def _partial(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory in or next to the target, and remove it unless it was renamed."""
    place, name = (
        (directory, "") if directory.exists() else (directory.parent, f".{directory.name}")
    )
    partial = Path(tempfile.mkdtemp(prefix=f"{name}{_PARTIAL}", dir=place))
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    snapshot: StreamSnapshot, version: str, partial: Path, progress: Callable[[int], None]
) -> Backup:
    digest = hashlib.sha256()
    with _new_file(partial / _DATA) as file:
        for chunk in snapshot:
            file.write(chunk)
            digest.update(chunk)
            progress(snapshot.size)
    described = to_json({**encode(snapshot.info), _VERSION: version}).encode()
    sums = f"{hashlib.sha256(described).hexdigest()}  {_INFO}\n{digest.hexdigest()}  {_DATA}\n"
    for name, content in ((_INFO, described), (_SUMS, sums.encode())):
        with _new_file(partial / name) as file:
            file.write(content)
    return Backup(
        directory=partial,
        info=snapshot.info,
        version=version,
        size=snapshot.size,
        sha256=digest.hexdigest(),
    )


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file that only its owner can read, since streams may contain secrets; sync it at the end."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(partial: Path, directory: Path) -> None:
    if partial.parent.resolve() != directory.resolve():
        partial.rename(directory)
        return
    # Without backup.json the directory is no backup, so files of two backups are never mixed.
    (directory / _INFO).unlink(missing_ok=True)
    for name in (_DATA, _SUMS, _INFO):
        (partial / name).replace(directory / name)


# --- reading --------------------------------------------------------------------------------


def open_backup(directory: Path) -> Backup:
    """Return a backup after checking its integrity; a damaged one is a `CommandError`."""
    try:
        described = (directory / _INFO).read_bytes()
        sums = _sums(directory)
        if sums.get(_INFO, (own := hashlib.sha256(described).hexdigest())) != own:
            raise _error(
                directory / _INFO, f"the file was changed: the checksum differs from {_SUMS}"
            )
        document = loads(described)
        info = decode(SnapshotInfo, document)
        check_stream_name(info.config.name)
        sha256, size = _digest(directory / _DATA)
    except FileNotFoundError as error:
        raise _error(directory, f"not a backup: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise _error(directory, error.strerror or error) from error
    except UnicodeDecodeError as error:
        raise _error(directory / _SUMS, "the file is damaged: it is not UTF-8 text") from error
    except errors.Error as error:
        raise _error(directory / _INFO, error) from error
    if sums.get(_DATA, sha256) != sha256:
        raise _error(directory / _DATA, f"the file is damaged: the checksum differs from {_SUMS}")
    version = str(document.get(_VERSION) or "")
    return Backup(directory=directory, info=info, version=version, size=size, sha256=sha256)


def _sums(directory: Path) -> dict[str, str]:
    path = directory / _SUMS
    if not path.exists():
        return {}
    pairs = (line.split(None, 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2}


def _digest(path: Path) -> tuple[str, int]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BUFFER_BYTES):
            digest.update(block)
        return digest.hexdigest(), file.tell()


# --- restoring -------------------------------------------------------------------------------


class _ProgressFile(io.FileIO):
    """A file that reports the position of each read."""

    def __init__(self, path: Path, progress: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        self._progress(self.tell())
        return data or b""


_directory = click.argument("directory", type=NonEmptyPath(path_type=Path))
_consumers = option("--consumers/--no-consumers", "Save the consumers too.", default=True)
_check = option("--check", "Let the server check every message first.")
_force = force_option_for("Replace older backups.")


@command()
@stream_argument
@_directory
@_consumers
@_check
@option("--chunk-size", "Size of a chunk; the server default is 128KiB.", SIZE)
@option("--window-size", "Maximum data in flight; the server default is 8MiB.", SIZE)
@_force
def backup(settings: Settings, name: str, directory: Path, force: bool, **options: Any) -> None:
    """
    Save a stream to a directory.

    The directory has the format of the nats CLI: backup.json and stream.tar.s2. It is created only
    when the backup is complete; an interrupted backup leaves nothing behind.
    """
    check_target(directory, force=force)
    with settings.connection(reconnects="failover") as nc:
        stream = find_stream(settings.jetstream_on(nc), name)
        version = nc.server_info.version
        saved = back_up(settings, stream, directory, version=version, force=force, **options)
    document = {
        "stream": saved.info.config.name,
        "directory": str(saved.directory),
        "bytes": saved.size,
        "sha256": saved.sha256,
        "config": saved.info.config,
        "state": saved.info.state,
    }
    what = f"{counted(saved.info.state.messages, 'message')}, {size(saved.size)} of data"
    emit_text(settings, document, f"Stream {name} was backed up to {directory}: {what}")


@command()
@_directory
@option("--config FILE", "Restore with this config of the same name.", FILE, to="file")
@option("--replicas", "Number of replicas.", int)
@option("--overwrite", "Delete an existing stream with this name first.")
@force_option_for("With --overwrite: do not ask for confirmation.")
def restore(
    settings: Settings,
    directory: Path,
    file: str | None,
    replicas: int | None,
    overwrite: bool,
    force: bool,
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
                hint=f"restore it under its name, then copy it with 'jsm stream add {config.name} "
                f"--source {saved.info.config.name}'",
            )
    if replicas is not None:
        config = replace(config, num_replicas=replicas)
    # After a lost connection, deleting a partial stream needs a new connection.
    with settings.connection(allow_reconnect=True) as nc:
        _check_version(nc, saved)
        deleted = overwrite and _delete_existing(
            settings, settings.jetstream_on(nc), config.name, force=force
        )
        try:
            info = bring_back(settings, nc, saved, config)
        except (errors.Error, CommandError, KeyboardInterrupt):
            if deleted:
                settings.note(f"the former stream {config.name} was deleted before the restore")
            raise

    show_info(settings, info, "was restored")


def _delete_existing(settings: Settings, js: JetStream, name: str, *, force: bool) -> bool:
    """Delete a stream after a confirmation; return whether there was one."""
    try:
        found = js.get_stream(name).cached_info
    except errors.StreamNotFoundError:
        return False
    settings.ask().confirm(
        f"Delete Stream {name} with {counted(found.state.messages, 'message')} "
        "and replace it with the backup?",
        force=force,
    )
    js.delete_stream(name)
    return True


def _check_version(nc: Connection, saved: Backup) -> None:
    """Refuse the backup of a newer server: an older one cannot read its files, or ignores fields of the config."""
    version = nc.server_info.version
    made, here = (
        [int(part) for part in re.findall(r"\d+", text)[:2]] for text in (saved.version, version)
    )
    if made > here:
        text = f"the backup was made by nats-server {saved.version}, and this server is {version}"
        hint = "restore it on a server of the same version or a newer one"
        raise FailedError(f"{saved.directory}: {text}", hint=hint)


def bring_back(
    settings: Settings, nc: Connection, saved: Backup, config: StreamConfig
) -> StreamInfo:
    """Restore a stream from a backup, and verify its state."""
    js = settings.jetstream_on(nc)
    info = SnapshotInfo(config=config, state=saved.info.state)
    title = f"Restoring {config.name}"
    try:
        with (
            show_progress(settings.env, title, saved.size, in_bytes=True) as show,
            _ProgressFile(saved.directory / _DATA, show) as file,
        ):
            stream = js.restore_stream(info, file, timeout=settings.timeout)
    except errors.RestoreNameInUseError as error:
        name = config.name
        raise FailedError(
            f"stream {name} already exists",
            hint="delete it, or use 'jsm stream restore --overwrite'",
        ) from error
    except errors.Error as error:
        if isinstance(error, errors.APIError):
            raise
        raise _restore_error(js, config.name, error) from error
    except OSError as error:
        raise _error(saved.directory / _DATA, error.strerror or error) from error
    found = stream.info()
    _compare(settings, saved, found)
    return found


def _restore_error(js: JetStream, name: str, error: errors.Error) -> CommandError:
    """Return the error of a failed restore, which says what is left on the server."""
    try:
        js.get_stream(name)
    except errors.StreamNotFoundError:
        left = "nothing is left on the server"
    except errors.Error:
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
        settings.note(f"{text}; the limits of its config may be the reason")
        return
    raise FailedError(text)


@command("backup")
@_directory
@_consumers
@_check
@_force
def backup_account(settings: Settings, *, directory: Path, force: bool, **options: bool) -> None:
    """
    Back up all streams to a directory, each in its own subdirectory.

    Backups have the format of the nats command. A failed stream does not stop the others; all failed streams
    are listed at the end. Until all streams are saved, the file INCOMPLETE.txt has the names of the others.
    """
    with lister(settings, repeats=True) as lists:
        listed = lists.streams()
        reasons = {item.name: item.reason for item in listed.missing}
        names = sorted([*reasons, *(info.config.name for info in listed.found)])
        for name in names:
            check_target(directory / name, force=force)

        def save(name: str) -> Backup:
            if name in reasons:  # a request for each would wait for its timeout
                raise CommandError(f"stream {name} is unreachable: {reasons[name]}")
            stream, target = lists.js.get_stream(name), directory / name
            version = lists.nc.server_info.version
            return back_up(settings, stream, target, version=version, force=force, **options)

        results = []
        with _marked_incomplete(directory, names) as left:
            for name in names:
                results.append(_attempt(settings, name, directory / name, save))
                if results[-1]["ok"]:
                    left.remove(name)
    _report(settings, results, f"backed up to {directory}", "backed up")
    listed.check()


@contextlib.contextmanager
def _marked_incomplete(directory: Path, names: list[str]) -> Iterator[list[str]]:
    """Yield the names of streams; those that are left at the end are in a file of the directory, as all are before."""
    left = list(names)
    mark = directory / _INCOMPLETE

    def write() -> None:
        with file_errors(mark, ExitStatus.FAILED):
            mark.write_text("".join(f"{name}\n" for name in left), encoding="utf-8")

    with file_errors(directory, ExitStatus.FAILED):
        directory.mkdir(parents=True, exist_ok=True)
    write()
    try:
        yield left
    finally:
        if left:
            write()
        else:
            with file_errors(mark, ExitStatus.FAILED):
                mark.unlink()


@command("restore")
@_directory
def restore_account(settings: Settings, *, directory: Path) -> None:
    """
    Restore the streams from a backup made by this command or by nats.

    All backups are verified before the first restore. Existing streams are not changed; they are listed at the
    end, after the others were restored. The exit status is 1 if a stream was not restored, or if the backup is
    incomplete.
    """
    if not directory.is_dir():
        raise _error(directory, "not a directory")
    # Names that begin with a dot are incomplete backups.
    found = sorted(
        path.parent for path in directory.glob(f"*/{_INFO}") if not path.parent.name.startswith(".")
    )
    if not found:
        raise AbsentError(f"no backup found in {directory}")
    saved: dict[str, Backup] = {}
    for item in map(open_backup, found):
        other = saved.setdefault(item.info.config.name, item)
        if other is not item:
            raise CommandError(
                f"{other.directory} and {item.directory} are both backups of stream {item.info.config.name}"
            )
    # A partly restored stream can only be removed over a new connection.
    with settings.connection(allow_reconnect=True) as nc:

        def make(name: str) -> Backup:
            _check_version(nc, saved[name])
            bring_back(settings, nc, saved[name], saved[name].info.config)
            return saved[name]

        results = [_attempt(settings, name, item.directory, make) for name, item in saved.items()]
    mark = directory / _INCOMPLETE
    with file_errors(mark, ExitStatus.FAILED):
        lost = mark.read_text(encoding="utf-8").split() if mark.exists() else []
    if lost:
        settings.note(f"the backup is incomplete: it was made without {', '.join(lost)}")
    _report(settings, results, "restored", "restored")
    if lost:
        raise FailedError(f"not in the backup: {', '.join(lost)}")


def _attempt(
    settings: Settings, name: str, directory: Path, do: Callable[[str], Backup]
) -> dict[str, Any]:
    """Run an operation on a stream and return its result; the loss of the connection is raised."""
    result = {"stream": name, "directory": str(directory)}
    try:
        saved = do(name)
        messages = saved.info.state.messages
        return {**result, "bytes": saved.size, "messages": messages, "ok": True}
    except (errors.Error, CommandError) as error:
        if isinstance(error.__cause__ or error, errors.ConnectionClosedError):
            raise
        settings.note(f"{name}: {one_line(error)}")
        return {**result, "ok": False, "error": one_line(error)}


def _report(settings: Settings, results: list[dict[str, Any]], done: str, undone: str) -> None:
    good = [result for result in results if result["ok"]]
    failed = [result["stream"] for result in results if not result["ok"]]
    messages = counted(sum(item["messages"] for item in good), "message")
    data = size(sum(item["bytes"] for item in good))
    text = f"{counted(len(good), 'Stream')} {done}: {messages}, {data} of data"
    emit_text(settings, results, text)
    if failed:
        raise FailedError(f"not {undone}: {', '.join(failed)}")
