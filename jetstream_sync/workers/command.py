"""What the commands that run a worker have in common: finding it, processes and log records."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TextIO

from .. import InvalidOptionError
from .health import Processes
from .heartbeat import supervisor_link
from .http_server import MonitoringServer
from .logs import JsonLogFormatter, LogContextFilter, log, outcome_log
from .status import ExitStatus
from .supervisor import Limits, Supervisor
from .worker import Worker

_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(threadName)s %(message)s"
_PROCESS_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(threadName)s %(message)s"
#: Addresses of servers for worker processes; an argument would show passwords to other users.
_SERVERS_VARIABLE: Final = "JETSTREAM_WORKER_SERVERS"
#: Drain timeout of processes that are replaced whenever a file changes, in seconds.
_RELOAD_DRAIN_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a command that runs a worker."""

    target: str
    """``MODULE:ATTRIBUTE``."""
    servers: Sequence[str] = ()
    """The servers; empty: those of the worker."""
    drain_timeout: float | None = None
    """In seconds; ``None``: that of the worker."""
    processes: int | None = None
    """The number of worker processes; ``None``: this one, unless another option needs a supervisor."""
    limits: Limits = field(default_factory=Limits)
    """When a worker process is replaced."""
    reload: bool = False
    """Whether to replace the worker processes when a source file changes."""
    http: str | None = None
    """The address of health checks and metrics; ``None``: that of the worker, without a supervisor."""
    log_format: str = "text"
    """``"text"`` or ``"json"``."""
    verbose: bool = False
    """Whether to log one line for each message."""

    burst: bool = False
    """Whether to stop when all consumers are empty."""

    @property
    def supervised(self) -> bool:
        """Whether a supervisor has to run the worker."""
        return self.processes is not None or self.reload or self.limits != Limits()


class RunOption(NamedTuple):
    """An option of the commands that run a worker."""

    name: str
    """Its name on the command line, without ``--``."""
    help: str
    """What it does."""
    kind: type = bool
    """The type of its value; ``bool``: it has none."""
    metavar: str | None = None
    """The placeholder for its value."""
    choices: Sequence[str] = ()
    """The possible values; the first one is the default. Empty: any."""


_DRAIN = "Seconds that running handlers may take after a signal.  [default: that of the worker]"
_HTTP = "Serve /livez, /readyz and /metrics at this address.  [default: that of the worker]"
_PROCESSES = "Number of worker processes, each with its own connection, under a supervisor."
_RELOAD = "Replace the worker processes when a source file changes, for development."
_FORMAT = "Format of log records.  [default: text]"
#: The options of `RunOptions`, other than the servers.
RUN_OPTIONS: Final = (
    RunOption("drain-timeout", _DRAIN, float, "SECONDS"),
    RunOption("http", _HTTP, str, "HOST:PORT"),
    RunOption("processes", _PROCESSES, int, "N"),
    RunOption("max-messages", "Replace a worker process after this number of messages.", int, "N"),
    RunOption("max-age", "Replace a worker process after this time.", float, "SECONDS"),
    RunOption(
        "max-rss", "Replace a worker process that uses this much memory (Linux).", int, "MIB"
    ),
    RunOption("reload", _RELOAD),
    RunOption("log-format", _FORMAT, str, None, ("text", "json")),
    RunOption("verbose", "Log one line for each message."),
    RunOption("burst", "Stop when all consumers are empty."),
)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that runs a worker; see `run_options`."""
    parser.add_argument(
        "-s",
        "--server",
        action="append",
        default=[],
        dest="servers",
        metavar="URL",
        help="Server address; repeatable.  [default: that of the worker]",
    )
    for each in RUN_OPTIONS:
        if each.kind is bool:
            parser.add_argument(f"--{each.name}", action="store_true", help=each.help)
        else:
            parser.add_argument(
                f"--{each.name}",
                type=each.kind,
                metavar=each.metavar,
                choices=each.choices or None,
                default=each.choices[0] if each.choices else None,
                help=each.help,
            )


def run_options(target: str, given: argparse.Namespace) -> RunOptions:
    """Return the options that a parser of `add_run_arguments` has found."""
    rss = None if given.max_rss is None else given.max_rss * 2**20
    limits = Limits(max_messages=given.max_messages, max_age=given.max_age, max_rss=rss)
    names = ("drain_timeout", "processes", "reload", "http", "log_format", "verbose", "burst")
    same = {name: getattr(given, name) for name in names}
    return RunOptions(target=target, servers=given.servers, limits=limits, **same)


def load_worker(target: str) -> Worker:
    """Import the worker that ``MODULE:ATTRIBUTE`` names, from the current directory or the Python path."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise InvalidOptionError(
            "worker", target, "must be MODULE:ATTRIBUTE, as in shop.workers:worker"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise InvalidOptionError(
            "worker",
            target,
            f"there is no module {error.name!r}: run the command in the directory of the module, or "
            "set PYTHONPATH",
        ) from error
    found: object = module
    for name in attribute.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, Worker):
        names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
        has = f"the module has {', '.join(names)}" if names else "the module has none"
        raise InvalidOptionError(
            "worker", target, f"{module_name}.{attribute} is not a Worker; {has}"
        )
    return found


def configure_logging(options: RunOptions, stream: TextIO, *, with_process: bool) -> None:
    """Write log records to a stream, unless logging is configured already."""
    if options.verbose:
        outcome_log.setLevel(logging.INFO)
    if logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(stream)
    handler.addFilter(LogContextFilter())
    if options.log_format == "json":
        handler.setFormatter(JsonLogFormatter())
    else:
        log_format = _PROCESS_LOG_FORMAT if with_process else _LOG_FORMAT
        handler.setFormatter(logging.Formatter(log_format))
    # The records of this package only; those of others are shown from the level WARNING on.
    logging.basicConfig(handlers=[handler])
    log.setLevel(logging.INFO)


def run_worker(
    options: RunOptions,
    stream: TextIO,
    *,
    load: Callable[[str], Worker] = load_worker,
    command: Sequence[str] = (sys.executable, "-m", "jetstream_sync.workers"),
) -> int:
    """Run a worker, in this process or in several, until it is stopped; return the exit status."""
    if options.burst and options.supervised:
        raise InvalidOptionError("burst", True, "excludes several processes, limits and reload")
    if options.supervised:
        configure_logging(options, stream, with_process=True)
        return _run_supervisor(options, command)
    supervised = supervisor_link() is not None  # before the import, which may take long
    worker = load(options.target)
    worker.servers = list(options.servers) or _inherited_servers() or worker.servers
    if options.drain_timeout is not None:
        worker.drain_timeout = options.drain_timeout
    if options.http is not None:
        worker.http = options.http
    configure_logging(options, stream, with_process=supervised)
    return worker.run(burst=options.burst)


def _inherited_servers() -> list[str]:
    return [each for each in os.environ.get(_SERVERS_VARIABLE, "").split(",") if each]


def _run_supervisor(options: RunOptions, program: Sequence[str]) -> int:
    command = [*program, options.target] if options.target else [*program]
    drain_timeout = _RELOAD_DRAIN_S if options.reload else None
    if options.drain_timeout is not None:
        drain_timeout = options.drain_timeout
    if drain_timeout is not None:
        command += ["--drain-timeout", f"{drain_timeout:g}"]
    command += ["--log-format", options.log_format]
    if options.verbose:
        command.append("--verbose")
    servers = {_SERVERS_VARIABLE: ",".join(options.servers)} if options.servers else {}
    number = 1 if options.processes is None else options.processes
    processes = Processes(number)
    supervisor = Supervisor(
        command,
        number,
        environment=servers,
        limits=options.limits,
        reload=options.reload,
        observer=processes,
    )
    if options.http is None:
        return supervisor.run()
    try:
        server = MonitoringServer(options.http, processes)
    except OSError as error:
        log.error("cannot serve http=%r: %s", options.http, error)  # noqa: TRY400
        return ExitStatus.USAGE
    with server.serving("the supervisor"):
        return supervisor.run()
