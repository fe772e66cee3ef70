"""The options that every command has, before or after its name, and what became of them."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from ..errors import InvalidOptionError
from .completion.complete import complete_context
from .env import Environment
from .status import CommandError, ExitStatus
from .values import TIMEOUT

if TYPE_CHECKING:
    from .. import Connection, JetStream
    from .login import Login

__all__ = ["DEFAULT_TIMEOUT", "Settings", "all_options", "common_options"]

_Command = TypeVar("_Command", bound=Callable[..., object])

#: Seconds to wait for an answer.
DEFAULT_TIMEOUT = 5.0


@dataclass(kw_only=True)
class Settings:
    """
    What the user asked of ``jsm`` as a whole; click passes it down as ``obj``.

    It is changed while the command line is read, and by nobody after that.
    """

    env: Environment
    #: The values of common options that were used, by the option's name; see `common_options`.
    given: dict[str, Any] = field(default_factory=dict)
    #: The command line, for errors that name what was typed.
    words: Sequence[str] = ()

    def take(self, name: str, value: object) -> None:
        """Take over an option of one level; the level nearest to the command wins."""
        self.given[name] = value
        if name == "color":
            self.env = replace(self.env, variables={**self.env.variables, "JSM_COLOR": str(value)})
        elif name == "json":
            self.env.write_utf8()

    # --- what was asked -------------------------------------------------------------------------

    @property
    def servers(self) -> list[str]:
        """Addresses given by ``--server``, in order; empty when the option was not used."""
        return list(self.given.get("servers", ()))

    @property
    def json(self) -> bool:
        """Results and errors as JSON."""
        return bool(self.given.get("json"))

    @property
    def utc(self) -> bool:
        """Times in UTC instead of local ones."""
        return self._switch("utc", "JSM_UTC")

    @property
    def trace(self) -> bool:
        """Whether to show on ``stderr`` what goes over the connection."""
        return self._switch("trace", "JSM_TRACE", "NATS_TRACE")

    @property
    def timeout(self) -> float:
        """Seconds to wait for an answer."""
        if "timeout" in self.given:
            return float(self.given["timeout"])
        for name in ("JSM_TIMEOUT", "NATS_TIMEOUT"):
            if text := self.env.variables.get(name):
                try:
                    return TIMEOUT.parse(text)
                except ValueError as error:
                    raise click.UsageError(f"{name}: {error}") from error
        return DEFAULT_TIMEOUT

    @property
    def interactive(self) -> bool:
        """Whether there is a person who may be asked: terminals, and no word against it."""
        if self.json or self._switch("no_input", "JSM_NO_INPUT", "CI"):
            return False
        # Questions are on stderr: nobody answers what they can not see.
        return all(each.isatty() for each in (self.env.stdin, self.env.stdout, self.env.stderr))

    def _switch(self, name: str, *variables: str) -> bool:
        if name in self.given:
            return bool(self.given[name])
        values = (self.env.variables.get(variable, "").lower() for variable in variables)
        return any(value not in ("", "0", "false", "no", "off") for value in values)

    # --- the connection -------------------------------------------------------------------------

    def login(self) -> Login:
        """
        Return how to connect: from the options, the variables and the context.

        Raises:
            CommandError: they contradict each other, or a file can not be read.

        """
        from .login import Login  # noqa: PLC0415 - for connections only

        return Login.of(self)

    @contextlib.contextmanager
    def connection(self, **options: Any) -> Iterator[Connection]:
        """
        Open a connection for a ``with`` block, and close it.

        A link that breaks is not sought again, unless ``allow_reconnect`` says so.

        Args:
            **options: more options of `connect()`, before those of the user.

        """
        from .login import connected  # noqa: PLC0415

        with connected(self, options) as connection:
            yield connection

    @contextlib.contextmanager
    def jetstream(self, **options: Any) -> Iterator[JetStream]:
        """Open a connection for a ``with`` block, and yield JetStream on it; see `connection`."""
        with self.connection(**options) as connection:
            yield self.jetstream_on(connection)

    def jetstream_on(self, connection: Connection) -> JetStream:
        """Return JetStream on a connection, in the domain and with the timeout of the user."""
        login = self.login()
        try:
            return connection.jetstream(
                domain=login.domain, prefix=login.api_prefix, timeout=self.timeout
            )
        except InvalidOptionError as error:
            raise login.named(error) from error

    # --- errors ---------------------------------------------------------------------------------

    def named_error(self, error: InvalidOptionError) -> Exception:
        """Return an error of the library as one of the command's option that set what is wrong."""
        context = click.get_current_context()
        for option in context.command.params:
            if option.name != error.option or not isinstance(option, click.Option):
                continue
            if context.get_parameter_source(error.option) is ParameterSource.COMMANDLINE:
                flag, value = self._typed(option.opts)
                text = f"{flag} {value!r}: {error.reason}"
                return CommandError(text, ExitStatus.USAGE)
        return error

    def _typed(self, flags: Sequence[str]) -> tuple[str, str]:
        """Return the spelling of an option that was typed last, and its value."""
        for place in reversed(range(len(self.words))):
            flag, equals, value = self.words[place].partition("=")
            if flag in flags:
                return flag, value if equals else "".join(self.words[place + 1 : place + 2])
        return flags[0], ""


class _Option:
    """One of the common options."""

    def __init__(self, name: str, *flags: str, shown: bool = False, **attributes: Any) -> None:
        self.name = name
        self.flags = flags
        self.shown = shown  # in the help of every command
        self.attributes = attributes

    def added_to(self, command: Any, *, hidden: bool) -> Any:
        """Give it to a command."""
        return click.option(
            *self.flags,
            self.name,
            hidden=hidden,
            expose_value=False,
            # Read first, so that an error in another option is told as these want it.
            is_eager=True,
            callback=_take,
            **self.attributes,
        )(command)


def _switch(name: str, *flags: str, **attributes: Any) -> _Option:
    return _Option(name, *flags, is_flag=True, **attributes)


def _take(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    settings = context.find_object(Settings)
    if settings is None or parameter.name is None or value in (None, (), False):
        return value
    if parameter.name == "servers":
        value = [address.strip() for each in value for address in each.split(",")]
        if any(not address for address in value):
            raise click.BadParameter("an address is empty", param=parameter, ctx=context)
    settings.take(parameter.name, value)
    return value


#: The options, in the order of the help.
_OPTIONS: Final = (
    _Option(
        "servers",
        "-s",
        "--server",
        shown=True,
        multiple=True,
        metavar="URL",
        help="A NATS server; repeat it, or separate with commas, for several."
        "  [default: nats://127.0.0.1:4222]",
    ),
    _switch("json", "-j", "--json", shown=True, help="Write the result as JSON."),
    _Option(
        "context",
        "--context",
        shown=True,
        metavar="NAME",
        shell_complete=complete_context,
        help="Connect as this context says; see 'jsm context'.",
    ),
    _Option(
        "timeout",
        "--timeout",
        shown=True,
        type=TIMEOUT,
        metavar="TIME",
        help="How long to wait for an answer.  [default: 5s]",
    ),
    _switch("no_context", "--no-context", help="Use no context, not the selected one either."),
    _Option("user", "--user", metavar="NAME", help="The user to log in as."),
    _Option("password", "--password", metavar="TEXT", help="The user's password."),
    _Option(
        "password_file",
        "--password-file",
        type=click.Path(),
        metavar="FILE",
        help="A file with the password.",
    ),
    _switch("password_stdin", "--password-stdin", help="Read the password from a line of input."),
    _Option("token", "--token", metavar="TEXT", help="A token to log in with."),
    _Option("creds", "--creds", type=click.Path(), metavar="FILE", help="A credentials file."),
    _Option(
        "nkey",
        "--nkey",
        type=click.Path(),
        metavar="FILE",
        help="A file with the seed of an nkey.",
    ),
    _Option(
        "tlscert",
        "--tlscert",
        type=click.Path(),
        metavar="FILE",
        help="This client's certificate.",
    ),
    _Option(
        "tlskey",
        "--tlskey",
        type=click.Path(),
        metavar="FILE",
        help="The key of the certificate.",
    ),
    _Option("tlsca", "--tlsca", type=click.Path(), metavar="FILE", help="Certificates to trust."),
    _switch("tlsfirst", "--tlsfirst", help="Begin with TLS, before the server says anything."),
    _Option("js_domain", "--js-domain", metavar="NAME", help="The JetStream domain to talk to."),
    _Option("js_api_prefix", "--js-api-prefix", metavar="SUBJECT", help="JetStream's prefix."),
    _Option("inbox_prefix", "--inbox-prefix", metavar="SUBJECT", help="Where answers go."),
    _Option("connection_name", "--connection-name", metavar="TEXT", help="Its name on servers."),
    _switch("trace", "--trace", help="Show requests and answers on standard error."),
    _switch("no_input", "--no-input", help="Ask nothing, whatever is missing."),
    _Option(
        "color",
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        help="When to use colours.",
    ),
    _switch("utc", "--utc", help="Show times in UTC."),
)


def _with_options(command: _Command, *, everything: bool) -> _Command:
    own = inspect.signature(command).parameters

    @click.pass_obj
    @functools.wraps(command)
    def with_settings(settings: Settings, /, *args: Any, **options: Any) -> object:
        try:
            return command(settings, *args, **options)
        except InvalidOptionError as error:
            raise settings.named_error(error) from error

    decorated: Any = with_settings
    for option in reversed(_OPTIONS):
        if option.name not in own:
            decorated = option.added_to(decorated, hidden=not (everything or option.shown))
    return decorated  # type: ignore[no-any-return]  # click's decorators lose the type


def common_options(command: _Command) -> _Command:
    """
    Give a click command the options that all have, and the `Settings` as its first argument.

    Its help shows only the usual ones. A command that has a parameter of the same name, such as
    ``timeout``, keeps its own option.

    Args:
        command: called with the settings and then with its own options.

    """
    return _with_options(command, everything=False)


def all_options(command: _Command) -> _Command:
    """Give the root the same, all of them shown in its help."""
    return _with_options(command, everything=True)
