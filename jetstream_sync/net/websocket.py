"""A WebSocket as a `ByteStream` around another one (RFC 6455)."""

# It uses the sans-I/O protocol of the ``websockets`` package, which is imported on demand. The rules of
# nats-server for clients are in its ``server/websocket.go``: binary, masked frames, whose boundaries have
# no meaning. Compression is not offered.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .. import errors
from ..address import ServerAddress
from ..exact import exact
from ..version import install_command
from .clock import Deadline
from .layer import ByteStream, Layer

#: Maximum frame size in bytes before INFO.
_MAX_FIRST_FRAME_BYTES: Final = 1024 * 1024
#: Maximum frame size in bytes after it, besides a message. A server sends all pending data in one frame, up to its
#: ``max_pending``; this is the default.
_MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_EXCERPT_BYTES: Final = 64

#: The close code for a normal closure (RFC 6455).
_NORMAL_CLOSURE: Final = 1000


class WebSocketStream(Layer):
    """A stream whose bytes are sent in WebSocket frames after `handshake()`."""

    def __init__(
        self,
        inner: ByteStream,
        address: ServerAddress,
        headers: Mapping[str, str | Sequence[str]] | None,
    ) -> None:
        super().__init__(inner)
        try:
            # An extra that most users do not install.
            from websockets import frames  # noqa: PLC0415
            from websockets.client import ClientProtocol  # noqa: PLC0415
            from websockets.exceptions import InvalidURI  # noqa: PLC0415
            from websockets.uri import parse_uri  # noqa: PLC0415
        except ImportError as error:
            needed = f"a WebSocket requires the websockets package: {install_command('websocket')}"
            raise errors.InvalidOptionError("servers", address.url, needed) from error
        try:
            uri = parse_uri(address.url)
        except InvalidURI as error:
            raise errors.InvalidOptionError(
                "servers", address.url, "must be a WebSocket URL"
            ) from error
        self._frames = frames
        self._protocol = ClientProtocol(uri, max_size=_MAX_FIRST_FRAME_BYTES)
        # Otherwise it logs the request at DEBUG level, with credentials that may be in the headers.
        self._protocol.debug = False
        request = self._protocol.connect()
        for name, value in (headers or {}).items():
            if name in request.headers:
                del request.headers[name]
            for item in [value] if isinstance(value, str) else value:
                request.headers[exact(name)] = exact(item)
        self._protocol.send_request(request)

    def handshake(self, deadline: Deadline) -> None:
        """
        Do the opening handshake of the WebSocket; must be called first, and once.

        Raises:
            ConnectionLostError: the server closed the connection.
            ServerRefusedError: the server refused the WebSocket.
            ProtocolError: the server does not speak WebSocket on this port.

        """
        self._coded = self._protocol.data_to_send()
        self._push(deadline)
        head = b""
        while b"\r\n\r\n" not in head:
            data = self._receive_by(deadline)
            if not data:
                raise errors.ConnectionLostError(
                    "the server closed the connection during the WebSocket handshake"
                )
            head += data
            _check_head(head)
        _check_status(head)
        self._protocol.receive_data(head)
        if self._protocol.handshake_exc is not None:
            raise errors.ProtocolError(
                f"the WebSocket handshake failed: {self._protocol.handshake_exc}"
            )
        self._early = self._decoded()

    def accept_messages(self, max_payload: int) -> None:
        """Accept the frames of a server with a maximum payload, as its INFO states it."""
        protocol: Any = self._protocol  # the second name is that of older releases
        protocol.max_message_size = protocol.max_size = _MAX_FRAME_BYTES + max_payload

    def _encode(self, data: memoryview) -> None:
        size = len(data)
        frame = self._frames.Frame(self._frames.Opcode.BINARY, data).serialize(mask=True)
        coded = [*self._coded, frame]
        # There is no call between the assignments, so no KeyboardInterrupt separates them.
        self._coded, self._count = coded, size

    def _decode(self, data: bytes) -> bytes:
        self._protocol.receive_data(data)
        return self._decoded()

    def _decoded(self) -> bytes:
        """Return the contents of the complete frames, and queue replies."""
        # The protocol marks the end with empty bytes; the reader of this stream handles the end.
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
            self._failure = errors.ProtocolError(
                f"the server broke the rules of WebSocket: {fault}"
            )
            if not pieces:
                raise self._failure
        return b"".join(pieces)

    def _collect(self) -> None:
        """Do nothing: the frames are in ``_coded`` already."""

    def _encode_close(self) -> None:
        payload = self._frames.Close(_NORMAL_CLOSURE, "").serialize()
        frame = self._frames.Frame(self._frames.Opcode.CLOSE, payload).serialize(mask=True)
        self._coded.append(frame)


def _check_head(head: bytes) -> None:
    """Raise if the bytes cannot be the start of an HTTP response."""
    if head[:5] != b"HTTP/"[: len(head)]:
        reason = "the server does not speak HTTP on this port; use its port for WebSockets"
        raise errors.ProtocolError(reason, head[:_MAX_EXCERPT_BYTES])
    if len(head) > _MAX_HEAD_BYTES and b"\r\n\r\n" not in head:
        raise errors.ProtocolError("the HTTP response has no end", head[:_MAX_EXCERPT_BYTES])


def _check_status(head: bytes) -> None:
    status, _, reason = head.partition(b"\r\n")[0].partition(b" ")[2].partition(b" ")
    if not status.isdigit():
        raise errors.ProtocolError(
            "the server does not speak HTTP on this port", head[:_MAX_EXCERPT_BYTES]
        )
    if int(status) != 101:
        words = f"{status.decode()} {reason.decode(errors='replace')}".strip()
        raise errors.ServerRefusedError(f"the server refused the WebSocket with HTTP {words}")
