"""Open a transport to one server: dial, secure, handshake, log in."""

# The login functions of the options run on the thread that opens the transport: first the one that calls
# ``connect()``, later the reader. No lock is held during the calls. Every failure becomes a
# `CredentialsError`, which counts as a failed attempt.

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import codec, errors
from ..address import Secret, ServerAddress
from ..exact import exact, masked
from ..net import tcp
from ..net.clock import Deadline
from ..net.layer import ByteStream
from ..net.tcp import Address, numeric, resolve
from ..options import ConnectionOptions, FilePath
from ..protocol.auth import (
    BadCredentialsError,
    Credentials,
    Key,
    connect_command,
    find_jwt,
    find_seed,
    read_signature,
)
from ..protocol.parser import PING, Handshake, Operation, Parser, ServerInfo
from ..version import __version__

if TYPE_CHECKING:
    from ..net.websocket import WebSocketStream
from .mailbox import ResultSlot
from .threads import spawn

T = TypeVar("T")

#: Bounds in seconds for the TCP timeout after which the system drops a host that does not answer.
_MIN_TCP_TIMEOUT_S: Final = 10.0
_MAX_TCP_TIMEOUT_S: Final = 60.0
#: Seconds to wait for the error that a server sent before it closed the connection.
_FINAL_ERROR_WAIT_S: Final = 0.2
_MAX_EXCERPT_BYTES: Final = 64
#: Maximum size of a credentials file in bytes; a .creds file has about a thousand.
_MAX_FILE_BYTES: Final = 64 * 1024
#: The protocol level that makes a server send INFO again when the cluster changes.
_PROTOCOL_LEVEL: Final = 1

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
        wrap: Callable[[ByteStream], ByteStream] | None = None,
    ) -> None:
        # `wrap`: returns the stream to use in place of one.
        self.options = options
        self.login: Login = Login(options)
        self.wrap = wrap
        #: Whether a server of this connection used TLS, even if it refused the login.
        self.used_tls = False
        #: Whether the server of the last attempt sent its INFO.
        self.was_greeted: bool = False
        # The time that the pings need to detect a failure, bounded.
        pings = options.ping_interval * (options.max_outstanding_pings + 1)
        self._tcp_timeout = min(max(pings, _MIN_TCP_TIMEOUT_S), _MAX_TCP_TIMEOUT_S)
        self._opening: _Opening | None = None  # the current or last one, unless it failed

    @property
    def keeps_tls(self) -> bool:
        """Whether TLS is required, because the connection used it before."""
        return self.used_tls and not self.options.tls_allow_downgrade

    def open(self, address: ServerAddress, deadline: Deadline) -> Transport:
        """
        Connect to a server and log in.

        Raises:
            SecureConnectionError: one side requires TLS and the other does not offer it, or it failed.
            AuthorizationError: the server refused the login.
            InvalidArgumentError: an option or a credential cannot be used.
            ConnectionClosedError: the server sent another error, broke the protocol, or closed the connection.
            OSError: the server cannot be reached; a `TimeoutError` at the deadline.

        """
        self.was_greeted = False
        if address.tls and self.options.tls is False:
            raise errors.SecureConnectionError(
                f"{address.scheme}:// requires TLS, but tls=False forbids it"
            )
        if self.keeps_tls and address.websocket and not address.tls:
            raise _downgrade("a ws:// address does not use TLS")
        opening = _Opening(self, self._dial(address, deadline), address, deadline)
        self._opening = opening
        try:
            return opening.handshake()
        except BaseException as error:
            self._opening = None
            opening.stream.shutdown()
            opening.stream.close()
            tls_error = opening.tls_error_for(error)
            if tls_error is not None:
                raise tls_error from error
            raise

    def forked(self) -> None:
        """Close the copy of the socket in a forked child; it would keep the parent's connection open."""
        if self._opening is not None:
            self._opening.carrier.close()

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
        self.carrier = connected
        self.stream = connected
        self._websocket: WebSocketStream | None = None
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

    def handshake(self) -> Transport:
        """Set up TLS and WebSocket as required, and log in."""
        if self._wants_tls and (self._address.websocket or self._options.tls_handshake_first):
            self._start_tls()
        if self._address.websocket:
            self._start_websocket()
        self._wrap_carrier()
        handshake = Handshake()
        while not handshake.done:
            self.stream.set_timeout(self._deadline.left_or_raise())
            data = self.stream.receive()
            if not data:
                raise errors.ConnectionLostError(
                    "the server closed the connection during the handshake"
                )
            is_greeting = handshake.info is None
            if is_greeting:
                self._greeting += data
            self._received_secure = self._received_secure or self._secure
            self._send(memoryview(handshake.feed(data)))
            if is_greeting and handshake.info is not None:
                # A view, whose repr does not show the login.
                self._send(memoryview(self._connect(handshake.info) + PING))
                if handshake.left:
                    self._send(memoryview(handshake.feed(b"")))
        assert handshake.info is not None
        early = list(handshake.left)
        return Transport(self.stream, handshake.parser, handshake.info, early, self._address)

    def _connect(self, info: ServerInfo) -> bytes:
        """Secure the connection if the INFO says so, and return CONNECT."""
        self._opener.was_greeted = True
        if self._websocket is not None:
            self._websocket.accept_messages(info.max_payload)
        if self._must_upgrade(info):
            self._start_tls()
            self._wrap_carrier()
        return self._opener.login.command(self._address, info, is_secure=self._secure)

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
            stream = TLSStream(self.carrier, context, server_name(self._name))
        except ValueError as error:  # not UTF-8, too long, a dot in front
            raise errors.InvalidOptionError(
                "tls_hostname", self._name, "must be a host name"
            ) from error
        self._secure = True
        stream.handshake(self._deadline)
        self._opener.used_tls = True
        self.carrier = self.stream = stream

    def _start_websocket(self) -> None:
        from ..net.websocket import WebSocketStream  # noqa: PLC0415

        headers = self._options.ws_connection_headers
        stream = WebSocketStream(self.carrier, self._address, headers)
        stream.handshake(self._deadline)
        self.carrier = self.stream = self._websocket = stream
        self._received_secure = True

    def _wrap_carrier(self) -> None:
        """Set the protocol's stream: the current carrier with the user's wrapper, if any."""
        wrap = self._opener.wrap
        self.stream = self.carrier if wrap is None else wrap(self.carrier)

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

    def _send(self, rest: memoryview) -> None:
        """Send all of ``rest``; it is small, so this rarely waits."""
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
    return f"{type(error).__name__}: {codec.text_of(error)}"


def look_up(host: str, port: int, deadline: Deadline, *, randomize: bool) -> list[Address]:
    """
    Return the addresses of a host.

    Raises:
        TimeoutError: the system did not reply before the deadline.
        OSError: there is no such host, or no thread can be started.
        UnicodeError: the host is not a valid name.

    """
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


# --- the login ----------------------------------------------------------------------------------


class Login:
    """The CONNECT command of a connection: who the client is, and its credentials."""

    # One thread at a time may use it. The login functions of the options run on that thread.

    def __init__(self, options: ConnectionOptions) -> None:
        options.check_secrets()
        self._options = options
        self._identity: dict[str, Any] = {
            "lang": "python-sync",
            "version": __version__,
            "protocol": _PROTOCOL_LEVEL,
            "verbose": options.verbose,
            "pedantic": options.pedantic,
            "echo": not options.no_echo,
        }
        if options.name:
            self._identity["name"] = options.name
        self._opener = threading.get_ident()

    def command(self, address: ServerAddress, info: ServerInfo, *, is_secure: bool) -> bytes:
        """Return CONNECT for a server; the credentials are read again each time."""
        credentials = self.credentials(address, info)
        return connect_command(self._identity, info, credentials, is_secure=is_secure)

    def credentials(self, address: ServerAddress, info: ServerInfo) -> Credentials:
        """Return the credentials for a server."""
        # In both, passwords and tokens may be functions.
        given = address if address.user is not None or address.token is not None else self._options
        user = self._resolve_secret("user", given.user)
        password = self._resolve_secret("password", given.password)
        token = self._resolve_secret("token", given.token)
        key = Credentials() if given is address else self._by_key(info.nonce)
        return replace(key, user=user, password=password, token=token)

    # --- the ways to log in ---------------------------------------------------------------------

    def _by_key(self, nonce: str) -> Credentials:
        options = self._options
        if options.user_credentials is not None:
            return self._by_creds(options.user_credentials, nonce)
        if options.nkeys_seed is not None or options.nkeys_seed_str is not None:
            return self._by_seed(nonce)
        if options.nkey is not None or options.user_jwt_cb is not None:
            return self._by_functions(nonce)
        return Credentials()

    def _by_creds(
        self, given: FilePath | tuple[FilePath, FilePath] | Callable[[], str | bytes], nonce: str
    ) -> Credentials:
        option = "user_credentials"
        if callable(given):
            jwt_source = seed_source = "..."
            content = seed_content = _as_bytes(option, self._call_user(option, given))
        else:
            files = given if isinstance(given, tuple) else (given, given)
            jwt_source, seed_source = exact(os.fspath(files[0])), exact(os.fspath(files[1]))
            content = _read(option, jwt_source)
            seed_content = content if seed_source == jwt_source else _read(option, seed_source)
        jwt = _checked(option, jwt_source, lambda: find_jwt(content))
        seed = _checked(option, seed_source, lambda: find_seed(seed_content))
        for item in (content, seed_content):
            item[:] = bytes(len(item))
        _, signature = _signed(option, seed_source, seed, nonce)
        return Credentials(jwt=jwt, signature=signature)

    def _by_seed(self, nonce: str) -> Credentials:
        path = self._options.nkeys_seed
        if path is not None:
            option, source = "nkeys_seed", exact(os.fspath(path))
            content = _read(option, source)
        else:
            option, source = "nkeys_seed_str", "..."
            given = self._resolve_secret(option, self._options.nkeys_seed_str)
            content = _as_bytes(option, given or "")
        seed = _checked(option, source, lambda: find_seed(content))
        content[:] = bytes(len(content))
        public, signature = _signed(option, source, seed, nonce)
        return Credentials(nkey=public, signature=signature)

    def _by_functions(self, nonce: str) -> Credentials:
        options = self._options
        jwt = signature = None
        if options.user_jwt_cb is not None:
            option = "user_jwt_cb"
            content = _as_bytes(option, self._call_user(option, options.user_jwt_cb))
            jwt = _checked(option, "...", lambda: find_jwt(content))
        sign = options.signature_cb
        # A server that sends no nonce requires no signature.
        if sign is not None and nonce:
            option = "signature_cb"
            signature = _checked(
                option,
                "...",
                lambda: read_signature(self._call_user(option, lambda: sign(nonce))),
            )
        return Credentials(jwt=jwt, nkey=options.nkey, signature=signature)

    # --- user functions -------------------------------------------------------------------------

    def _resolve_secret(self, option: str, secret: Secret | None) -> str | None:
        if not callable(secret):
            return secret
        text = masked(self._call_user(option, secret))
        if not isinstance(text, str):
            raise errors.CredentialsError(option, "...", "the function did not return a str")
        return text

    def _call_user(self, option: str, function: Callable[[], T]) -> T:
        """Call a user's function, which may raise any exception."""
        try:
            return function()
        except errors.CredentialsError:
            raise  # of a context
        except BaseException as error:
            # SystemExit and KeyboardInterrupt may only reach the thread that called connect().
            if not isinstance(error, Exception) and threading.get_ident() == self._opener:
                raise
            raise errors.CredentialsError(
                option, "...", f"the function raised {type(error).__name__}"
            ) from error


# Contents are views of a bytearray: a view can be wiped, and its ``repr`` does not show them.


def _as_bytes(option: str, content: object) -> memoryview:
    if isinstance(content, str):
        return memoryview(bytearray(content.encode("utf-8", "replace")))
    if isinstance(content, (bytes, bytearray)):
        return memoryview(bytearray(content))
    raise errors.CredentialsError(option, "...", "the function did not return a str or bytes")


def _read(option: str, path: str) -> memoryview:
    try:
        with open(os.path.expanduser(path), "rb", buffering=0) as file:  # noqa: PTH111, PTH123
            content = memoryview(bytearray(file.read(_MAX_FILE_BYTES + 1)))
    except OSError as error:
        raise errors.CredentialsError(
            option, path, f"it cannot be read: {error.strerror or type(error).__name__}"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise errors.CredentialsError(
            option, path, f"it is not a credentials file: larger than {_MAX_FILE_BYTES} bytes"
        )
    return content


def _checked(option: str, source: str, look: Callable[[], T]) -> T:
    """Call a function that parses credentials; name the option and the source if it fails."""
    try:
        return look()
    except BadCredentialsError as error:
        reason = str(error)
    # Outside of the except block: the frames of the first error show the credentials.
    raise errors.CredentialsError(option, source, reason)


def _signed(option: str, source: str, seed: memoryview, nonce: str) -> tuple[str, str | None]:
    """Return the public key, and the signature if the server requires one."""
    key = _checked(option, source, lambda: Key(seed))
    try:
        return key.public, key.sign(nonce) if nonce else None
    finally:
        key.wipe()
