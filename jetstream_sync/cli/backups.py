"""
Backups on disk, in the format of the ``nats`` command.

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
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from .. import JetStream, SnapshotInfo, Stream, StreamSnapshot
from ..codec import decode, encode, loads
from ..errors import Error
from .render import to_json
from .status import CommandError, ExitStatus

__all__ = ["Backup", "check_target", "open_backup", "restore_backup", "save_snapshot"]

_INFO: Final = "backup.json"
_DATA: Final = "stream.tar.s2"
_SUMS: Final = "SHA256SUMS"
#: The stream identifiers of S2 and Snappy at the start of the data.
_MAGIC_NUMBERS: Final = (b"\xff\x06\x00\x00S2sTwO", b"\xff\x06\x00\x00sNaPpY")
_BUFFER_SIZE: Final = 1024 * 1024
#: Part of the name of an incomplete backup directory.
_PARTIAL: Final = ".partial-"


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A backup on disk that has passed the integrity checks."""

    directory: Path
    info: SnapshotInfo
    size: int
    """The size of the data file in bytes."""
    sha256: str
    """The checksum of the data file."""

    @property
    def data(self) -> Path:
        """The path of the data file."""
        return self.directory / _DATA


def _error(path: Path, reason: object) -> CommandError:
    return CommandError(f"{path}: {reason}", ExitStatus.USAGE)


# --- writing ---------------------------------------------------------------------------------


def check_target(directory: Path, *, replace: bool) -> None:
    """
    Check that a backup may be written to a directory.

    Raises:
        CommandError: the path exists, and is neither an empty directory nor an older backup that
            may be replaced.

    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise _error(directory, "not a directory")
    try:
        held = {each.name for each in directory.iterdir() if _PARTIAL not in each.name}
    except OSError as error:
        raise _error(directory, error.strerror or error) from error
    if held and not (replace and held <= {_INFO, _DATA, _SUMS}):
        hint = (
            "use --force to replace an older backup" if _INFO in held else "it contains other files"
        )
        raise _error(directory, f"the directory is not empty; {hint}")


def save_snapshot(
    snapshot: StreamSnapshot,
    directory: Path,
    *,
    replace: bool,
    progress: Callable[[int], None],
) -> Backup:
    """
    Write a snapshot to a directory; after a failure the directory is unchanged.

    Args:
        snapshot: the snapshot; it is read to its end.
        directory: the target; it is created with its parents.
        replace: whether to replace an older backup.
        progress: called with the number of bytes written so far.

    Raises:
        CommandError: the directory cannot be written, or the data is incomplete.
        Error: the snapshot failed.

    """
    check_target(directory, replace=replace)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _partial(directory) as partial:
            backup = _write(snapshot, partial, progress)
            _put_in_place(partial, directory)
    except OSError as error:
        if isinstance(error, Error):
            raise  # a connection error is an OSError as well
        raise CommandError(f"{directory}: {error.strerror or error}", ExitStatus.FAILED) from error
    return Backup(directory=directory, info=backup.info, size=backup.size, sha256=backup.sha256)


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


def _write(snapshot: StreamSnapshot, partial: Path, progress: Callable[[int], None]) -> Backup:
    digest = hashlib.sha256()
    with _new_file(partial / _DATA) as file:
        for chunk in snapshot:
            file.write(chunk)
            digest.update(chunk)
            progress(snapshot.size)
        _sync(file)
    _check_frames(partial / _DATA)
    described = to_json(encode(snapshot.info)).encode()
    sums = f"{hashlib.sha256(described).hexdigest()}  {_INFO}\n{digest.hexdigest()}  {_DATA}\n"
    for name, content in ((_INFO, described), (_SUMS, sums.encode())):
        with _new_file(partial / name) as file:
            file.write(content)
            _sync(file)
    return Backup(
        directory=partial, info=snapshot.info, size=snapshot.size, sha256=digest.hexdigest()
    )


def _new_file(path: Path) -> BinaryIO:
    """Create a file that only its owner can read, since streams may contain secrets."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync(file: BinaryIO) -> None:
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
    """
    Return a backup after checking its integrity.

    Raises:
        CommandError: the backup does not exist, is incomplete or is damaged.

    """
    try:
        described = (directory / _INFO).read_bytes()
        sums = _sums(directory)
        if sums.get(_INFO, (own := hashlib.sha256(described).hexdigest())) != own:
            raise _error(
                directory / _INFO, f"the file was changed: the checksum differs from {_SUMS}"
            )
        info = decode(SnapshotInfo, loads(described))
        _check_frames(directory / _DATA)
        sha256, size = _digest(directory / _DATA)
    except FileNotFoundError as error:
        raise _error(directory, f"not a backup: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise _error(directory, error.strerror or error) from error
    except UnicodeDecodeError as error:
        raise _error(directory / _SUMS, "the file is damaged: it is not UTF-8 text") from error
    except Error as error:
        raise _error(directory / _INFO, error) from error
    if sums.get(_DATA, sha256) != sha256:
        raise _error(directory / _DATA, f"the file is damaged: the checksum differs from {_SUMS}")
    return Backup(directory=directory, info=info, size=size, sha256=sha256)


def _sums(directory: Path) -> dict[str, str]:
    path = directory / _SUMS
    if not path.exists():
        return {}
    pairs = (line.split(None, 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {pair[1].lstrip("*"): pair[0] for pair in pairs if len(pair) == 2}


def _digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BUFFER_SIZE):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size


def _check_frames(path: Path) -> None:
    """
    Check that the data ends at the end of a block, without decoding the blocks.

    S2 uses the frame format of Snappy: a type, the length in three bytes, the block.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if not file.read(10).startswith(_MAGIC_NUMBERS):
            raise _error(path, "the file is not snapshot data")
        position = 10
        while position < size:
            file.seek(position)
            head = file.read(4)
            position += 4 + int.from_bytes(head[1:], "little")
            if len(head) < 4 or 0x02 <= head[0] <= 0x7F:
                raise _error(path, "the file is damaged")
    if position != size:
        raise _error(path, "the file is incomplete: it ends in the middle of a block")


# --- restoring -------------------------------------------------------------------------------


def restore_backup(
    js: JetStream,
    backup: Backup,
    info: SnapshotInfo,
    timeout: float,
    progress: Callable[[int], None],
) -> Stream:
    """
    Restore a stream from a backup.

    Args:
        js: the JetStream context to restore to.
        backup: the backup with the data.
        info: the info of the backup, possibly with another config.
        timeout: the timeout of each chunk, in seconds.
        progress: called with the number of bytes read so far.

    Raises:
        CommandError: the data cannot be read.
        Error: as `JetStream.restore_stream`.

    """
    try:
        with _ProgressFile(backup.data, progress) as file:
            return js.restore_stream(info, file, timeout=timeout)
    except OSError as error:
        if isinstance(error, Error):
            raise  # a connection error is an OSError as well
        raise _error(backup.data, error.strerror or error) from error


class _ProgressFile(io.FileIO):
    """A file that reports the position of each read."""

    def __init__(self, path: Path, progress: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        self._progress(self.tell())
        return data or b""
