"""
Snapshots: the data of a stream on its way to somewhere else, and back.

A snapshot comes in pieces, each with a reply subject. An answer to one lets the server send one
more, so that a window of them is on its way; here it is answered when the caller takes it, so that a
slow disk slows the server down and nothing piles up. The last piece has no reply, and an empty
message ends it, with a status where it is not well.

A restore goes piece by piece, each of which the server answers when it has it. An empty one ends
it, and its answer is that of making a stream.

A snapshot does not survive the link: the server forgets what was on its way, and the caller starts
again. So it is with a piece of a restore that is on its way; between two of them a restore goes on over
the next link. What a server made of a part is removed, as soon as there is a link.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from ..api.snapshot import SnapshotInfo, SnapshotRequest, chunk_position
from ..api.stream import StreamInfo
from ..client.core import ConnectionCore
from ..client.mailbox import Mailbox
from ..codec import encode, loads
from ..errors import (
    APIError,
    BadSubscriptionError,
    ConnectionClosedError,
    ConnectionDrainingError,
    ConnectionLostError,
    Error,
    InvalidArgumentError,
    InvalidResponseError,
    IteratorClosedError,
    NoRespondersError,
    NotFoundError,
    PermissionsError,
    RestoreBrokenError,
    RestoreFailedError,
    RestoreNameInUseError,
    SnapshotBrokenError,
    TimeoutError,
)
from ..headers import parse_status
from ..net.clock import Deadline
from ..protocol.parser import Delivery
from ..subjects import check_stream_name
from .api_requests import APIRequests, info_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StreamSnapshot", "restore", "take_snapshot"]

log = logging.getLogger("jetstream_sync.snapshots")

#: The size of the pieces of a restore, in bytes; it is what the server's own pieces have.
_PIECE: Final = 128 * 1024
#: What nats-server 2.15 says when it stumbles over the state file of a stream of that name, which it
#: still writes when the stream was deleted a moment ago.
_LEFTOVERS: Final = "expected sequence does not match store"
#: Seconds to wait then before each further attempt.
_WAITS: Final = (0.05, 0.1, 0.2, 0.4)
#: Seconds to wait for a server that part of a restore has to be removed from.
_CLEANING: Final = 10.0


class _ChunkReceiver:
    """Where the pieces of a snapshot arrive."""

    is_reply_inbox = True

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self.mailbox: Mailbox[Delivery] = Mailbox()
        self.subject = core.new_inbox()
        #: The reply that was answered last.
        self.answered = b""
        self._interest = core.add_subscription_deferred(self.subject, self)

    def close(self) -> None:
        """Give the subscription up; the server sees that and stops."""
        self._core.remove_subscription(self._interest)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take pieces."""
        self.mailbox.put(deliveries, len(deliveries))

    def on_connection_change(self, *, connected: bool) -> None:
        """End when the link breaks: what was on its way is lost."""
        if not connected:
            self.mailbox.close(
                ConnectionLostError("the connection was lost before the snapshot was through")
            )

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """End where the server does not permit the inbox or the answers."""
        if error.operation != "subscribe" and subject != self.answered:
            return False
        self.mailbox.close(error)
        return True

    def on_closed(self, reason: BaseException) -> None:
        """Wake the waiting threads."""
        if isinstance(reason, BadSubscriptionError):
            reason = ConnectionDrainingError("the connection was drained")
        self.mailbox.close(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Say at once that no callback is at work."""
        del deadline
        return True


class StreamSnapshot:
    """
    A snapshot on its way: iterate over its pieces, or `write_to()` a file.

    Returned by `Stream.snapshot`. Use it in a ``with`` block: left before the end, it has the server
    stop. One thread at a time may use it.
    """

    def __init__(
        self,
        api: APIRequests,
        sink: _ChunkReceiver,
        info: SnapshotInfo,
        patience: float | timedelta | None,
    ) -> None:
        self._api = api
        self._sink = sink
        self._patience = patience
        self._finished = False
        self._closed = False
        self.info: Final = info
        """What the stream was when the snapshot was made."""
        self.pieces = 0
        """How many pieces were taken so far."""
        self.size = 0
        """How many bytes were taken so far; they are compressed."""

    @property
    def finished(self) -> bool:
        """Whether every piece was taken, and the server said that it was the last."""
        return self._finished

    def __iter__(self) -> Iterator[bytes]:
        """
        Iterate over the pieces that were not taken yet, in order.

        The server is told of each piece when it is taken. It gives up when none is taken for 5
        seconds while its window is full; old servers are less patient.

        Raises:
            SnapshotBrokenError: the server ended it with an error, or a piece did not arrive.
            TimeoutError: the server sends nothing in the time of `Stream.snapshot`.
            ConnectionLostError: the connection was lost; start again.
            PermissionsError: this user may not have the data, or may not answer.
            IteratorClosedError: it was closed before its end.
            ConnectionClosedError: the connection is closed.

        """
        while not self._finished:
            if self._closed:
                raise IteratorClosedError("the snapshot was closed before its end")
            piece = self._next()
            if piece:
                yield piece

    def write_to(self, file: BinaryIO) -> int:
        """
        Write all that was not taken yet to a file.

        Args:
            file: a binary file; it is neither flushed nor closed.

        Returns:
            How many bytes were written.

        Raises:
            OSError: the file takes no more; the snapshot cannot go on.
            Error: as iterating over it.

        """
        before = self.size
        file.writelines(self)
        return self.size - before

    def close(self) -> None:
        """Have the server stop, unless it is through. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            with suppress(ConnectionClosedError):
                self._sink.close()

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
        """Take the next piece; at the end it is empty."""
        _, reply, block, data = self._sink.mailbox.get(self._api.deadline(self._patience))
        if not data:
            self._end(block)
            return b""
        if reply:
            self._answer(reply, len(data))
        self.pieces += 1
        self.size += len(data)
        return data

    def _answer(self, reply: bytes, size: int) -> None:
        said = chunk_position(reply.decode())
        if said is not None and said != (size, self.pieces + 1):
            self.close()
            raise self._broken(0, f"piece {self.pieces + 1} did not arrive")
        self._sink.answered = reply
        core = self._api.core
        core.writer.send(core.composer.command(reply, b"")[0], 1, 0)

    def _end(self, block: bytes) -> None:
        self.close()
        # Without a full piece there is no status at all; "204" is a good end, too.
        status = parse_status(block) if block else None
        if status is not None and status.code != 204:
            raise self._broken(status.code, status.description)
        self._finished = True

    def _broken(self, code: int, description: str) -> SnapshotBrokenError:
        return SnapshotBrokenError(self.info.config.name, code, description)

    def __repr__(self) -> str:
        state = "finished" if self._finished else "closed" if self._closed else "open"
        return f"<StreamSnapshot {self.info.config.name} {state} bytes={self.size}>"


def take_snapshot(
    api: APIRequests, name: str, wanted: SnapshotRequest, timeout: float | timedelta | None
) -> StreamSnapshot:
    """
    Ask for a snapshot; see `Stream.snapshot`.

    Args:
        api: the API.
        name: the stream's, checked.
        wanted: how it is to be; the deliver subject is filled in here.
        timeout: for each answer.

    """
    sink = _ChunkReceiver(api.core)
    try:
        body = {**encode(wanted), "deliver_subject": sink.subject}
        route = api.routes.stream_snapshot(name)
        info = api.failing_on_disconnect().ask_for(SnapshotInfo, route, body, api.deadline(timeout))
    except BaseException:
        with suppress(ConnectionClosedError):
            sink.close()
        raise
    return StreamSnapshot(api, sink, info, timeout)


# --- the way back -------------------------------------------------------------------------------


def restore(
    api: APIRequests,
    info: SnapshotInfo,
    data: BinaryIO | Iterable[bytes],
    timeout: float | timedelta | None,
    final_timeout: float | timedelta | None,
) -> StreamInfo:
    """Make a stream of a snapshot; see `JetStream.restore_stream`."""
    file = cast("BinaryIO", data) if _can_go_back(data) else None
    start = file.tell() if file is not None else 0
    waits = iter(_WAITS)
    while True:
        try:
            return _restore(api, info, data, timeout, final_timeout)
        except RestoreFailedError as error:
            wait = next(waits, None)
            if file is None or wait is None or _LEFTOVERS not in error.description:
                raise
            api.core.wait_closed(wait)
            file.seek(start)


def _can_go_back(data: object) -> bool:
    seekable = getattr(data, "seekable", None)
    return callable(seekable) and bool(seekable())


def _restore(
    api: APIRequests,
    info: SnapshotInfo,
    data: BinaryIO | Iterable[bytes],
    timeout: float | timedelta | None,
    final_timeout: float | timedelta | None,
) -> StreamInfo:
    name = check_stream_name(info.config.name)
    patient = api.failing_on_disconnect()
    body = {"config": encode(info.config), "state": encode(info.state)}
    answer = patient.ask(api.routes.stream_restore(name), body, api.deadline(timeout))
    subject = answer.get("deliver_subject")
    if not isinstance(subject, str) or not subject:
        raise InvalidResponseError(f"a restore answered with deliver_subject={subject!r}")
    sending = _Sending(patient, name, subject.encode())
    try:
        for piece in _pieces(data, min(_PIECE, api.core.composer.max_payload)):
            sending.send(piece, api.deadline(timeout))
        return sending.finish(Deadline(final_timeout))
    except RestoreNameInUseError:
        raise  # somebody else made it meanwhile
    except BaseException:
        sending.give_up(api.deadline(timeout))
        _remove_part(api, info, Deadline(_CLEANING))
        raise


def _remove_part(api: APIRequests, info: SnapshotInfo, deadline: Deadline) -> None:
    """
    Delete what the server made of part of the data, if it did; nothing is raised.

    From 2.15 on a restore fills a stream that can be seen, and leaves it there when it breaks off. A
    cluster leaves a name that is taken, without a stream.
    """
    name = info.config.name
    try:
        if _is_left(api, info, deadline):
            api.ask(api.routes.stream_delete(name), None, deadline)
    except NotFoundError:
        return
    except Error as error:
        log.warning("a restore of stream %r failed, and may have left a part: %s", name, error)


def _is_left(api: APIRequests, info: SnapshotInfo, deadline: Deadline) -> bool:
    name = info.config.name
    try:
        found = info_of(api.ask(api.routes.stream_info(name), None, deadline))
    except NotFoundError:
        return any(name in page for page in api.pages(api.routes.stream_names(), "streams"))
    return _is_part(found, info)


def _is_part(found: StreamInfo, info: SnapshotInfo) -> bool:
    """Return whether a stream has nothing but what was restored: nothing younger than the snapshot."""
    if not found.state.messages:
        return found.config.subjects == info.config.subjects
    last, end = found.state.last_ts, info.state.last_ts
    return last is not None and end is not None and last <= end


class _Sending:
    """The pieces of a restore on their way to a server."""

    def __init__(self, api: APIRequests, name: str, subject: bytes) -> None:
        self._core = api.core
        self._name = name
        self._subject = subject
        self._sent = 0

    def send(self, piece: bytes, deadline: Deadline) -> None:
        """Send a piece, and wait until the server has it."""
        self._said(self._request(piece, deadline))
        self._sent += len(piece)

    def finish(self, deadline: Deadline) -> StreamInfo:
        """Say that this was all, and return what the server made of it."""
        answer = self._said(self._request(b"", deadline))
        if answer is None:
            raise InvalidResponseError("a restore ended without an answer")
        return info_of(answer)

    def give_up(self, deadline: Deadline) -> None:
        """Have the server end it now, with what it has: whatever it says, it is through then."""
        if self._core.address is None:
            return  # over another link, the server gives up by itself
        with suppress(Error):
            self._request(b"", deadline)

    def _request(self, piece: bytes, deadline: Deadline) -> bytes:
        try:
            return self._core.request(self._subject, piece, deadline, ends_with_link=True)[3]
        except NoRespondersError as error:
            raise RestoreBrokenError(self._name, self._sent) from error
        except TimeoutError as error:
            if self._core.address is None:
                raise ConnectionLostError("there is no connection to send the rest over") from error
            raise

    @staticmethod
    def _said(answer: bytes) -> dict[str, Any] | None:
        """Return what an answer says; ``None``: nothing, so that all is well."""
        if not answer:
            return None
        said = loads(answer)
        if not isinstance(said, dict):
            raise InvalidResponseError("a restore answered something that is not an object")
        refusal = said.get("error")
        if isinstance(refusal, dict):
            raise APIError.from_response(refusal)
        if refusal is not None:
            raise InvalidResponseError(f"a restore answered with error={refusal!r:.60}")
        return said


def _pieces(data: BinaryIO | Iterable[bytes], size: int) -> Iterator[bytes]:
    """Cut data into pieces; none is empty, for that would be the end."""
    read = getattr(data, "read", None)
    if read is not None:
        data = iter(lambda: read(size), b"")
    for chunk in data:
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            raise InvalidArgumentError(f"the data is bytes, not {type(chunk).__name__}")
        for start in range(0, len(chunk), size):
            yield bytes(chunk[start : start + size])
