"""
The common options of all commands, before or after the command name: their values, login and connection.

An option overrides the environment, which overrides the context, which overrides the default. The
variables are those of the ``nats`` command.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from click.core import ParameterSource

from ... import errors
from ...contexts import OPTIONS, TLS_OPTIONS, connect_options, is_server_of, local_path, used_fields
from ...exit_status import ExitStatus
from .context_store import Contexts, complete_context
from .env import Environment, SafeText, json_text, parse_json, single_line, unescaped
from .prompts import Asker
from .status import CommandError, explained, file_errors, may_lack_meta_leader, one_line
from .values import TIMEOUT, Decorator, option

if TYPE_CHECKING:
    from ... import Connection, ConnectionEvent, JetStream

_Function = TypeVar("_Function", bound=Callable[..., object])

#: The maximum number of different warnings of one connection: each acknowledgement has its own subject.
_MAX_WARNINGS: Final = 20
#: Options of a connection that reconnects without limit. The output is watched by a person, so a server
#: that stops answering is detected within half a minute.
_RECONNECT_OPTIONS: Final[dict[str, Any]] = {
    "allow_reconnect": True,
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.5,
    "ping_interval": 10.0,
    "max_outstanding_pings": 2,
}
#: Seconds between two attempts to reconnect during a failover.
_FAILOVER_WAIT_S: Final = 0.25
#: The default timeout of a request, in seconds.
_DEFAULT_TIMEOUT_S = 5.0
#: How long to wait for a meta leader after another request had no answer, in seconds.
_META_WAIT_S: Final = 1.0


@dataclass(kw_only=True)
class Settings:
    """
    The values of the common options, and the connection they lead to; click passes them to commands as ``obj``.

    They are set while the command line is parsed, and do not change after that.
    """

    env: Environment
    #: The values of the common options that were given, by option name; see `common_options`.
    given: dict[str, Any] = field(default_factory=dict, repr=False)
    #: The command line arguments, for errors that quote them.
    words: Sequence[str] = field(default=(), repr=False)
    #: The password that was read from a file or typed: once, also for several connections.
    kept: dict[str, str] = field(default_factory=dict, repr=False)

    def take(self, name: str, value: object) -> None:
        """Set an option; one given after the command name overrides one given before it."""
        self.given[name] = value
        if name == "color":
            self.env = replace(self.env, variables={**self.env.variables, "JSM_COLOR": str(value)})
        elif name == "json":
            self.env.write_utf8()
            self.env.stderr.as_json = True  # type: ignore[attr-defined]  # a `SafeText`

    def with_options(self, **given: object) -> Settings:
        """Return settings in which some options have other values."""
        return replace(self, given={**self.given, **given})

    @property
    def servers(self) -> list[str]:
        """Addresses given by ``--server``, in order; empty when the option was not given."""
        return list(self.given.get("servers", ()))

    @property
    def json(self) -> bool:
        """Whether to write results and errors as JSON."""
        return bool(self.given.get("json"))

    @property
    def utc(self) -> bool:
        """Whether to show times in UTC instead of local time."""
        return self._switch("utc", "JSM_UTC")

    @property
    def trace(self) -> bool:
        """Whether to trace messages to ``stderr``."""
        return self._switch("trace", "JSM_TRACE", "NATS_TRACE")

    @property
    def timeout(self) -> float:
        """The timeout of a request, in seconds."""
        if "timeout" in self.given:
            return float(self.given["timeout"])
        for name in ("JSM_TIMEOUT", "NATS_TIMEOUT"):
            if text := self.env.variables.get(name):
                try:
                    return float(TIMEOUT.parse(text))
                except ValueError as error:
                    raise click.UsageError(f"{name}: {error}") from error
        return _DEFAULT_TIMEOUT_S

    @property
    def interactive(self) -> bool:
        """Whether to prompt: all streams are terminals, and no option disables it."""
        if self.json or self._switch("no_input", "JSM_NO_INPUT", "CI"):
            return False
        # Prompts are written to stderr, so it must be visible as well.
        return all(item.isatty() for item in (self.env.stdin, self.env.stdout, self.env.stderr))

    def ask(self) -> Asker:
        """Return prompts for missing values, and confirmations."""
        return Asker(self.env, interactive=self.interactive)

    def _switch(self, name: str, *variables: str) -> bool:
        if name in self.given:
            return bool(self.given[name])
        values = (self.env.variables.get(variable, "").lower() for variable in variables)
        return any(value not in ("", "0", "false", "no", "off") for value in values)

    # --- the connection -------------------------------------------------------------------------

    def worker_options(self) -> dict[str, Any]:
        """Return the servers and the other options of the connection of a `Worker`."""
        return {"servers": self.login.servers, "connection": _with_password(self, self.login)}

    @functools.cached_property
    def login(self) -> EffectiveLogin:
        """The login from the options, the environment variables and the context, which is read once."""
        login = EffectiveLogin.of(self)
        # Without a command, names are being completed.
        if login.elsewhere and click.get_current_context(silent=True):
            self.note(
                f"context {login.context} is used for servers that are not its own: {login.elsewhere}"
            )
        return login

    def note(self, text: str) -> None:
        """Write a warning or hint to ``stderr`` in one line."""
        self.env.stderr.write(f"jsm: {text}\n")
        self.env.stderr.flush()

    def _reconnect_options(self, reconnects: str) -> dict[str, Any]:
        if not reconnects:
            return {"allow_reconnect": False}
        if reconnects == "failover":
            attempts = max(1, math.ceil(self.timeout / _FAILOVER_WAIT_S))
            waits = {"max_reconnect_attempts": attempts, "reconnect_time_wait": _FAILOVER_WAIT_S}
            return {"allow_reconnect": True, **waits}

        def on_disconnect(event: ConnectionEvent) -> None:
            why = f": {event.error}" if event.error is not None else ""
            self.note(f"disconnected{why}; reconnecting")

        def on_reconnect(event: ConnectionEvent) -> None:
            self.note(f"reconnected to {event.server}")

        callbacks = {"disconnected_cb": on_disconnect, "reconnected_cb": on_reconnect}
        return {**_RECONNECT_OPTIONS, **callbacks}

    @contextlib.contextmanager
    def connection(
        self,
        on_error: Callable[[Exception], object] | None = None,
        *,
        reconnects: Literal["", "failover", "always"] = "",
        **options: Any,
    ) -> Iterator[Connection]:
        """
        Open a connection for a ``with`` block, and close it.

        `on_error`: is called with each error of the connection, beside the warning. `reconnects`: ``failover``
        for as long as a request may take, so that a cluster may lose a server meanwhile, and ``always`` for a
        command that runs until Ctrl-C, with notes. ``servers``: some of the servers of the login.
        """
        import logging  # noqa: PLC0415 - not needed for help

        env = self.env
        logger = logging.getLogger("jetstream_sync")
        if not env.variables.get("JSM_DEBUG") and not logger.handlers:
            # Commands report errors themselves; log records would mix with their output.
            logger.addHandler(logging.NullHandler())
        long_running = reconnects == "always"
        warnings: list[str] = []

        def warn(error: Exception) -> None:
            if on_error is not None:
                on_error(error)
            # Fatal errors are raised by the failing call. Each warning is written once.
            text = one_line(error)
            if (
                isinstance(error, (errors.SubscriptionError, errors.InvalidResponseError))
                and text not in warnings
                and len(warnings) < _MAX_WARNINGS
            ):
                warnings.append(text)
                if long_running:
                    self.note(f"warning: {text}")

        login = self.login
        context = click.get_current_context(silent=True)
        servers = options.pop("servers", login.servers)
        wanted: dict[str, Any] = {
            "name": context.command_path if context else "jsm",
            # The servers share the timeout.
            "connect_timeout": self.timeout / len(servers),
            **self._reconnect_options(reconnects),
            # The end of the block waits for the server, too.
            "drain_timeout": self.timeout,
            "error_cb": warn,
            **_with_password(self, login),
            **options,
        }
        if self.trace and "trace_cb" not in wanted:
            # A trace is for people, also beside JSON.
            wanted["trace_cb"] = _Trace(SafeText(unescaped(env.stderr))).line
        try:
            with self._connect(servers, wanted) as connection:
                try:
                    yield connection
                except (errors.TimeoutError, errors.NoLeaderError) as error:
                    raise self._explained(connection, error) from error.__cause__
        except errors.DomainUnreachableError as error:
            if "domain" not in login.sources:
                raise
            raise CommandError(
                single_line(error.description),
                ExitStatus.NO_CONNECTION,
                hint=f"it is from {login.sources['domain']}",
            ) from error
        except errors.SubscriptionError:
            warnings.clear()  # the exception has the same text
            raise
        except CommandError as error:
            warnings[:] = [text for text in warnings if text not in error.message]
            raise
        finally:
            for text in [] if long_running else warnings:
                self.note(f"warning: {text}")

    def _connect(self, servers: Sequence[str], options: dict[str, Any]) -> Connection:
        """Connect; an error names the source of a wrong option, a note the context whose login was left out."""
        from ... import connect  # noqa: PLC0415 - not needed for help

        unused = self.login.unused
        try:
            return connect(servers, **options)
        except errors.AuthorizationError:
            if unused:
                self.note(
                    f"the login of context {unused} is for its own servers only: "
                    f"add --context {unused} to send it to these"
                )
            raise
        except errors.InvalidOptionError as error:
            raise self.login.named(error) from error

    def _explained(self, connection: Connection, error: errors.Error) -> Exception:
        """Return the error of a request without a reply; the meta leader alone knows what does not exist."""
        if not may_lack_meta_leader(error):
            return error
        js = self.jetstream_on(connection, timeout=min(self.timeout, _META_WAIT_S))
        try:
            js.stream_names()
        except (errors.TimeoutError, errors.ServiceUnavailableError):
            return explained(error, led=False)
        except errors.Error:
            return error
        return explained(error, led=True)

    @contextlib.contextmanager
    def jetstream(self, **options: Any) -> Iterator[JetStream]:
        """Open a connection for a ``with`` block, and yield JetStream on it; see `connection`."""
        with self.connection(**options) as connection:
            yield self.jetstream_on(connection)

    def jetstream_on(self, connection: Connection, *, timeout: float | None = None) -> JetStream:
        """Return a JetStream context with the user's domain, prefix and timeout, unless another is given."""
        login = self.login
        try:
            return connection.jetstream(
                domain=login.values.get("domain"),
                prefix=login.values.get("api_prefix"),
                timeout=self.timeout if timeout is None else timeout,
            )
        except errors.InvalidOptionError as error:
            raise login.named(error) from error

    # --- errors ---------------------------------------------------------------------------------

    def named_error(self, error: errors.InvalidOptionError) -> Exception:
        """Return an error of the library as an error of the command option with the invalid value."""
        context = click.get_current_context()
        for parameter in context.command.params:
            if parameter.name != error.option or not isinstance(parameter, click.Option):
                continue
            if context.get_parameter_source(error.option) is ParameterSource.COMMANDLINE:
                flag, value = self._typed(parameter.opts)
                return CommandError(f"{flag} {value!r}: {error.reason}")
        return error

    def _typed(self, flags: Sequence[str]) -> tuple[str, str]:
        """Return the last use of an option as typed, and its value."""
        for place in reversed(range(len(self.words))):
            flag, equals, value = self.words[place].partition("=")
            if flag in flags:
                return flag, value if equals else "".join(self.words[place + 1 : place + 2])
        return flags[0], ""


# --- the login -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
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

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return "--server" if self.option == "servers" else f"--{self.option}"


def _part(help: str, option: str, variable: str, key: str = "", **more: str) -> LoginPart:  # noqa: A002
    name, _, metavar = option.partition(" ")
    return LoginPart(name, help, metavar, variable, key, **more)


#: The parts of a login, in the order of the help.
LOGIN_PARTS: Final = {
    "url": LoginPart("servers", "", "URL", "NATS_URL", "url"),
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


#: The options of the library, by part.
_LIBRARY: Final = {
    **{
        part: (OPTIONS | TLS_OPTIONS)[item.key]
        for part, item in LOGIN_PARTS.items()
        if item.key in OPTIONS | TLS_OPTIONS
    },
    "name": "name",
    "url": "servers",
    "domain": "domain",
    "api_prefix": "prefix",
}
_PATHS: Final = tuple(name for name, part in LOGIN_PARTS.items() if part.metavar == "FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveLogin:
    """The parts of a login that are set, with the source of each."""

    values: dict[str, Any] = field(repr=False)
    """The value of each part; ``url`` is a list of addresses."""
    sources: dict[str, str]
    """The source of each part: an option, a variable, or ``context NAME``."""
    context: str | None = None
    """The context that is used."""
    unused: str | None = None
    """The context that is not used, because a server is not one of its own."""
    elsewhere: str = ""
    """The parts of the context that are used for a server that is not one of its own."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables, which ``env://`` in a value names."""

    @classmethod
    def of(cls, settings: Settings) -> EffectiveLogin:
        """
        Return the login from the options, the environment variables and the context.

        A context is used for its own servers, and for others if the option ``--context`` names it.
        """
        variables, given_options = settings.env.variables, settings.given
        context = chosen_context(settings)
        fields = Contexts(variables).load(context) if context else {}
        url = given_options.get("servers") or variables.get("NATS_URL")
        if not (url or fields.get("url")):
            url = variables.get("SERVERS")
        unused = None
        is_elsewhere = bool(context and url) and not _is_server_of(fields, url)
        if is_elsewhere and not given_options.get("context"):
            context, unused, fields, is_elsewhere = None, context, {}, False
        try:
            fields = used_fields(fields)
        except errors.InvalidOptionError as error:
            raise CommandError(f"context {context}: {error.reason}") from None
        parts = LOGIN_PARTS.items()
        levels: tuple[dict[str, tuple[Any, str]], ...] = (
            {part: (given_options.get(item.name), item.flag) for part, item in parts},
            {part: (variables.get(item.variable), item.variable) for part, item in parts},
            {part: (fields.get(item.key), f"context {context}") for part, item in parts},
            {"url": (variables.get("SERVERS"), "SERVERS")},
            {"url": (DEFAULT_SERVER, "default")},
        )
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        kinds: set[str] = set()
        for level in levels:
            given = {part: found for part, found in level.items() if found[0]}
            # The first source with a login method decides for all of them.
            kinds = kinds or {LOGIN_PARTS[part].kind for part in given} - {""}
            for part, (value, source) in given.items():
                of_context = source.startswith("context ")
                if part in values or LOGIN_PARTS[part].kind not in {"", *kinds}:
                    continue
                # The password of a context is used only with its user.
                if part == "password" and of_context and sources.get("user", source) != source:
                    continue
                values[part], sources[part] = value, source
        values["url"] = _addresses(values["url"])
        if not values["url"]:
            raise CommandError(f"{sources['url']}: the server address is empty")
        for part in _PATHS:
            if part in values and (path := local_path(values[part])) is not None:
                values[part] = _file(path)
        used = [name for name, source in sources.items() if source == f"context {context}"]
        return cls(
            values=values,
            sources=sources,
            context=context,
            unused=unused,
            elsewhere=", ".join(used) if is_elsewhere else "",
            variables=variables,
        )

    @property
    def servers(self) -> list[str]:
        """The server addresses."""
        return list(self.values["url"])

    def named(self, error: errors.InvalidOptionError) -> Exception:
        """Return an error of the library as an error of the option, variable or context at fault."""
        part = next((name for name, option in _LIBRARY.items() if option == error.option), "")
        if part not in self.sources:
            return error
        source = self.sources[part]
        if source.startswith("context "):
            source += f", {LOGIN_PARTS[part].key}"
        value = "" if error.value == "..." else f" {error.value!r}"
        return CommandError(f"{source}{value}: {error.reason}")

    def options(self) -> dict[str, Any]:
        """Return the options of `connect()` for this login."""
        values = self.values
        fields = {item.key: values[part] for part, item in LOGIN_PARTS.items() if part in values}
        options = connect_options(fields, self.variables)
        if "name" in values:
            options["name"] = values["name"]
        return options


def chosen_context(settings: Settings) -> str | None:
    """Return the name of the context to use: the given one, else the selected one."""
    if settings.given.get("no_context"):
        return None
    variables = settings.env.variables
    named = settings.given.get("context") or variables.get("NATS_CONTEXT")
    return str(named) if named else Contexts(variables).selected


def _is_server_of(fields: Mapping[str, Any], url: Any) -> bool:
    try:
        return is_server_of(fields, _addresses(url))
    except errors.InvalidOptionError:
        return False  # `connect` names the wrong one


def _file(text: str) -> str:
    path = os.path.expanduser(text)  # noqa: PTH111 - pathlib is slow to import
    if path[:1] == "~":  # the home directory of an unknown user
        raise CommandError(f"{text}: the home directory does not exist")
    return path


def _addresses(value: Any) -> list[str]:
    texts = value.split(",") if isinstance(value, str) else value
    return [text.strip() for text in texts if text.strip()]


def read_password(settings: Settings) -> str | None:
    """Return the password from the options or a file, or that was typed; ``None`` without these."""
    given, kept = settings.given, settings.kept
    path = given.get("password_file")
    if path and "password" in given:
        raise CommandError("--password and --password-file exclude each other")
    if path and not kept:  # it may be a pipe
        with file_errors(path), open(_file(path), encoding="utf-8") as file:  # noqa: PTH123
            kept["password"] = file.read().rstrip("\r\n")
    return given.get("password", kept.get("password"))


def _with_password(settings: Settings, login: EffectiveLogin) -> dict[str, Any]:
    """Return the options of a login, with the password that it needs."""
    options = login.options()
    password = read_password(settings)
    if password is not None:
        options["password"] = password
    elif "user" in options and "password" not in options and settings.interactive:
        settings.kept["password"] = options["password"] = _typed_password(options["user"])
    if "password" in options and "user" not in options:
        raise CommandError("a password needs a --user")
    return options


def _typed_password(user: str) -> str:
    import getpass  # noqa: PLC0415 - for terminals only

    try:
        return getpass.getpass(f"Password of {single_line(user)}: ")
    except EOFError:
        raise CommandError("the input ended before the password") from None


# --- the trace -----------------------------------------------------------------------------------

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
        return json_text(parse_json(text), indent=2)
    except ValueError:
        return text


# --- the options --------------------------------------------------------------------------------


def _take(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    settings = context.find_object(Settings)
    if settings is None or parameter.name is None or value in (None, (), False):
        return value
    if parameter.name == "servers":
        value = [address.strip() for item in value for address in item.split(",")]
        if any(not address for address in value):
            raise click.BadParameter(
                "the server address is empty: remove the extra comma", param=parameter, ctx=context
            )
    settings.take(parameter.name, value)
    return value


def _common(
    spec: str,
    text: str,
    kind: Any = None,
    *,
    name: str = "",
    shown: bool = False,
    **attributes: Any,
) -> tuple[str, Decorator]:
    """Return the name and decorator of a common option; ``shown``: the help of every command has it."""
    name = name or spec.partition("--")[2].partition(" ")[0].replace("-", "_")
    # Parsed first, so that --json applies to errors in other options.
    attributes |= {"expose_value": False, "is_eager": True, "callback": _take}
    return name, option(spec, text, kind, to=name, hidden=not shown, **attributes)


def _login_option(part: LoginPart) -> tuple[str, Decorator]:
    kind = click.Path() if part.metavar == "FILE" else None
    return _common(f"--{part.option} {part.metavar}".rstrip(), part.help, kind)


#: The options, in the order of the help.
_OPTIONS: Final = (
    _common(
        "-s, --server URL",
        "Connect to this NATS server; separate several with commas."
        "  [default: nats://127.0.0.1:4222]",
        name="servers",
        shown=True,
        multiple=True,
    ),
    _common("-j, --json", "Write the result as JSON.", shown=True),
    _common(
        "--context NAME",
        "Connect with this context; see 'jsm context'.",
        shown=True,
        shell_complete=complete_context,
    ),
    _common("--timeout TIME", "Time to wait for a reply.  [default: 5s]", TIMEOUT, shown=True),
    _common("--no-context", "Ignore all contexts, including the selected one."),
    *(_login_option(part) for part in LOGIN_PARTS.values() if part.help),
    _common(
        "--password-file FILE", "Read the password from this file, or /dev/stdin.", click.Path()
    ),
    _common("--trace", "Trace requests and replies to standard error."),
    _common("--no-input", "Never prompt for missing values."),
    _common("--color", "When to use colours.", click.Choice(["auto", "always", "never"])),
    _common("--utc", "Show times in UTC."),
)


def common_options(function: _Function) -> _Function:
    """
    Add the common options to a function, and pass the `Settings` as its first argument.

    The help of the command shows the most frequent ones only, after its own. A command that has a parameter of
    the same name, such as ``timeout``, keeps its own option.
    """
    own = inspect.signature(function).parameters

    @click.pass_obj
    @functools.wraps(function)
    def with_settings(settings: Settings, /, *args: Any, **options: Any) -> object:
        try:
            return function(settings, *args, **options)
        except errors.InvalidOptionError as error:
            raise settings.named_error(error) from error

    decorated: Any = with_settings
    # click keeps the parameters in reverse order.
    parameters = decorated.__dict__.pop("__click_params__", [])
    for name, decorator in reversed(_OPTIONS):
        if name not in own:
            decorated = decorator(decorated)
    decorated.__click_params__ += parameters
    return decorated  # type: ignore[no-any-return]  # click's decorators lose the type


#: The headings of the options for fields that no heading names, and of the options that all commands have.
_OTHER_FIELDS: Final = "Other options"
_ALL_COMMANDS: Final = "Options of all commands"


class HeadedCommand(click.Command):
    """A command with many options, whose help has headings for them."""

    #: The parameters below each heading; others that are no fields of a config are below the last one.
    headings: Mapping[str, str]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings."""
        heading_of = {name: head for head, names in self.headings.items() for name in names.split()}
        *heads, last = self.headings
        rows: dict[str, list[tuple[str, str]]]
        rows = {head: [] for head in (*heads, _OTHER_FIELDS, last, _ALL_COMMANDS)}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            # A `FieldOption` has a field.
            rest = _OTHER_FIELDS if hasattr(param, "field") else last
            head = heading_of.get(param.name or "", rest) if param.expose_value else _ALL_COMMANDS
            if row is not None:
                rows[head].append(row)
        for head, found in rows.items():
            if found:
                with formatter.section(head):
                    formatter.write_dl(found)


def command(
    *args: Any, headings: Mapping[str, str] | None = None, **attributes: Any
) -> Callable[[Callable[..., object]], click.Command]:
    """
    Return the decorator of a command with the common options; see `click.command`.

    `headings`: the names of the parameters below each heading of the help, separated by spaces.
    """
    if headings is not None:
        attributes["cls"] = type("HeadedCommand", (HeadedCommand,), {"headings": headings})

    def decorate(function: Callable[..., object]) -> click.Command:
        made: click.Command = click.command(*args, **attributes)(common_options(function))
        return made

    return decorate
