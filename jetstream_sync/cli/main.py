"""
The ``jsm`` program: the tree of commands, and the way from an error to an exit status.

`main` is the entry point of the process, `run` is the same without the process: it takes the
arguments and the streams, and returns the status.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from ..errors import Error
from ..version import __version__
from .env import Environment
from .groups import LazyCommand, MissingCommandError, NounGroup
from .render import to_json
from .settings import Settings, all_options
from .status import CommandError, ExitStatus, document_of, exit_status, hint_of, one_line

__all__ = ["jsm", "main", "run"]

_COMPLETE_VARIABLE = "_JSM_COMPLETE"


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    settings = context.find_object(Settings)
    if not asked or context.resilient_parsing or settings is None:
        return
    python = platform.python_version()
    if settings.json:
        said = {"version": __version__, "python": python, "server": _server(settings)}
        settings.env.stdout.write(to_json(said))
    else:
        settings.env.stdout.write(f"jsm {__version__} (Python {python})\n")
    context.exit()


def _server(settings: Settings) -> dict[str, str] | None:
    """Return what can be said of the server; nothing when there is none."""
    try:
        with settings.connection() as nc:
            return {"url": nc.connected_url or "", "version": nc.server_info.version}
    except (Error, CommandError):
        return None


def _lazy(name: str, text: str, *aliases: str, target: str = "") -> tuple[str, LazyCommand]:
    place = f"{__package__}.{target or f'{name}:{name}'}"
    return name, LazyCommand(target=place, help=text, aliases=aliases)


#: Every command, imported when it is asked for.
_COMMANDS = dict(
    [
        _lazy(
            "account",
            "Show what an account uses of JetStream.",
            "act",
            "a",
            target="account.group:account",
        ),
        _lazy(
            "stream",
            "Manage streams: Message Sets.",
            "str",
            "st",
            "s",
            "ms",
            "messageset",
            target="stream.group:stream",
        ),
        _lazy(
            "consumer",
            "Manage and read consumers: Observables.",
            "con",
            "c",
            "obs",
            "observable",
            target="consumer.group:consumer",
        ),
        _lazy("pub", "Publish messages.", target="messages.pub:pub"),
        _lazy("req", "Send a request, and show the answers.", "request", target="messages.req:req"),
        _lazy("sub", "Show messages as they come.", target="messages.sub:sub"),
        _lazy("apply", "Make streams and consumers as a file says.", target="apply.command:apply"),
        _lazy(
            "context",
            "Manage named logins, shared with the nats command.",
            "ctx",
            target="context.group:context",
        ),
        _lazy("events", "Show what servers tell of JetStream.", "event", "e"),
        _lazy("top", "Watch streams and consumers.", target="top.command:top"),
        _lazy("bench", "Measure how fast messages go.", target="bench.group:bench"),
        _lazy("rtt", "Measure the round trip to servers."),
        _lazy("errors", "Look up the errors of JetStream.", "err", "error"),
        _lazy("server", "Run a server on this machine.", "srv"),
        _lazy(
            "demo", "Run orders through a pipeline, each exactly once.", target="demo.command:demo"
        ),
        _lazy("cheat", "Show short recipes."),
        _lazy(
            "completion",
            "Write the script that completes commands in a shell.",
            target="completion.script:completion",
        ),
        _lazy("commands", "List all commands."),
        _lazy("help", "Show the help of a command.", target="commands:help_"),
    ]
)


@click.group(
    cls=NounGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@all_options
def jsm(_settings: Settings) -> None:
    """
    Work with NATS JetStream from the command line.

    Results go to standard output, progress and errors to standard error.

    \b
    Exit status:
      0  done                          5  no connection, or JetStream is disabled
      1  refused or failed             6  no responders
      2  wrong usage or input        130  interrupted with Ctrl-C
      3  not found                   141  the reader of the output went away
      4  timed out                   143  terminated
    """  # noqa: D301 - click knows its mark by the character, not by the escape


def run(args: Sequence[str], env: Environment) -> int:
    """
    Run one command line.

    Args:
        args: the words after ``jsm``.
        env: the streams and variables to use.

    Returns:
        The exit status. An error has been reported on ``env.stderr`` in one line. Errors that are
        bugs are raised.

    """
    settings = Settings(env=env, words=args)
    instruction = env.variables.get(_COMPLETE_VARIABLE)
    try:
        # click writes help, version and completions to sys.stdout.
        with contextlib.redirect_stdout(env.stdout), contextlib.redirect_stderr(env.stderr):
            if instruction:
                from click.shell_completion import shell_complete  # noqa: PLC0415 - for shells only

                return shell_complete(
                    jsm, {"obj": settings}, "jsm", _COMPLETE_VARIABLE, instruction
                )
            status = _invoke(args, settings)
            env.stdout.flush()
            return status
    except (
        click.ClickException,
        click.Abort,
        CommandError,
        Error,
        OSError,
        KeyboardInterrupt,
    ) as error:
        return _report(error, settings, args)


def _invoke(args: Sequence[str], settings: Settings) -> int:
    # Not click's own main(): it turns Ctrl-C and a broken pipe into status 1.
    try:
        with jsm.make_context("jsm", list(args), obj=settings) as context:
            jsm.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return ExitStatus.OK


def _report(error: BaseException, settings: Settings, args: Sequence[str]) -> ExitStatus:
    """Write an error to ``stderr``: nothing for a pipe that closed, and no traceback ever."""
    status = exit_status(error)
    if status is ExitStatus.BROKEN_PIPE:
        return status
    # A usage error may come before the option was read.
    as_json = settings.json or not {"-j", "--json"}.isdisjoint(args)
    if as_json:
        text = to_json(document_of(error))
    elif isinstance(error, MissingCommandError):
        text = f"{error.help}\n"
    else:
        said, hint = one_line(error), hint_of(error)
        text = f"jsm: {said}{' ' if said.endswith('?') else '; '}{hint}\n"
        text = text if hint else f"jsm: {said}\n"
    with contextlib.suppress(BrokenPipeError):
        settings.env.stderr.write(text)
        settings.env.stderr.flush()
    return status


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    # SystemExit unwinds the stack, so that what a command made on a server is removed.
    raise SystemExit(int(ExitStatus.TERMINATED))


def main() -> NoReturn:
    """Run ``jsm`` as a process: arguments, streams and variables are the process's own."""
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that can not show a character gets an escape instead of a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not os.environ.get("JSM_DEBUG"):
        # What matters to the user is told by the command; logs would stand between its lines.
        logging.getLogger("jetstream_sync").addHandler(logging.NullHandler())
    status = run(sys.argv[1:], Environment.of_process())
    if status == ExitStatus.BROKEN_PIPE:
        # The interpreter flushes stdout once more on its way out, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
