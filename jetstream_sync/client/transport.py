"""Open a transport to one server: dial, secure, handshake, log in."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .. import errors
from ..address import ServerAddress
from ..net import tcp
from ..net.clock import Deadline
from ..net.layer import ByteStream, handshake_left
from ..net.tcp import Address, numeric, resolve
from ..options import ConnectionOptions
from ..protocol.parser import Operation, Parser
from ..protocol.session import Handshake, ServerInfo
from .mailbox import ResultSlot
from .threads import after_fork, spawn

#: Bounds in seconds for the TCP timeout after which the system drops a host that does not answer.
_MIN_TCP_TIMEOUT_S: Final = 10.0
_MAX_TCP_TIMEOUT_S: Final = 60.0
#: Seconds to wait for the error that a server sent before it closed the connection.
_FINAL_ERROR_WAIT_S: Final = 0.2
_MAX_EXCERPT_BYTES: Final = 64

_DISCONNECT_ERRORS: Final = (
    errors.ConnectionLostError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
)


@dataclass(slots=True)
class Transport:
    """A stream after a complete handshake, with the state for reading it."""

    stream: ByteStream
    parser: Parser
    info: ServerInfo
    early: list[Operation]
    """Operations that arrived together with the end of the handshake."""
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
    greeted: Callable[[], None] | None = None,
) -> Transport:
    """Connect to a server and log in."""
    # `greeted` and `secured` are called when the INFO was received, and when TLS is established.
    # `keep_tls`: require TLS, because the connection used it before.
    if address.tls and options.tls is False:
        raise errors.SecureConnectionError(
            f"{address.scheme}:// requires TLS, but tls=False forbids it"
        )
    if keep_tls and address.websocket and not address.tls:
        raise _downgrade("a ws:// address does not use TLS")
    opening = _Opening(_dial(address, options, deadline), address, options, deadline)
    opening.keep_tls = keep_tls
    opening.secured = secured
    opening.greeted = greeted
    after_fork(opening)
    try:
        return opening.handshake(connect_fields, wrap)
    except BaseException as error:
        opening.stream.shutdown()
        opening.stream.close()
        tls_error = opening.tls_error_for(error)
        if tls_error is not None:
            raise tls_error from error
        raise


def _dial(address: ServerAddress, options: ConnectionOptions, deadline: Deadline) -> ByteStream:
    """Return a stream to a server, by TCP or the user's ``dialer``; see `open_transport` for errors."""
    host, port = address.host, address.port
    peer = f"{host}:{port}"
    if options.dialer is not None:
        return tcp.dial_with(options.dialer, host, port, deadline, _tcp_timeout(options))
    try:
        found = look_up(host, port, deadline, randomize=not options.dont_randomize)
    except UnicodeError as error:
        # An empty or too long label gives no OSError, unlike a name that does not exist.
        raise OSError(errno.EADDRNOTAVAIL, f"host name {host!r} is invalid") from error
    return tcp.dial(found, peer, deadline, _tcp_timeout(options))


def _tcp_timeout(options: ConnectionOptions) -> float:
    """Return the TCP timeout in seconds: the time that the pings need to detect a failure, bounded."""
    pings = options.ping_interval * (options.max_outstanding_pings + 1)
    return min(max(pings, _MIN_TCP_TIMEOUT_S), _MAX_TCP_TIMEOUT_S)


class _Opening:
    """A transport being opened: from the TCP connection to the PONG that confirms the login."""

    def __init__(
        self,
        connected: ByteStream,
        address: ServerAddress,
        options: ConnectionOptions,
        deadline: Deadline,
    ) -> None:
        # The stream that carries the bytes, and the same stream with the user's wrapper, if any.
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
        self.greeted: Callable[[], None] | None = None
        self._secure = False
        # The bytes received before TLS, and whether any were received after it.
        self._greeting = b""
        self._received_secure = False

    def forked(self) -> None:
        """Close the copy of the socket in a forked child; it would keep the parent's connection open."""
        self._carrier.close()

    def handshake(
        self,
        connect_fields: Callable[[ServerInfo], dict[str, Any]],
        wrap: Callable[[ByteStream], ByteStream] | None,
    ) -> Transport:
        """Set up TLS and WebSocket as required, and log in."""
        if self._wants_tls and (self._address.websocket or self._options.tls_handshake_first):
            self._start_tls()
        if self._address.websocket:
            self._start_websocket()
        self._wrap_carrier(wrap)

        def fields(info: ServerInfo) -> dict[str, Any]:
            if self.greeted is not None:
                self.greeted()
            if self._must_upgrade(info):
                self._start_tls()
                self._wrap_carrier(wrap)
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

    def _must_upgrade(self, info: ServerInfo) -> bool:
        """Return whether a TLS handshake follows the INFO, as ``checkForSecure`` of nats.go does."""
        if self._secure or self._address.websocket:
            return False
        if info.tls_required and self._options.tls is False:
            raise errors.SecureConnectionError("the server requires TLS, but tls=False forbids it")
        offered = info.tls_required or info.tls_available
        if self._wants_tls and not offered:
            raise errors.SecureConnectionError("TLS is required, but the server does not offer it")
        if self.keep_tls and not offered:
            raise _downgrade("this server does not offer it")
        if not (self._wants_tls or self.keep_tls or info.tls_required):
            return False
        extra = self._greeting.partition(b"\r\n")[2]
        if extra:
            # An attacker in between could have injected it, to be processed as if TLS protected it.
            raise errors.ProtocolError(
                "the server sent more than INFO before TLS", extra[:_MAX_EXCERPT_BYTES]
            )
        return True

    def _start_tls(self) -> None:
        # Imported late: it takes most of the package's import time.
        from ..net.tls import TLSStream  # noqa: PLC0415
        from ..net.trust import make_context, server_name  # noqa: PLC0415

        context = make_context(self._options.tls)
        try:
            stream = TLSStream(self._carrier, context, server_name(self._name))
        except ValueError as error:  # not UTF-8, too long, a dot in front
            raise errors.InvalidOptionError(
                "tls_hostname", self._name, "must be a host name"
            ) from error
        self._secure = True
        stream.handshake(self._deadline)
        if self.secured is not None:
            self.secured()
        self._carrier = self.stream = stream

    def _start_websocket(self) -> None:
        from ..net.websocket import WebSocketStream  # noqa: PLC0415

        headers = self._options.ws_connection_headers
        stream = WebSocketStream(self._carrier, self._address, headers)
        stream.handshake(self._deadline)
        self._carrier = self.stream = stream
        self._received_secure = True

    def _wrap_carrier(self, wrap: Callable[[ByteStream], ByteStream] | None) -> None:
        """Set the protocol's stream: the current carrier with the user's wrapper, if any."""
        self.stream = self._carrier if wrap is None else wrap(self._carrier)

    def tls_error_for(self, error: BaseException) -> errors.SecureConnectionError | None:
        """Return the TLS error that explains ``error``; ``None``: it is not related to TLS."""
        if not self._secure or not isinstance(error, OSError):
            return None
        from ..net.trust import explain  # noqa: PLC0415

        if isinstance(error, _DISCONNECT_ERRORS) and not self._received_secure:
            # With TLS 1.3 the server checks the client certificate after the client's handshake is
            # complete, and may close the connection without an alert.
            return errors.SecureConnectionError(
                "the server closed the connection during or right after the TLS handshake;"
                " it may require another client certificate"
            )
        return explain(error, self._name)

    # --- bytes --------------------------------------------------------------------------------------

    def _receive(self, *, keep: bool) -> bytes:
        """Receive some bytes; ``keep`` them to check for data after INFO."""
        self.stream.set_timeout(handshake_left(self._deadline))
        data = self.stream.receive()
        if not data:
            raise errors.ConnectionLostError(
                "the server closed the connection during the handshake"
            )
        if keep:
            self._greeting += data
        self._received_secure = self._received_secure or self._secure
        return data

    def _send(self, data: bytes) -> None:
        """Send all of ``data``; it is small, so this rarely waits."""
        rest = memoryview(data)
        while rest:
            sent: list[int] = []
            try:
                self.stream.send(rest, sent)
            except BlockingIOError:
                self.stream.wait_writable(handshake_left(self._deadline) or 1.0)
            except OSError:
                self._read_final_error()
                raise
            rest = rest[sum(sent) :]

    def _read_final_error(self) -> None:
        """Raise the TLS alert that the server sent before it closed the connection, if any."""
        if self._secure:
            with contextlib.suppress(ConnectionError, TimeoutError):
                self.stream.set_timeout(
                    min(handshake_left(self._deadline) or _FINAL_ERROR_WAIT_S, _FINAL_ERROR_WAIT_S)
                )
                self.stream.receive()


def _downgrade(why: str) -> errors.SecureConnectionError:
    return errors.SecureConnectionError(
        f"this connection used TLS before, but {why}; the login would be sent unencrypted, "
        "which only tls_allow_downgrade=True permits"
    )


def describe(error: BaseException) -> str:
    """Return the reason why a server could not be reached, for error messages and logs."""
    if isinstance(error, errors.Error):
        return str(error)
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def look_up(host: str, port: int, deadline: Deadline, *, randomize: bool) -> list[Address]:
    """Return the addresses of a host."""
    # The system's resolver has no timeout, so it runs on a separate thread. After the deadline that
    # thread is abandoned, and ends when the resolver returns. An IP address needs no thread.
    addresses = numeric(host, port)
    if addresses:
        return addresses
    slot: ResultSlot[list[Address]] = ResultSlot()

    def ask() -> None:
        try:
            found = resolve(host, port, randomize=randomize)
        except (OSError, UnicodeError) as error:
            slot.fail(error)
        else:
            slot.set(found)

    try:
        spawn(f"lookup-{host}", ask, slot.fail)
    except RuntimeError as error:
        raise OSError(str(error)) from error  # as for a server that is unreachable: tried again
    if not slot.arrived(deadline):
        raise TimeoutError(f"the lookup of {host!r} timed out")
    return slot.result()
