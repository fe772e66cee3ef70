"""
The ``jsm`` program: the tree of commands, and the mapping of errors to exit statuses.

`main` is the entry point of the process. `run` does the same for given arguments and streams, and
returns the status.
"""

from __future__ import annotations

import contextlib
import json
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
from .output import to_json
from .settings import Settings, all_options
from .status import CommandError, ExitStatus, document_of, exit_status, hint_of, one_line

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
    """Return the URL and version of the server; ``None`` when it cannot be reached."""
    try:
        with settings.connection() as nc:
            return {"url": nc.connected_url or "", "version": nc.server_info.version}
    except (Error, CommandError):
        return None


def _lazy(name: str, text: str, *aliases: str, target: str = "") -> tuple[str, LazyCommand]:
    place = f"{__package__}.{target or f'{name}:{name}'}"
    return name, LazyCommand(target=place, help=text, aliases=aliases)


#: All commands, imported on first use.
_COMMANDS = dict(
    [
        _lazy(
            "account",
            "Show the JetStream usage and limits of an account.",
            "act",
            "a",
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
        _lazy("kv", "Manage key-value buckets and their keys.", target="kv.group:kv"),
        _lazy(
            "object",
            "Manage object stores: buckets of files.",
            "obj",
            target="objects.group:object_",
        ),
        _lazy("pub", "Publish messages.", "publish", target="messages.pub:pub"),
        _lazy("req", "Send a request and show the replies.", "request", target="messages.req:req"),
        _lazy("sub", "Show messages as they arrive.", "subscribe", target="messages.sub:sub"),
        _lazy(
            "apply",
            "Create or update streams and consumers from a file.",
        ),
        _lazy(
            "context",
            "Manage named logins, shared with the nats command.",
            "ctx",
        ),
        _lazy("events", "Show JetStream advisories and metrics.", "event", "e"),
        _lazy("top", "Watch streams and consumers.", target="top.command:top"),
        _lazy("worker", "Run functions that handle messages."),
        _lazy("bench", "Measure message throughput and latency.", target="bench.group:bench"),
        _lazy("rtt", "Measure the round-trip time to servers."),
        _lazy("errors", "Look up JetStream error codes.", "err", "error"),
        _lazy("server", "Run a server on this machine.", "srv"),
        _lazy(
            "demo", "Process orders exactly once in a demo pipeline.", target="demo.command:demo"
        ),
        _lazy("cheat", "Show short recipes."),
        _lazy(
            "completion",
            "Generate the shell completion script.",
            target="commands:completion",
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
      0  success                       5  no connection, or JetStream is disabled
      1  failed                        6  no responders
      2  invalid usage or input      130  interrupted with Ctrl-C
      3  not found                   141  broken pipe on the output
      4  timed out                   143  terminated
    """  # noqa: D301 - click requires the character, not the escape


def run(args: Sequence[str], env: Environment) -> int:
    """
    Run one command line.

    Args:
        args: the command line arguments after ``jsm``.
        env: the streams and environment variables to use.

    Returns:
        The exit status. An error has been reported on ``env.stderr`` in one line. Unexpected
        exceptions are raised.

    """
    settings = Settings(env=env, words=args)
    instruction = env.variables.get(_COMPLETE_VARIABLE)
    try:
        # click writes help, version and completions to sys.stdout and sys.stderr.
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
    """Write an error to ``stderr`` without a traceback; write nothing for a broken pipe."""
    status = exit_status(error)
    if status is ExitStatus.BROKEN_PIPE:
        return status
    # A usage error may be raised before the option is parsed.
    as_json = settings.json or not {"-j", "--json"}.isdisjoint(args)
    if as_json:
        text = f"{json.dumps(document_of(error))}\n"
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
    # SystemExit unwinds the stack, so that commands remove their temporary server objects.
    raise SystemExit(int(ExitStatus.TERMINATED))


def main() -> NoReturn:
    """Run ``jsm`` with the arguments, streams and variables of this process."""
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(sys.stdout, "reconfigure"):
        # A character that the terminal cannot encode becomes an escape instead of a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not os.environ.get("JSM_DEBUG"):
        # Commands report errors themselves; log records would mix with their output.
        logging.getLogger("jetstream_sync").addHandler(logging.NullHandler())
    status = run(sys.argv[1:], Environment.of_process())
    if status == ExitStatus.BROKEN_PIPE:
        # The interpreter flushes stdout again at exit and would report the broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
