"""
How to connect: a frozen record, checked at the door.

The names and defaults are those that users of nats-py know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import Any, Final, TypedDict

from .errors import BadSubjectError, InvalidOptionError
from .subjects import check_publish_subject

__all__ = [
    "ConnectOptions",
    "ConnectionOptions",
    "ErrorCallback",
    "EventCallback",
    "ServerAddress",
    "parse_servers",
]

#: Called with what went wrong.
ErrorCallback = Callable[[Exception], object]
#: Called when something happened to the connection.
EventCallback = Callable[[], object]

DEFAULT_PORT: Final = 4222
DEFAULT_SERVER: Final = f"nats://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_PENDING_MSGS_LIMIT: Final = 512 * 1024
DEFAULT_PENDING_BYTES_LIMIT: Final = 128 * 1024 * 1024

_SCHEMES: Final = ("nats", "tls")
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# What an error may repeat of a URL: the scheme and the host. The rest of one that was not
# understood may be part of a login, as where a password has a comma or a slash.
_SHOWN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)?(\[[^]/]*\]?|[^:/?#\s]*)")
# Locks take no more than this many seconds, about 292 years.
_LONGEST: Final = 9e9

_TEXTS: Final = ("name", "user", "password", "token")
_SWITCHES: Final = ("allow_reconnect", "dont_randomize", "no_echo", "verbose", "pedantic")
_CALLBACKS: Final = (
    "error_cb",
    "disconnected_cb",
    "reconnected_cb",
    "closed_cb",
    "discovered_server_cb",
    "lame_duck_mode_cb",
)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server to connect to; a login that its URL carried does not show up in ``repr``."""

    host: str
    port: int
    tls: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The URL without its login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """
        Read a server's URL.

        Args:
            text: ``nats://host:port``, ``tls://host:port``, ``host:port`` or ``host``; a login may
                stand in front of the host, as ``user:password@`` or ``token@``, where
                ``/ ? # @ , :`` and white space are written as ``%2F`` and so on.

        Raises:
            InvalidOptionError: it is not such a URL; the error does not repeat a login.

        """
        # Imported late: it takes a good part of the time that importing the package may take.
        from urllib.parse import unquote, urlsplit  # noqa: PLC0415

        if not isinstance(text, str):
            raise InvalidOptionError("servers", "...", "a server is a URL, nats://host:port")
        found = _SHOWN.match(text.rpartition("@")[2])
        shown = found[0] if found else ""
        if any(character.isspace() for character in text):
            raise InvalidOptionError("servers", shown, "a URL has no white space")
        try:
            parts = urlsplit(text if _HAS_SCHEME.match(text) else f"nats://{text}")
            port = DEFAULT_PORT if parts.port is None else parts.port
        except ValueError:
            raise InvalidOptionError(
                "servers", shown, "it is not a URL with a port from 1 to 65535"
            ) from None
        if parts.scheme not in _SCHEMES:
            raise InvalidOptionError("servers", shown, "the scheme is nats:// or tls://")
        if not parts.hostname or not {"[", "]"}.isdisjoint(parts.hostname):
            raise InvalidOptionError("servers", shown, "there is no host name")
        if port == 0:
            raise InvalidOptionError("servers", shown, "the port is from 1 to 65535")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise InvalidOptionError("servers", shown, "nothing follows the port")
        user = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        token = None
        if user is None and password:
            raise InvalidOptionError("servers", shown, "a password needs a user")
        if user is not None and password is None:
            user, token = None, user
        return cls(parts.hostname, port, parts.scheme == "tls", user, password, token)


def parse_servers(servers: str | Iterable[str]) -> tuple[ServerAddress, ...]:
    """
    Read one server or several.

    Args:
        servers: a URL, several with commas between them, or an iterable of URLs.

    Raises:
        InvalidOptionError: there is none, or one is not a URL.

    """
    if not isinstance(servers, Iterable):
        raise InvalidOptionError("servers", servers, "a server is a URL, nats://host:port")
    urls = servers.split(",") if isinstance(servers, str) else list(servers)
    if not urls:
        raise InvalidOptionError("servers", servers, "at least one server is needed")
    return tuple(ServerAddress.parse(url.strip() if isinstance(url, str) else url) for url in urls)


class ConnectOptions(TypedDict, total=False):
    """What `connect()` takes by name; all may be left out. Times are seconds or a `timedelta`."""

    name: str
    """What the server calls this connection in its lists and logs."""
    user: str
    """The user to log in as; a login in a server's URL comes first."""
    password: str
    """The user's password."""
    token: str
    """A token to log in with, instead of a user."""
    connect_timeout: float | timedelta
    """How long one server may take for TCP, handshake and login; default 2."""
    allow_reconnect: bool
    """Whether another link is sought when one breaks; default true."""
    max_reconnect_attempts: int
    """Failures in a row after which a server is given up; -1: never; default 60."""
    reconnect_time_wait: float | timedelta
    """The wait between two walks through the servers; default 2."""
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
    the other on a thread of their own."""
    disconnected_cb: EventCallback
    """Called when the link broke."""
    reconnected_cb: EventCallback
    """Called when there is a new link."""
    closed_cb: EventCallback
    """Called when the connection is closed."""
    discovered_server_cb: EventCallback
    """Called when the cluster told of a server that was not known."""
    lame_duck_mode_cb: EventCallback
    """Called when the server says that it will stop soon."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Everything that makes a connection, checked: see `ConnectOptions` for what each means."""

    servers: tuple[ServerAddress, ...]
    name: str | None = None
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    connect_timeout: float = 2.0
    allow_reconnect: bool = True
    max_reconnect_attempts: int = 60
    reconnect_time_wait: float = 2.0
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
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                # The value is not repeated: it may be a secret under a name with a slip.
                raise InvalidOptionError(name, "...", f"there is no such option{hint}")
        return cls(servers=servers, **options)

    def __post_init__(self) -> None:
        for option in _TEXTS:
            if not isinstance(getattr(self, option), (str, type(None))):
                raise InvalidOptionError(option, "...", "must be a str")
        for option in _SWITCHES:
            if not isinstance(getattr(self, option), bool):
                raise InvalidOptionError(option, getattr(self, option), "must be true or false")
        for option in _CALLBACKS:
            if getattr(self, option) is not None:
                check_callback(option, getattr(self, option))
        for option in ("connect_timeout", "ping_interval", "drain_timeout"):
            if self._in_seconds(option) <= 0:
                raise InvalidOptionError(option, getattr(self, option), "must be above 0")
        if self._in_seconds("reconnect_time_wait") < 0:
            raise InvalidOptionError(
                "reconnect_time_wait", self.reconnect_time_wait, "must be 0 or above"
            )
        _at_least("max_outstanding_pings", self.max_outstanding_pings, 1)
        _at_least("pending_size", self.pending_size, 0)
        _at_least("max_reconnect_attempts", self.max_reconnect_attempts, -1)
        try:
            check_publish_subject(self.inbox_prefix)
        except BadSubjectError as error:
            raise InvalidOptionError("inbox_prefix", self.inbox_prefix, error.reason) from None
        if self.token is not None and self.user is not None:
            raise InvalidOptionError("token", "...", "a token excludes a user")
        if self.password is not None and self.user is None:
            raise InvalidOptionError("password", "...", "a password needs a user")

    def _in_seconds(self, option: str) -> float:
        value = getattr(self, option)
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise InvalidOptionError(option, value, "a time is a number of seconds or a timedelta")
        value = float(min(value, _LONGEST))
        object.__setattr__(self, option, value)
        return value


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
    if not callable(callback):
        raise InvalidOptionError(option, callback, "must be a function")
    if iscoroutinefunction(callback):
        raise InvalidOptionError(option, callback, "must be a plain function, not an async one")


def _at_least(option: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOptionError(option, value, f"must be a whole number from {least} up")
