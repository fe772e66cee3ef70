"""
How ``jsm`` connects: where each part of a login comes from, and the connection that it makes.

An option comes first, then the environment, then the context, and last the default. The variables
are those of the ``nats`` command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InvalidOptionError, SubscriptionError
from .status import CommandError, ExitStatus, one_line

if TYPE_CHECKING:
    from .. import Connection
    from .settings import Settings

__all__ = ["DEFAULT_SERVER", "Login", "connected"]

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"

#: For each part of a login: the option's name, the variables, and the key of a context.
_PARTS: Final = {
    "url": ("servers", ("NATS_URL",), "url"),
    "user": ("user", ("NATS_USER",), "user"),
    "password": ("password", ("NATS_PASSWORD",), "password"),
    "token": ("token", ("NATS_TOKEN",), "token"),
    "creds": ("creds", ("NATS_CREDS",), "creds"),
    "nkey": ("nkey", ("NATS_NKEY",), "nkey"),
    "tlscert": ("tlscert", ("NATS_CERT",), "cert"),
    "tlskey": ("tlskey", ("NATS_KEY",), "key"),
    "tlsca": ("tlsca", ("NATS_CA",), "ca"),
    "tlsfirst": ("tlsfirst", ("NATS_TLSFIRST",), "tls_first"),
    "domain": ("js_domain", ("NATS_JS_DOMAIN",), "jetstream_domain"),
    "api_prefix": ("js_api_prefix", ("NATS_JS_API_PREFIX",), "jetstream_api_prefix"),
    "inbox_prefix": ("inbox_prefix", ("NATS_INBOX_PREFIX",), "inbox_prefix"),
}


@dataclass(frozen=True, kw_only=True)
class Login:
    """The parts of a login that are said, and where each was."""

    values: dict[str, Any] = field(repr=False)
    """By the part's name; ``url`` is a list of addresses."""
    sources: dict[str, str]
    """Where each of them comes from: an option, a variable, or ``context NAME``."""

    @classmethod
    def of(cls, settings: Settings) -> Login:
        """Put it together; see `Settings.login`."""
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for part, (option, variables, _) in _PARTS.items():
            if option in settings.given:
                values[part], sources[part] = settings.given[option], f"--{option}"
                continue
            for variable in variables:
                if text := settings.env.variables.get(variable):
                    values[part], sources[part] = text, variable
                    break
        if "url" not in values and (text := settings.env.variables.get("SERVERS")):
            values["url"], sources["url"] = text, "SERVERS"
        if "url" not in values:
            values["url"], sources["url"] = DEFAULT_SERVER, "default"
        if isinstance(values["url"], str):
            values["url"] = [each.strip() for each in values["url"].split(",") if each.strip()]
        return cls(values=values, sources=sources)

    @property
    def servers(self) -> list[str]:
        """Where to connect to."""
        return list(self.values["url"])

    @property
    def domain(self) -> str | None:
        """The JetStream domain; ``None``: the server's."""
        return self.values.get("domain")

    @property
    def api_prefix(self) -> str | None:
        """The prefix of JetStream's API; ``None``: the usual one."""
        return self.values.get("api_prefix")

    def options(self) -> dict[str, Any]:
        """Return the options of `connect()` that log in."""
        from .. import TLSOptions  # noqa: PLC0415 - only for connections

        values = self.values
        options: dict[str, Any] = {}
        for part, option in (
            ("user", "user"),
            ("password", "password"),
            ("token", "token"),
            ("inbox_prefix", "inbox_prefix"),
        ):
            if part in values:
                options[option] = values[part]
        for part, option in (("creds", "user_credentials"), ("nkey", "nkeys_seed")):
            if part in values:
                options[option] = str(Path(values[part]).expanduser())
        files = {
            option: str(Path(values[part]).expanduser())
            for part, option in (
                ("tlsca", "ca_file"),
                ("tlscert", "cert_file"),
                ("tlskey", "key_file"),
            )
            if part in values
        }
        if files:
            options["tls"] = TLSOptions(**files)
        if values.get("tlsfirst"):
            options["tls_handshake_first"] = True
        return options


@contextlib.contextmanager
def connected(settings: Settings, options: dict[str, Any]) -> Iterator[Connection]:
    """Open a connection for a ``with`` block; see `Settings.connection`."""
    from .. import connect  # noqa: PLC0415 - the tree needs it not

    env = settings.env

    def tell(error: Exception) -> None:
        # What ends the connection is told by the call that needed it.
        if isinstance(error, SubscriptionError):
            env.stderr.write(f"jsm: warning: {one_line(error)}\n")

    login = settings.login()
    context = click.get_current_context(silent=True)
    wanted: dict[str, Any] = {
        "name": settings.given.get("connection_name")
        or (context.command_path if context else "jsm"),
        "connect_timeout": settings.timeout,
        "allow_reconnect": False,
        "error_cb": tell,
        **login.options(),
        **options,
    }
    if settings.trace and "trace_cb" not in wanted:
        from .trace import Trace  # noqa: PLC0415

        wanted["trace_cb"] = Trace(env.stderr).line
    try:
        connection = connect(login.servers, **wanted)
    except InvalidOptionError as error:
        raise CommandError(one_line(error), ExitStatus.USAGE) from error
    with connection:
        yield connection
