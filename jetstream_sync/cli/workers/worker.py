"""``jsm worker``: run and check workers of `jetstream_sync.workers`, and show what they run."""

from __future__ import annotations

import argparse
import os
import pdb as debugger  # noqa: T100 - an option starts it
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ... import errors
from ...durations import counted
from ...exit_status import ExitStatus
from ...workers.command import RUN_OPTIONS, flag_of, load_worker, run_options, run_worker
from ...workers.running import ProcessReport, RunningMessage, request_reports
from ..shared.env import single_line, visible
from ..shared.output import emit_text, say
from ..shared.render import Block, Field, Table, bad, show_blocks, show_rows, warn
from ..shared.settings import LOGIN_PARTS, Settings, command
from ..shared.status import AbsentError, CommandError, FailedError
from ..shared.values import Decorator, force_option_for, option, with_options

if TYPE_CHECKING:
    from ... import Listing
    from ...workers import Worker


def _run_option(name: str, arguments: Mapping[str, Any]) -> Decorator:
    """Return an option of ``jsm worker run``; its value may also be in an environment variable."""
    names = ("-v", flag_of(name)) if name == "verbose" else (flag_of(name),)
    if "type" not in arguments:
        return click.option(*names, is_flag=True, help=arguments["help"])
    choices = arguments.get("choices")
    return click.option(
        *names,
        type=click.Choice(choices) if choices else arguments["type"],
        default=arguments.get("default"),
        metavar=arguments.get("metavar"),
        envvar=f"JETSTREAM_WORKER_{name.upper()}",
        help=arguments["help"],
    )


_run_options: Final = with_options(*(_run_option(*item) for item in RUN_OPTIONS.items()))


@command()
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@_run_options
def run(settings: Settings, *, target: str, **given: Any) -> None:
    """
    Handle messages until Ctrl-C or SIGTERM.

    MODULE is imported from the current directory or the Python path; ATTRIBUTE is a Worker in it. A signal
    stops the worker: running handlers end, waiting messages go to other workers. A second signal stops it
    at once. With --burst the worker also stops when nothing is pending and nothing waits for an
    acknowledgement. Log records go to standard error, unless the module configures logging.

    --http answers health checks and serves metrics for Prometheus, with --processes those of all processes
    together.

    With --processes, a supervisor starts that many worker processes and starts them again when they end.
    SIGHUP replaces them one after another, with the current code. --max-messages, --max-age, --max-rss and
    --reload imply --processes 1.

    \b
    Exit status:
      0  stopped, and everything handled is acknowledged
      1  a handler did not end in time; its message is delivered again
      2  an option or a consumer does not fit, or the address of --http is in use
      3  a stream or consumer does not exist
      4  a server did not answer in time
      5  no connection, login or permission refused, or JetStream is disabled
    """  # noqa: D301 - click requires the character, not the escape
    if sys.__stdout__ is None:
        # As in any program of Python, what a handler prints to a closed stream is dropped.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the process
    servers = tuple(_servers(settings))
    options = run_options(target, argparse.Namespace(servers=servers, **given))
    raise click.exceptions.Exit(run_worker(options, settings.env.stderr, load=_imported))


@command()
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@option(
    "--processes N",
    "Number of processes that will run the worker.",
    click.IntRange(min=1),
    default=1,
    envvar="JETSTREAM_WORKER_PROCESSES",
)
@option("-v, --verbose", "Show all options of the handlers.")
def check(settings: Settings, *, target: str, processes: int, verbose: bool) -> None:
    """
    Check streams, consumers, options and permissions of a worker.

    No message is read, and nothing is changed. The exit status is the one with which 'worker run' would
    end, or 0 if it would run.
    """
    found = _load(target, settings)
    result = found.check(processes=processes)
    handlers: list[dict[str, Any]] = [
        {"name": handler.name, "stream": handler.stream, "consumer": handler.consumer}
        | ({"options": handler.options()} if verbose else {})
        for handler in found.handlers
    ]
    lines = []
    for item in handlers:
        lines.append(f"{item['name']}: consumer {item['consumer']} of stream {item['stream']}")
        lines += [f"  {name}={value}" for name, value in item.get("options", {}).items()]
    lines += [f"error: {text}" for text in result.errors]
    document = {"handlers": handlers, "warnings": result.warnings, "errors": result.errors}
    emit_text(settings, document, "\n".join(lines))
    if not settings.json:
        for text in result.warnings:
            settings.note(f"warning: {text}")
    raise click.exceptions.Exit(result.status)


@command()
@click.argument("target", metavar="MODULE:ATTRIBUTE")
def verify(settings: Settings, *, target: str) -> None:
    """
    Compare the calls of tasks with their messages, states and dead letters.

    Each call with results has a stored message, or has ended, and a failed one has a dead letter. Of calls without
    results, messages and dead letters are compared, and a note says what is not known. What disagrees is read again
    two seconds later, and shown. Nothing is changed. The exit status is 1 if anything disagrees.
    """
    worker = _load(target, settings)
    found = worker.verify()
    emit_text(settings, {"disagreements": found}, "\n".join(found))
    if text := worker.unverified():
        settings.note(text)
    raise click.exceptions.Exit(ExitStatus.FAILED if found else ExitStatus.OK)


@command()
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@option("--check", "Show the changes and make none; exit with status 1 if there are any.")
def setup(settings: Settings, *, target: str, check: bool) -> None:
    """
    Create the streams, buckets and consumers of a worker, and update those that differ.

    Of streams and buckets, the fields that 'ensure' of the worker sets are compared, and of a consumer
    those that its handler names. Each change is shown before it is made. Nothing is deleted.
    """
    out = settings.env.stdout
    steps = _load(target, settings).setup(
        check=check, report=lambda step: None if settings.json else out.write(f"{step}\n")
    )
    items = [
        {"action": step.action, "name": step.name, "differences": list(step.differences)}
        for step in steps
    ]
    emit_text(settings, {"check": check, "steps": items}, "" if steps else "Nothing to do")
    raise click.exceptions.Exit(ExitStatus.FAILED if check and steps else ExitStatus.OK)


@command()
@click.argument("stream", metavar="DEAD")
@click.argument("seq", type=click.IntRange(min=1))
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@option("--pdb", "Start the debugger where the handler has raised.")
def replay(settings: Settings, *, stream: str, seq: int, target: str, pdb: bool) -> None:
    """
    Run one dead letter through its handler in this process.

    DEAD is the stream of dead letters, and SEQ a sequence in it. Nothing is acknowledged, and the dead letter
    stays: 'consumer dlq requeue' publishes its message again. What the handler publishes with its context is
    shown, not sent; its other effects, as in a database, are real. The exit status is 1 if it raises.
    """
    outcome = _load(target, settings).replay(stream, seq)
    error = outcome.error
    text = "" if error is None else "".join(traceback.format_exception(error))
    published = [{"subject": item.subject, "size": len(item.data)} for item in outcome.published]
    lines = [f"would publish {item['size']} bytes to {item['subject']}" for item in published]
    lines.append(f"the worker would settle the message with {outcome.kind!r}")
    document = {"kind": outcome.kind, "error": text, "published": published}
    emit_text(settings, document, text + "\n".join(lines))
    if error is not None and pdb:
        debugger.post_mortem(error.__traceback__)
    raise click.exceptions.Exit(ExitStatus.OK if error is None else ExitStatus.FAILED)


@command()
@click.argument("target", metavar="MODULE:ATTRIBUTE")
@option("--prune", "Delete the schedules that the worker does not define.")
@force_option_for("With --prune: do not ask for confirmation.")
def schedules(settings: Settings, *, target: str, prune: bool, force: bool) -> None:
    """
    List the schedules that a worker defines, and those that are stored under its name.

    A worker stores its schedules and never deletes one. With --prune, schedules in the state 'unused' are
    deleted: the worker does not define them any more. Do it after a deploy, when no process with the former
    code runs: such a process stores them again. Schedules in the state 'foreign' are kept: they are of a
    module in which this worker has no handler and no schedule.
    """
    found = _load(target, settings)
    states = found.find_schedules()
    unused = [state for state in states if state.state == "unused"]
    if prune and unused:
        listed = ", ".join(item.name for item in unused)
        settings.ask().confirm(f"Delete schedules {listed}?", force=force)
        found.delete_schedules(unused)
    kept = [state for state in states if not (prune and state in unused)]
    document = {
        "schedules": [asdict(item) for item in kept],
        "deleted": [item.name for item in unused] if prune else [],
    }
    rows = [(item, item.state) for item in kept]
    rows += [(item, "deleted") for item in unused if prune]
    show_rows(settings, rows, Table(_SCHEDULES, "Schedules", "No schedules"), document=document)


_SCHEDULES: Final = (
    Field("Name", lambda row: row[0].name),
    Field("Stream", lambda row: row[0].stream, drop=1),
    Field("State", lambda row: warn("unused") if row[1] == "unused" else row[1]),
    Field("Subject", lambda row: row[0].subject, drop=2),
)


# --- running workers ----------------------------------------------------------------------------

_name = click.argument("name", required=False)


def _reports(
    settings: Settings, name: str | None, *, stacks: bool = False
) -> Listing[ProcessReport]:
    """Return the reports of all worker processes, or of those of one worker, which must exist."""
    with settings.connection() as nc:
        found = request_reports(nc, name, stacks=stacks, timeout=settings.timeout)
    if not found:
        found.check()
    if name is not None and not found:
        raise AbsentError(f"no running worker {visible(name)!r} reports")
    return found


def _place(report: ProcessReport) -> str:
    return f"{report['host']}:{report['pid']}"


def _state(report: ProcessReport) -> Any:
    return bad(report["not_ready"]) if report["not_ready"] else "ready"


#: The columns of worker processes.
PROCESSES: Final = (
    Field("Worker", "worker"),
    Field("Process", _place),
    Field("State", _state),
    Field("Running", lambda report: sum(item["running"] for item in report["handlers"])),
    Field("Threads", lambda report: sum(item["slots"] for item in report["handlers"])),
    Field("Waiting", lambda report: sum(item["buffered"] for item in report["handlers"]), drop=1),
    Field("Done", lambda report: sum(item["handled"] for item in report["handlers"]), drop=2),
    Field("Started", lambda report: datetime.fromisoformat(report["started"]), drop=3),
)


@command()
@_name
def ls(settings: Settings, *, name: str | None) -> None:
    """
    List the processes of all running workers, or of the worker NAME.

    A worker is not listed if it has report=None, or if its user may not subscribe to
    jetstream-worker.>.
    """
    found = _reports(settings, name)
    show_rows(settings, [*found], Table(PROCESSES, "Workers", "No workers"))
    found.check()


def _remark(message: RunningMessage) -> Any:
    if message["lease_lost"]:
        return bad("lease lost")
    return warn("over the timeout") if message["over_timeout"] else None


#: The columns of running messages: pairs of a report and one of its messages.
MESSAGES: Final = (
    Field("Worker", lambda row: row[0]["worker"]),
    Field("Handler", lambda row: row[1]["handler"]),
    Field("Subject", lambda row: row[1]["subject"]),
    Field("Sequence", lambda row: row[1]["stream_seq"]),
    Field("Attempt", lambda row: row[1]["attempt"]),
    Field("Running For", lambda row: timedelta(seconds=round(row[1]["seconds"], 1))),
    Field("Progress", lambda row: row[1].get("progress") or None),
    Field("Remark", lambda row: _remark(row[1])),
    Field("Process", lambda row: _place(row[0]), drop=1),
)


@command()
@_name
def running(settings: Settings, *, name: str | None) -> None:
    """
    List the messages that all workers, or the worker NAME, handle now.

    For each process, the message that runs longest is the first one, and at most 500 are listed.
    """
    found = _reports(settings, name)
    rows = [(report, message) for report in found for message in report["running"]]
    none = "No message is handled now" if found else "No workers"
    show_rows(settings, rows, Table(MESSAGES, "Running messages", none), document=[*found])
    _note_omitted(settings, found)
    found.check()


def _note_omitted(settings: Settings, reports: Listing[ProcessReport]) -> None:
    for item in reports:
        if item["omitted"]:
            text = f"{counted(item['omitted'], 'running message')} of {_place(item)}"
            settings.note(f"warning: {text} left out")


@command()
@_name
def stacks(settings: Settings, *, name: str | None) -> None:
    """
    Show the stacks of the threads in which all workers, or the worker NAME, handle messages.

    A worker shows them only with report="stacks". Handlers that run in processes of their own have none.
    """
    found = _reports(settings, name, stacks=True)
    hidden = [item for item in found if not item["stacks"]]
    blocks = [
        Block(
            f"Thread {single_line(message['thread'])} of {single_line(report['worker'])}",
            STACK,
            (report, message),
        )
        for report in found
        for message in report["running"]
        if report["stacks"]
    ]
    show_blocks(settings, [*found], *blocks)
    if not blocks and len(hidden) < len(found):
        say(settings, "No message is handled now")
    for item in hidden:
        text = f"worker {item['worker']} at {_place(item)} shows no stacks"
        settings.note(f"{single_line(text)}; it needs report='stacks'")
    _note_omitted(settings, found)
    found.check()


#: The lines of a running message with its stack.
STACK: Final = (
    *MESSAGES[1:],
    Field("Stack", lambda row: (row[1]["stack"] or "in another process").rstrip()),
)


def _load(target: str, settings: Settings) -> Worker:
    """Import the worker that ``MODULE:ATTRIBUTE`` names."""
    servers = _servers(settings)
    found = _imported(target)
    default = None if "context" in found.connection else settings.env.variables.get("NATS_URL")
    found.servers = servers or found.servers or default
    return found


def _servers(settings: Settings) -> list[str]:
    """Return the servers that were given; refuse a login, since a worker has its own."""
    for name in ("context", "password_file", *(part.name for part in LOGIN_PARTS.values())):
        if name in settings.given and name != "servers":
            raise click.UsageError(
                f"--{name.replace('_', '-')} has no effect on a worker: its module has the options of its connection"
            )
    return settings.servers


def _imported(target: str) -> Worker:
    try:
        return load_worker(target)
    except errors.InvalidOptionError as error:
        raise CommandError(f"{error.option} {error.value!r}: {error.reason}") from error
    except errors.Error:
        raise
    except Exception as error:
        # Of the module of the user, or of what that imports.
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, SyntaxError) else f" ({last.filename}, line {last.lineno})"
        module = target.partition(":")[0]
        text = (
            f"worker {target!r}: importing {module} raised {type(error).__name__}: {error}{where}"
        )
        raise FailedError(text) from error
