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
from .login import LOGIN_PARTS, Login, LoginPart, connected
from .status import CommandError
from .values import TIMEOUT

if TYPE_CHECKING:
    from .. import Connection, JetStream

_Function = TypeVar("_Function", bound=Callable[..., object])


class Settings(CommonOptions):
    """The values of the common options, and the connection they lead to."""

    # --- the connection -------------------------------------------------------------------------

    def login(self) -> Login:
        """Return the login from the options, the environment variables and the context."""
        return Login.of(self)

    @contextlib.contextmanager
    def connection(self, **options: Any) -> Iterator[Connection]:
        """
        Open a connection for a ``with`` block, and close it.

        It does not reconnect unless ``allow_reconnect`` is set.
        """
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
                return CommandError(text)
        return error

    def _typed(self, flags: Sequence[str]) -> tuple[str, str]:
        """Return the last use of an option as typed, and its value."""
        for place in reversed(range(len(self.words))):
            flag, equals, value = self.words[place].partition("=")
            if flag in flags:
                return flag, value if equals else "".join(self.words[place + 1 : place + 2])
        return flags[0], ""


# --- the options --------------------------------------------------------------------------------


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


def _option(
    *flags: str, name: str = "", shown: bool = False, **attributes: Any
) -> tuple[str, Callable[[Any], Any]]:
    """Return the name and decorator of a common option; ``shown``: the help of every command has it."""
    name = name or flags[-1].removeprefix("--").replace("-", "_")
    decorate = click.option(
        *flags,
        name,
        hidden=not shown,
        expose_value=False,
        # Parsed first, so that --json applies to errors in other options.
        is_eager=True,
        callback=_take,
        **attributes,
    )
    return name, decorate


def _login_option(part: LoginPart) -> tuple[str, Callable[[Any], Any]]:
    if not part.metavar:
        return _option(f"--{part.option}", is_flag=True, help=part.help)
    kind = click.Path() if part.metavar == "FILE" else None
    return _option(f"--{part.option}", type=kind, metavar=part.metavar, help=part.help)


#: The options, in the order of the help.
_OPTIONS: Final = (
    _option(
        *("-s", "--server"),
        name="servers",
        shown=True,
        multiple=True,
        metavar="URL",
        help="Connect to this NATS server; separate several with commas."
        "  [default: nats://127.0.0.1:4222]",
    ),
    _option("-j", "--json", shown=True, is_flag=True, help="Write the result as JSON."),
    _option(
        "--context",
        shown=True,
        metavar="NAME",
        shell_complete=complete_context,
        help="Connect with this context; see 'jsm context'.",
    ),
    _option(
        "--timeout",
        shown=True,
        type=TIMEOUT,
        metavar="TIME",
        help="Time to wait for a reply.  [default: 5s]",
    ),
    _option("--no-context", is_flag=True, help="Ignore all contexts, including the selected one."),
    *(_login_option(part) for part in LOGIN_PARTS.values() if part.option),
    _option(
        "--password-file",
        type=click.Path(),
        metavar="FILE",
        help="Read the password from this file.",
    ),
    _option(
        "--password-stdin", is_flag=True, help="Read the password from a line of standard input."
    ),
    _option("--trace", is_flag=True, help="Trace requests and replies to standard error."),
    _option("--no-input", is_flag=True, help="Never prompt for missing values."),
    _option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        help="Select when to use colours.",
    ),
    _option("--utc", is_flag=True, help="Show times in UTC."),
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
        except InvalidOptionError as error:
            raise settings.named_error(error) from error

    decorated: Any = with_settings
    # click keeps the parameters in reverse order.
    parameters = decorated.__dict__.pop("__click_params__", [])
    for name, option in reversed(_OPTIONS):
        if name not in own:
            decorated = option(decorated)
    decorated.__click_params__ += parameters
    return decorated  # type: ignore[no-any-return]  # click's decorators lose the type


def command(*args: Any, **attributes: Any) -> Callable[[Callable[..., object]], click.Command]:
    """Return the decorator of a command with the common options; see `click.command`."""
    return lambda function: click.command(*args, **attributes)(common_options(function))
