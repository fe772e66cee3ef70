"""Server addresses: parse the URLs of servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, Final, NoReturn

from . import errors
from .exact import masked
from .records import Frozen, frozen

#: A secret, or a function that returns it, called on every connect and reconnect.
Secret = str | Callable[[], str]


def left_out() -> NoReturn:
    """Replace a secret in pickled options; a function, so that it stays a singleton when unpickled."""
    raise missing_secret("secret")


def missing_secret(option: str) -> errors.InvalidOptionError:
    """Return the error for an option whose secret was removed by pickling."""
    return errors.InvalidOptionError(
        option,
        "...",
        "secrets are not pickled: to use the options in another process, pass secrets as files or as "
        "functions that can be imported there",
    )


#: The schemes and their default ports.
_DEFAULT_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"

_PORT_RULE: Final = "the port must be from 1 to 65535"
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# The patterns of error texts are compiled on first use.
_SCHEME: Final = r"(nats|tls|wss?):/*|[A-Za-z][A-Za-z0-9+.-]*://"
# Host, port, path and the rest of a URL without scheme and login.
_PLACE: Final = r"(?s)(\[[^]/]*\]?|[^:/?#]*)(?::([^/?#]*))?(/[^?#]*)?(.*)"
# What is a port with a mistake, or the rest of an IPv6 address without brackets.
_LIKE_PORT: Final = r"(?i)(\d\w{,7})?|[0-9a-f]*:[0-9a-f:]*"


def _without_login(text: str) -> str:
    """Return an invalid URL for an error: without its login, and without what may be part of one."""
    found = re.match(_SCHEME, text)
    scheme = found[0] if found else ""
    _, at, after = text.rpartition("@")
    place = after if at else text[len(scheme) :]
    # Every part is optional, so the pattern matches any text.
    host, port, path, rest = re.findall(_PLACE, place)[0]
    shown = f"{scheme}...@{host}" if at else f"{scheme}{host}"
    if not at and not re.fullmatch(_LIKE_PORT, port):
        # A login whose host is missing, or the first part of one that contains a comma.
        return f"{shown}:..."
    colon = ":" if place[len(host) :].startswith(":") else ""
    return f"{shown}{colon}{port}{path}{'...' if rest else ''}"


@frozen()
class Server(Frozen):
    """A server that a connection may use, as in `Connection.server_pool`."""

    uri: str
    """Its URL, without a login."""
    reconnects: int = 0
    """Number of failed attempts in a row."""
    discovered: bool = False
    """Whether it was discovered from the cluster; the others were given by the user."""


@frozen()
class ServerAddress(Frozen):
    """The address of one server; ``repr`` omits the credentials of its URL."""

    host: str
    port: int
    scheme: str = "nats"
    """``nats``, ``tls``, ``ws`` or ``wss``."""
    path: str = ""
    """The path of a WebSocket URL."""
    tls_name: str = ""
    """Expected host name in the certificate, if it differs from the host: a server that the cluster
    announces by its IP address is verified with the name of the announcing server."""
    user: str | None = field(default=None, repr=False)
    password: Secret | None = field(default=None, repr=False)
    """``left_out`` in a pickled address, like the token."""
    token: Secret | None = field(default=None, repr=False)
    url: str = field(init=False, repr=False, compare=False)
    """The URL without credentials."""
    tls: bool = field(init=False, repr=False, compare=False)
    """Whether the URL asks for TLS."""
    websocket: bool = field(init=False, repr=False, compare=False)
    """Whether the URL is a WebSocket URL."""

    def __post_init__(self) -> None:
        """Set the fields that follow from the others."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        set_field = object.__setattr__
        set_field(self, "url", f"{self.scheme}://{host}:{self.port}{self.path}")
        set_field(self, "tls", self.scheme in ("tls", "wss"))
        set_field(self, "websocket", self.scheme in ("ws", "wss"))

    def __reduce__(self) -> tuple[type[ServerAddress], tuple[Any, ...]]:
        # A pickle may be stored or sent, so it must not contain secrets.
        secrets = (None if item is None else left_out for item in (self.password, self.token))
        place = (self.host, self.port, self.scheme, self.path, self.tls_name, self.user)
        return type(self), (*place, *secrets)

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP address rather than a name."""
        # A host name has no colon, and its last label is not a number.
        return ":" in self.host or self.host.rpartition(".")[2].isdecimal()

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Return the address of a URL; raise `InvalidOptionError` if it is not the URL of a server."""
        text = masked(text)
        if not isinstance(text, str):
            raise errors.InvalidOptionError(
                "servers", "...", "a server must be a URL such as nats://host:port"
            )
        parts, rule = _split(text)
        # Raised here, where no local shows the login.
        if rule:
            raise errors.InvalidOptionError("servers", _without_login(text), rule)
        return cls(**parts)


def _split(text: str) -> tuple[dict[str, Any], str]:
    """Return the parts of a URL, and the rule that it violates; empty: it is the URL of a server."""
    # Imported late to keep the import time of the package low.
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    if any(map(str.isspace, text)):
        return {}, "a URL must not contain white space"
    try:
        parts = urlsplit(text if _HAS_SCHEME.match(text) else f"nats://{text}")
        port = _DEFAULT_PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
    except ValueError:
        return {}, _PORT_RULE
    if parts.scheme not in _DEFAULT_PORTS:
        return {}, "the scheme must be nats://, tls://, ws:// or wss://"
    host = parts.hostname or ""
    if not host or {*"[]"} & {*host}:
        return {}, "the host name is missing"
    if port == 0:
        return {}, _PORT_RULE
    path = parts.path if parts.scheme in ("ws", "wss") and parts.path != "/" else ""
    if parts.path not in ("", "/", path) or parts.query or parts.fragment:
        return {}, "it must end after the port"
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if user is None and password:
        return {}, "a password requires a user"
    login = {"token": user} if password is None else {"user": user, "password": password}
    place = {"host": host, "port": port, "scheme": parts.scheme, "path": path}
    return {**place, **masked(login)}, ""


def parse_servers(servers: str | Iterable[str]) -> tuple[ServerAddress, ...]:
    """Return the addresses of one or more URLs; raise `InvalidOptionError` for none, or an invalid one."""
    if not isinstance(servers, Iterable):
        raise errors.InvalidOptionError(
            "servers", servers, "a server must be a URL such as nats://host:port"
        )
    servers = masked(servers)
    urls = masked(servers.split(",") if isinstance(servers, str) else list(servers))
    if not urls:
        raise errors.InvalidOptionError("servers", servers, "at least one server is required")
    try:
        return tuple(
            ServerAddress.parse(url.strip() if isinstance(url, str) else url) for url in urls
        )
    except errors.InvalidOptionError as caught:
        # Any piece may be part of a login that has a comma.
        if not (isinstance(servers, str) and len(urls) > 1 and "@" in servers):
            raise
        reason = caught.reason
    raise errors.InvalidOptionError(
        "servers", "...", f"{reason}; a comma of a login is written as %2C"
    )
