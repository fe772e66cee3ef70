"""
The login of ``jsm``: the source of each part, the connection, and its trace.

An option overrides the environment, which overrides the context, which overrides the default. The
variables are those of the ``nats`` command.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ..contexts import OPTIONS, TLS_OPTIONS, connect_options, unsupported_key
from ..errors import InvalidOptionError, SubscriptionError
from .context_store import Contexts
from .env import SafeText, unescaped
from .prompts import Asker
from .status import CommandError, one_line

if TYPE_CHECKING:
    from .. import Connection
    from .env import CommonOptions


@dataclass(frozen=True)
class LoginPart:
    """One part of a login and its sources, in order of precedence: an option, a variable, a context."""

    option: str
    """The name of the option without ``--``; empty: none."""
    help: str
    metavar: str
    """The placeholder of the value; ``FILE``: a path, which may begin with ``~``; empty: a switch."""
    variable: str
    key: str = ""
    """The key in a context."""
    kind: str = ""
    """The login method that it belongs to; empty: all."""

    @property
    def name(self) -> str:
        """The name of the option in `Settings.given`."""
        return self.option.replace("-", "_")


def _part(help: str, option: str, variable: str, key: str = "", **more: str) -> LoginPart:  # noqa: A002
    name, _, metavar = option.partition(" ")
    return LoginPart(name, help, metavar, variable, key, **more)


#: The parts of a login, in the order of the help.
LOGIN_PARTS: Final = {
    "user": _part("Log in as this user.", "user NAME", "NATS_USER", "user", kind="user"),
    "password": _part(
        "Log in with this password.", "password TEXT", "NATS_PASSWORD", "password", kind="user"
    ),
    "token": _part("Log in with this token.", "token TEXT", "NATS_TOKEN", "token", kind="token"),
    "creds": _part(
        "Log in with this credentials file.", "creds FILE", "NATS_CREDS", "creds", kind="creds"
    ),
    "nkey": _part(
        "Log in with the nkey seed in this file.", "nkey FILE", "NATS_NKEY", "nkey", kind="nkey"
    ),
    "jwt": _part("", "", "NATS_JWT", "user_jwt", kind="jwt"),
    "seed": _part("", "", "NATS_SEED", "user_seed", kind="jwt"),
    "tlscert": _part("Use this client certificate.", "tlscert FILE", "NATS_CERT", "cert"),
    "tlskey": _part("Use this private key for the certificate.", "tlskey FILE", "NATS_KEY", "key"),
    "tlsca": _part("Trust the CA certificates in this file.", "tlsca FILE", "NATS_CA", "ca"),
    "tlsfirst": _part(
        "Start the TLS handshake before the server's INFO.",
        *("tlsfirst", "NATS_TLSFIRST", "tls_first"),
    ),
    "domain": _part(
        "Use this JetStream domain.", "js-domain NAME", "NATS_JS_DOMAIN", "jetstream_domain"
    ),
    "api_prefix": _part(
        "Use this prefix for the JetStream API.",
        *("js-api-prefix SUBJECT", "NATS_JS_API_PREFIX", "jetstream_api_prefix"),
    ),
    "inbox_prefix": _part(
        "Use this prefix for reply subjects.",
        *("inbox-prefix SUBJECT", "NATS_INBOX_PREFIX", "inbox_prefix"),
    ),
    "name": _part("Set the connection name.", "connection-name TEXT", "NATS_CONNECTION_NAME"),
}


DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
#: All parts of a login.
_PARTS: Final = {
    "url": LoginPart("servers", "", "URL", "NATS_URL", "url"),
    **LOGIN_PARTS,
}


#: The options of the library, by part.
_LIBRARY: Final = {
    **{
        part: (OPTIONS | TLS_OPTIONS)[each.key]
        for part, each in _PARTS.items()
        if each.key in OPTIONS | TLS_OPTIONS
    },
    "name": "name",
    "url": "servers",
    "domain": "domain",
    "api_prefix": "prefix",
}
_PATHS: Final = tuple(name for name, part in _PARTS.items() if part.metavar == "FILE")


@dataclass(frozen=True, kw_only=True)
class Login:
    """The parts of a login that are set, with the source of each."""

    values: dict[str, Any] = field(repr=False)
    """The value of each part; ``url`` is a list of addresses."""
    sources: dict[str, str]
    """The source of each part: an option, a variable, or ``context NAME``."""
    context: str | None = None
    """The context that was read."""

    @classmethod
    def of(cls, settings: CommonOptions) -> Login:
        """Return the login for the settings; see `Settings.login`."""
        variables = settings.env.variables
        context = chosen_context(settings)
        fields = Contexts(variables).load(context) if context else {}
        wanted = unsupported_key(fields)
        if wanted is not None:
            raise CommandError(f"context {context}: jsm does not support {wanted!r}")
        levels = (
            _Level({part: settings.given.get(each.name) for part, each in _PARTS.items()}),
            _Level({part: variables.get(each.variable) for part, each in _PARTS.items()}),
            _Level({part: fields.get(each.key) for part, each in _PARTS.items()}),
            _Level({"url": variables.get("SERVERS")}),
            _Level({"url": DEFAULT_SERVER}),
        )
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        names = ("", "", f"context {context}", "SERVERS", "default")
        kinds: set[str] = set()
        for level, name in zip(levels, names, strict=True):
            allowed = kinds or level.kinds
            for part, value in level.said.items():
                kind = _PARTS[part].kind
                if part in values or (kind and kind not in allowed):
                    continue
                # A password is used only with a user from the same source.
                if part == "password" and name and sources.get("user", name) != name:
                    continue
                values[part] = value
                sources[part] = name or _named(level is levels[0], _PARTS[part])
            kinds |= level.kinds
        values["url"] = _addresses(values["url"])
        for part in _PATHS:
            if part in values:
                values[part] = str(_file(os.path.expandvars(values[part])))
        return cls(values=values, sources=sources, context=context)

    @property
    def servers(self) -> list[str]:
        """The server addresses."""
        return list(self.values["url"])

    @property
    def domain(self) -> str | None:
        """The JetStream domain; ``None``: that of the server."""
        return self.values.get("domain")

    @property
    def api_prefix(self) -> str | None:
        """The prefix of the JetStream API; ``None``: the default."""
        return self.values.get("api_prefix")

    def named(self, error: InvalidOptionError) -> Exception:
        """Return an error of the library as an error of the option, variable or context at fault."""
        part = next((name for name, option in _LIBRARY.items() if option == error.option), "")
        if part not in self.sources:
            return error
        source = self.sources[part]
        if source.startswith("context "):
            source += f", {_PARTS[part].key}"
        value = "" if error.value == "..." else f" {error.value!r}"
        return CommandError(f"{source}{value}: {error.reason}")

    def files(self) -> list[Path]:
        """Return the files of the login."""
        return [Path(self.values[part]) for part in _PATHS if part in self.values]

    def options(self) -> dict[str, Any]:
        """Return the options of `connect()` for this login."""
        values = self.values
        options = connect_options(
            {each.key: values[part] for part, each in _PARTS.items() if part in values}
        )
        if "name" in values:
            options["name"] = values["name"]
        return options


class _Level:
    """The parts of a login from one source."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.said = {part: value for part, value in said.items() if value}
        self.kinds = {_PARTS[part].kind for part in self.said if _PARTS[part].kind}


def chosen_context(settings: CommonOptions) -> str | None:
    """Return the name of the context to use: the given one, else the selected one."""
    if settings.given.get("no_context"):
        return None
    variables = settings.env.variables
    named = settings.given.get("context") or variables.get("NATS_CONTEXT")
    return str(named) if named else Contexts(variables).selected


def _named(by_option: bool, part: LoginPart) -> str:
    if not by_option:
        return part.variable
    return "--server" if part.option == "servers" else f"--{part.option}"


def _file(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # it begins with the home directory of an unknown user
        raise CommandError(f"{text}: the home directory does not exist") from error


def _addresses(value: Any) -> list[str]:
    texts = value.split(",") if isinstance(value, str) else value
    return [text.strip() for text in texts if text.strip()]


def read_password(settings: CommonOptions) -> str | None:
    """Return the password from the options, a file or standard input; ``None`` without any of them."""
    given = settings.given
    ways = [name for name in ("password", "password_file", "password_stdin") if name in given]
    if len(ways) > 1:
        raise CommandError("--password, --password-file and --password-stdin exclude each other")
    if path := given.get("password_file"):
        try:
            return _file(path).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"{path}: {error}") from error
    if given.get("password_stdin"):
        return settings.env.stdin.readline().decode("utf-8", "replace").rstrip("\r\n")
    return given.get("password")


def _with_password(settings: CommonOptions, login: Login) -> dict[str, Any]:
    """Return the options of a login, with the password that it needs."""
    options = login.options()
    password = read_password(settings)
    if password is not None:
        options["password"] = password
    elif "user" in options and "password" not in options and settings.interactive:
        options["password"] = Asker(settings).secret(f"Password of {options['user']}", "--password")
        # Prompt once, also for several connections.
        settings.given["password"] = options["password"]
    if "password" in options and "user" not in options:
        raise CommandError("a password needs a --user")
    return options


@contextlib.contextmanager
def connected(settings: CommonOptions, options: dict[str, Any]) -> Iterator[Connection]:
    """Open a connection for a ``with`` block; see `Settings.connection`."""
    from .. import connect  # noqa: PLC0415 - not needed for help and completion

    env = settings.env
    long_running = bool(options.get("allow_reconnect"))
    warnings: list[str] = []

    def on_error(error: Exception) -> None:
        # Fatal errors are raised by the failing call. Each warning is written once.
        text = f"jsm: warning: {one_line(error)}\n"
        if isinstance(error, SubscriptionError) and text not in warnings:
            warnings.append(text)
            if long_running:
                env.stderr.write(text)
                env.stderr.flush()

    login = Login.of(settings)
    context = click.get_current_context(silent=True)
    wanted: dict[str, Any] = {
        "name": context.command_path if context else "jsm",
        "connect_timeout": settings.timeout,
        "allow_reconnect": False,
        "error_cb": on_error,
        **_with_password(settings, login),
        **options,
    }
    if settings.trace and "trace_cb" not in wanted:
        # A trace is for people, also beside JSON.
        wanted["trace_cb"] = _Trace(SafeText(unescaped(env.stderr))).line
    try:
        try:
            opened = connect(login.servers, **wanted)
        except InvalidOptionError as error:
            raise login.named(error) from error
        with opened as connection:
            yield connection
    except SubscriptionError:
        warnings.clear()  # the exception has the same text
        raise
    finally:
        if not long_running:
            env.stderr.writelines(warnings)


#: Commands with a payload, and the number of sizes at the end of the command line.
_SIZES: Final = {"PUB": 1, "HPUB": 2, "MSG": 1, "HMSG": 2}


class _Trace:
    """
    The ``--trace`` output: messages sent and received, with indented JSON.

    It parses the lines of `ConnectOptions.trace_cb`. Only messages are shown, so credentials are never in
    the output.
    """

    def __init__(self, out: SafeText) -> None:
        self._out = out
        #: Reply subjects of pending requests.
        self._replies: set[str] = set()

    def line(self, text: str) -> None:
        """Process a line of the trace."""
        mark, _, rest = text.partition(" ")
        command, *parts = rest.split(" | ")
        words = command.split()
        sizes = _SIZES.get(words[0], 0) if words else 0
        if mark not in (">", "<") or not sizes or len(words) < sizes + 2:
            return
        has_headers = sizes == 2
        header = parts[0] if has_headers and parts else ""
        body = " | ".join(parts[1:] if has_headers else parts)
        subject = words[1]
        if mark == ">":
            if len(words) > sizes + 2:
                self._replies.add(words[2])
            head = f">>> {subject}:"
        elif subject in self._replies:
            self._replies.discard(subject)
            head = "<<<"
        else:
            head = f"<<< {subject}:"
        lines = [head]
        if header and header != "NATS/1.0":
            lines += header.removeprefix("NATS/1.0, ").split(", ")
        lines.append(_body(body))
        self._out.write("\n".join([*lines, "---"]) + "\n")
        self._out.flush()


def _body(text: str) -> str:
    if not text:
        return "nil"
    if text[0] not in "{[":
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
