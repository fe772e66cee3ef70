"""
Connection options: the keyword arguments of `connect()`, their validated form, and callbacks.

Names and defaults follow nats-py.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import field, fields
from datetime import timedelta
from enum import Enum
from functools import partial
from inspect import (
    Signature,
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
    signature,
)
from typing import TYPE_CHECKING, Any, Final, TypedDict

from . import errors
from .address import Secret, Server, ServerAddress, left_out, missing_secret
from .durations import MAX_TIMEOUT_S, seconds
from .exact import exact, masked
from .foreign_names import spelling_of
from .records import Frozen, frozen
from .subjects import check_publish_subject


class EventKind(Enum):
    """Kind of a connection event."""

    DISCONNECTED = "disconnected"
    """The connection was lost."""
    RECONNECTED = "reconnected"
    """The client reconnected, or connected for the first time in the background."""
    CLOSED = "closed"
    """The connection is closed."""
    DISCOVERED_SERVERS = "discovered servers"
    """The cluster announced new servers."""
    RECONNECT_FAILED = "reconnect failed"
    """An attempt to reconnect to a server failed; others follow."""
    LAME_DUCK = "lame duck"
    """The server is in lame duck mode: it will shut down soon, clients should reconnect elsewhere."""


@frozen()
class ConnectionEvent(Frozen):
    """An event of a connection."""

    kind: EventKind
    """Kind of the event."""
    server: str | None = None
    """URL of the server concerned, without credentials; ``None`` if there is none."""
    error: BaseException | None = None
    """Reason of a lost connection, of a failed attempt, or of a close that the user did not request."""
    servers: tuple[str, ...] = ()
    """URLs of the discovered servers."""


#: Called with the error: an `Exception`, or another `BaseException` that a callback raised.
ErrorCallback = Callable[[Any], object]
#: Called on a connection event. A callback with a parameter receives the event.
EventCallback = Callable[[], object] | Callable[[ConnectionEvent], object]


def check_callback(option: str, callback: object) -> None:
    """Raise `InvalidOptionError` unless a callback is a plain function."""
    # The value is omitted: it may be the secret that the function should return.
    if not callable(callback):
        raise errors.InvalidOptionError(option, "...", "must be a function")
    inner: Any = callback
    while isinstance(inner, partial):
        inner = inner.func
    if not hasattr(inner, "__code__") and not isinstance(inner, type):
        # A bound method is what its function is, and an object what its method is.
        inner = getattr(inner, "__func__", type(inner).__call__)
    if iscoroutinefunction(inner) or isasyncgenfunction(inner) or isgeneratorfunction(inner):
        rule = "must be a plain function, not an async one or a generator"
        raise errors.InvalidOptionError(option, "...", rule)


def signature_of(function: Callable[..., object]) -> Signature:
    """
    Return the signature of a function; annotations whose names do not exist at run time are strings.

    Raises:
        TypeError, ValueError: a built-in function that does not describe its parameters.

    """
    try:
        return signature(function, eval_str=True)
    except (AttributeError, NameError, SyntaxError, TypeError):
        if sys.version_info >= (3, 14):  # which evaluates annotations when they are read
            from annotationlib import Format  # noqa: PLC0415 - there since 3.14

            return signature(function, annotation_format=Format.STRING)
        return signature(function)


#: Of most values that callbacks return; looking them up takes less time than the checks of abstract classes.
_PLAIN_TYPES: Final = frozenset({bool, bytes, dict, float, int, list, str, tuple})


def check_returned(returned: object, *, done: bool = False) -> None:
    """Raise `UnfinishedError` if what a callback returned shows that its code did not run."""
    # `done`: whether the return means that the work is done, as where the message is acknowledged next. A future is
    # refused there too. Elsewhere it may belong to a thread pool that has the message.
    if returned is None or type(returned) in _PLAIN_TYPES:
        return
    if isinstance(returned, (Awaitable, Generator, AsyncGenerator)):
        what = "whose code did not run: it must be a plain function"
    elif done and hasattr(type(returned), "add_done_callback"):
        what = "whose work may not be done: it must wait for the result"
    else:
        return
    if isinstance(returned, (Coroutine, Generator)):
        returned.close()  # which avoids a warning that it was never awaited
    kind = type(returned).__name__.replace("_", " ")
    raise errors.UnfinishedError(f"the function returned a {kind}, {what}")


if TYPE_CHECKING:
    from socket import socket
    from ssl import SSLContext


FilePath = str | os.PathLike[str]
#: Called with the host, the port and a timeout in seconds; returns a connected socket.
Dialer = Callable[[str, int, float], "socket"]
#: Called with the servers; returns one and the wait in seconds, or ``None``.
ReconnectTo = Callable[[list[Server]], tuple[Server, float | timedelta] | None]

DEFAULT_PENDING_MSGS_LIMIT: Final = 512 * 1024
DEFAULT_PENDING_BYTES_LIMIT: Final = 128 * 1024 * 1024

#: How similar a name must be to be suggested, as the ratio of `difflib`.
_SIMILAR: Final = 0.8
_STRINGS: Final = ("name", "nkey", "tls_hostname")
_SECRETS: Final = ("user", "password", "token", "nkeys_seed_str")
#: Options that are not pickled unless they are callables. Headers may contain a proxy login.
_NOT_PICKLED: Final = ("password", "token", "nkeys_seed_str", "ws_connection_headers")
#: Groups of mutually exclusive logins. An auth callout may require one of each group.
_EXCLUSIVE_LOGINS: Final = (
    ("user", "token"),
    ("user_credentials", "nkeys_seed", "nkeys_seed_str", "nkey", "user_jwt_cb"),
)
_LINE_BREAKS: Final = frozenset("\r\n\0")
# An nkey seed or a JWT that was passed as a path by mistake; error texts must not repeat it.
SEED_OR_JWT: Final = r"\s*(S[A-Z][A-Z2-7]{50,}\s*$|eyJ[\w-]+\.)"


@frozen(kw_only=True)
class TLSOptions(Frozen):
    """
    TLS settings that, unlike an `ssl.SSLContext`, can be pickled and sent to other processes.

    The files are read when a connection is opened. A ``key_password`` is pickled only if it is a
    function: see `ConnectionOptions`.
    """

    ca_file: FilePath | None = None
    """Trusted CA certificates in PEM format; ``None``: the trust store of the system."""
    cert_file: FilePath | None = None
    """Client certificate in PEM format, for servers that verify clients."""
    key_file: FilePath | None = None
    """Private key of ``cert_file``; ``None``: the key is in ``cert_file``."""
    key_password: Secret | None = field(default=None, repr=False)
    """Password of the private key; ``None``: the key is not encrypted."""

    def __post_init__(self) -> None:
        if self.cert_file is None and self.key_file is not None:
            raise errors.InvalidOptionError("key_file", self.key_file, "requires a cert_file")
        if self.key_file is None and self.cert_file is None and self.key_password is not None:
            raise errors.InvalidOptionError("key_password", "...", "requires a cert_file")
        object.__setattr__(self, "key_password", masked(self.key_password))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), _without_secrets(self, ("key_password",)))


def _hidden() -> Any:
    """Declare an option that is not shown, since it may have a secret, or be a function."""
    return field(default=None, repr=False)


def _seconds(default: float | None, *, positive: bool = False) -> Any:
    """Declare a time in seconds, given as a number or a `timedelta`; 0 is accepted unless it must be positive."""
    return field(default=default, metadata={"positive": positive})


@frozen(kw_only=True)
class ConnectionOptions(Frozen):
    """
    The validated options of a connection.

    ``None``, where it is accepted, selects the default. Times are in seconds.
    """

    # Options can be pickled if their callbacks can be imported, but without secrets: a password, token or
    # seed given as a string, in an option or in a URL, is replaced by `left_out`, and connecting with it
    # raises `InvalidOptionError`. Paths and functions that can be imported are kept.

    servers: tuple[ServerAddress, ...]
    """The addresses of the servers, in the order of the URLs."""
    name: str | None = None
    """Name of the connection in the server's monitoring and logs."""
    user: Secret | None = _hidden()
    """User name; credentials in a server's URL take precedence. This and the other secrets may be a
    function, which is called on every connect and reconnect."""
    password: Secret | None = _hidden()
    """Password of the user."""
    token: Secret | None = _hidden()
    """Authentication token, instead of a user and password."""
    user_credentials: FilePath | tuple[FilePath, FilePath] | Callable[[], str | bytes] | None = (
        _hidden()
    )
    """A ``.creds`` file, a pair of a JWT file and an nkey seed file, or a function that returns the
    content of a ``.creds`` file; read or called on every connect and reconnect. This option and the next
    two require the ``nkeys`` extra."""
    nkeys_seed: FilePath | None = _hidden()
    """A file with an nkey seed; read on every connect and reconnect."""
    nkeys_seed_str: Secret | None = _hidden()
    """An nkey seed."""
    nkey: str | None = None
    """The public nkey of the user; requires a ``signature_cb``, which signs with its seed."""
    user_jwt_cb: Callable[[], str | bytes] | None = _hidden()
    """Returns the user's JWT; requires a ``signature_cb``, unless the JWT is a bearer token. Called on
    every connect and reconnect."""
    signature_cb: Callable[[str], str | bytes] | None = _hidden()
    """Signs the server's nonce: receives the nonce as text and returns the signature, in base64 or as 64
    raw bytes. Called if the server sent a nonce."""
    tls: bool | SSLContext | TLSOptions | None = None
    """Whether to require TLS, and its settings; default: TLS if the server requires it, verified with
    the trust store of the system."""
    tls_hostname: str | None = None
    """Expected host name in the server's certificate; default: the host of its URL."""
    tls_handshake_first: bool = False
    """Start with the TLS handshake instead of waiting for the server's INFO; default false."""
    tls_allow_downgrade: bool = False
    """Allow a reconnect to a server without TLS after TLS was used; default false: once a connection
    used TLS, every later server has to offer it. For connections without ``tls``."""
    ws_connection_headers: Mapping[str, str | Sequence[str]] | None = field(
        default=None, repr=False
    )
    """HTTP headers of the WebSocket upgrade request, such as a proxy login."""
    connect_timeout: float = _seconds(2.0, positive=True)
    """Timeout for TCP connect, TLS handshake and login with one server; default 2."""
    dialer: Dialer | None = _hidden()
    """Opens the socket, for proxies and in-process servers. Called on each connect and reconnect with the
    host, the port and the remaining seconds of ``connect_timeout``; returns a connected, plain socket,
    which the connection then owns. TLS and WebSocket run on top of it. The dialer resolves host names
    itself; an `OSError` means that the server is unreachable. Default: TCP."""
    allow_reconnect: bool = True
    """Reconnect when the connection is lost; default true."""
    retry_on_failed_connect: bool = False
    """Return from `connect()` when no server can be reached, and keep trying in the background, as in a
    reconnect; default false."""
    max_reconnect_attempts: int = 60
    """Consecutive failures after which a server is removed from the pool; -1: never; default 60."""
    reconnect_time_wait: float = _seconds(2.0)
    """Wait between two rounds of connection attempts to all servers; default 2. With 0, rounds are 10 to
    50 milliseconds apart, and ``max_reconnect_attempts`` is reached quickly."""
    reconnect_jitter: float | None = _seconds(None)
    """Upper limit of the random time added to this wait, so that the clients of a restarted server do not
    reconnect all at once. ``None``: 0.1, or 1 with TLS; doubled, up to 60, with each round in which a
    server sent its INFO but did not finish the handshake in time. Ignored with ``reconnect_time_wait=0``."""
    reconnect_delay_cb: Callable[[int], float | timedelta] | None = _hidden()
    """Returns the wait before the next round, instead of ``reconnect_time_wait`` and its jitter. Called
    with the number of rounds since the connection was lost."""
    reconnect_to_cb: ReconnectTo | None = _hidden()
    """Chooses the server of each attempt to reconnect: called with the servers of `Connection.server_pool`,
    it returns one of them and the wait before the attempt, in seconds. ``None``, an error or another
    server: the next one of the pool at once, as without this option."""
    ignore_auth_error_abort: bool = False
    """Keep trying a server that refused the login twice with the same error; default false."""
    ignore_discovered_servers: bool = False
    """Use only the configured servers, not those that a cluster announces; default false."""
    fail_requests_on_disconnect: bool = False
    """Fail pending requests with `ConnectionLostError` as soon as the connection is lost, instead of
    waiting for a reply after the reconnect until they time out; default false."""
    ping_interval: float = _seconds(120.0, positive=True)
    """Interval between pings; default 120."""
    max_outstanding_pings: int = 2
    """Number of unanswered pings after which the connection is considered lost; default 2."""
    dont_randomize: bool = False
    """Try the servers in the given order; default false."""
    no_echo: bool = False
    """Do not receive messages published by this connection; default false."""
    verbose: bool = False
    """Make the server acknowledge each command with ``+OK``; default false."""
    pedantic: bool = False
    """Enable the strict checks of the server; default false."""
    inbox_prefix: str = "_INBOX"
    """Subject prefix of reply inboxes; default ``_INBOX``."""
    drain_timeout: float = _seconds(30.0, positive=True)
    """Timeout of `Connection.drain`; default 30."""
    pending_size: int = 2 * 1024 * 1024
    """Maximum number of bytes buffered while disconnected; default 2 MiB."""
    error_cb: ErrorCallback | None = _hidden()
    """Called with each asynchronous error; default: the error is logged. Callbacks run one at a time on a
    dedicated thread. The callbacks below receive a `ConnectionEvent` if they have a parameter."""
    disconnected_cb: EventCallback | None = _hidden()
    """Called when the connection is lost."""
    reconnected_cb: EventCallback | None = _hidden()
    """Called after a reconnect; also after the first connect with ``retry_on_failed_connect``."""
    closed_cb: EventCallback | None = _hidden()
    """Called when the connection is closed, before `Connection.close` or `Connection.drain` returns."""
    discovered_server_cb: EventCallback | None = _hidden()
    """Called when the cluster announces a new server."""
    reconnect_error_cb: EventCallback | None = _hidden()
    """Called after each failed attempt to reconnect, with the server and the error."""
    lame_duck_mode_cb: EventCallback | None = _hidden()
    """Called when the server enters lame duck mode and will shut down soon."""
    trace_cb: Callable[[str], object] | None = _hidden()
    """Called with each protocol line, on a dedicated thread, with secrets masked; sent lines begin with
    ``>``, received lines with ``<``. Default: no tracing, without any overhead."""

    @classmethod
    def of(
        cls, servers: tuple[ServerAddress, ...], options: Mapping[str, Any]
    ) -> ConnectionOptions:
        """Create the options from keyword arguments."""
        check_known(options, [item.name for item in fields(cls) if item.name != "servers"])
        return cls(servers=servers, **options)

    def __post_init__(self) -> None:
        for option in _STRINGS:
            if not isinstance(getattr(self, option), (str, type(None))):
                raise errors.InvalidOptionError(option, "...", "must be a str")
        for option in _SECRETS:
            value = getattr(self, option)
            if callable(value):
                check_callback(option, value)
            elif not isinstance(value, (str, type(None))):
                raise errors.InvalidOptionError(option, "...", "must be a str or a function")
        for item in fields(self):
            value = (exact if item.repr else masked)(getattr(self, item.name))
            object.__setattr__(self, item.name, value)
            if item.type == "bool" and not isinstance(value, bool):
                raise errors.InvalidOptionError(item.name, value, "must be True or False")
            if (item.name.endswith("_cb") or item.name == "dialer") and value is not None:
                check_callback(item.name, value)
            positive = item.metadata.get("positive")
            if positive is not None and (value is not None or item.default is not None):
                given = float(min(seconds(value, item.name), MAX_TIMEOUT_S))
                object.__setattr__(self, item.name, given)
                limit = "above 0" if positive else "0 or above"
                is_low = given < 0 or (positive and not given)
                _refuse_if(is_low, item.name, f"must be {limit}", given)
        check_int("max_outstanding_pings", self.max_outstanding_pings, 1)
        check_int("pending_size", self.pending_size, 0)
        check_int("max_reconnect_attempts", self.max_reconnect_attempts, -1)
        try:
            check_publish_subject(self.inbox_prefix)
        except errors.BadSubjectError as error:
            raise errors.InvalidOptionError(
                "inbox_prefix", self.inbox_prefix, error.reason
            ) from None
        self._check_login()
        self._check_secure()

    def check_secrets(self) -> None:
        """Raise `InvalidOptionError` if a secret was removed by pickling."""
        for option in _NOT_PICKLED:
            if getattr(self, option) is left_out:
                raise missing_secret(option)
        if isinstance(self.tls, TLSOptions) and self.tls.key_password is left_out:
            raise missing_secret("key_password")
        if any(left_out in (address.password, address.token) for address in self.servers):
            raise missing_secret("servers")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), _without_secrets(self, _NOT_PICKLED))

    def _check_login(self) -> None:
        for ways in _EXCLUSIVE_LOGINS:
            given = [option for option in ways if getattr(self, option) is not None]
            if len(given) > 1:
                raise errors.InvalidOptionError(
                    given[1], "...", f"cannot be combined with {given[0]}"
                )
        nkey, credentials = self.nkey, self.user_credentials
        _refuse_if(self.password is not None and self.user is None, "password", "requires a user")
        if nkey is not None:
            rule = "must be the public nkey of a user, which begins with U"
            _refuse_if(not nkey.startswith("U"), "nkey", rule)
            _refuse_if(self.signature_cb is None, "nkey", "requires a signature_cb", nkey)
        elif self.user_jwt_cb is None:
            rule = "requires an nkey or a user_jwt_cb"
            _refuse_if(self.signature_cb is not None, "signature_cb", rule)
        if callable(credentials):
            check_callback("user_credentials", credentials)
        elif isinstance(credentials, tuple):
            is_pair = len(credentials) == 2 and all(map(_is_path, credentials))
            _refuse_if(not is_pair, "user_credentials", "a tuple must contain two paths")
        elif credentials is not None:
            rule = "must be a path, a pair of paths, or a function that returns the content"
            _refuse_if(not _is_path(credentials), "user_credentials", rule)
        if self.nkeys_seed is not None:
            rule = "must be a path; pass the seed itself as nkeys_seed_str"
            _refuse_if(not _is_path(self.nkeys_seed), "nkeys_seed", rule)

    def _check_secure(self) -> None:
        tls = self.tls
        # An SSLContext is recognized by its method, because this module does not import ssl.
        is_known = isinstance(tls, (bool, TLSOptions, type(None))) or hasattr(tls, "wrap_bio")
        _refuse_if(not is_known, "tls", "must be a bool, an SSLContext or TLSOptions")
        if tls is False:
            rule = "cannot be combined with tls=False"
            _refuse_if(self.tls_handshake_first, "tls_handshake_first", rule, True)
        elif tls is not None:
            rule = "cannot be combined with tls, which requires TLS from every server"
            _refuse_if(self.tls_allow_downgrade, "tls_allow_downgrade", rule, True)
        headers: object = self.ws_connection_headers
        if headers is None or headers is left_out:
            return
        if not isinstance(headers, Mapping):
            raise errors.InvalidOptionError("ws_connection_headers", "...", "must be a mapping")
        rule = "names and values must be strings without line breaks"
        for name, value in headers.items():
            values: Sequence[object] = [value] if isinstance(value, str) else value
            is_valid = isinstance(values, (list, tuple)) and all(
                isinstance(item, str) and not _LINE_BREAKS & set(item) for item in [name, *values]
            )
            _refuse_if(not is_valid, "ws_connection_headers", rule)


def _refuse_if(wrong: bool, option: str, rule: str, value: object = "...") -> None:
    """Raise `InvalidOptionError` if ``wrong``; by default without the value, which may be a secret."""
    if wrong:
        raise errors.InvalidOptionError(option, value, rule)


def keyword_types() -> dict[str, str]:
    """Return the types of the keyword arguments of `connect()`; a time may be a `timedelta`."""
    return {
        item.name: str(item.type).replace("float", "float | timedelta")
        if "positive" in item.metadata
        else str(item.type)
        for item in fields(ConnectionOptions)
        if item.name != "servers"
    }


if TYPE_CHECKING:
    from .connect_options import ConnectOptions as ConnectOptions  # noqa: PLC0414
else:
    # For type checkers, tests/make_config_fields.py writes it from the options above.
    ConnectOptions = TypedDict("ConnectOptions", keyword_types(), total=False)
    ConnectOptions.__doc__ = "Keyword arguments of `connect()`; all are optional."


def _is_path(value: object) -> bool:
    """Return whether a value can be a path; a secret passed by mistake is not a path."""
    if not isinstance(value, (str, os.PathLike)):
        return False
    path = os.fspath(value)
    return (
        isinstance(path, str)
        and bool(path)
        and not (_LINE_BREAKS & set(path) or re.match(SEED_OR_JWT, path))
    )


def _without_secrets(options: Any, secrets: tuple[str, ...]) -> dict[str, Any]:
    """Return the options that differ from their defaults, with `left_out` in place of secrets."""
    values = {item.name: getattr(options, item.name) for item in fields(options)}
    defaults = {item.name: item.default for item in fields(options)}
    return {
        name: left_out if name in secrets and not callable(value) else value
        for name, value in values.items()
        if value is not defaults[name]
    }


def _restore(made: type[Any], values: dict[str, Any]) -> Any:
    return made(**values)


def check_int(option: str, value: object, least: int, most: int | None = None) -> int:
    """Return an int within its limits; raise `InvalidOptionError` for another value."""
    number = exact(value)
    if type(number) is not int or number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise errors.InvalidOptionError(option, value, f"must be an integer {limits}")
    return number


def check_known(
    options: Iterable[str], known: Iterable[str], problem: str = "unknown option"
) -> None:
    """Raise `InvalidOptionError` if an option is unknown."""
    unknown = set(options).difference(known)
    if unknown:
        name = min(unknown)
        hint = hint_for(name, list(known))
        # The value is omitted: it may be a secret under a misspelled name.
        raise errors.InvalidOptionError(name, ..., f"{problem}; {hint}")


def hint_for(name: str, known: Collection[str]) -> str:
    """Return what to write for an unknown option: its spelling here, a similar name, or all that there are."""
    if spelling := spelling_of(name, known):
        return f"use {spelling}"
    close = closest_match(name, known)
    return f"did you mean {close}?" if close else f"not one of {', '.join(sorted(known))}"


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a misspelled one, or ``None``."""
    from difflib import get_close_matches  # noqa: PLC0415 - for errors only

    # A wrong guess is worse than none: "timeout" is not "drain_timeout".
    return next(iter(get_close_matches(name, list(known), 1, _SIMILAR)), None)
