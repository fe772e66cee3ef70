"""
How the driver and the executors of a Spark job connect, and the one connection of each process.

Settings travel from the driver to the executors inside pickled objects, so unlike the client's own
options they take their secrets along; in exchange no secret is ever shown: `Secret` stands for each,
and the login in a server's URL is one of them. What is given by file or by variable is read where it
is used, at every connect and reconnect.

The JetStream API of a context, for messages in a form that the context does not show.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from ..address import DEFAULT_SERVER, ServerAddress
from ..errors import ConnectionClosedError, ConnectionLostError, InvalidOptionError, TimeoutError
from ..jetstream.connection import Connection
from ..jetstream.context import JetStream
from ..jetstream.requests import APIRequests
from ..jetstream.shared import shared_connection
from ..options import TLSOptions

__all__ = [
    "ConnectionSettings",
    "EnvironmentSecret",
    "FileSecret",
    "Secret",
    "SecretSource",
    "api_requests",
    "connection",
]

_SPARK_FILE_PREFIX: Final = "sparkFile:"
#: Seconds between two walks through the servers, and how many there are before it is given up.
_RECONNECT_WAIT_S: Final = 0.25
_MAX_RECONNECT_ATTEMPTS: Final = 240


class Secret:
    """
    A text that nobody is to see: it shows as ``***`` and is had by calling it.

    It may be pickled, with the text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return type(self), (self._text,)

    def __repr__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class EnvironmentSecret:
    """A secret in an environment variable of the process that connects."""

    option: str
    """The option that names it."""

    variable: str
    """The variable."""

    def __call__(self) -> str:
        """
        Read it.

        Raises:
            InvalidOptionError: it is not set here.

        """
        value = os.environ.get(self.variable)
        if not value:
            raise InvalidOptionError(
                self.option, self.variable, "there is no such variable in the process that connects"
            )
        return value


@dataclass(frozen=True, slots=True)
class FileSecret:
    """A secret in a file of the machine that connects; a line end behind it does not belong to it."""

    option: str
    """The option that names it."""

    path: str
    """The file, or ``sparkFile:NAME``."""

    def __call__(self) -> str:
        """
        Read it.

        Raises:
            InvalidOptionError: it can not be read, or is empty.

        """
        try:
            with open(_path(self.path), encoding="utf-8") as file:  # noqa: PTH123 - nothing else does
                value = file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"can not be read by the process that connects: {type(error).__name__}"
            raise InvalidOptionError(self.option, self.path, reason) from None
        if not value:
            raise InvalidOptionError(self.option, self.path, "the file is empty")
        return value


#: Where a secret comes from; calling it returns the text.
SecretSource = Secret | EnvironmentSecret | FileSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """
    Where NATS is, and how to log in.

    It can be pickled, with its secrets, and shown, without them.
    """

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    """The servers' URLs, without logins."""
    logins: Secret | None = None
    """The same URLs as they were given, with commas between them; ``None``: none has a login."""
    user: str | None = None
    password: SecretSource | None = None
    token: SecretSource | None = None
    creds_file: str | None = None
    """The path of a ``.creds`` file, or ``sparkFile:NAME``, as for every file here."""
    creds: Secret | None = None
    """The content of such a file."""
    nkey_seed_file: str | None = None
    nkey_seed: Secret | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    connect_timeout: float = 5.0
    """How long one server may take, in seconds."""
    domain: str | None = None
    """The JetStream domain; ``None``: that of the server."""
    api_prefix: str | None = None
    """Where JetStream's API is, where an account imports it elsewhere; excludes `domain`."""
    timeout: float = 10.0
    """How long an answer may take, in seconds."""

    @classmethod
    def split_login(cls, urls: str) -> tuple[tuple[str, ...], Secret | None]:
        """
        Take the logins out of servers' URLs.

        Args:
            urls: one URL, or several with commas between them.

        Returns:
            The URLs without logins; and, where one had a login, all of them as they were.

        Raises:
            InvalidOptionError: one is no URL of a server.

        """
        addresses = [ServerAddress.parse(url.strip()) for url in urls.split(",")]
        has_login = any(each.user or each.token for each in addresses)
        return tuple(each.url for each in addresses), Secret(urls) if has_login else None

    def connect_options(self) -> dict[str, Any]:
        """Return what `jetstream_sync.connect` takes beside the servers."""
        options: dict[str, Any] = {
            "name": "jetstream_sync.spark",
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "user_credentials": self.creds or _optional_path(self.creds_file),
            "nkeys_seed": _optional_path(self.nkey_seed_file),
            "nkeys_seed_str": self.nkey_seed,
            "tls_hostname": self.tls_hostname,
            "connect_timeout": self.connect_timeout,
            "reconnect_time_wait": _RECONNECT_WAIT_S,
            "max_reconnect_attempts": _MAX_RECONNECT_ATTEMPTS,
        }
        if self.tls_ca or self.tls_cert:
            options["tls"] = TLSOptions(
                ca_file=_optional_path(self.tls_ca),
                cert_file=_optional_path(self.tls_cert),
                key_file=_optional_path(self.tls_key),
            )
        if self.tls_handshake_first:
            options["tls_handshake_first"] = True
        return {name: value for name, value in options.items() if value is not None}

    def jetstream(self, connection: Connection) -> JetStream:
        """Return the entry to JetStream that these settings mean, on a connection."""
        return connection.jetstream(
            domain=self.domain, prefix=self.api_prefix, timeout=self.timeout
        )


def connection(settings: ConnectionSettings) -> Connection:
    """
    Return this process's connection for these settings, open and answering as far as can be said.

    It is the same one for all tasks of a worker process, and another one in a forked child. A
    connection that has slept may have lost its link without noticing, so the server is asked first;
    one that does not answer is given up for a new link. It belongs to the process: nobody closes it.

    Any thread may call it.

    Args:
        settings: where and how to connect.

    Raises:
        NoServersError: no server could be reached.
        AuthorizationError: the server refused the login.
        InvalidOptionError: an option can not work, or a file or variable that it names is missing.
        Error: all else as `jetstream_sync.connect`.

    """
    servers = ",".join(settings.servers) if settings.logins is None else settings.logins()
    while True:
        found = shared_connection(servers, **settings.connect_options())
        try:
            found.flush(settings.timeout)
        except TimeoutError:
            found.reconnect()
        except ConnectionLostError:
            pass  # a new link is sought; what is asked meanwhile waits for it
        except ConnectionClosedError:
            continue  # closed since we got it, so that the next one is another
        return found


def _path(path: str) -> str:
    """
    Return where a file is on this machine.

    Raises:
        InvalidOptionError: it is meant to be one that Spark distributed, and there is no Spark here.

    """
    if not path.startswith(_SPARK_FILE_PREFIX):
        return path
    try:
        from pyspark import SparkFiles  # noqa: PLC0415 - the rest of this works without it
    except ImportError:
        raise InvalidOptionError("sparkFile", path, "there is no pyspark here") from None
    return str(SparkFiles.get(path[len(_SPARK_FILE_PREFIX) :]))


def _optional_path(path: str | None) -> str | None:
    return None if path is None else _path(path)


def api_requests(js: JetStream) -> APIRequests:
    """Return what asks the API for a context."""
    return js._api  # noqa: SLF001 - there is no public way to raw messages
