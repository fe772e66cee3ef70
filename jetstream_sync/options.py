"""
How to connect: a frozen record, checked at the door.

The names and defaults are those that users of nats-py know.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypedDict

from .address import Secret, ServerAddress, left_out, missing_secret
from .errors import BadSubjectError, InvalidOptionError
from .events import ConnectionEvent
from .subjects import check_publish_subject
from .suggestions import closest_match

if TYPE_CHECKING:
    from socket import socket
    from ssl import SSLContext

__all__ = [
    "ConnectOptions",
    "ConnectionOptions",
    "Dialer",
    "ErrorCallback",
    "EventCallback",
    "FilePath",
    "Secret",
    "TLSOptions",
]

#: Called with what went wrong.
ErrorCallback = Callable[[Exception], object]
#: Called when something happened to the connection. One that needs an argument gets the event.
EventCallback = Callable[[], object] | Callable[[ConnectionEvent], object]
FilePath = str | os.PathLike[str]
#: Called with a host, a port and a time in seconds, returns a connected socket.
Dialer = Callable[[str, int, float], "socket"]

DEFAULT_PENDING_MSGS_LIMIT: Final = 512 * 1024
DEFAULT_PENDING_BYTES_LIMIT: Final = 128 * 1024 * 1024

# Locks take no more than this many seconds, about 292 years.
_LONGEST: Final = 9e9

_TEXTS: Final = ("name", "nkey", "tls_hostname")
_SECRETS: Final = ("user", "password", "token", "nkeys_seed_str")
#: What a pickle leaves out where it is no function. Headers have logins of proxies in them.
_LEFT_OUT: Final = ("password", "token", "nkeys_seed_str", "ws_connection_headers")
#: Ways to log in, of each kind one: by words and by a key, which an auth callout may want together.
_LOGINS: Final = (
    ("user", "token"),
    ("user_credentials", "nkeys_seed", "nkeys_seed_str", "nkey", "user_jwt_cb"),
)
_BREAK: Final = frozenset("\r\n\0")
# The seed of an nkey, or a JWT: given as a path by mistake, it must not be repeated as one.
_NO_PATH: Final = r"\s*(S[A-Z][A-Z2-7]{50,}\s*$|eyJ[\w-]+\.)"
_SWITCHES: Final = (
    "allow_reconnect",
    "dont_randomize",
    "fail_requests_on_disconnect",
    "ignore_auth_error_abort",
    "ignore_discovered_servers",
    "no_echo",
    "pedantic",
    "retry_on_failed_connect",
    "tls_allow_downgrade",
    "tls_handshake_first",
    "verbose",
)
_CALLBACKS: Final = (
    "user_jwt_cb",
    "signature_cb",
    "reconnect_delay_cb",
    "dialer",
    "trace_cb",
    "error_cb",
    "disconnected_cb",
    "reconnected_cb",
    "closed_cb",
    "discovered_server_cb",
    "lame_duck_mode_cb",
)


@dataclass(frozen=True, kw_only=True)
class TLSOptions:
    """
    How to speak TLS; unlike an `ssl.SSLContext` it can be pickled and sent to other processes.

    The files are read when a connection is opened. A ``key_password`` that is no function is not
    pickled: see `ConnectionOptions`.
    """

    ca_file: FilePath | None = None
    """Certificates to trust, in PEM format; ``None``: those that the system trusts."""
    cert_file: FilePath | None = None
    """This client's own certificate, in PEM format, for servers that verify clients; ``None``: none."""
    key_file: FilePath | None = None
    """The key of ``cert_file``; ``None``: it is in the same file."""
    key_password: Secret | None = field(default=None, repr=False)
    """What the key is encrypted with; ``None``: it is not encrypted."""

    def __post_init__(self) -> None:
        if self.cert_file is None and self.key_file is not None:
            raise InvalidOptionError("key_file", self.key_file, "a key needs a cert_file")
        if self.key_file is None and self.cert_file is None and self.key_password is not None:
            raise InvalidOptionError("key_password", "...", "a key_password needs a cert_file")

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), _without_secrets(self, ("key_password",)))

    def __copy__(self) -> TLSOptions:
        return self

    def __deepcopy__(self, memo: object) -> TLSOptions:
        return self


class ConnectOptions(TypedDict, total=False):
    """What `connect()` takes by name; all may be left out. Times are seconds or a `timedelta`."""

    name: str
    """What the server calls this connection in its lists and logs."""
    user: Secret
    """The user to log in as; a login in a server's URL comes first. This and the other secrets may be
    a function, which is called at every connect and reconnect."""
    password: Secret
    """The user's password."""
    token: Secret
    """A token to log in with, instead of a user."""
    user_credentials: FilePath | tuple[FilePath, FilePath] | Callable[[], str | bytes]
    """A ``.creds`` file, or a file with a JWT and one with the seed of its nkey, or a function that
    returns what is in a ``.creds`` file; read or called again at every connect and reconnect. This and
    the next two need the ``nkeys`` extra."""
    nkeys_seed: FilePath
    """A file with the seed of an nkey; read again at every connect and reconnect."""
    nkeys_seed_str: Secret
    """The seed of an nkey."""
    nkey: str
    """The public part of an nkey whose seed only the ``signature_cb`` knows."""
    user_jwt_cb: Callable[[], str | bytes]
    """Returns the user's JWT; it needs a ``signature_cb``, unless the JWT is a bearer token. Called at
    every connect and reconnect."""
    signature_cb: Callable[[str], str | bytes]
    """Signs what the server sent: it gets the nonce, as text, and returns the signature in base64 (or
    its 64 bytes as they are). Called where the server sent a nonce."""
    tls: bool | SSLContext | TLSOptions
    """Whether to insist on TLS, and how; default: as the server wants it, checked against the
    certificates that the system trusts."""
    tls_hostname: str
    """Whom the server's certificate has to name; default: the host of its URL."""
    tls_handshake_first: bool
    """Begin with TLS instead of waiting for the server to ask for it; default false."""
    tls_allow_downgrade: bool
    """Use a server without TLS after another server of this connection had it; default false: once a
    connection used TLS, every later server has to offer it. For connections without ``tls``."""
    ws_connection_headers: Mapping[str, str | Sequence[str]]
    """HTTP headers for the request that opens a WebSocket, such as a proxy's login."""
    connect_timeout: float | timedelta
    """How long one server may take for TCP, handshake and login; default 2."""
    dialer: Dialer
    """Called with the host, the port and the seconds that are left of ``connect_timeout``, at each connect
    and reconnect; returns a connected, plain socket, which belongs to the connection from then on. It is
    for proxies and for servers in the same process; TLS and WebSocket are spoken on top of it. It
    looks names up itself, and an `OSError` that it raises means that the server can not be reached.
    Default: TCP."""
    allow_reconnect: bool
    """Whether another link is sought when one breaks; default true."""
    retry_on_failed_connect: bool
    """Have `connect()` return at once when no server can be reached, and go on trying in the background
    as a reconnect would; default false."""
    max_reconnect_attempts: int
    """Failures in a row after which a server is given up; -1: never; default 60."""
    reconnect_time_wait: float | timedelta
    """The wait between two walks through the servers; default 2. With 0 they are 10 to 50 milliseconds
    apart, and ``max_reconnect_attempts`` are soon over."""
    reconnect_jitter: float | timedelta
    """What is added to this wait at most, by chance, so that the clients of a restarted server do not
    all come at once; default 0.1, with TLS 1. With ``reconnect_time_wait=0`` nothing is added."""
    reconnect_delay_cb: Callable[[int], float | timedelta]
    """Called with the number of walks through the servers since the link broke, returns the time
    to wait before the next one, instead of ``reconnect_time_wait`` and its jitter."""
    ignore_auth_error_abort: bool
    """Go on trying a server that refused the login twice with the same error; default false."""
    ignore_discovered_servers: bool
    """Use only the servers that were named, not those that a cluster tells of; default false."""
    fail_requests_on_disconnect: bool
    """Fail requests with `ConnectionLostError` as soon as the link breaks, rather than have them wait
    for an answer on the next one until their time is up; default false."""
    ping_interval: float | timedelta
    """The time between two pings; default 120."""
    max_outstanding_pings: int
    """Unanswered pings after which a link is given up; default 2."""
    dont_randomize: bool
    """Try the servers in the order in which they are given; default false."""
    no_echo: bool
    """Do not receive what this connection publishes itself; default false."""
    verbose: bool
    """Have the server confirm each command; default false."""
    pedantic: bool
    """Have the server check more strictly; default false."""
    inbox_prefix: str
    """Where answers go; default ``_INBOX``."""
    drain_timeout: float | timedelta
    """How long draining may take; default 30."""
    pending_size: int
    """Bytes that are kept while there is no link; default 2 MiB."""
    error_cb: ErrorCallback
    """Called with each error that no call can raise; default: it is logged. Callbacks run one after
    the other on a thread of their own. Those below that need an argument get a `ConnectionEvent`."""
    disconnected_cb: EventCallback
    """Called when the link broke."""
    reconnected_cb: EventCallback
    """Called when there is a new link; also the first one with ``retry_on_failed_connect``."""
    closed_cb: EventCallback
    """Called when the connection is closed; `Connection.close` and `Connection.drain` return after it."""
    discovered_server_cb: EventCallback
    """Called when the cluster told of a server that was not known."""
    lame_duck_mode_cb: EventCallback
    """Called when the server says that it will stop soon."""
    trace_cb: Callable[[str], object]
    """Called with each line of the protocol, on a thread of its own, secrets masked: after ``>`` what is
    sent, after ``<`` what is received; default: nothing is traced, which costs nothing."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """
    Everything that makes a connection, checked: see `ConnectOptions` for what each means.

    It can be pickled where its callbacks can be imported, but secrets stay behind: a password, token or
    seed that was given as it is, in an option or in a URL, is replaced by `left_out`, and to connect with
    that is an `InvalidOptionError`. Paths go along, and so do functions that can be imported.
    """

    servers: tuple[ServerAddress, ...]
    name: str | None = None
    user: Secret | None = field(default=None, repr=False)
    password: Secret | None = field(default=None, repr=False)
    token: Secret | None = field(default=None, repr=False)
    user_credentials: FilePath | tuple[FilePath, FilePath] | Callable[[], str | bytes] | None = (
        field(default=None, repr=False)
    )
    nkeys_seed: FilePath | None = None
    nkeys_seed_str: Secret | None = field(default=None, repr=False)
    nkey: str | None = None
    user_jwt_cb: Callable[[], str | bytes] | None = field(default=None, repr=False)
    signature_cb: Callable[[str], str | bytes] | None = field(default=None, repr=False)
    tls: bool | SSLContext | TLSOptions | None = None
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    tls_allow_downgrade: bool = False
    ws_connection_headers: Mapping[str, str | Sequence[str]] | None = field(
        default=None, repr=False
    )
    connect_timeout: float = 2.0
    dialer: Dialer | None = field(default=None, repr=False)
    allow_reconnect: bool = True
    retry_on_failed_connect: bool = False
    max_reconnect_attempts: int = 60
    reconnect_time_wait: float = 2.0
    reconnect_jitter: float | None = None
    reconnect_delay_cb: Callable[[int], float | timedelta] | None = field(default=None, repr=False)
    ignore_auth_error_abort: bool = False
    ignore_discovered_servers: bool = False
    fail_requests_on_disconnect: bool = False
    ping_interval: float = 120.0
    max_outstanding_pings: int = 2
    dont_randomize: bool = False
    no_echo: bool = False
    verbose: bool = False
    pedantic: bool = False
    inbox_prefix: str = "_INBOX"
    drain_timeout: float = 30.0
    pending_size: int = 2 * 1024 * 1024
    error_cb: ErrorCallback | None = field(default=None, repr=False)
    disconnected_cb: EventCallback | None = field(default=None, repr=False)
    reconnected_cb: EventCallback | None = field(default=None, repr=False)
    closed_cb: EventCallback | None = field(default=None, repr=False)
    discovered_server_cb: EventCallback | None = field(default=None, repr=False)
    lame_duck_mode_cb: EventCallback | None = field(default=None, repr=False)
    trace_cb: Callable[[str], object] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, servers: tuple[ServerAddress, ...], options: Mapping[str, Any]
    ) -> ConnectionOptions:
        """
        Make the options of what a user passed by name.

        Raises:
            InvalidOptionError: a name is not known, or a value is out of range.

        """
        known = [each.name for each in fields(cls) if each.name != "servers"]
        for name in options:
            if name not in known:
                close = closest_match(name, known)
                hint = f"; did you mean {close}?" if close else ""
                # The value is not repeated: it may be a secret under a name with a slip.
                raise InvalidOptionError(name, "...", f"there is no such option{hint}")
        return cls(servers=servers, **options)

    def __post_init__(self) -> None:
        for option in _TEXTS:
            if not isinstance(getattr(self, option), (str, type(None))):
                raise InvalidOptionError(option, "...", "must be a str")
        for option in _SECRETS:
            value = getattr(self, option)
            if callable(value):
                check_callback(option, value)
            elif not isinstance(value, (str, type(None))):
                raise InvalidOptionError(option, "...", "must be a str or a function")
        for option in _SWITCHES:
            if not isinstance(getattr(self, option), bool):
                raise InvalidOptionError(option, getattr(self, option), "must be true or false")
        for option in _CALLBACKS:
            if getattr(self, option) is not None:
                check_callback(option, getattr(self, option))
        for option in ("connect_timeout", "ping_interval", "drain_timeout"):
            if self._in_seconds(option) <= 0:
                raise InvalidOptionError(option, getattr(self, option), "must be above 0")
        for option in ("reconnect_time_wait", "reconnect_jitter"):
            if option == "reconnect_jitter" and self.reconnect_jitter is None:
                continue
            if self._in_seconds(option) < 0:
                raise InvalidOptionError(option, getattr(self, option), "must be 0 or above")
        _at_least("max_outstanding_pings", self.max_outstanding_pings, 1)
        _at_least("pending_size", self.pending_size, 0)
        _at_least("max_reconnect_attempts", self.max_reconnect_attempts, -1)
        try:
            check_publish_subject(self.inbox_prefix)
        except BadSubjectError as error:
            raise InvalidOptionError("inbox_prefix", self.inbox_prefix, error.reason) from None
        self._check_login()
        self._check_secure()

    def must_have_secrets(self) -> None:
        """
        Refuse options that were pickled and lost a secret by that.

        Raises:
            InvalidOptionError: one was left out; it says which.

        """
        for option in _LEFT_OUT:
            if getattr(self, option) is left_out:
                raise missing_secret(option)
        if isinstance(self.tls, TLSOptions) and self.tls.key_password is left_out:
            raise missing_secret("key_password")
        if any(left_out in (address.password, address.token) for address in self.servers):
            raise missing_secret("servers")

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), _without_secrets(self, _LEFT_OUT))

    def __copy__(self) -> ConnectionOptions:
        return self

    def __deepcopy__(self, memo: object) -> ConnectionOptions:
        return self

    def _check_login(self) -> None:
        for ways in _LOGINS:
            given = [option for option in ways if getattr(self, option) is not None]
            if len(given) > 1:
                raise InvalidOptionError(given[1], "...", f"excludes {given[0]}: log in in one way")
        if self.password is not None and self.user is None:
            raise InvalidOptionError("password", "...", "a password needs a user")
        if self.nkey is not None and not self.nkey.startswith("U"):
            raise InvalidOptionError("nkey", "...", "the public part of a user's nkey is U...")
        if self.nkey is not None and self.signature_cb is None:
            raise InvalidOptionError("nkey", self.nkey, "needs a signature_cb, which signs for it")
        if self.signature_cb is not None and self.nkey is None and self.user_jwt_cb is None:
            raise InvalidOptionError("signature_cb", "...", "needs an nkey or a user_jwt_cb")
        credentials = self.user_credentials
        if callable(credentials):
            check_callback("user_credentials", credentials)
        elif isinstance(credentials, tuple):
            if len(credentials) != 2 or not all(map(_is_path, credentials)):
                raise InvalidOptionError("user_credentials", "...", "a pair is two paths")
        elif credentials is not None and not _is_path(credentials):
            raise InvalidOptionError(
                "user_credentials", "...", "must be a path, or a function that returns the content"
            )
        if self.nkeys_seed is not None and not _is_path(self.nkeys_seed):
            raise InvalidOptionError(
                "nkeys_seed", "...", "must be a path; the seed itself is for nkeys_seed_str"
            )

    def _check_secure(self) -> None:
        tls = self.tls
        # An SSLContext is known by what is done with it: nothing here opens or imports anything.
        if not isinstance(tls, (bool, TLSOptions, type(None))) and not hasattr(tls, "wrap_bio"):
            raise InvalidOptionError("tls", "...", "must be a bool, an SSLContext or TLSOptions")
        if tls is False and self.tls_handshake_first:
            raise InvalidOptionError("tls_handshake_first", True, "excludes tls=False")
        if tls not in (None, False) and self.tls_allow_downgrade:
            raise InvalidOptionError(
                "tls_allow_downgrade",
                True,
                "has no effect with tls, which every server has to offer",
            )
        headers: object = self.ws_connection_headers
        if headers is None or headers is left_out:
            return
        if not isinstance(headers, Mapping):
            raise InvalidOptionError("ws_connection_headers", "...", "must be a mapping")
        for name, value in headers.items():
            values: Sequence[object] = [value] if isinstance(value, str) else value
            if not isinstance(values, (list, tuple)):
                values = [None]
            if not all(
                isinstance(each, str) and not _BREAK & set(each) for each in [name, *values]
            ):
                raise InvalidOptionError(
                    "ws_connection_headers", "...", "names and values are text of one line"
                )

    def _in_seconds(self, option: str) -> float:
        value = getattr(self, option)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise InvalidOptionError(option, value, "a time is a number of seconds or a timedelta")
        value = float(min(value, _LONGEST))
        object.__setattr__(self, option, value)
        return value


def _is_path(value: object) -> bool:
    """Say whether a value can be a path; a secret, given as one by mistake, would be shown as one."""
    if not isinstance(value, (str, os.PathLike)):
        return False
    path = os.fspath(value)
    return (
        isinstance(path, str)
        and bool(path)
        and not (_BREAK & set(path) or re.match(_NO_PATH, path))
    )


def _without_secrets(options: Any, secrets: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that have another value than usual, with `left_out` for what is a secret."""
    values = {each.name: getattr(options, each.name) for each in fields(options)}
    usual = {each.name: each.default for each in fields(options)}
    return {
        name: left_out if name in secrets and not callable(value) else value
        for name, value in values.items()
        if value is not usual[name]
    }


def _remade(made: type[Any], values: dict[str, Any]) -> Any:
    return made(**values)


def check_callback(option: str, callback: object) -> None:
    """
    Check what is to be called back.

    Args:
        option: what to call it in the error.
        callback: the function.

    Raises:
        InvalidOptionError: it can not be called, or it is an ``async`` function, which nobody would
            await.

    """
    # What was given is not repeated: it may be what the function should have returned, a secret.
    if not callable(callback):
        raise InvalidOptionError(option, "...", "must be a function")
    if iscoroutinefunction(callback):
        raise InvalidOptionError(option, "...", "must be a plain function, not an async one")


def _at_least(option: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOptionError(option, value, f"must be a whole number from {least} up")
