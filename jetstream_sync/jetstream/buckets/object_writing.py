"""Store objects: the upload of chunks and info, and writable file objects."""

# Rules of an upload:
#
# 1. The chunks are published without waiting for each acknowledgement. The bytes that await theirs are
#    bounded, which also bounds the memory.
# 2. The info is published after all chunks were acknowledged. From then on the object can be read.
# 3. If an exception ends the upload before, also a Ctrl-C, the object that was there stays, and the
#    chunks are purged. They are kept if the info may be stored. `ObjectStore.purge_orphans` takes those
#    that are left of no object.
# 4. If the acknowledgement of the info is lost, the same info is published again with the same expected
#    sequence. The reply tells whether one of them was stored.

from __future__ import annotations

import codecs
import io
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, NoReturn, TypeAlias, cast

from ... import errors
from ...api.object_store import (
    DEFAULT_CHUNK_SIZE,
    ObjectInfo,
    ObjectMeta,
    description_of,
    digest_text,
    encode_info,
    new_sha256,
)
from ...client.threads import spawn_from_finalizer
from ...headers import EXPECTED_LAST_SEQ
from ...net.clock import Deadline, monotonic
from ...options import check_callback, check_returned
from ...subjects import chunk_subject
from ..api_requests import stream_info
from .object_bucket import ObjectBucket, log

if TYPE_CHECKING:
    import hashlib
    from types import TracebackType

    from typing_extensions import Buffer, Self

    from ..publish import PubAckFuture

#: Called with the number of transferred bytes and the size of the object, or ``None`` if it is unknown.
ProgressCallback: TypeAlias = Callable[[int, int | None], object]
#: The data of an object: bytes, a binary file, or pieces of any size.
ObjectData: TypeAlias = "Buffer | BinaryIO | Iterable[Buffer]"

#: Maximum number of bytes that await their acknowledgements.
_WINDOW_BYTES: Final = 8 * 1024 * 1024
#: Attempts to store an info of which the acknowledgement was lost.
_COMMIT_ATTEMPTS: Final = 3
#: Seconds after which the single chunk of an object is looked for before its info is stored.
_UNCHECKED_S: Final = 1.0
#: Maximum time for purging the chunks of a failed upload, in seconds.
_CLEANUP_TIMEOUT_S: Final = 5.0
#: Timeout in seconds for each message that is on its way before that.
_SETTLE_TIMEOUT_S: Final = 2.0
#: An expected sequence that no stream has.
_NEVER_SEQUENCE: Final = str(2**64 - 1)
#: Room for headers and digest in the message with the info.
_INFO_RESERVE: Final = 1024


class _PendingChunk(NamedTuple):
    """A published chunk that awaits its acknowledgement."""

    ack: PubAckFuture
    size: int


@dataclass(slots=True, eq=False)
class _Chunks:
    """The published chunks of an object, and their acknowledgements."""

    reconnects: int
    """The number of reconnects of the connection before the first chunk."""
    began: float = field(default_factory=monotonic)
    """When the first chunk could be published."""
    count: int = 0
    """The number of all chunks."""
    sent: int = 0
    """The bytes of all chunks."""
    sha256: hashlib._Hash = field(default_factory=new_sha256)
    pending: deque[_PendingChunk] = field(default_factory=deque)
    in_flight: int = 0
    """The bytes of the pending chunks."""
    acked: int = 0
    """The bytes of the other chunks."""
    last_seq: int = 0
    """The sequence of the last chunk that was acknowledged."""


@dataclass(slots=True, eq=False)
class _Commit:
    """The info that makes an object visible."""

    info: ObjectInfo | None = None
    """The info that is being stored; ``None``: it was not sent, or cannot have been stored."""
    ack: PubAckFuture | None = None
    """Its acknowledgement."""
    replaced: ObjectInfo | None = None
    """The info that it replaces."""
    expected: int = 0
    """The sequence of that info."""


class Upload:
    """Publishes the chunks of one object and then its info; one thread uses it."""

    def __init__(
        self,
        bucket: ObjectBucket,
        meta: ObjectMeta,
        total: int | None,
        progress: ProgressCallback | None,
        timeout: float | timedelta | None,
        exclusive: bool = False,
    ) -> None:
        # `exclusive`: never replace an object or a link.
        self._bucket = bucket
        self._exclusive = exclusive
        if progress is not None:
            check_callback("progress", progress)
        self._total = total
        self._progress = progress
        self._timeout = timeout
        self._nuid = os.urandom(11).hex()
        self._subject = chunk_subject(bucket.name, self._nuid)
        self._chunks = _Chunks(bucket.api.core.reconnects)
        self._commit = _Commit()
        self._ended = False
        if meta.link is not None:
            raise errors.ObjectLinkError(
                bucket.name, meta.name, "a link has no data: use add_link()"
            )
        limit = bucket.api.core.max_payload
        #: The size of each chunk but the last one, in bytes.
        self.chunk_size: int = min(DEFAULT_CHUNK_SIZE, limit)
        if meta.options is not None and meta.options.max_chunk_size:
            self.chunk_size = meta.options.max_chunk_size
        if self.chunk_size > limit:
            raise errors.InvalidOptionError(
                "max_chunk_size", self.chunk_size, f"the server's max_payload is {limit} bytes"
            )
        self.meta: ObjectMeta = meta
        size = len(encode_info(self._make_info())) + _INFO_RESERVE
        if size > limit:
            raise errors.MaxPayloadError(size, limit)
        self._find_replaced()

    def _deadline(self) -> Deadline:
        return self._bucket.api.deadline(self._timeout)

    def check_not_forked(self) -> None:
        """Raise `ForkedConnectionError` in a forked child."""
        self._bucket.api.core.writer.check_not_forked()

    def _find_replaced(self) -> ObjectInfo | None:
        """Request the info that this upload replaces, and return it."""
        replacing = not self._exclusive
        info, sequence = self._bucket.last_info(self.meta.name, self._deadline(), replacing)
        stored = info is not None and info.nuid == self._nuid
        if info is not None and not (replacing or info.deleted or stored):
            self._commit.info = None  # no reader can find the chunks of this upload
            raise errors.ObjectExistsError(self._bucket.name, self.meta.name)
        if not stored:
            self._commit.replaced, self._commit.expected = info, sequence
        return info

    # --- chunks ---------------------------------------------------------------------------------

    def send(self, chunk: bytes) -> None:
        """Publish a chunk; wait for earlier ones if too many bytes await their acknowledgements."""
        size = len(chunk)
        # Settled ones are taken at once, so that a failed one ends the upload early.
        while self._chunks.pending and (
            self._chunks.in_flight + size > _WINDOW_BYTES or self._chunks.pending[0].ack.done()
        ):
            self._await_oldest()
        self._chunks.count += 1
        future = self._publish(chunk)
        # On a slow link the last bytes of a full window wait longer than the timeout. What counts is the
        # time without any acknowledgement.
        future.due = None
        self._chunks.pending.append(_PendingChunk(future, size))
        self._chunks.in_flight += size
        self._chunks.sent += size
        self._chunks.sha256.update(chunk)

    def _publish(self, chunk: bytes) -> PubAckFuture:
        while True:
            try:
                return self._bucket.publisher.publish_async(
                    self._subject, chunk, None, self._deadline().left()
                )
            except errors.OutboundBufferLimitError:
                if not self._chunks.pending:
                    raise
            self._await_oldest()  # for a lost chunk it raises, and otherwise it waits for the reconnect

    def _await_oldest(self) -> None:
        """Wait for the acknowledgement of the first pending chunk."""
        future, size = self._chunks.pending[0]
        try:
            with self._bucket.translated_errors():
                ack = future.result(self._deadline().left())
        except errors.TimeoutError:
            if future.done():
                raise
            text = f"no chunk of object {self.meta.name!r} was acknowledged in time"
            raise self._bucket.api.core.state.timed_out(text) from None
        self._bucket.check_ack(ack)
        if ack.seq <= self._chunks.last_seq:
            # A chunk was published again, because the stream had no leader for a moment.
            raise self._incomplete("its chunks were stored in another order")
        self._chunks.last_seq = ack.seq
        self._chunks.pending.popleft()
        self._chunks.in_flight -= size
        self._chunks.acked += size
        if self._progress is not None:
            check_returned(self._progress(self._chunks.acked, self._total))

    # --- the end --------------------------------------------------------------------------------

    def finish(self) -> ObjectInfo:
        """Store the info, and purge the chunks of the object that it replaced."""
        while self._chunks.pending:
            self._await_oldest()
        self._check_stored()
        commit = self._commit
        info = commit.info = self._make_info()
        attempts = _COMMIT_ATTEMPTS
        while True:
            try:
                with self._bucket.translated_errors():
                    commit.ack = None
                    left = self._deadline().left()
                    commit.ack = self._bucket.publish_info(info, commit.expected, left)
                    self._bucket.check_ack(commit.ack.result())
                break
            except errors.WrongLastSequenceError:
                current = self._find_replaced()
                if current is not None and current.nuid == info.nuid:
                    break  # an earlier attempt was stored
            except (errors.TimeoutError, errors.ConnectionLostError):
                attempts -= 1
                if not attempts:
                    raise
        self._committed()
        return info

    def _check_stored(self) -> None:
        """Check the number of stored chunks: acknowledged ones may be lost, purged or expired."""
        api = self._bucket.api
        reconnected = api.core.reconnects != self._chunks.reconnects
        if (
            not reconnected
            and self._chunks.count < 2
            and monotonic() - self._chunks.began < _UNCHECKED_S
        ):
            return
        try:
            with self._bucket.translated_errors():
                deadline = self._deadline()
                info = stream_info(api, self._bucket.stream, self._subject, deadline=deadline)
        except errors.PermissionsError:
            if reconnected:
                raise
            return
        found = (info.state.subjects or {}).get(self._subject, 0)
        if found != self._chunks.count:
            raise self._incomplete(f"{found} of {self._chunks.count} chunks are stored")

    def _incomplete(self, reason: str) -> errors.ObjectIncompleteError:
        return errors.ObjectIncompleteError(
            self._bucket.name, self.meta.name, f"{reason}; put the object again"
        )

    def _make_info(self) -> ObjectInfo:
        meta = self.meta
        return ObjectInfo(
            **description_of(meta, datetime.now(timezone.utc)),
            options=meta.options,
            bucket=self._bucket.name,
            nuid=self._nuid,
            size=self._chunks.sent,
            chunks=self._chunks.count,
            digest=digest_text(self._chunks.sha256.digest()),
        )

    def _committed(self) -> None:
        """Purge the chunks of the object that was replaced."""
        self._ended = True
        replaced = self._commit.replaced
        if replaced is not None and replaced.chunks and replaced.nuid != self._nuid:
            self._bucket.purge_chunks(replaced.nuid, self._deadline(), replaced.chunks)

    def abort(self) -> None:
        """Purge the chunks, unless the info is stored; raise nothing."""
        if self._ended:
            return
        self._ended = True
        if not self._chunks.count and self._commit.info is None:
            return
        deadline = self._deadline().sooner(_CLEANUP_TIMEOUT_S)
        futures = [chunk.ack for chunk in self._chunks.pending]
        if self._commit.ack is not None:
            futures.append(self._commit.ack)
        # The server may process a purge before messages that were sent earlier.
        with suppress(errors.TimeoutError):
            for future in futures:
                future.exception(deadline.sooner(_SETTLE_TIMEOUT_S).left())
        if any(f.done() and isinstance(f.exception(), errors.ConnectionLostError) for f in futures):
            self._await_sent(deadline.sooner(_SETTLE_TIMEOUT_S))
        for future in futures:
            future.due = monotonic()  # the publisher drops it
        self._chunks.pending.clear()
        if self._commit.info is None or self._is_refused():
            self._bucket.purge_chunks(self._nuid, deadline)
        else:
            log.warning("object %r may be stored: its chunks are kept", self.meta.name)

    def _await_sent(self, deadline: Deadline) -> None:
        """Wait until the stream has processed the chunks that were still buffered at a lost connection."""
        # They are sent on the next connection. The stream replies in order, also to a refused message.
        headers = {EXPECTED_LAST_SEQ: _NEVER_SEQUENCE}
        with suppress(errors.Error):
            publisher = self._bucket.publisher
            publisher.publish_expecting(self._subject, b"", headers, deadline)

    def _is_refused(self) -> bool:
        """Return whether the server has refused the info."""
        # After a wrong sequence, an earlier attempt may be stored.
        ack = self._commit.ack
        error = ack.exception() if ack is not None and ack.done() else None
        return isinstance(error, errors.APIError) and not isinstance(
            error, errors.WrongLastSequenceError
        )

    def drop(self) -> None:
        """Request the purge of the chunks; called by a finalizer."""
        if self._ended:
            return
        self._ended = True
        if self._chunks.count:
            # The thread that runs this may hold any lock, so another thread requests the purge.
            spawn_from_finalizer("closer-object", self._purge_after_last)

    def _purge_after_last(self) -> None:
        """Request the purge of the chunks when the last one was acknowledged, without waiting for that."""
        if self._chunks.pending:
            # The server may process a request before the chunks that were sent earlier.
            self._chunks.pending[-1].ack.add_done_callback(self._request_purge)
        else:
            self._request_purge()

    def _request_purge(self, _: object = None) -> None:
        with suppress(errors.Error):
            self._bucket.request_purge(self._subject)


# --- data ---------------------------------------------------------------------------------------


def check_data(data: object) -> int | None:
    """Check the data of an object, and return its size in bytes if it is known."""
    if isinstance(data, (str, io.TextIOBase)):
        what = (
            "a str: encode it first"
            if isinstance(data, str)
            else "a text file: open it in mode 'rb'"
        )
        raise errors.InvalidOptionError("data", data, f"must be bytes, not {what}")
    try:
        return memoryview(cast("Buffer", data)).nbytes
    except TypeError:
        pass
    if not hasattr(data, "read"):
        if not isinstance(data, Iterable) or isinstance(data, dict):
            raise errors.InvalidOptionError(
                "data", data, "must be bytes, a binary file or an iterable of bytes"
            )
        return None
    if getattr(data, "closed", False):
        raise errors.InvalidOptionError("data", data, "the file is closed")
    readable = getattr(data, "readable", None)
    if callable(readable) and not readable():
        raise errors.InvalidOptionError("data", data, "the file is not open for reading")
    return _rest_of(cast("BinaryIO", data))


def _rest_of(file: BinaryIO) -> int | None:
    """Return the number of bytes from the position of a file to its end, if it has a position."""
    try:
        if not file.seekable():
            return None
        position = file.tell()
        end = file.seek(0, io.SEEK_END)
        file.seek(position)
    except (OSError, AttributeError):
        return None
    return max(0, end - position)


def pieces_of(data: ObjectData, size: int) -> Iterable[Buffer]:
    """Return the data in pieces; those of a file have up to ``size`` bytes."""
    if hasattr(data, "read"):
        return iter(lambda: _read(cast("BinaryIO", data), size), b"")
    try:
        return [memoryview(cast("Buffer", data))]
    except TypeError:
        return cast("Iterable[Buffer]", data)


def _read(file: BinaryIO, size: int) -> bytes:
    # A pipe returns what it has, which may be less.
    piece = file.read(size)
    if piece is None:
        raise errors.InvalidOptionError("data", file, "the file must be in blocking mode")
    found = _view(piece).nbytes
    if found > size:
        raise errors.InvalidOptionError("data", file, f"read({size}) returned {found} bytes")
    return piece


def _view(piece: Any) -> memoryview:
    try:
        return memoryview(piece).cast("B")
    except TypeError:
        raise errors.InvalidOptionError(
            "data", piece, f"must be pieces of bytes, not {type(piece).__name__}"
        ) from None


# --- writable files -----------------------------------------------------------------------------


class Unstored:
    """A file that is not closed when it is collected: that would store half of an object."""

    def __del__(self) -> None:
        pass


class TextFile(Unstored, io.TextIOWrapper):
    """A text file, left to its buffer when it is collected."""

    def __init__(self, buffer: Any, *args: Any, **named: Any) -> None:
        super().__init__(buffer, *args, **named)
        # `io.TextIOWrapper` writes the mark of these encodings only to files that can seek, and without it
        # the text cannot be read.
        self._mark = b""
        if self.writable() and not self.seekable():
            encoding = codecs.lookup(self.encoding).name
            if encoding in {"utf-16", "utf-32"}:
                self._mark = "".encode(encoding)

    def write(self, text: str, /) -> int:
        """Write a text; return its length."""
        if self._mark:
            mark, self._mark = self._mark, b""
            self.buffer.write(mark)
        return super().write(text)


class ObjectWriter(io.RawIOBase):
    """
    A writable, binary file object, whose data becomes an object when it is closed.

    Returned by `ObjectStore.open`. Use it in a ``with`` block: an exception in the block discards what
    was written, and the object that was there stays. A file that wraps this one, such as an
    `io.TextIOWrapper`, closes it at the end of its own ``with`` block; so `close()` while an exception is
    handled does not store the object either. A file that is collected without `close()` stores nothing. One
    thread at a time may use it.
    """

    if TYPE_CHECKING:
        # Type checkers require it for `io.TextIOWrapper`; the class itself accepts files without.
        @property
        def name(self) -> NoReturn:
            """Raise AttributeError."""

    def __init__(self, upload: Upload) -> None:
        super().__init__()
        self._upload = upload
        self._rest = bytearray()  # the data behind the last chunk
        self._info: ObjectInfo | None = None
        self._written = 0
        # The id of the exception that the program handles already; a reference would keep its frames.
        self._handled = id(sys.exc_info()[1])
        self._entered = False

    @property
    def info(self) -> ObjectInfo | None:
        """The info of the stored object; ``None`` until it is closed."""
        return self._info

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open object cannot be pickled; pass the name of the object instead")

    def writable(self) -> bool:
        """Return true."""
        return True

    def tell(self) -> int:
        """
        Return the number of bytes that were written.

        Raises:
            ValueError: the file is closed.
            ForkedConnectionError: the file belongs to the parent process.

        """
        self._check_open()
        return self._written

    def read(self, size: int = -1) -> NoReturn:
        """Raise `io.UnsupportedOperation`."""
        raise io.UnsupportedOperation("read")

    def readinto(self, buffer: object) -> NoReturn:
        """Raise `io.UnsupportedOperation`."""
        raise io.UnsupportedOperation("read")

    def write(self, data: Buffer) -> int:
        """
        Write bytes, all of them, and return their number.

        Raises:
            ValueError: the file is closed.
            InvalidOptionError: the data is not bytes.
            Error: as `ObjectStore.put`; what was written is discarded.

        """
        self._check_open()
        view = _view(data)
        try:
            for chunk in self._chunks(view):
                self._upload.send(chunk)
        except BaseException:
            self.discard()
            raise
        self._written += len(view)
        return len(view)

    def _chunks(self, piece: memoryview) -> Iterator[bytes]:
        """Yield the chunks that another piece completes."""
        size, rest = self._upload.chunk_size, self._rest
        start = 0
        if rest:
            start = size - len(rest)
            rest += piece[:start]
            if len(rest) == size:
                yield bytes(rest)
                rest.clear()
        while len(piece) - start >= size:
            yield bytes(piece[start : start + size])
            start += size
        rest += piece[start:]

    def close(self) -> None:
        """
        Store the object. A second call does nothing.

        While an exception is handled that was raised after the file was opened, the object is not stored:
        inside a ``with`` block of the file, its end decides; otherwise, what was written is discarded, with
        a warning in the log.

        Raises:
            Error: as `ObjectStore.put`; the object that was there is unchanged.

        """
        if self.closed:
            return
        raised = sys.exc_info()[1]
        if raised is not None and id(raised) != self._handled:
            if not self._entered:
                text = "object %r is not stored: its file was closed while handling %r"
                log.warning(text, self._upload.meta.name, raised)
                self.discard()
            return
        try:
            if self._rest:
                self._upload.send(bytes(self._rest))
            self._info = self._upload.finish()
        except BaseException:
            self.discard()
            raise
        super().close()

    def discard(self) -> None:
        """Close the file without storing the object, and purge what was written."""
        if not self.closed:
            super().close()
            self._upload.abort()

    def _check_open(self) -> None:
        self._upload.check_not_forked()
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def __enter__(self) -> Self:
        self._check_open()
        self._entered = True
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered = False
        if exc_type is None:
            self._handled = id(sys.exc_info()[1])  # of a block around this one
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # The base class would call close(), which would store half of the data after an exception.
        if not self.closed:
            super().close()
            self._upload.drop()
