"""
A WebSocket as a `ByteStream` around another one (RFC 6455).

The protocol is that of the ``websockets`` package, in its form without I/O, which is imported when it is
needed. What nats-server expects of a client is in ``server/websocket.go``: binary frames, masked; where
one ends means nothing. Compression is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..address import ServerAddress
from ..errors import (
    ConnectionLostError,
    InvalidOptionError,
    ProtocolError,
    ServerRefusedError,
)
from ..install import install_command
from .clock import Deadline
from .layer import Layer
from .stream import ByteStream

if TYPE_CHECKING:
    from threading import Lock

__all__ = ["WebSocketStream"]

#: The largest frame that is taken. A server sends all that waits in one, up to its ``max_pending``.
_MAX_FRAME: Final = 1024 * 1024 * 1024
_MAX_HEAD: Final = 64 * 1024
_EXCERPT: Final = 64

_NORMAL: Final = 1000


class WebSocketStream(Layer):
    """
    A stream whose bytes travel in frames, once `handshake()` is through.

    Args:
        inner: the stream below, encrypted or not, which belongs to this one from now on.
        address: what to ask the server for.
        headers: HTTP headers to ask with, besides those that are needed; ``None``: none.
        make_lock: makes locks.

    Raises:
        InvalidOptionError: ``websockets`` is not installed, or the address is not one for it.

    """

    def __init__(
        self,
        inner: ByteStream,
        address: ServerAddress,
        headers: Mapping[str, str | Sequence[str]] | None,
        make_lock: Callable[[], Lock],
    ) -> None:
        super().__init__(inner, make_lock)
        try:
            # An extra: most users do without.
            from websockets import frames  # noqa: PLC0415
            from websockets.client import ClientProtocol  # noqa: PLC0415
            from websockets.exceptions import InvalidURI  # noqa: PLC0415
            from websockets.uri import parse_uri  # noqa: PLC0415
        except ImportError as error:
            needed = f"a WebSocket needs more: {install_command('websocket')}"
            raise InvalidOptionError("servers", address.url, needed) from error
        try:
            uri = parse_uri(address.url)
        except InvalidURI as error:
            raise InvalidOptionError("servers", address.url, "is no WebSocket's URL") from error
        self._frames = frames
        self._protocol = ClientProtocol(uri, max_size=_MAX_FRAME)
        # Else it logs the request where that level is on, with the login that may be in the headers.
        self._protocol.debug = False
        request = self._protocol.connect()
        for name, value in (headers or {}).items():
            if name in request.headers:
                del request.headers[name]
            for each in [value] if isinstance(value, str) else value:
                request.headers[name] = each
        self._protocol.send_request(request)

    def handshake(self, deadline: Deadline) -> None:
        """
        Ask the server to speak WebSocket; comes first, and once.

        Args:
            deadline: by when it has to be through.

        Raises:
            ServerRefusedError: it answered something else than 101, which is in the message.
            ProtocolError: it does not speak HTTP, or not WebSocket.
            ConnectionLostError: it hung up.
            OSError: the link broke.
            TimeoutError: the built-in one; the deadline came.

        """
        self._coded = self._protocol.data_to_send()
        self._push(deadline)
        head = b""
        while b"\r\n\r\n" not in head:
            data = self._receive_by(deadline)
            if not data:
                raise ConnectionLostError("the server hung up instead of opening a WebSocket")
            head += data
            _check_head(head)
        _check_status(head)
        self._protocol.receive_data(head)
        if self._protocol.handshake_exc is not None:
            raise ProtocolError(f"no WebSocket was opened: {self._protocol.handshake_exc}")
        self._early = self._decoded()

    def _encode(self, data: memoryview) -> None:
        size = len(data)
        frame = self._frames.Frame(self._frames.Opcode.BINARY, data).serialize(mask=True)
        coded = [*self._coded, frame]
        # One step as to a Ctrl-C: there is no call between the assignments.
        self._coded, self._count = coded, size

    def _decode(self, data: bytes) -> bytes:
        self._protocol.receive_data(data)
        return self._decoded()

    def _decoded(self) -> bytes:
        """Return the contents of the frames that are complete, and put answers in line."""
        # The protocol's empty bytes stand for the end, which the reader of this stream sees to.
        self._coded.extend(filter(None, self._protocol.data_to_send()))
        pieces = []
        for event in self._protocol.events_received():
            if not isinstance(event, self._frames.Frame):
                continue
            if event.opcode in self._frames.DATA_OPCODES:
                pieces.append(event.data)
            elif event.opcode is self._frames.Opcode.CLOSE:
                self._ended = True
        fault = self._protocol.parser_exc
        if fault is not None:
            self._failure = ProtocolError(f"the server broke the rules of WebSocket: {fault}")
            if not pieces:
                raise self._failure
        return b"".join(pieces)

    def _collect(self) -> None:
        """Do nothing: frames are there already."""

    def _farewell(self) -> None:
        goodbye = self._frames.Close(_NORMAL, "").serialize()
        frame = self._frames.Frame(self._frames.Opcode.CLOSE, goodbye).serialize(mask=True)
        self._coded.append(frame)


def _check_head(head: bytes) -> None:
    """Say at once when this will not become the head of an HTTP response."""
    if head[:5] != b"HTTP/"[: len(head)]:
        reason = "the server does not speak HTTP here; it takes WebSockets on a port of their own"
        raise ProtocolError(reason, head[:_EXCERPT])
    if len(head) > _MAX_HEAD and b"\r\n\r\n" not in head:
        raise ProtocolError("the HTTP response has no end", head[:_EXCERPT])


def _check_status(head: bytes) -> None:
    status, _, reason = head.partition(b"\r\n")[0].partition(b" ")[2].partition(b" ")
    if not status.isdigit():
        raise ProtocolError("the server does not speak HTTP here", head[:_EXCERPT])
    if int(status) != 101:
        words = f"{status.decode()} {reason.decode(errors='replace')}".strip()
        raise ServerRefusedError(f"the server opens no WebSocket, but answers HTTP {words}")
