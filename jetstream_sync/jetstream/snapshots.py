"""Snapshot and restore of streams."""

# The server sends a snapshot in chunks, each with a reply subject. A reply to a chunk lets the server
# send one more, so that a window of chunks is in flight. The reply is sent when the caller takes the
# chunk, so that a slow disk slows the server down and chunks do not accumulate. The last chunk has no
# reply subject. An empty message ends the snapshot; it has a status after an error.
#
# A restore sends one chunk at a time, and the server confirms each. An empty chunk ends it, and the
# reply to that is the reply of a stream creation.
#
# A snapshot ends with the connection: the server discards it, and the caller starts again. The same is
# true for a restore with a chunk in flight; between two chunks it continues after a reconnect. A partly
# restored stream is deleted as soon as there is a connection.

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from .. import errors
from ..api.stream import SnapshotInfo, SnapshotRequest, StreamInfo, chunk_position
from ..client.replies import QueueInbox
from ..client.writer import NOW
from ..codec import encode
from ..headers import StatusCode, parse_status
from ..net.clock import Deadline
from ..subjects import check_stream_name
from .api_requests import APIRequests, info_of, read_response

if TYPE_CHECKING:
    from typing_extensions import Self

log: logging.Logger = logging.getLogger("jetstream_sync.snapshots")

#: Chunk size of a restore in bytes, the same as that of the server's snapshots.
_CHUNK_SIZE: Final = 128 * 1024
#: Error text of nats-server 2.15 if it finds the state file of a stream with the same name; it may
#: still write that file shortly after the stream was deleted.
_STATE_FILE_ERROR: Final = "expected sequence does not match store"
#: Delays in seconds before the further attempts after that error.
_RETRY_DELAYS_S: Final = (0.05, 0.1, 0.2, 0.4)
#: Timeout for the deletion of a partly restored stream, in seconds.
_CLEANUP_TIMEOUT_S: Final = 10.0


class StreamSnapshot:
    """
    A running snapshot: iterate over its chunks, or write them to a file with `write_to()`.

    Returned by `Stream.snapshot`. Use it in a ``with`` block, so that the server stops if the block is
    left early. One thread at a time may use it.
    """

    def __init__(
        self,
        api: APIRequests,
        sink: QueueInbox,
        info: SnapshotInfo,
        timeout: float | timedelta | None,
    ) -> None:
        self._api = api
        self._sink = sink
        sink.end_with(self)
        self._timeout = timeout
        self._finished = False
        self._closed = False
        self.info: Final = info
        """The config and state of the stream when the snapshot was created."""
        self.pieces: int = 0
        """The number of chunks taken so far."""
        self.size: int = 0
        """The number of (compressed) bytes taken so far."""

    @property
    def finished(self) -> bool:
        """Whether all chunks were taken and the server confirmed the end."""
        return self._finished

    def __iter__(self) -> Iterator[bytes]:
        """
        Iterate over the remaining chunks, in order.

        Each chunk is confirmed when it is taken. The server stops if no chunk is taken for 5 seconds
        while its window is full; older servers stop sooner.
        """
        while not self._finished:
            if self._closed:
                raise errors.IteratorClosedError("the snapshot was closed before its end")
            chunk = self._next()
            if chunk:
                yield chunk

    def write_to(self, file: BinaryIO) -> int:
        """
        Write the remaining chunks to a file.

        Args:
            file: a binary file; it is neither flushed nor closed.

        Returns:
            The number of bytes written.

        Raises:
            OSError: writing failed; the snapshot cannot continue.
            Error: as iterating over it.

        """
        before = self.size
        file.writelines(self)
        return self.size - before

    def close(self) -> None:
        """Stop the snapshot unless it is finished. A second call does nothing."""
        if not self._closed:
            self._closed = True
            with suppress(errors.ConnectionClosedError):
                self._api.core.table.remove(self._sink.subscription)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _next(self) -> bytes:
        """Return the next chunk; empty at the end."""
        _, reply, block, data = self._sink.mailbox.get(self._api.deadline(self._timeout))
        if not data:
            self._end(block)
            return b""
        if reply:
            self._respond(reply, len(data))
        self.pieces += 1
        self.size += len(data)
        return data

    def _respond(self, reply: bytes, size: int) -> None:
        said = chunk_position(reply.decode())
        if said is not None and said != (size, self.pieces + 1):
            self.close()
            raise self._broken(0, f"chunk {self.pieces + 1} did not arrive")
        self._sink.asked = reply
        core = self._api.core
        command, _ = core.encoder.encode_command(reply, b"")
        core.writer.append(command, 0, NOW, 1, True)

    def _end(self, block: bytes) -> None:
        self.close()
        # A snapshot of less than one chunk has no status; "204" means success too.
        status = parse_status(block)
        if status is not None and status.code != StatusCode.DONE:
            raise self._broken(status.code, status.description)
        self._finished = True

    def _broken(self, code: int, description: str) -> errors.SnapshotBrokenError:
        return errors.SnapshotBrokenError(self.info.config.name, code, description)

    def __repr__(self) -> str:
        state = "finished" if self._finished else "closed" if self._closed else "open"
        return f"<StreamSnapshot {self.info.config.name} {state} bytes={self.size}>"


def take_snapshot(
    api: APIRequests, name: str, request: SnapshotRequest, timeout: float | timedelta | None
) -> StreamSnapshot:
    """Request a snapshot; see `Stream.snapshot`."""
    sink = QueueInbox(api.core)
    try:
        body = {**encode(request), "deliver_subject": sink.reply.decode()}
        route = api.routes.to("STREAM.SNAPSHOT", name)
        info = api.failing_on_disconnect().ask_for(SnapshotInfo, route, body, api.deadline(timeout))
    except BaseException:
        with suppress(errors.ConnectionClosedError):
            api.core.table.remove(sink.subscription)
        raise
    return StreamSnapshot(api, sink, info, timeout)


# --- restore ------------------------------------------------------------------------------------


def restore(
    api: APIRequests,
    info: SnapshotInfo,
    data: BinaryIO | Iterable[bytes],
    timeout: float | timedelta | None,
    final_timeout: float | timedelta | None,
) -> StreamInfo:
    """Restore a stream from a snapshot; see `JetStream.restore_stream`."""
    Deadline(final_timeout)  # refuses another value before the first request
    seekable = getattr(data, "seekable", None)
    file = cast("BinaryIO", data) if callable(seekable) and seekable() else None
    start = file.tell() if file is not None else 0
    waits = iter(_RETRY_DELAYS_S)
    while True:
        try:
            return _restore(api, info, data, timeout, final_timeout)
        except errors.RestoreFailedError as error:
            wait = next(waits, None)
            if file is None or wait is None or _STATE_FILE_ERROR not in error.description:
                raise
            api.core.wait_closed(wait)
            file.seek(start)


def _restore(
    api: APIRequests,
    info: SnapshotInfo,
    data: BinaryIO | Iterable[bytes],
    timeout: float | timedelta | None,
    final_timeout: float | timedelta | None,
) -> StreamInfo:
    name = check_stream_name(info.config.name)
    fail_fast_api = api.failing_on_disconnect()
    body = {"config": encode(info.config), "state": encode(info.state)}
    response = fail_fast_api.ask(api.routes.to("STREAM.RESTORE", name), body, api.deadline(timeout))
    subject = response.get("deliver_subject")
    if not isinstance(subject, str) or not subject:
        raise errors.InvalidResponseError(f"a restore answered with deliver_subject={subject!r}")
    sender = _RestoreSender(fail_fast_api, name, subject.encode())
    try:
        for chunk in _chunks(data, min(_CHUNK_SIZE, api.core.info.max_payload)):
            sender.send(chunk, api.deadline(timeout))
        return info_of(sender.send(b"", Deadline(final_timeout)))
    except errors.RestoreNameInUseError:
        raise  # another client created the stream meanwhile
    except BaseException:
        is_ours = False
        if api.core.address is not None:  # otherwise the server ends the restore by itself
            with suppress(errors.Error):
                is_ours = bool(sender.send(b"", api.deadline(timeout)))  # all data was there
        _remove_part(api, info, is_ours, Deadline(_CLEANUP_TIMEOUT_S))
        raise


def _remove_part(api: APIRequests, info: SnapshotInfo, is_ours: bool, deadline: Deadline) -> None:
    """Delete what was restored, if the stream is ours or partly restored; raise nothing."""
    # From server 2.15 on, the stream is visible during a restore and remains after an abort. A
    # cluster may keep the name reserved without a stream.
    name = info.config.name
    try:
        if is_ours or _is_partial(api, info, deadline):
            api.ask(api.routes.to("STREAM.DELETE", name), None, deadline)
    except errors.NotFoundError:
        return
    except errors.Error as error:
        log.warning("restoring stream %r failed, and a part of it may remain: %s", name, error)


def _is_partial(api: APIRequests, info: SnapshotInfo, deadline: Deadline) -> bool:
    """Return whether there is a stream with some of the messages of the snapshot, and no newer ones."""
    name = info.config.name
    try:
        found = info_of(api.ask(api.routes.to("STREAM.INFO", name), None, deadline))
    except errors.NotFoundError:
        return name in api.names(api.routes.to("STREAM.NAMES"), "streams", deadline=deadline)
    if found.state.last_seq >= info.state.last_seq:
        return False  # another client may have restored it, too
    if not found.state.messages:
        return found.config.subjects == info.config.subjects
    last, end = found.state.last_ts, info.state.last_ts
    return last is not None and end is not None and last <= end


class _RestoreSender:
    """Sends the chunks of a restore."""

    def __init__(self, api: APIRequests, name: str, subject: bytes) -> None:
        self._core = api.core
        self._name = name
        self._subject = subject
        self._sent = 0

    def send(self, chunk: bytes, deadline: Deadline) -> dict[str, Any]:
        """Send a chunk, and wait for its confirmation; an empty one ends the restore, with a reply."""
        try:
            reply = self._core.requests.request(
                self._subject, chunk, deadline, fail_on_disconnect=True
            )
        except errors.NoRespondersError as error:
            raise errors.RestoreBrokenError(self._name, self._sent) from error
        except errors.TimeoutError as error:
            if self._core.address is None:
                raise errors.ConnectionLostError(
                    "the connection was lost before the restore was complete"
                ) from error
            raise
        response = read_response("a restore", reply) if reply[3] else {}
        self._sent += len(chunk)
        return response


def _chunks(data: BinaryIO | Iterable[bytes], size: int) -> Iterator[bytes]:
    """Split data into chunks; none is empty, because an empty chunk ends the restore."""
    read = getattr(data, "read", None)
    if read is not None:
        data = iter(lambda: read(size), b"")
    for chunk in data:
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            raise errors.InvalidArgumentError(
                f"snapshot data must be bytes, not {type(chunk).__name__}"
            )
        for start in range(0, len(chunk), size):
            yield bytes(chunk[start : start + size])
