"""
Backups on disk, in the form of the ``nats`` command.

A backup is a directory with ``backup.json``, which has the stream's config and state, and
``stream.tar.s2``, the data as the server sent it: what is in it is the server's business. Beside them
``SHA256SUMS`` has the checksums, in the form of ``sha256sum``; backups of other programs have none.

A backup is made in a directory with ``.partial-`` in its name, and gets its own name when it is whole. A
directory that exists is kept, since it may be where a disk is mounted: the files are moved into it, and
``backup.json``, without which there is no backup, comes last. All belongs to its owner alone.
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
#: How the data begins: the identifier of an S2 stream, or of a Snappy one.
_BEGINNINGS: Final = (b"\xff\x06\x00\x00S2sTwO", b"\xff\x06\x00\x00sNaPpY")
_BUFFER: Final = 1024 * 1024
#: What is in the name of a directory that is no backup yet.
_PARTIAL: Final = ".partial-"


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A backup on disk, whole as far as that can be seen."""

    directory: Path
    info: SnapshotInfo
    size: int
    """The bytes of its data."""
    sha256: str
    """The checksum of its data."""

    @property
    def data(self) -> Path:
        """The file with the data."""
        return self.directory / _DATA


def _fault(path: Path, reason: object) -> CommandError:
    return CommandError(f"{path}: {reason}", ExitStatus.USAGE)


# --- making one ---------------------------------------------------------------------------------


def check_target(directory: Path, *, replace: bool) -> None:
    """
    Make sure that a backup may be put there.

    Raises:
        CommandError: something is there, and it is not an empty directory, or an older backup that
            may be replaced.

    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise _fault(directory, "it is not a directory")
    try:
        held = {each.name for each in directory.iterdir() if _PARTIAL not in each.name}
    except OSError as error:
        raise _fault(directory, error.strerror or error) from error
    if held and not (replace and held <= {_INFO, _DATA, _SUMS}):
        hint = "use --force to replace an older backup" if _INFO in held else "it has other files"
        raise _fault(directory, f"the directory is not empty; {hint}")


def save_snapshot(
    snapshot: StreamSnapshot,
    directory: Path,
    *,
    replace: bool,
    progress: Callable[[int], None],
) -> Backup:
    """
    Write a snapshot to a directory; when it fails, nothing is there that was not before.

    Args:
        snapshot: it is taken to its end.
        directory: where to; it is made, and those above it.
        replace: whether it may be an older backup, which goes then.
        progress: called with the bytes that were written so far.

    Raises:
        CommandError: the directory can not be written, or the data is not whole.
        Error: the snapshot broke off.

    """
    check_target(directory, replace=replace)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _partial(directory) as partial:
            backup = _write(snapshot, partial, progress)
            _put_in_place(partial, directory)
    except OSError as error:
        if isinstance(error, Error):
            raise  # a link that breaks is one, too
        raise CommandError(f"{directory}: {error.strerror or error}", ExitStatus.FAILED) from error
    return Backup(directory=directory, info=backup.info, size=backup.size, sha256=backup.sha256)


@contextlib.contextmanager
def _partial(directory: Path) -> Iterator[Path]:
    """Make a directory in one that exists, else beside it, and remove it unless it was renamed."""
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
        for piece in snapshot:
            file.write(piece)
            digest.update(piece)
            progress(snapshot.size)
        _settle(file)
    _check_frames(partial / _DATA)
    described = to_json(encode(snapshot.info)).encode()
    sums = f"{hashlib.sha256(described).hexdigest()}  {_INFO}\n{digest.hexdigest()}  {_DATA}\n"
    for name, content in ((_INFO, described), (_SUMS, sums.encode())):
        with _new_file(partial / name) as file:
            file.write(content)
            _settle(file)
    return Backup(
        directory=partial, info=snapshot.info, size=snapshot.size, sha256=digest.hexdigest()
    )


def _new_file(path: Path) -> BinaryIO:
    """Open a file to write, that nobody else may read: there may be secrets in a stream."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _put_in_place(partial: Path, directory: Path) -> None:
    if partial.parent.resolve() != directory.resolve():
        partial.rename(directory)
        return
    # From here to the end there is no backup at all, rather than one of two halves.
    (directory / _INFO).unlink(missing_ok=True)
    for name in (_DATA, _SUMS, _INFO):
        (partial / name).replace(directory / name)


# --- reading one --------------------------------------------------------------------------------


def open_backup(directory: Path) -> Backup:
    """
    Read what a backup says of itself, and check that it is whole.

    Raises:
        CommandError: it is not there, not whole, or not what was written.

    """
    try:
        described = (directory / _INFO).read_bytes()
        sums = _sums(directory)
        if sums.get(_INFO, (own := hashlib.sha256(described).hexdigest())) != own:
            raise _fault(directory / _INFO, f"it was changed: it does not fit {_SUMS}")
        info = decode(SnapshotInfo, loads(described))
        _check_frames(directory / _DATA)
        sha256, size = _digest(directory / _DATA)
    except FileNotFoundError as error:
        raise _fault(
            directory, f"it is no backup: there is no {Path(error.filename).name}"
        ) from error
    except OSError as error:
        raise _fault(directory, error.strerror or error) from error
    except UnicodeDecodeError as error:
        raise _fault(directory / _SUMS, "it is damaged: it is not text") from error
    except Error as error:
        raise _fault(directory / _INFO, error) from error
    if sums.get(_DATA, sha256) != sha256:
        raise _fault(directory / _DATA, f"it is damaged: it does not fit {_SUMS}")
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
        while block := file.read(_BUFFER):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size


def _check_frames(path: Path) -> None:
    """
    Check that the data ends where a block ends; what is in the blocks is not looked at.

    The format of S2 is that of Snappy's frames: a type, the length in three bytes, the block.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if not file.read(10).startswith(_BEGINNINGS):
            raise _fault(path, "it is not data of a snapshot")
        position = 10
        while position < size:
            file.seek(position)
            head = file.read(4)
            position += 4 + int.from_bytes(head[1:], "little")
            if len(head) < 4 or 0x02 <= head[0] <= 0x7F:
                raise _fault(path, "it is damaged")
    if position != size:
        raise _fault(path, "it is not whole: it ends in the middle of a block")


# --- the way back -------------------------------------------------------------------------------


def restore_backup(
    js: JetStream,
    backup: Backup,
    info: SnapshotInfo,
    timeout: float,
    progress: Callable[[int], None],
) -> Stream:
    """
    Make a stream of a backup.

    Args:
        js: where to.
        backup: the data.
        info: what it is to be; that of the backup, or with another config.
        timeout: seconds for each piece.
        progress: called with the bytes that were read so far.

    Raises:
        CommandError: the data can not be read.
        Error: as `JetStream.restore_stream`.

    """
    try:
        with _Watched(backup.data, progress) as file:
            return js.restore_stream(info, file, timeout=timeout)
    except OSError as error:
        if isinstance(error, Error):
            raise  # a link that breaks is one, too
        raise _fault(backup.data, error.strerror or error) from error


class _Watched(io.FileIO):
    """A file that tells how far it was read."""

    def __init__(self, path: Path, progress: Callable[[int], None]) -> None:
        super().__init__(path, "rb")
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        self._progress(self.tell())
        return data or b""
