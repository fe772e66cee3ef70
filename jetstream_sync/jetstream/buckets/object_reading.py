"""Read objects: the download of chunks, and readable file objects."""

# The chunks come from an ordered consumer. A download is complete when the number of chunks, the size and
# the digest are those of the info. The last bytes are not returned before that was checked.
#
# The few chunks of a small object are got one by one, from any server: a consumer takes several requests. They
# never change, so a replica that is behind has the right ones, or none; then the leader is asked.
#
# If no chunk arrives for a moment, or the consumer has none left, the download looks for the next chunk in
# the stream. If it is not there, another writer has replaced or deleted the object, and the download ends at
# once.

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from ... import errors
from ...api.object_store import ObjectInfo, digest_text, new_sha256, parse_digest
from ...api.pull import ContinuousPull
from ...api.stream import MsgGetRequest
from ...net.clock import BackoffDelay, Deadline
from ...options import check_callback, check_returned
from ...subjects import chunk_subject
from ..direct_get import StoredReply, get_stored
from ..message import JetStreamMsg
from ..ordered_cursor import UNREAD_LIMIT_S, OrderedOptions, pull_cursor
from ..ordered_reader import HEARTBEAT_S, OrderedReader
from .object_bucket import ObjectBucket
from .object_writing import ProgressCallback

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

#: Bytes that are requested ahead, or two messages if those can be larger.
_BUFFERED_BYTES: Final = 8 * 1024 * 1024
#: Chunks and bytes of an object up to which it is read without a consumer.
_FEW_CHUNKS: Final = 4
_FEW_BYTES: Final = 512 * 1024
#: Bytes that `ObjectReader.peek` returns: more than most lines have, and little to copy for each line.
_PEEKED_BYTES: Final = 1024
#: Seconds without a chunk before the first look for the next one; the following waits double.
_FIRST_CHECK_S: Final = 0.1
_MAX_CHECK_S: Final = 1.0
#: Checks that find the next chunk stored, after which the consumer is replaced.
_CHECKS: Final = 2
#: Reserve for subject and headers of a message with the maximum payload.
_HEADER_RESERVE: Final = 4096


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file that a symbolic link points to; that of a pipe or a device stays as it is."""
    from pathlib import Path  # noqa: PLC0415 - most programs have no object store

    given = Path(path)
    return given if given.exists() and not given.is_file() else Path(os.path.realpath(path))


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield the path of a file that takes the place of another one at the end of the block, with its mode."""
    # A part of the name: file systems allow 255 bytes, and a character has up to four.
    part = target.with_name(f".{target.name[:50]}.{os.urandom(6).hex()}.part")
    try:
        yield part
        with suppress(FileNotFoundError):
            part.chmod(target.stat().st_mode & 0o7777)
        part.replace(target)  # also a new directory
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


class Download:
    """Reads the chunks of one object in order, and verifies them; one thread uses it."""

    def __init__(
        self,
        bucket: ObjectBucket,
        info: ObjectInfo,
        progress: ProgressCallback | None,
        timeout: float | timedelta | None,
    ) -> None:
        self.info = info
        self.bucket = bucket
        if progress is not None:
            check_callback("progress", progress)
        self._progress = progress
        self._timeout = timeout
        self._subject = chunk_subject(bucket.name, info.nuid)
        self._hash = new_sha256()
        self._digest = parse_digest(info.digest)
        self._size = 0
        self._chunks = 0
        self._last_seq = 0
        self._reader: OrderedReader | None = None
        if self._digest is None:
            raise errors.UnsupportedDigestError(bucket.name, info.name, info.digest or "")
        if not info.chunks:
            self._verify()

    def next_chunk(self) -> bytes:
        """Return the next chunk; empty at the end."""
        data = b""
        while not data and self._chunks != self.info.chunks:
            data, self._last_seq, pending = self._next_stored()
            self._chunks += 1
            self._size += len(data)
            self._hash.update(data)
            if self._chunks == self.info.chunks or self._size > self.info.size:
                self._verify()
                self.close()
            elif not pending:
                self._check_next(self.bucket.api.deadline(self._timeout))
            if self._progress is not None:
                check_returned(self._progress(self._size, self.info.size))
        return data

    def close(self) -> None:
        """Delete the consumer; a second call does nothing."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(errors.ConnectionClosedError):
                reader.stop()

    def _next_stored(self) -> tuple[bytes, int, int]:
        """Return the next chunk, its sequence, and how many follow."""
        deadline = self.bucket.api.deadline(self._timeout)
        if self.info.chunks <= _FEW_CHUNKS and self.info.size <= _FEW_BYTES:
            try:
                stored = self._get_next(deadline, direct=self.bucket.may_get_direct)
            except errors.TimeoutError:
                raise self._timed_out() from None
            if stored is None:
                raise self._missing(deadline)
            return stored.data, stored.seq, self.info.chunks - self._chunks - 1
        msg = self._next_message(deadline)
        return msg.data, msg.metadata.stream_seq, msg.metadata.num_pending

    def _timed_out(self) -> errors.TimeoutError:
        text = f"no chunk of object {self.info.name!r} arrived in time"
        return self.bucket.api.core.state.timed_out(text)

    def _next_message(self, deadline: Deadline) -> JetStreamMsg:
        silences = BackoffDelay(_FIRST_CHECK_S, _MAX_CHECK_S)
        checks = 0
        reader = self._reader or self._start(deadline)
        while True:
            try:
                return reader.take(deadline.sooner(silences.next()))
            except errors.TimeoutError:
                if deadline.expired():
                    raise self._timed_out() from None
            except errors.StreamRecreatedError as error:
                raise errors.ObjectReplacedError(self.info.bucket, self.info.name) from error
            with suppress(errors.TimeoutError):
                if self._get_next(deadline) is None:
                    # It may have arrived before it was purged.
                    with suppress(errors.TimeoutError):
                        return reader.take(Deadline(0))
                    raise self._missing(deadline)
                checks += 1
                if checks == _CHECKS:
                    # The chunk is stored, but the consumer does not deliver it.
                    checks = 0
                    reader.replace_consumer("a stored chunk does not arrive", deadline)

    def _start(self, deadline: Deadline) -> OrderedReader:
        """Create the consumer."""
        bucket = self.bucket
        api = bucket.api
        buffered = max(_BUFFERED_BYTES, 2 * (api.core.max_payload + _HEADER_RESERVE))
        pull = ContinuousPull.of({"max_bytes": buffered, "heartbeat": HEARTBEAT_S})
        options: OrderedOptions = {"filter_subjects": self._subject}
        cursor = pull_cursor(api, bucket.stream, options, UNREAD_LIMIT_S)
        reader = OrderedReader(api, cursor, pull)
        with bucket.translated_errors():
            reader.start(deadline)
        self._reader = reader
        created = cursor.info
        if created is not None and not created.num_pending and not created.delivered.consumer_seq:
            self._check_next(deadline)
        return reader

    def _check_next(self, deadline: Deadline) -> None:
        """Raise the error for a missing chunk, unless the leader has the next one."""
        # A consumer on a replica that is behind reports that nothing is pending.
        with suppress(errors.TimeoutError):
            if self._get_next(deadline) is None:
                raise self._missing(deadline)

    def _get_next(self, deadline: Deadline, *, direct: bool = False) -> StoredReply | None:
        """Return the first chunk in the stream after the last received one, if any."""
        api, stream = self.bucket.api, self.bucket.stream
        request = MsgGetRequest(self._last_seq + 1, next_by_subj=self._subject)
        try:
            with self.bucket.translated_errors():
                return get_stored(api, stream, request, deadline, direct=direct)
        except errors.MessageNotFoundError:
            return None
        except errors.PermissionsError:
            if not direct:
                raise
            self.bucket.may_get_direct = False  # this user may ask the leader only
            return self._get_next(deadline)

    def _missing(self, deadline: Deadline) -> errors.Error:
        """Return the error for a chunk that is not in the stream."""
        info = self.info
        current, _ = self.bucket.last_info(info.name, deadline)
        if current is None or current.nuid != info.nuid or current.deleted:
            return errors.ObjectReplacedError(info.bucket, info.name)
        reason = f"{self._chunks} of {info.chunks} chunks found"
        return errors.ObjectIncompleteError(info.bucket, info.name, reason)

    def _verify(self) -> None:
        """Check the number of chunks, the size and the digest."""
        info = self.info
        if self._chunks != info.chunks or self._size != info.size:
            found = f"{self._size} bytes in {self._chunks} chunks found"
            expected = f"expected {info.size} bytes in {info.chunks} chunks"
            raise errors.ObjectIncompleteError(info.bucket, info.name, f"{found}, {expected}")
        digest = self._hash.digest()
        if digest != self._digest:
            raise errors.DigestMismatchError(
                info.bucket, info.name, info.digest or "", digest_text(digest)
            )


class ObjectReader(io.RawIOBase):
    """
    A readable, binary file object with the data of an object.

    Returned by `ObjectStore.open`. It is not seekable. The digest is checked before the last bytes are
    returned. Use it in a ``with`` block, so that the server's consumer is deleted. One thread at a time
    may use it.
    """

    if TYPE_CHECKING:
        # Type checkers require it for `io.TextIOWrapper`; the class itself accepts files without.
        @property
        def name(self) -> NoReturn:
            """Raise AttributeError."""

    def __init__(self, download: Download) -> None:
        super().__init__()
        self._download = download
        self._rest = memoryview(b"")

    @property
    def info(self) -> ObjectInfo:
        """The info of the object; after a link, that of its target."""
        return self._download.info

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """
        Read bytes into a buffer, and return their number; less than its size only at the end.

        Raises:
            ValueError: the file is closed.
            DigestMismatchError, ObjectIncompleteError, ObjectReplacedError: the data is not that of the
                info.
            TimeoutError: no chunk arrived in time.
            ConnectionClosedError: the connection is closed.

        """
        target = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(target) and self._fill():
            part = self._rest[: len(target) - filled]
            target[filled : filled + len(part)] = part
            self._rest = self._rest[len(part) :]
            filled += len(part)
        return filled

    def read(self, size: int = -1) -> bytes:
        """
        Read and return up to ``size`` bytes; less only at the end.

        Args:
            size: the number of bytes; below 0: all.

        Raises:
            Error: as `readinto()`.

        """
        if size is None or size < 0:
            return self.readall()
        # The usual read of a chunk needs no copy beyond this one.
        if size and self._fill() and len(self._rest) >= size:
            part = bytes(self._rest[:size])
            self._rest = self._rest[size:]
            return part
        found = bytearray(size)
        del found[self.readinto(found) :]
        return bytes(found)

    def peek(self, size: int = 0) -> bytes:
        """
        Return some of the next bytes without reading them, and none only at the end.

        Args:
            size: ignored, as by `io.BufferedReader.peek`: `readline()` asks for one byte, and is fast only
                if it gets more.

        Raises:
            Error: as `readinto()`.

        """
        return bytes(self._rest[:_PEEKED_BYTES]) if self._fill() else b""

    def write(self, data: object) -> NoReturn:
        """Raise `io.UnsupportedOperation`."""
        raise io.UnsupportedOperation("write")

    def readall(self) -> bytes:
        """Read and return the rest; raises as `readinto()`."""
        return b"".join(iter(self.read_chunk, b""))

    def read_chunk(self) -> bytes | memoryview:
        """Return the rest of the current chunk, or the next one; empty at the end."""
        self._fill()
        rest, self._rest = self._rest, memoryview(b"")
        return rest

    def _fill(self) -> bool:
        """Get another chunk if none is left; return whether there are bytes."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not self._rest:
            self._rest = memoryview(self._download.next_chunk())
        return bool(self._rest)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open object cannot be pickled; pass the name of the object instead")

    def close(self) -> None:
        """Close the file, and delete the server's consumer. A second call does nothing."""
        if not self.closed:
            super().close()
            self._rest = memoryview(b"")
            self._download.close()
