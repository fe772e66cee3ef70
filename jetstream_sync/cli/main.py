"""
The ``jsm`` program: the tree of commands, and the mapping of errors to exit statuses.

Each group has a table of commands, which are imported on first use, with aliases and suggestions.

`main` is the entry point of the process. `run` does the same for given arguments and streams, and
returns the status.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from .. import errors
from ..exit_status import ExitStatus
from ..version import __version__
from .shared.env import Environment, guard_standard_streams, json_text, readable_json
from .shared.output import emit_text
from .shared.settings import Settings, common_options
from .shared.status import (
    CommandError,
    document_of,
    exit_status,
    hint_of,
    is_about_output,
    one_line,
)
from .shared.values import option

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMPLETE_VARIABLE = "_JSM_COMPLETE"
#: Examples of all commands, one a line, from the pages; tests/make_jsm_reference.py writes it.
_EXAMPLES: Final = "data/examples.txt"


def is_example(path: str, line: str) -> bool:
    """Return whether a line runs a command; `path`: its name with those of its groups: ``stream add``."""
    return re.search(rf"^(?:.*\| )?jsm {re.escape(path)}(?: |$)", line) is not None


def examples_of(path: str) -> list[str]:
    """Return the examples of a command."""
    text = (pkgutil.get_data(__package__, _EXAMPLES) or b"").decode()
    return [line for line in text.splitlines() if is_example(path, line)]


@dataclass(frozen=True, slots=True)
class Entry:
    """A command in a table of commands, or a group with a table of its own."""

    #: The help; the list of commands shows its first paragraph.
    help: str
    #: The module below this package, followed by ``:`` and the function if it has another name.
    target: str = ""
    #: Other names, separated by spaces.
    aliases: str = ""
    commands: Mapping[str, Entry] = field(default_factory=dict)
    #: Further names, each with the arguments that it stands for.
    shortcuts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first paragraph of the help."""
        return self.help.partition("\n\n")[0]

    def load(self, name: str, path: str) -> click.Command:
        """Return the group, or import and return the command; `path`: the names from the outermost group on."""
        if self.commands:

            @common_options
            def group(_settings: Settings) -> None: ...

            options: Any = {"entries": self.commands, "path": path, "help": self.help}
            return click.command(name, cls=NounGroup, **options)(group)
        place, _, attribute = self.target.partition(":")
        module = importlib.import_module(f"{__package__}.{place}")
        command: click.Command = getattr(module, attribute or name)
        command.name = name
        command.short_help = self.summary
        examples = "\n".join(f"  {example}" for example in examples_of(path))
        # With the mark of click for a paragraph whose lines stay as they are.
        command.epilog = f"\b\nExamples:\n{examples}"
        return command


class NounGroup(click.Group):
    """A group of the commands in a table, which have aliases and are imported on first use."""

    def __init__(
        self, *args: Any, entries: Mapping[str, Entry], path: str = "", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.path = path
        self.entries: dict[str, Entry] = dict(entries)
        self.aliases: dict[str, str] = {
            alias: name for name in self.entries for alias in self.aliases_of(name)
        }

    def aliases_of(self, name: str) -> list[str]:
        """Return the aliases of a command."""
        return [*self.entries[name].aliases.split(), *self.entries[name].shortcuts]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of their definition."""
        del ctx
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with a name or alias, imported if necessary."""
        del ctx
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.commands and name in self.entries:
            self.commands[name] = self.entries[name].load(name, f"{self.path} {name}".strip())
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed, with its main name."""
        typed = args[0]
        command = self.get_command(ctx, typed)
        if command is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            from ..options import closest_match  # noqa: PLC0415 - for errors only

            close = closest_match(typed, [*self.list_commands(ctx), *self.aliases])
            hint = f"; did you mean {close!r}?" if close else ""
            ctx.fail(f"No such command {typed!r}{hint}")
        entry = self.entries.get(self.aliases.get(typed, typed))  # none for an added command
        implied = entry.shortcuts.get(typed, ()) if entry is not None else ()
        return command.name, command, [*implied, *args[1:]]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and then the options."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])
        click.Command.format_options(self, ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command name, or an alias when no command name matches."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells only

        names = [name for name in self.entries if name.startswith(incomplete)]
        if incomplete and not names:
            names = [alias for alias in self.aliases if alias.startswith(incomplete)]
        entries = [self.entries[self.aliases.get(name, name)] for name in names]
        found = [
            CompletionItem(name, help=e.summary) for name, e in zip(names, entries, strict=True)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    settings = context.find_object(Settings)
    if not asked or context.resilient_parsing or settings is None:
        return
    python = ".".join(map(str, sys.version_info[:3]))
    document = {"version": __version__, "python": python}
    emit_text(settings, document, f"jsm {__version__} (Python {python})")
    context.exit()


_STEP_DOWN: Final = "stepdown sd elect down d"
_STREAM_CLUSTER: Final = {
    "step-down": Entry("Elect another leader.", "server.cluster:stream_step_down", _STEP_DOWN),
    "peer-remove": Entry("Remove a server from the replicas.", "server.cluster:peer_remove", "pr"),
    "balance": Entry("Spread leaders evenly over the servers.", "server.cluster:stream_balance"),
}
_CONSUMER_CLUSTER: Final = {
    "step-down": Entry("Elect another leader.", "server.cluster:consumer_step_down", _STEP_DOWN),
    "balance": Entry("Spread leaders evenly over the servers.", "server.cluster:consumer_balance"),
}
_STREAM: Final = {
    "add": Entry("Create a stream.", "streams.change", "create new"),
    "ls": Entry(
        "List the streams, or find some of them.",
        "streams.streams",
        "list l find query",
        shortcuts=dict.fromkeys(("report", "rep"), ("--long", "--sort", "bytes")),
    ),
    "info": Entry(
        "Show the config and state of a stream.",
        "streams.streams",
        "nfo i",
        shortcuts={"state": ("--state",)},
    ),
    "edit": Entry("Edit the config of a stream.", "streams.change", "update"),
    "rm": Entry(
        "Delete streams with their messages and consumers.", "streams.streams", "delete del"
    ),
    "purge": Entry("Delete all or some messages of a stream.", "streams.streams"),
    "view": Entry("Read the messages of a stream.", "streams.messages", "v"),
    "get": Entry("Read one message.", "streams.messages"),
    "rmm": Entry("Delete single messages.", "streams.messages"),
    "subjects": Entry("Count the messages of each subject.", "streams.streams", "subj"),
    "gaps": Entry("List the ranges of deleted sequences.", "streams.streams"),
    "schedules": Entry("List the scheduled messages of a stream.", "streams.streams"),
    "seal": Entry("Make a stream read-only, permanently.", "streams.change"),
    "copy": Entry("Create a stream with the config of another one.", "streams.change", "cp"),
    "backup": Entry("Save a stream to a directory.", "streams.backup", "snapshot"),
    "restore": Entry("Restore a stream from a backup.", "streams.backup"),
    "cluster": Entry("Manage leader and replicas.", aliases="c", commands=_STREAM_CLUSTER),
}
_DLQ: Final = {
    "setup": Entry("Create a stream that stores the advisories.", "consumers.dlq"),
    "ls": Entry("List dead letters.", "consumers.dlq", "list l"),
    "show": Entry("Show a dead letter.", "consumers.dlq", "view get"),
    "requeue": Entry("Publish dead letters again.", "consumers.dlq", "retry"),
}
_CONSUMER: Final = {
    "add": Entry("Create a consumer.", "consumers.change", "create new"),
    "ls": Entry(
        "List the consumers of a stream, or find some of them.",
        "consumers.consumers",
        "list l",
        shortcuts={
            "report": ("--all-streams", "--long"),
            **dict.fromkeys(("find", "query"), ("--all-streams",)),
        },
    ),
    "info": Entry(
        "Show a consumer's configuration and state.",
        "consumers.consumers",
        "nfo i",
        shortcuts={"state": ("--state",)},
    ),
    "next": Entry("Fetch and acknowledge messages.", "messages.receive:consumer_next", "n"),
    "sub": Entry("Show a consumer's messages as they arrive.", "messages.receive:consumer_sub"),
    "sample": Entry("Show acknowledgement samples as they arrive.", "messages.events"),
    "edit": Entry("Change a consumer.", "consumers.change", "update"),
    "copy": Entry("Copy a consumer.", "consumers.change", "cp"),
    "rm": Entry("Delete consumers.", "consumers.consumers", "delete del"),
    "pause": Entry("Pause a consumer.", "consumers.consumers"),
    "resume": Entry("Resume a paused consumer.", "consumers.consumers"),
    "unpin": Entry("Unpin the client of a priority group.", "consumers.consumers"),
    "reset": Entry("Reset the position of a consumer.", "consumers.consumers"),
    "dlq": Entry(
        "Find and republish dead letters.\n\n"
        "A message becomes a dead letter when it reaches the consumer's --max-deliver, or when a client "
        "terminates it. It stays in the stream without a mark. The server publishes one advisory for it. "
        "'dlq setup' creates a stream that stores these advisories; dead letters can be listed from then "
        "on. Workers store copies of the messages that they give up, on subjects that begin with 'dead.'; "
        "these are listed, too.",
        commands=_DLQ,
    ),
    "cluster": Entry("Manage the leaders of consumers.", aliases="c", commands=_CONSUMER_CLUSTER),
}
_KV: Final = {
    "add": Entry("Create a bucket.", "buckets.kv", "new"),
    "edit": Entry("Change the config of a bucket.", "buckets.kv"),
    "ls": Entry("List the buckets, or the keys of a bucket.", "buckets.kv", "list keys"),
    "info": Entry("Show the config and state of a bucket.", "buckets.kv", "status view"),
    "get": Entry("Read the value of a key.", "buckets.kv"),
    "put": Entry("Store the value of a key.", "buckets.kv"),
    "create": Entry("Store the value of a key that does not exist.", "buckets.kv"),
    "update": Entry("Store the value of a key whose revision is known.", "buckets.kv"),
    "revert": Entry("Store an older value of a key again.", "buckets.kv"),
    "del": Entry("Delete keys, or a bucket.", "buckets.kv:delete", "rm delete"),
    "purge": Entry("Delete a key with its history.", "buckets.kv"),
    "compact": Entry("Purge deleted keys to free their space.", "buckets.kv"),
    "history": Entry("Show the stored revisions of a key.", "buckets.kv"),
    "watch": Entry("Show changes of keys as they happen.", "buckets.kv"),
}
_OBJECT: Final = {
    "add": Entry("Create a bucket.", "buckets.objects", "create new"),
    "edit": Entry("Change the config of a bucket.", "buckets.objects"),
    "put": Entry("Store a file or standard input as an object.", "buckets.objects"),
    "get": Entry("Write an object to a file or standard output.", "buckets.objects"),
    "ls": Entry("List the buckets, or the objects of a bucket.", "buckets.objects", "list"),
    "info": Entry("Show a bucket or an object.", "buckets.objects", "status show i"),
    "del": Entry("Delete objects, or a bucket.", "buckets.objects:delete", "rm delete"),
    "compact": Entry("Delete chunks of uploads that never ended.", "buckets.objects"),
    "seal": Entry("Make a bucket read-only, permanently.", "buckets.objects"),
    "watch": Entry("Show changes of objects as they happen.", "buckets.objects"),
}
_ACCOUNT_REPORT: Final = {
    "connections": Entry(
        "List its connections.", "server.reports:account_connections", "conn connz conns"
    ),
    "statistics": Entry(
        "Show connections and traffic on each server.", "server.reports", "stats statsz"
    ),
}
_SERVER_REPORT: Final = {
    "jetstream": Entry("Compare the use of JetStream.", "server.reports", "jsz js"),
    "connections": Entry(
        "List the connections.", "server.reports:server_connections", "conn connz conns"
    ),
    "accounts": Entry("Compare the accounts.", "server.reports", "acct"),
    "health": Entry("Show whether the servers are healthy.", "server.reports"),
    "routes": Entry("List the routes of the clusters.", "server.reports", "routez"),
    "gateways": Entry("List the connections between clusters.", "server.reports", "gatewayz"),
    "leafnodes": Entry("List the leaf nodes.", "server.reports", "leafz"),
}
_ACCOUNT: Final = {
    "info": Entry("Show usage, limits and the connection.", "server.account:account_info", "nfo i"),
    "report": Entry("Show the traffic of the account.", aliases="rep", commands=_ACCOUNT_REPORT),
    "backup": Entry("Back up all streams to a directory.", "streams.backup:backup_account"),
    "restore": Entry("Restore the streams from a backup.", "streams.backup:restore_account"),
}
_ERRORS: Final = {
    "ls": Entry("List the errors that match a pattern.", "commands:list_errors", "list l search"),
    "lookup": Entry("Show the errors with some err_codes.", "commands:lookup_errors", "info get"),
}
_SERVER_CHECK: Final = {
    "connection": Entry("Check the connection to a server.", "server.check", "conn"),
    "stream": Entry("Check a stream.", "server.check"),
    "consumer": Entry("Check a consumer.", "server.check"),
    "message": Entry("Check the last message of a stream.", "server.check", "msg"),
    "jetstream": Entry("Check the account's use of JetStream.", "server.check", "js"),
    "meta": Entry("Check the meta group of the servers.", "server.check"),
    "kv": Entry("Check a key-value bucket.", "server.check"),
    "credential": Entry("Check a credentials file.", "server.check"),
}
_SERVER_CLUSTER: Final = {
    "step-down": Entry("Elect another meta leader.", "server.cluster:meta_step_down", _STEP_DOWN),
    "peer-remove": Entry(
        "Remove a server that is gone for good.", "server.cluster:meta_peer_remove", "pr"
    ),
}
_SERVER: Final = {
    "run": Entry("Run a nats-server for development until Ctrl-C.", "server.server", "start"),
    "check": Entry(
        "Run a check for a monitoring system.\n\n"
        "The exit status is that of a Nagios plugin: 0 OK, 1 warning, 2 critical; with --format "
        "prometheus it is 0.",
        commands=_SERVER_CHECK,
    ),
    "ls": Entry("List the servers with their load.", "server.server", "list"),
    "info": Entry("Show the configuration and the load of a server.", "server.server", "i"),
    "ping": Entry("Measure the reply times of the servers.", "server.server"),
    "report": Entry("Compare the servers.", aliases="rep", commands=_SERVER_REPORT),
    "request": Entry("Show what the servers report, as JSON.", "server.server", "req"),
    "cluster": Entry("Manage the meta group.", aliases="c raft", commands=_SERVER_CLUSTER),
}

_SERVICE: Final = {
    "ls": Entry("List the running services.", "workers.services", "list l"),
    "info": Entry("Show the description and the endpoints of a service.", "workers.services", "i"),
    "stats": Entry("Show requests, errors and times of endpoints.", "workers.services"),
    "ping": Entry("Measure the reply times of services.", "workers.services"),
}
_COUNTER: Final = {
    "ls": Entry("List the counters of a stream.", "workers.services:list_counters", "list l"),
    "get": Entry("Show the value of a counter.", "workers.services:get_counter"),
    "add": Entry("Add to a counter.", "workers.services:add_counter", "incr"),
    "reset": Entry("Set a counter to 0.", "workers.services:reset_counter"),
}

_CONTEXT: Final = {
    "add": Entry("Create or change a context.", "context", "save create new"),
    "ls": Entry("List the contexts.", "context", "list l"),
    "info": Entry("Show a context.", "context", "show i"),
    "select": Entry("Select the context to use by default.", "context", "switch set"),
    "unselect": Entry("Clear the selection.", "context", "deselect clear"),
    "previous": Entry("Select the previously selected context.", "context", "prev -"),
    "edit": Entry("Edit a context with $VISUAL or $EDITOR.", "context"),
    "validate": Entry("Check contexts.", "context"),
    "rm": Entry("Delete contexts.", "context", "delete del"),
}
_WORKER: Final = {
    "run": Entry("Handle messages until Ctrl-C or SIGTERM.", "workers.worker"),
    "check": Entry("Check that a worker can run.", "workers.worker"),
    "setup": Entry("Create the streams, buckets and consumers of a worker.", "workers.worker"),
    "verify": Entry("Compare calls with their messages and dead letters.", "workers.worker"),
    "replay": Entry("Run one dead letter through its handler here.", "workers.worker"),
    "schedules": Entry("List the schedules of a worker, or delete unused ones.", "workers.worker"),
    "ls": Entry("List the processes of running workers.", "workers.worker", "list l"),
    "running": Entry("List the messages that workers handle now.", "workers.worker"),
    "stacks": Entry("Show what the threads of workers do now.", "workers.worker"),
}
_TASK: Final = {
    "ls": Entry("List the calls of tasks.", "workers.tasks", "list l"),
    "show": Entry("Show a call of a task.", "workers.tasks", "info i"),
}
_BENCH_JS: Final = {
    "pub": Entry(
        "Publish to a stream.",
        commands={
            "sync": Entry("Wait for each acknowledgement.", "messages.bench:js_pub_sync"),
            "async": Entry("Publish asynchronously.", "messages.bench:js_pub_async"),
        },
    ),
    "fetch": Entry("Fetch messages in batches.", "messages.bench:js_fetch"),
    "ordered": Entry("Read a stream in order.", "messages.bench:js_ordered"),
}
_BENCH: Final = {
    "pub": Entry("Publish core NATS messages.", "messages.bench"),
    "sub": Entry("Receive core NATS messages.", "messages.bench"),
    "js": Entry("Measure streams.", commands=_BENCH_JS),
}

#: All commands of ``jsm``.
COMMANDS: Final = {
    "account": Entry("Show the account, or back it up.", aliases="act a", commands=_ACCOUNT),
    "stream": Entry(
        """Manage streams, which store messages.\n\n"jsm ms" is an alias.""",
        aliases="str st s ms messageset",
        commands=_STREAM,
    ),
    "consumer": Entry(
        """Manage and read consumers.\n\n"jsm obs" is an alias.""",
        aliases="con c obs observable",
        commands=_CONSUMER,
    ),
    "kv": Entry(
        "Manage key-value buckets, their keys and values.\n\n"
        'As in the nats command, "jsm kv add" creates a bucket and "jsm kv create" creates a key.',
        commands=_KV,
    ),
    "object": Entry("Manage object stores and their objects.", aliases="obj", commands=_OBJECT),
    "service": Entry("Discover running services.", aliases="micro", commands=_SERVICE),
    "counter": Entry("Read and change counters.", commands=_COUNTER),
    "pub": Entry("Publish messages.", "messages.pub", "publish"),
    "req": Entry("Send a request and show the replies.", "messages.pub", "request"),
    "reply": Entry("Answer requests.", "messages.pub"),
    "sub": Entry("Show messages as they arrive.", "messages.receive", "subscribe"),
    "trace": Entry("Trace the route of a message.", "messages.pub"),
    "apply": Entry("Create or update streams and consumers from a file.", "streams.apply"),
    "context": Entry(
        "Manage named logins, shared with the nats command.\n\n"
        "A context is a file with the address and login of a server. The selected context is used when "
        "--context is not given. Options and variables override its values.",
        aliases="ctx",
        commands=_CONTEXT,
    ),
    "events": Entry("Show JetStream advisories and metrics.", "messages.events", "event e"),
    "top": Entry("Watch streams, consumers, workers and dead letters.", "top.top"),
    "worker": Entry(
        "Run functions that handle messages, and show what running workers do.\n\n"
        "A worker is defined in a Python module, with jetstream_sync.workers.Worker. Its server is in the "
        "module, unless --server is given.",
        commands=_WORKER,
    ),
    "task": Entry(
        "Show the calls of tasks with results: their states, times and errors.", commands=_TASK
    ),
    "bench": Entry(
        "Measure throughput and latency.\n\n"
        "A measurement that needs a stream creates one with a generated name and deletes it at "
        "the end, also after Ctrl-C. Latency percentiles cover every message if the client waits for a "
        "reply, else a sample of the messages.",
        commands=_BENCH,
    ),
    "rtt": Entry("Measure the round-trip time to servers.", "server.account"),
    "errors": Entry("Look up JetStream error codes.", aliases="err error", commands=_ERRORS),
    "server": Entry("Watch the servers, or run one.", aliases="srv", commands=_SERVER),
    "demo": Entry("Process orders exactly once in a demo pipeline.", "workers.demo"),
    "completion": Entry("Generate the shell completion script.", "commands"),
    "commands": Entry("List all commands.", "commands"),
    "help": Entry("Show the help of a command.", "commands:help_"),
}


@click.group(
    cls=NounGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'jsm COMMAND --help' shows the help of a command, and 'jsm help options' the login "
    "options of all commands and the exit statuses.",
)
@option("--version", "Show the version and exit.", expose_value=False, callback=_print_version)
@common_options
def jsm(_settings: Settings) -> None:
    """
    Work with NATS JetStream from the command line.

    Results go to standard output, progress and errors to standard error.
    """


def run(args: Sequence[str], env: Environment) -> int:
    """
    Run one command line.

    Returns:
        The exit status. An error has been reported on ``env.stderr`` in one line. Unexpected
        exceptions are raised.
    """
    settings = Settings(env=env, words=args)
    failures: list[BaseException] = []
    status: int = ExitStatus.OK
    # click writes help, version and completions to sys.stdout and sys.stderr.
    with contextlib.redirect_stdout(env.stdout), contextlib.redirect_stderr(env.stderr):
        try:
            status = _invoke(args, settings)
        except _REPORTED as error:
            failures.append(error)
        try:
            if not any(isinstance(item, KeyboardInterrupt) for item in failures):
                env.stdout.flush()
        except KeyboardInterrupt as error:
            failures.append(error)
        except OSError as error:
            if not any(map(is_about_output, failures)):
                failures.append(error)
    for failure in failures:
        _report(failure, settings, args)
    return status or next(map(exit_status, failures), ExitStatus.OK)


#: What `run` reports instead of raising it.
_REPORTED: Final = (
    click.ClickException,
    click.Abort,
    CommandError,
    errors.Error,
    OSError,
    KeyboardInterrupt,
)


def _invoke(args: Sequence[str], settings: Settings) -> int:
    if instruction := settings.env.variables.get(_COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete  # noqa: PLC0415 - for shells only

        return shell_complete(jsm, {"obj": settings}, "jsm", _COMPLETE_VARIABLE, instruction)
    # Not click's own main(): it turns Ctrl-C and a broken pipe into status 1.
    try:
        with jsm.make_context("jsm", list(args), obj=settings) as context:
            jsm.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return ExitStatus.OK


def _report(error: BaseException, settings: Settings, args: Sequence[str]) -> None:
    """Write an error to ``stderr`` without a traceback; write nothing for a broken pipe."""
    if exit_status(error) is ExitStatus.BROKEN_PIPE:
        return
    # A usage error may be raised before the option is parsed.
    if settings.json or not {"-j", "--json"}.isdisjoint(args):
        text = f"{readable_json(json_text(document_of(error)))}\n"
    elif isinstance(error, click.exceptions.NoArgsIsHelpError):
        text = f"{error.message}\n"
    else:
        said, hint = one_line(error), hint_of(error)
        text = f"jsm: {said}{' ' if said.endswith('?') else '; '}{hint}\n"
        text = text if hint else f"jsm: {said}\n"
    settings.env.stderr.write(text)
    settings.env.stderr.flush()


#: How long the reader of the output is waited for after a signal, in seconds.
_LAST_WRITE_S: Final = 0.3


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    # SystemExit unwinds the stack, so that commands remove their temporary server objects.
    raise SystemExit(int(ExitStatus.TERMINATED))


def main() -> NoReturn:
    """Run ``jsm`` with the arguments, streams and variables of this process."""
    signal.signal(signal.SIGTERM, _terminate)
    guard_standard_streams()
    try:
        status = run(sys.argv[1:], Environment.of_process())
    except (KeyboardInterrupt, SystemExit):
        _end_output(_LAST_WRITE_S)
        raise
    _end_output(_LAST_WRITE_S if status == ExitStatus.INTERRUPTED else 0.0)
    sys.exit(status)


def _end_output(limit: float) -> None:
    """
    Write what is buffered, or drop it if that fails or takes longer than a limit in seconds; 0: without limit.

    The interpreter flushes again at exit: it would wait for a reader that is stuck, and report an error in other
    words than `run`.
    """
    has_timer = limit > 0 and hasattr(signal, "setitimer")
    if has_timer:
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if has_timer:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _late(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TimeoutError
