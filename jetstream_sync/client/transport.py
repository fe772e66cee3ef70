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
from ..net.layer import ByteStream
from ..net.tcp import Address, numeric, resolve
from ..options import ConnectionOptions
from ..protocol.parser import Operation, Parser
from ..protocol.session import Handshake, ServerInfo
from .login import Login
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


@dataclass(slots=True, eq=False)
class Transport:
    """A stream after a complete handshake, with the state for reading it."""

    stream: ByteStream
    parser: Parser
    info: ServerInfo
    early: list[Operation]
    """Operations that arrived together with the end of the handshake."""
    address: ServerAddress


class TransportOpener:
    """Opens the transports of a connection."""

    # One thread at a time may use it.

    def __init__(
        self,
        options: ConnectionOptions,
        login: Login,
        wrap: Callable[[ByteStream], ByteStream] | None = None,
    ) -> None:
        # `wrap`: returns the stream to use in place of one.
        self.options = options
        self.login = login
        self.wrap = wrap
        #: Whether a server of this connection used TLS, even if it refused the login.
        self.used_tls = False
        #: Whether the server of the last attempt sent its INFO.
        self.was_greeted: bool = False
        # The time that the pings need to detect a failure, bounded.
        pings = options.ping_interval * (options.max_outstanding_pings + 1)
        self._tcp_timeout = min(max(pings, _MIN_TCP_TIMEOUT_S), _MAX_TCP_TIMEOUT_S)

    @property
    def keeps_tls(self) -> bool:
        """Whether TLS is required, because the connection used it before."""
        return self.used_tls and not self.options.tls_allow_downgrade

    def open(self, address: ServerAddress) -> Transport:
        """Connect to a server and log in."""
        self.was_greeted = False
        if address.tls and self.options.tls is False:
            raise errors.SecureConnectionError(
                f"{address.scheme}:// requires TLS, but tls=False forbids it"
            )
        if self.keeps_tls and address.websocket and not address.tls:
            raise _downgrade("a ws:// address does not use TLS")
        deadline = Deadline(self.options.connect_timeout)
        opening = _Opening(self, self._dial(address, deadline), address, deadline)
        after_fork(opening)
        try:
            return opening.handshake()
        except BaseException as error:
            opening.stream.shutdown()
            opening.stream.close()
            tls_error = opening.tls_error_for(error)
            if tls_error is not None:
                raise tls_error from error
            raise

    def _dial(self, address: ServerAddress, deadline: Deadline) -> ByteStream:
        """Return a stream to a server, by TCP or the user's ``dialer``."""
        options, host, port = self.options, address.host, address.port
        if options.dialer is not None:
            return tcp.dial_with(options.dialer, host, port, deadline, self._tcp_timeout)
        try:
            found = look_up(host, port, deadline, randomize=not options.dont_randomize)
        except UnicodeError as error:
            # An empty or too long label gives no OSError, unlike a name that does not exist.
            raise OSError(errno.EADDRNOTAVAIL, f"host name {host!r} is invalid") from error
        return tcp.dial(found, f"{host}:{port}", deadline, self._tcp_timeout)


class _Opening:
    """A transport being opened: from the TCP connection to the PONG that confirms the login."""

    def __init__(
        self,
        opener: TransportOpener,
        connected: ByteStream,
        address: ServerAddress,
        deadline: Deadline,
    ) -> None:
        self._opener = opener
        self._options = options = opener.options
        # The stream that carries the bytes, and the same stream with the user's wrapper, if any.
        self._carrier = connected
        self.stream = connected
        self._address = address
        self._deadline = deadline
        self._wants_tls = (
            address.tls or options.tls_handshake_first or options.tls not in (None, False)
        )
        self._name = options.tls_hostname or address.tls_name or address.host
        self._secure = False
        # The bytes received before TLS, and whether any were received after it.
        self._greeting = b""
        self._received_secure = False

    def forked(self) -> None:
        """Close the copy of the socket in a forked child; it would keep the parent's connection open."""
        self._carrier.close()

    def handshake(self) -> Transport:
        """Set up TLS and WebSocket as required, and log in."""
        if self._wants_tls and (self._address.websocket or self._options.tls_handshake_first):
            self._start_tls()
        if self._address.websocket:
            self._start_websocket()
        self._wrap_carrier()
        handshake = Handshake(self._connect_fields)
        parser = Parser()
        while True:
            self.stream.set_timeout(self._deadline.left_or_raise())
            data = self.stream.receive()
            if not data:
                raise errors.ConnectionLostError(
                    "the server closed the connection during the handshake"
                )
            if handshake.info is None:
                self._greeting += data
            self._received_secure = self._received_secure or self._secure
            operations = parser.feed(data)
            for position, operation in enumerate(operations):
                if command := handshake.receive(operation):
                    self._send(command)
                if handshake.done and handshake.info is not None:
                    self.stream.set_timeout(None)
                    early = operations[position + 1 :]
                    return Transport(self.stream, parser, handshake.info, early, self._address)

    def _connect_fields(self, info: ServerInfo) -> dict[str, Any]:
        """Secure the connection if the INFO says so, and return the fields of CONNECT."""
        self._opener.was_greeted = True
        if self._must_upgrade(info):
            self._start_tls()
            self._wrap_carrier()
        fields = self._opener.login.connect_fields(self._address, info)
        return {**fields, "tls_required": self._secure}

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
        keeps_tls = self._opener.keeps_tls
        if keeps_tls and not offered:
            raise _downgrade("this server does not offer it")
        if not (self._wants_tls or keeps_tls or info.tls_required):
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
        from ..net.tls import (  # noqa: PLC0415
            TLSStream,
            make_context,
            server_name,
        )

        context = make_context(self._options.tls)
        try:
            stream = TLSStream(self._carrier, context, server_name(self._name))
        except ValueError as error:  # not UTF-8, too long, a dot in front
            raise errors.InvalidOptionError(
                "tls_hostname", self._name, "must be a host name"
            ) from error
        self._secure = True
        stream.handshake(self._deadline)
        self._opener.used_tls = True
        self._carrier = self.stream = stream

    def _start_websocket(self) -> None:
        from ..net.websocket import WebSocketStream  # noqa: PLC0415

        headers = self._options.ws_connection_headers
        stream = WebSocketStream(self._carrier, self._address, headers)
        stream.handshake(self._deadline)
        self._carrier = self.stream = stream
        self._received_secure = True

    def _wrap_carrier(self) -> None:
        """Set the protocol's stream: the current carrier with the user's wrapper, if any."""
        wrap = self._opener.wrap
        self.stream = self._carrier if wrap is None else wrap(self._carrier)

    def tls_error_for(self, error: BaseException) -> errors.SecureConnectionError | None:
        """Return the TLS error that explains ``error``; ``None``: it is not related to TLS."""
        if not self._secure or not isinstance(error, OSError):
            return None
        from ..net.tls import explain  # noqa: PLC0415

        if isinstance(error, _DISCONNECT_ERRORS) and not self._received_secure:
            # With TLS 1.3 the server checks the client certificate after the client's handshake is
            # complete, and may close the connection without an alert.
            return errors.SecureConnectionError(
                "the server closed the connection during or right after the TLS handshake;"
                " it may require another client certificate"
            )
        return explain(error, self._name)

    # --- sending ------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        """Send all of ``data``; it is small, so this rarely waits."""
        rest = memoryview(data)
        while rest:
            sent: list[int] = []
            try:
                self.stream.send(rest, sent)
            except BlockingIOError:
                self.stream.wait_writable(self._deadline.left_or_raise() or 1.0)
            except OSError:
                self._read_final_error()
                raise
            rest = rest[sum(sent) :]

    def _read_final_error(self) -> None:
        """Raise the TLS alert that the server sent before it closed the connection, if any."""
        if self._secure:
            with contextlib.suppress(ConnectionError, TimeoutError):
                self.stream.set_timeout(
                    min(self._deadline.left_or_raise() or _FINAL_ERROR_WAIT_S, _FINAL_ERROR_WAIT_S)
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
