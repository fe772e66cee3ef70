"""``jsm worker``: run and check workers of `jetstream_sync.workers`."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from .groups import NounGroup
from .output import emit, note
from .settings import Settings, common_options
from .status import CommandError, ExitStatus

if TYPE_CHECKING:
    from ..workers import Worker

__all__ = ["worker"]

_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(threadName)s %(message)s"


@click.group(cls=NounGroup)
@common_options
def worker(_settings: Settings) -> None:
    """
    Run functions that handle messages.

    A worker is defined in a Python module, with jetstream_sync.workers.Worker. Its server is in the module,
    unless --server is given.
    """


@worker.command("run", short_help="Handle messages until Ctrl-C or SIGTERM.")
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@click.option(
    "--drain-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    envvar="JETSTREAM_WORKER_DRAIN_TIMEOUT",
    help="Seconds that running handlers may take after a signal.  [default: that of the worker]",
)
@common_options
@click.pass_context
def run(
    ctx: click.Context, settings: Settings, *, target: str, drain_timeout: float | None
) -> None:
    """
    Handle messages until Ctrl-C or SIGTERM.

    MODULE is imported from the current directory or the Python path; ATTRIBUTE is a Worker in it. A signal
    stops the worker: running handlers end, waiting messages go to other workers. A second signal stops it
    at once. Log records go to standard error, unless the module configures logging.

    \b
    Exit status:
      0  stopped, and everything handled is acknowledged
      1  a handler did not end in time; its message is delivered again
      2  an option or a consumer does not fit
      3  a stream or consumer does not exist
      5  no connection, login refused, or JetStream is disabled
    """  # noqa: D301 - click requires the character, not the escape
    found = load_worker(target, settings)
    if drain_timeout is not None:
        found.drain_timeout = drain_timeout
    if not logging.getLogger().handlers:
        # The records of this package only; those of others are shown from the level WARNING on.
        logging.basicConfig(stream=settings.env.stderr, format=_LOG_FORMAT)
        logging.getLogger("jetstream_sync.worker").setLevel(logging.INFO)
    ctx.exit(found.run())


@worker.command("check", short_help="Check that a worker can run.")
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@click.option("-v", "--verbose", is_flag=True, help="Show all options of the handlers.")
@common_options
@click.pass_context
def check(ctx: click.Context, settings: Settings, *, target: str, verbose: bool) -> None:
    """
    Check streams, consumers, options and permissions of a worker.

    No message is read, and nothing is changed. The exit status is the one with which 'worker run' would
    end, or 0 if it would run.
    """
    found = load_worker(target, settings)
    result = found.check()
    handlers: list[dict[str, Any]] = [
        {"name": each.name, "stream": each.stream, "consumer": each.consumer}
        | ({"options": each.options()} if verbose else {})
        for each in found.handlers
    ]

    def human() -> None:
        out = settings.env.stdout
        for each in handlers:
            out.write(f"{each['name']}: consumer {each['consumer']} of stream {each['stream']}\n")
            for name, value in each.get("options", {}).items():
                out.write(f"  {name}={value}\n")
        for text in result.errors:
            out.write(f"error: {text}\n")

    document = {"handlers": handlers, "warnings": result.warnings, "errors": result.errors}
    emit(settings, document, human)
    if not settings.json:
        for text in result.warnings:
            note(settings, f"warning: {text}")
    ctx.exit(result.status)


def load_worker(target: str, settings: Settings) -> Worker:
    """
    Import the worker that ``MODULE:ATTRIBUTE`` names.

    Raises:
        CommandError: there is none.

    """
    from ..workers import Worker  # noqa: PLC0415 - for this command only

    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise CommandError(
            f"invalid worker {target!r}: expected MODULE:ATTRIBUTE, as in shop.workers:worker",
            ExitStatus.USAGE,
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise CommandError(
            f"there is no module {error.name!r}",
            ExitStatus.USAGE,
            hint="run the command in the directory of the module, or set PYTHONPATH",
        ) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Worker):
        names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
        raise CommandError(
            f"{module_name}.{attribute} is not a Worker",
            ExitStatus.USAGE,
            hint=f"the module has {', '.join(names)}" if names else "the module has none",
        )
    found.servers = settings.servers or found.servers or settings.env.variables.get("NATS_URL")
    return found
