"""Where a server is: the URL that a user wrote, taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from .errors import InvalidOptionError

__all__ = [
    "DEFAULT_SERVER",
    "Secret",
    "ServerAddress",
    "left_out",
    "missing_secret",
    "parse_servers",
]

#: The text itself, or a function that is asked for it at every connect and reconnect.
Secret = str | Callable[[], str]


def left_out() -> NoReturn:
    """
    Stand where a secret was, in options that were pickled; there is one such function, also then.

    Raises:
        InvalidOptionError: always; whoever needs the secret asks for it so, and can not have it.

    """
    raise missing_secret("secret")


def missing_secret(option: str) -> InvalidOptionError:
    """Return the error for an option whose secret was left out."""
    return InvalidOptionError(
        option,
        "...",
        "it was left out when the options were pickled; where they are used in another process, "
        "give secrets as files or as functions that can be imported there",
    )


#: The schemes, and the port of each where a URL has none.
_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# What an error may repeat of a URL: the scheme and the host. The rest of one that was not
# understood may be part of a login, as where a password has a comma or a slash.
_SHOWN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)?(\[[^]/]*\]?|[^:/?#\s]*)")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server to connect to; a login that its URL carried does not show up in ``repr``."""

    host: str
    port: int
    scheme: str = "nats"
    """``nats``, ``tls``, ``ws`` or ``wss``."""
    path: str = ""
    """What follows the port of a WebSocket URL."""
    tls_name: str = ""
    """Whom its certificate has to name, where that is not the host: a server that the cluster told of
    by its IP goes by the name of the one that told."""
    user: str | None = field(default=None, repr=False)
    password: Secret | None = field(default=None, repr=False)
    """``left_out`` in an address that was pickled, as is the token."""
    token: Secret | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[type[ServerAddress], tuple[Any, ...]]:
        # A pickle may be written to disk or sent: secrets stay here.
        secrets = (None if each is None else left_out for each in (self.password, self.token))
        place = (self.host, self.port, self.scheme, self.path, self.tls_name, self.user)
        return type(self), (*place, *secrets)

    def __copy__(self) -> ServerAddress:
        return self

    def __deepcopy__(self, memo: object) -> ServerAddress:
        return self

    @property
    def url(self) -> str:
        """The URL without its login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def tls(self) -> bool:
        """Whether the URL asks for TLS."""
        return self.scheme in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        """Whether the server is spoken to through a WebSocket."""
        return self.scheme in ("ws", "wss")

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP address rather than a name."""
        # A name has no colon, and its last label is no number.
        return ":" in self.host or self.host.rpartition(".")[2].isdecimal()

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """
        Read a server's URL.

        Args:
            text: ``nats://host:port``, ``tls://host:port``, ``ws://host:port/path``,
                ``wss://host:port/path``, ``host:port`` or ``host``; a login may stand in front of the
                host, as ``user:password@`` or ``token@``, where ``/ ? # @ , :`` and white space
                are written as ``%2F`` and so on.

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
            port = _PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
        except ValueError:
            parts = None
        if parts is None:
            # Raised out here, the error does not have the other one behind it, which repeats too much.
            raise InvalidOptionError(
                "servers", shown, "it is not a URL with a port from 1 to 65535"
            )
        if parts.scheme not in _PORTS:
            raise InvalidOptionError(
                "servers", shown, "the scheme is nats://, tls://, ws:// or wss://"
            )
        if not parts.hostname or not {"[", "]"}.isdisjoint(parts.hostname):
            raise InvalidOptionError("servers", shown, "there is no host name")
        if port == 0:
            raise InvalidOptionError("servers", shown, "the port is from 1 to 65535")
        path = parts.path if parts.scheme in ("ws", "wss") and parts.path != "/" else ""
        if parts.path not in ("", "/", path) or parts.query or parts.fragment:
            raise InvalidOptionError("servers", shown, "nothing follows the port")
        user = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        token = None
        if user is None and password:
            raise InvalidOptionError("servers", shown, "a password needs a user")
        if user is not None and password is None:
            user, token = None, user
        return cls(
            parts.hostname,
            port,
            scheme=parts.scheme,
            path=path,
            user=user,
            password=password,
            token=token,
        )


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
