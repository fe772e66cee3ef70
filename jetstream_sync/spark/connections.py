"""
Connection settings of a Spark job, and the one connection of each worker process.

Settings travel from the driver to the executors inside pickled objects. Unlike the client's own options they
therefore carry their secrets, but they never show one: each secret is a `SecretText`, which prints as ``***``, and
logins are removed from the server URLs that are shown. A secret that is given as a file or an environment
variable is read by the process that connects, at every connect and reconnect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from .. import errors
from ..address import DEFAULT_SERVER, ServerAddress
from ..api.echo import release
from ..client.replies import ReplyCollector
from ..exact import masked
from ..jetstream.api_requests import APIRequests, within
from ..jetstream.connection import Connection
from ..jetstream.context import JetStream
from ..jetstream.shared_connection import shared_connection
from ..net.clock import Deadline
from ..options import TLSOptions
from ..protocol.parser import RawMessage
from ..subjects import check_publish_subject, check_stream_name
from .option_values import flag, option, seconds
from .retry import retry_transient

_SPARK_FILE_PREFIX: Final = "sparkFile:"
#: Seconds between two rounds through the servers, and the number of rounds before giving up.
_RECONNECT_WAIT_S: Final = 0.25
_MAX_RECONNECT_ATTEMPTS: Final = 240
#: The release with batched direct gets.
_BATCHED_DIRECT_GETS: Final = (2, 11)


class SecretText:
    """
    A text that is never shown: it prints as ``***``, and calling it returns the text.

    Pickling it keeps the text. It is no dataclass, whose text `dataclasses.asdict` would return.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[SecretText], tuple[str]]:
        return type(self), (self._text,)

    def __repr__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class EnvironmentSecret:
    """A secret in an environment variable of the connecting process."""

    option: str
    """The option that names the variable."""

    variable: str
    """The name of the variable."""

    def __call__(self) -> str:
        """Return the value of the variable."""
        value = os.environ.get(self.variable)
        if not value:
            raise errors.InvalidOptionError(
                self.option,
                self.variable,
                "is not set in the environment of the connecting process",
            )
        return value


@dataclass(frozen=True, slots=True)
class FileSecret:
    """A secret in a file on the connecting machine; line ends at the end of the file are removed."""

    option: str
    """The option that names the file."""

    path: str
    """The path, or ``sparkFile:NAME``."""

    def __call__(self) -> str:
        """Return the content of the file."""
        try:
            with open(_path(self.path), encoding="utf-8") as file:  # noqa: PTH123 - nothing else does
                value = file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"cannot be read by the connecting process: {type(error).__name__}"
            raise errors.InvalidOptionError(self.option, self.path, reason) from None
        if not value:
            raise errors.InvalidOptionError(self.option, self.path, "the file is empty")
        return value


#: The source of a secret; calling it returns the text.
SecretSource = SecretText | EnvironmentSecret | FileSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """
    The servers to connect to, and the login.

    It can be pickled with its secrets, and shown without them.
    """

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    """The server URLs, without logins."""
    logins: SecretText | None = None
    """The same URLs as given, separated by commas; ``None``: none of them has a login."""
    user: str | None = option(str, None)
    password: SecretSource | None = None
    token: SecretSource | None = None
    creds_file: str | None = option(str, None)
    """The path of a ``.creds`` file, or ``sparkFile:NAME``, as for every path here."""
    creds: SecretText | None = None
    """The content of a ``.creds`` file."""
    nkey_seed_file: str | None = option(str, None)
    nkey_seed: SecretText | None = None
    tls_ca: str | None = option(str, None)
    tls_cert: str | None = option(str, None)
    tls_key: str | None = option(str, None)
    tls_hostname: str | None = option(str, None)
    tls_handshake_first: bool = option(flag, default=False)
    connect_timeout: float = option(seconds(0.001, 3600.0), 5.0)
    """Maximum time to connect to one server, in seconds."""
    domain: str | None = option(check_stream_name, None)
    """The JetStream domain; ``None``: that of the connected server."""
    api_prefix: str | None = option(check_publish_subject, None)
    """The prefix of the JetStream API subjects, where an account imports the API; excludes `domain`."""
    timeout: float = option(seconds(0.001, 3600.0), 10.0)
    """Maximum time to wait for a reply, in seconds."""

    @classmethod
    def split_login(cls, urls: str) -> tuple[tuple[str, ...], SecretText | None]:
        """
        Separate the logins from server URLs.

        Args:
            urls: one URL, or several separated by commas.

        Returns:
            The URLs without logins, and all URLs as given if one of them has a login.

        Raises:
            InvalidOptionError: one is not a valid server URL.

        """
        addresses = [ServerAddress.parse(url.strip()) for url in urls.split(",")]
        has_login = any(address.user or address.token for address in addresses)
        return tuple(address.url for address in addresses), SecretText(urls) if has_login else None

    def connect_options(self) -> dict[str, Any]:
        """Return the keyword arguments for `jetstream_sync.connect`, without the servers."""
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
            "tls_handshake_first": self.tls_handshake_first or None,
        }
        if self.tls_ca or self.tls_cert:
            options["tls"] = TLSOptions(
                ca_file=_optional_path(self.tls_ca),
                cert_file=_optional_path(self.tls_cert),
                key_file=_optional_path(self.tls_key),
            )
        return {name: value for name, value in options.items() if value is not None}

    def jetstream(self, connection: Connection) -> JetStream:
        """Return a JetStream context with these settings on a connection."""
        return connection.jetstream(
            domain=self.domain, prefix=self.api_prefix, timeout=self.timeout
        )


def connection(settings: ConnectionSettings) -> Connection:
    """
    Return the connection of this process for these settings.

    All tasks of a worker process share it; a forked child gets its own. The connection may have lost its
    link unnoticed while the process was idle. So a round trip to the server comes first, and a link that does
    not answer is replaced. The connection lives as long as the process: do not close it. The round trip takes
    ``timeout`` seconds at most, and ends with the deadline of `retry_transient`.

    Any thread may call it.

    Args:
        settings: the servers and the login.

    Raises:
        NoServersError: no server could be reached.
        AuthorizationError: the server refused the login.
        InvalidOptionError: an option is invalid, or a file or variable that it names is missing.
        Error: any other error of `jetstream_sync.connect`.

    """
    # Masked in the locals that a report of an error shows.
    servers = masked(",".join(settings.servers) if settings.logins is None else settings.logins())
    while True:
        found = shared_connection(servers, **settings.connect_options())
        left = within(Deadline(settings.timeout)).left()
        try:
            found.flush(left)
        except errors.TimeoutError:
            if left is not None and left < settings.timeout / 2:
                raise  # too short to say that the link is dead, which other tasks use
            found.reconnect()
        except errors.ConnectionLostError:
            pass  # reconnecting; requests wait for the new link
        except errors.ConnectionClosedError:
            continue  # closed after it was looked up: the next look-up opens another one
        return found


def jetstream(settings: ConnectionSettings) -> JetStream:
    """Return a JetStream context with these settings on the connection of this process."""
    return settings.jetstream(connection(settings))


def connected(settings: ConnectionSettings, deadline: Deadline) -> JetStream:
    """Return the same as `jetstream`; transient errors are retried until a deadline."""
    # In local mode Spark does not repeat a task, and a busy machine may not connect in time.
    return retry_transient(partial(jetstream, settings), deadline, "connecting")


def _path(path: str) -> str:
    """Return the path of a file on this machine."""
    if not path.startswith(_SPARK_FILE_PREFIX):
        return path
    try:
        from pyspark import SparkFiles  # noqa: PLC0415 - everything else works without PySpark
    except ImportError:
        raise errors.InvalidOptionError(
            "sparkFile", path, "needs pyspark, which is not installed"
        ) from None
    return str(SparkFiles.get(path[len(_SPARK_FILE_PREFIX) :]))


def _optional_path(path: str | None) -> str | None:
    return None if path is None else _path(path)


def api_requests(js: JetStream) -> APIRequests:
    """Return the API client of a JetStream context, for messages in their raw form."""
    return js._api  # noqa: SLF001 - there is no public API for raw messages


#: Maximum number of requests that are sent before their replies are read.
_MAX_PARALLEL: Final = 256


def ask_all(
    api: APIRequests,
    requests: Sequence[tuple[str, bytes]],
    is_end: Callable[[RawMessage], bool] = bool,
) -> list[list[RawMessage]]:
    """Send requests in parallel, and return the replies to each up to its end: by default the first one."""
    replies: list[list[RawMessage]] = []
    for start in range(0, len(requests), _MAX_PARALLEL):
        deadline = api.deadline()
        collectors: list[ReplyCollector] = []
        try:
            for subject, payload in requests[start : start + _MAX_PARALLEL]:
                collectors.append(ReplyCollector(api.core, is_end))
                collectors[-1].ask(subject.encode(), payload, deadline=deadline)
            replies += [
                collector.wait(deadline.left() or 0.0, deadline) for collector in collectors
            ]
        finally:
            for collector in collectors:
                collector.close()
    return replies


def is_batching(version: str) -> bool:
    """Return whether a server of a version has batched direct gets (ADR-31), which came with 2.11."""
    return (release(version) or _BATCHED_DIRECT_GETS) >= _BATCHED_DIRECT_GETS
