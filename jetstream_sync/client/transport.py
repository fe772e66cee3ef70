"""Open one link to one server: dial, handshake, log in."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..address import ServerAddress
from ..errors import (
    ConnectionLostError,
    Error,
    InvalidOptionError,
    ProtocolError,
    SecureConnectionError,
)
from ..net import tcp
from ..net.clock import Deadline
from ..net.stream import ByteStream
from ..options import ConnectionOptions
from ..protocol.parser import Operation, Parser
from ..protocol.session import Handshake, ServerInfo
from .lookup import look_up
from .threads import after_fork

__all__ = ["Transport", "describe", "open_transport"]

#: Seconds after which the system gives a silent host up, where the pings would do so sooner or later.
_SHORTEST_PATIENCE: Final = 10.0
_LONGEST_PATIENCE: Final = 60.0
#: Seconds to wait for what a server said before it hung up.
_FINAL_ERROR_WAIT_S: Final = 0.2
_EXCERPT: Final = 64

_DISCONNECT_ERRNOS: Final = (
    ConnectionLostError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
)


@dataclass(slots=True)
class Transport:
    """A stream on which the handshake is through, and what is needed to go on reading it."""

    stream: ByteStream
    parser: Parser
    info: ServerInfo
    early: list[Operation]
    """Operations that came right behind the handshake."""
    address: ServerAddress


def open_transport(
    address: ServerAddress,
    options: ConnectionOptions,
    connect_fields: Callable[[ServerInfo], dict[str, Any]],
    deadline: Deadline,
    wrap: Callable[[ByteStream], ByteStream] | None = None,
    *,
    keep_tls: bool = False,
    secured: Callable[[], None] | None = None,
) -> Transport:
    """
    Connect to a server and log in.

    Args:
        address: the server.
        options: how to get there.
        connect_fields: returns the fields of CONNECT for a server's INFO.
        deadline: by when all of it has to be done: name, TCP, TLS, INFO, CONNECT, PONG.
        wrap: put around every stream on which the protocol is spoken in the clear; ``None``: nothing.
        keep_tls: require TLS, because the connection used it before.
        secured: called after a TLS handshake, before anything is sent on it; ``None``: nothing.

    Raises:
        AuthorizationError: the server refused the login.
        ProtocolError: what is there does not speak NATS.
        CertificateError: the server's certificate is not to be trusted.
        SecureConnectionError: one side wants TLS, and the other can not; or the server did not accept
            this client's certificate.
        ServerRefusedError: the server refused for another reason.
        ConnectionLostError: the server hung up.
        InvalidOptionError: a file of `TLSOptions` is not what it should be, or a package is missing; or
            the ``dialer`` did not do what it should.
        OSError: it can not be reached.
        TimeoutError: the built-in one; the deadline came.

    """
    if address.tls and options.tls is False:
        raise SecureConnectionError(f"{address.scheme}:// asks for TLS, and tls=False forbids it")
    if keep_tls and address.websocket and not address.tls:
        raise _downgrade("a ws:// address has none")
    opening = _Opening(_dial(address, options, deadline), address, options, deadline)
    opening.keep_tls = keep_tls
    opening.secured = secured
    after_fork(opening)
    try:
        return opening.shake_hands(connect_fields, wrap)
    except BaseException as error:
        opening.stream.shutdown()
        opening.stream.close()
        explained = opening.explained(error)
        if explained is not None:
            raise explained from error
        raise


def _dial(address: ServerAddress, options: ConnectionOptions, deadline: Deadline) -> ByteStream:
    """Return a stream to a server, by TCP or by the user's ``dialer``; for errors see `open_link`."""
    host, port = address.host, address.port
    peer = f"{host}:{port}"
    if options.dialer is not None:
        return tcp.dial_with(options.dialer, host, port, deadline, _patience(options))
    try:
        found = look_up(host, port, deadline, randomize=not options.dont_randomize)
    except UnicodeError as error:
        # An empty label or a long one; it is no OSError, unlike a name that does not exist.
        raise OSError(errno.EADDRNOTAVAIL, f"{host!r} is no host name") from error
    return tcp.dial(found, peer, deadline, _patience(options))


def _patience(options: ConnectionOptions) -> float:
    """Return the seconds after which the system gives a silent host up: as the pings do, with limits."""
    pings = options.ping_interval * (options.max_outstanding_pings + 1)
    return min(max(pings, _SHORTEST_PATIENCE), _LONGEST_PATIENCE)


class _Opening:
    """A link on its way: from a TCP connection to the PONG that says that the login was accepted."""

    def __init__(
        self,
        connected: ByteStream,
        address: ServerAddress,
        options: ConnectionOptions,
        deadline: Deadline,
    ) -> None:
        # What the bytes travel on, and what the protocol is spoken on: the same, or a wrapping of it.
        self._carrier = connected
        self.stream = connected
        self._address = address
        self._options = options
        self._deadline = deadline
        self._wants_tls = (
            address.tls or options.tls_handshake_first or options.tls not in (None, False)
        )
        self._name = options.tls_hostname or address.tls_name or address.host
        self.keep_tls = False
        self.secured: Callable[[], None] | None = None
        self._secure = False
        # What came before TLS, and whether something came since.
        self._greeting = b""
        self._heard = False

    def forked(self) -> None:
        """Close the copy of the socket in a forked child, which would hold the parent's link open."""
        self._carrier.close()

    def shake_hands(
        self,
        connect_fields: Callable[[ServerInfo], dict[str, Any]],
        wrap: Callable[[ByteStream], ByteStream] | None,
    ) -> Transport:
        """Make the stream what it has to be, and log in."""
        if self._wants_tls and (self._address.websocket or self._options.tls_handshake_first):
            self._start_tls()
        if self._address.websocket:
            self._start_websocket()
        self._speak(wrap)

        def fields(info: ServerInfo) -> dict[str, Any]:
            if self._has_to_upgrade(info):
                self._start_tls()
                self._speak(wrap)
            return {**connect_fields(info), "tls_required": self._secure}

        handshake = Handshake(fields)
        parser = Parser()
        while True:
            operations = parser.feed(self._receive(keep=handshake.info is None))
            for position, operation in enumerate(operations):
                self._send(handshake.receive(operation))
                if handshake.done and handshake.info is not None:
                    self.stream.set_timeout(None)
                    early = operations[position + 1 :]
                    return Transport(self.stream, parser, handshake.info, early, self._address)

    # --- TLS and WebSocket --------------------------------------------------------------------------

    def _has_to_upgrade(self, info: ServerInfo) -> bool:
        """
        Say whether the server's INFO is followed by TLS, as ``checkForSecure`` of nats.go does.

        Raises:
            SecureConnectionError: one side insists, and the other does not want.
            ProtocolError: the server said more in the clear than INFO.

        """
        if self._secure or self._address.websocket:
            return False
        if info.tls_required and self._options.tls is False:
            raise SecureConnectionError("the server requires TLS, and tls=False forbids it")
        offered = info.tls_required or info.tls_available
        if self._wants_tls and not offered:
            raise SecureConnectionError("TLS was asked for, and the server does not offer it")
        if self.keep_tls and not offered:
            raise _downgrade("this server does not offer it")
        if not (self._wants_tls or self.keep_tls or info.tls_required):
            return False
        behind = self._greeting.partition(b"\r\n")[2]
        if behind:
            # Somebody in between could have put it there, to be taken for what TLS protects.
            raise ProtocolError("the server said more than INFO before TLS", behind[:_EXCERPT])
        return True

    def _start_tls(self) -> None:
        # Imported late: most of what importing the package would take is for it.
        from ..net.tls import TLSStream  # noqa: PLC0415
        from ..net.trust import make_context, server_name  # noqa: PLC0415

        context = make_context(self._options.tls)
        try:
            stream = TLSStream(self._carrier, context, server_name(self._name), threading.Lock)
        except ValueError as error:  # not UTF-8, too long, a dot in front
            raise InvalidOptionError("tls_hostname", self._name, "is no host name") from error
        self._secure = True
        stream.handshake(self._deadline)
        if self.secured is not None:
            self.secured()
        self._carrier = self.stream = stream

    def _start_websocket(self) -> None:
        from ..net.websocket import WebSocketStream  # noqa: PLC0415

        headers = self._options.ws_connection_headers
        stream = WebSocketStream(self._carrier, self._address, headers, threading.Lock)
        stream.handshake(self._deadline)
        self._carrier = self.stream = stream
        self._heard = True

    def _speak(self, wrap: Callable[[ByteStream], ByteStream] | None) -> None:
        """Have the protocol spoken on what carries the bytes now."""
        self.stream = self._carrier if wrap is None else wrap(self._carrier)

    def explained(self, error: BaseException) -> SecureConnectionError | None:
        """Return what an error has to do with TLS; ``None``: nothing."""
        if not self._secure or not isinstance(error, OSError):
            return None
        from ..net.trust import explain  # noqa: PLC0415

        if isinstance(error, _DISCONNECT_ERRNOS) and not self._heard:
            # A server with TLS 1.3 looks at our certificate when we are through, and may just go.
            return SecureConnectionError(
                "the server hung up in the TLS handshake or right behind it;"
                " it may want another client certificate"
            )
        return explain(error, self._name)

    # --- bytes --------------------------------------------------------------------------------------

    def _receive(self, *, keep: bool) -> bytes:
        """Receive something; ``keep`` it for a look at what came with INFO."""
        self.stream.set_timeout(_left(self._deadline))
        data = self.stream.receive()
        if not data:
            raise ConnectionLostError("the server closed the connection during the handshake")
        if keep:
            self._greeting += data
        self._heard = self._heard or self._secure
        return data

    def _send(self, data: bytes) -> None:
        """Send all of ``data``, which is small, so this rarely has to wait."""
        rest = memoryview(data)
        while rest:
            sent: list[int] = []
            try:
                self.stream.send(rest, sent)
            except BlockingIOError:
                self.stream.wait_writable(_left(self._deadline) or 1.0)
            except OSError:
                self._read_final_error()
                raise
            rest = rest[sum(sent) :]

    def _read_final_error(self) -> None:
        """Raise what TLS has to say where the server hung up before it heard us."""
        if self._secure:
            with contextlib.suppress(ConnectionError, TimeoutError):
                self.stream.set_timeout(
                    min(_left(self._deadline) or _FINAL_ERROR_WAIT_S, _FINAL_ERROR_WAIT_S)
                )
                self.stream.receive()


def _downgrade(why: str) -> SecureConnectionError:
    return SecureConnectionError(
        f"this connection used TLS before, and {why}; the login would go out in the clear, "
        "which only tls_allow_downgrade=True permits"
    )


def _left(deadline: Deadline) -> float | None:
    left = deadline.left()
    if left is not None and left <= 0:
        raise TimeoutError("the handshake took too long")
    return left


def describe(error: BaseException) -> str:
    """Return why a server could not be reached, in words for a person."""
    if isinstance(error, Error):
        return str(error)
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
