"""What the commands that run a worker have in common: finding it, processes and log records."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TextIO

from .. import errors
from ..exit_status import ExitStatus
from .checks import check_option
from .context import LogContextFilter
from .events import hold_hangup, ignore_signals
from .logs import JsonLogFormatter, TextLogFormatter, log, outcome_log
from .operations.health import Processes
from .operations.heartbeat import supervisor_link
from .operations.supervisor import RecycleRules, Supervisor
from .run import monitoring
from .worker import Worker

_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(threadName)s %(message)s"
_PROCESS_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(threadName)s %(message)s"
#: Addresses of servers for worker processes; an argument would show passwords to other users.
_SERVERS_VARIABLE: Final = "JETSTREAM_WORKER_SERVERS"
#: The command of a worker process, before the target.
_COMMAND: Final = (sys.executable, "-m", "jetstream_sync.workers")
#: Drain timeout of processes that are replaced whenever a file changes, in seconds.
_RELOAD_DRAIN_S: Final = 2.0


def _option(text: str, kind: type = bool, **arguments: Any) -> Any:
    """Declare a field as an option, with further arguments for `argparse.ArgumentParser.add_argument`."""
    arguments |= {"action": "store_true"} if kind is bool else {"type": kind}
    default = False if kind is bool else arguments.get("default")
    return field(default=default, metadata={"help": text, **arguments})


_DRAIN: Final = (
    "Seconds that running handlers may take after a signal.  [default: that of the worker]"
)
_HTTP: Final = "Serve /livez, /readyz and /metrics at this address.  [default: that of the worker]"
_PROCESSES: Final = "Number of worker processes, each with its own connection, under a supervisor."
_MESSAGES: Final = "Replace a worker process after this number of messages."
_AGE: Final = "Replace a worker process after this time."
_RSS: Final = "Replace a worker process that uses this much memory (Linux)."
_RELOAD: Final = "Replace the worker processes when a source file changes, for development."
_FORMAT: Final = "Format of log records.  [default: text]"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a command that runs a worker."""

    target: str
    """``MODULE:ATTRIBUTE``."""
    servers: Sequence[str] = ()
    """The servers; empty: those of the worker."""
    drain_timeout: float | None = _option(_DRAIN, float, metavar="SECONDS")
    http: str | None = _option(_HTTP, str, metavar="HOST:PORT")
    processes: int | None = _option(_PROCESSES, int, metavar="N")
    max_messages: int | None = _option(_MESSAGES, int, metavar="N")
    max_age: float | None = _option(_AGE, float, metavar="SECONDS")
    max_rss: int | None = _option(_RSS, int, metavar="MIB")
    reload: bool = _option(_RELOAD)
    log_format: str = _option(_FORMAT, str, choices=("text", "json"), default="text")
    verbose: bool = _option("Log one line for each message.")
    burst: bool = _option("Stop when all consumers are empty.")

    @property
    def limits(self) -> RecycleRules:
        """When a worker process is replaced."""
        rss = None if self.max_rss is None else self.max_rss * 2**20
        return RecycleRules(max_messages=self.max_messages, max_age=self.max_age, max_rss=rss)

    @property
    def supervised(self) -> bool:
        """Whether a supervisor has to run the worker."""
        return self.processes is not None or self.reload or self.limits != RecycleRules()


#: The options of `RunOptions` on the command line: arguments of `argparse.ArgumentParser.add_argument`.
RUN_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    item.name: item.metadata for item in fields(RunOptions) if item.metadata
}


def flag_of(option: str) -> str:
    """Return the flag of one of `RUN_OPTIONS`."""
    return f"--{option.replace('_', '-')}"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that runs a worker; see `run_options`."""
    text = "Server address; repeatable.  [default: that of the worker]"
    parser.add_argument(
        *("-s", "--server"), action="append", default=[], dest="servers", metavar="URL", help=text
    )
    for name, arguments in RUN_OPTIONS.items():
        parser.add_argument(flag_of(name), **arguments)


def run_options(target: str, given: argparse.Namespace) -> RunOptions:
    """Return the options that a parser of `add_run_arguments` has found."""
    values = {name: getattr(given, name) for name in RUN_OPTIONS}
    return RunOptions(target=target, servers=given.servers, **values)


def load_worker(target: str) -> Worker:
    """Import the worker that ``MODULE:ATTRIBUTE`` names, from the current directory or the Python path."""
    module_name, _, attribute = target.partition(":")
    rule = "must be MODULE:ATTRIBUTE, as in shop.workers:worker"
    check_option("worker", target, bool(module_name and attribute), rule)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise errors.InvalidOptionError(
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
        raise errors.InvalidOptionError(
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
        handler.setFormatter(TextLogFormatter(log_format))
    # Only this package logs from the level INFO on; other loggers do from WARNING on.
    logging.basicConfig(handlers=[handler])
    log.setLevel(logging.INFO)


def main(
    arguments: Sequence[str] | None = None,
    *,
    prog: str = "python -m jetstream_sync.workers",
    worker: Worker | None = None,
    command: Sequence[str] = _COMMAND,
) -> int:
    """Run a worker, which the arguments name unless it is given; return the exit status."""
    text = "Handle messages until Ctrl-C or SIGTERM."
    parser = argparse.ArgumentParser(prog=prog, description=text)
    if worker is None:
        parser.add_argument(
            "target", metavar="MODULE:ATTRIBUTE", help="the worker, as in shop.workers:worker"
        )
    add_run_arguments(parser)
    given = parser.parse_args(arguments)
    load = load_worker if worker is None else lambda _target: worker
    try:
        options = run_options(getattr(given, "target", ""), given)
        return run_worker(options, sys.stderr, load=load, command=command)
    except errors.InvalidArgumentError as error:
        parser.exit(ExitStatus.USAGE, f"{prog}: {error}\n")


def show_check(worker: Worker, out: Callable[[str], object], err: Callable[[str], object]) -> int:
    """Check a worker, and pass the lines of the result to functions; return the exit status."""
    result = worker.check()
    for handler in worker.handlers:
        out(f"{handler.name}: consumer {handler.consumer} of stream {handler.stream}")
    for kind, texts in (("warning", result.warnings), ("error", result.errors)):
        for text in texts:
            err(f"{kind}: {text}")
    return result.status


def run_worker(
    options: RunOptions,
    stream: TextIO,
    *,
    load: Callable[[str], Worker] = load_worker,
    command: Sequence[str] = _COMMAND,
) -> int:
    """Run a worker, in this process or in several, until it is stopped; return the exit status."""
    ok = not (options.burst and options.supervised)
    check_option("burst", options.burst, ok, "excludes several processes, limits and reload")
    # Until the supervisor handles it: what starts has the current code.
    if options.supervised and threading.current_thread() is threading.main_thread():
        ignore_signals(signal.SIGHUP)
    hold_hangup(is_held=False)
    if options.supervised:
        configure_logging(options, stream, with_process=True)
        return _run_supervisor(options, command)
    supervised = supervisor_link() is not None  # before the import, which may take long
    worker = load(options.target)
    inherited = list(filter(None, os.environ.get(_SERVERS_VARIABLE, "").split(",")))
    worker.servers = list(options.servers) or inherited or worker.servers
    if options.drain_timeout is not None:
        worker.drain_timeout = options.drain_timeout
    if options.http is not None:
        worker.http = options.http
    configure_logging(options, stream, with_process=supervised)
    return worker.run(burst=options.burst)


def _run_supervisor(options: RunOptions, program: Sequence[str]) -> int:
    command = [*program, options.target] if options.target else [*program]
    drain_timeout = options.drain_timeout
    if drain_timeout is None and options.reload:
        drain_timeout = _RELOAD_DRAIN_S
    if drain_timeout is not None:
        command += ["--drain-timeout", f"{drain_timeout:g}"]
    command += ["--log-format", options.log_format]
    if options.verbose:
        command.append("--verbose")
    servers = {_SERVERS_VARIABLE: ",".join(options.servers)} if options.servers else {}
    number = 1 if options.processes is None else options.processes
    processes = Processes(number)
    rules, reload = options.limits, options.reload
    supervisor = Supervisor(command, number, servers, rules, processes, reload=reload)
    with monitoring(options.http, processes, "the supervisor") as may_run:
        return supervisor.run() if may_run else ExitStatus.USAGE
