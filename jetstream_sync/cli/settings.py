"""The common options of all commands, before or after the command name, and their values."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from ..errors import InvalidOptionError
from .context_store import complete_context
from .env import CommonOptions
from .status import CommandError, ExitStatus
from .values import TIMEOUT

if TYPE_CHECKING:
    from .. import Connection, JetStream
    from .login import Login

_Command = TypeVar("_Command", bound=Callable[..., object])


class Settings(CommonOptions):
    """The values of the common options, and the connection they lead to."""

    # --- the connection -------------------------------------------------------------------------

    def login(self) -> Login:
        """
        Return the login from the options, the environment variables and the context.

        Raises:
            CommandError: they contradict each other, or a file cannot be read.

        """
        from .login import Login  # noqa: PLC0415 - for connections only

        return Login.of(self)

    @contextlib.contextmanager
    def connection(self, **options: Any) -> Iterator[Connection]:
        """
        Open a connection for a ``with`` block, and close it.

        It does not reconnect unless ``allow_reconnect`` is set.

        Args:
            **options: options of `connect()`; they override those of the user.

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
        """Return a JetStream context with the user's domain, prefix and timeout."""
        login = self.login()
        try:
            return connection.jetstream(
                domain=login.domain, prefix=login.api_prefix, timeout=self.timeout
            )
        except InvalidOptionError as error:
            raise login.named(error) from error

    # --- errors ---------------------------------------------------------------------------------

    def named_error(self, error: InvalidOptionError) -> Exception:
        """Return an error of the library as an error of the command option with the invalid value."""
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
        """Return the last use of an option as typed, and its value."""
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
        self.shown = shown  # whether the help of every command shows it
        self.attributes = attributes

    def added_to(self, command: Any) -> Any:
        """Return the command with this option added."""
        return click.option(
            *self.flags,
            self.name,
            hidden=not self.shown,
            expose_value=False,
            # Parsed first, so that --json applies to errors in other options.
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
            raise click.BadParameter(
                "the server address is empty: remove the extra comma", param=parameter, ctx=context
            )
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
        help="Connect to this NATS server; separate several with commas."
        "  [default: nats://127.0.0.1:4222]",
    ),
    _switch("json", "-j", "--json", shown=True, help="Write the result as JSON."),
    _Option(
        "context",
        "--context",
        shown=True,
        metavar="NAME",
        shell_complete=complete_context,
        help="Connect with this context; see 'jsm context'.",
    ),
    _Option(
        "timeout",
        "--timeout",
        shown=True,
        type=TIMEOUT,
        metavar="TIME",
        help="Time to wait for a reply.  [default: 5s]",
    ),
    _switch("no_context", "--no-context", help="Ignore all contexts, including the selected one."),
    _Option("user", "--user", metavar="NAME", help="Log in as this user."),
    _Option("password", "--password", metavar="TEXT", help="Log in with this password."),
    _Option(
        "password_file",
        "--password-file",
        type=click.Path(),
        metavar="FILE",
        help="Read the password from this file.",
    ),
    _switch(
        "password_stdin",
        "--password-stdin",
        help="Read the password from a line of standard input.",
    ),
    _Option("token", "--token", metavar="TEXT", help="Log in with this token."),
    _Option(
        "creds",
        "--creds",
        type=click.Path(),
        metavar="FILE",
        help="Log in with this credentials file.",
    ),
    _Option(
        "nkey",
        "--nkey",
        type=click.Path(),
        metavar="FILE",
        help="Log in with the nkey seed in this file.",
    ),
    _Option(
        "tlscert",
        "--tlscert",
        type=click.Path(),
        metavar="FILE",
        help="Use this client certificate.",
    ),
    _Option(
        "tlskey",
        "--tlskey",
        type=click.Path(),
        metavar="FILE",
        help="Use this private key for the certificate.",
    ),
    _Option(
        "tlsca",
        "--tlsca",
        type=click.Path(),
        metavar="FILE",
        help="Trust the CA certificates in this file.",
    ),
    _switch("tlsfirst", "--tlsfirst", help="Start the TLS handshake before the server's INFO."),
    _Option("js_domain", "--js-domain", metavar="NAME", help="Use this JetStream domain."),
    _Option(
        "js_api_prefix",
        "--js-api-prefix",
        metavar="SUBJECT",
        help="Use this prefix for the JetStream API.",
    ),
    _Option(
        "inbox_prefix",
        "--inbox-prefix",
        metavar="SUBJECT",
        help="Use this prefix for reply subjects.",
    ),
    _Option(
        "connection_name", "--connection-name", metavar="TEXT", help="Set the connection name."
    ),
    _switch("trace", "--trace", help="Trace requests and replies to standard error."),
    _switch("no_input", "--no-input", help="Never prompt for missing values."),
    _Option(
        "color",
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        help="Select when to use colours.",
    ),
    _switch("utc", "--utc", help="Show times in UTC."),
)


def common_options(command: _Command) -> _Command:
    """
    Add the common options to a click command, and pass the `Settings` as its first argument.

    The help of the command shows the most frequent ones only. A command that has a parameter of the same
    name, such as ``timeout``, keeps its own option.

    Args:
        command: called with the settings and then with its own options.

    """
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
            decorated = option.added_to(decorated)
    return decorated  # type: ignore[no-any-return]  # click's decorators lose the type
