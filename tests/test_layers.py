"""
The architecture rules, checked on the syntax tree of every file of the package.

The tables below are the rules. To make an exception, add a line to a table, with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

import jetstream_sync

PACKAGE = Path(__file__).parents[1] / "jetstream_sync"

# --- the tables -------------------------------------------------------------------------------

# A *part* is a folder of the package; "base" is the modules at its top (layer 0), and "names" is its
# __init__.py. A part may import itself and the parts listed here: imports point downwards only.
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "protocol": {"base"},
    "api": {"base"},
    "net": {"base"},
    "client": {"base", "protocol", "net"},
    "services": {"base", "client"},
    "jetstream": {"base", "api", "client", "services"},
    "server": {"base"},
    "names": {"base", "protocol", "api", "net", "client", "services", "jetstream"},
    "spark": {"base", "protocol", "api", "net", "client", "jetstream", "names"},
    "declare": {"names", "base"},
    # Public names, and differences: see `test_the_worker_runtime_uses_public_names`.
    "workers": {"names", "base", "declare", "net"},
    "django": {"base", "names", "net", "workers"},
    "flask": {"base", "names", "workers"},
    # The files that are not stored when they are collected are those of the object store.
    # The subjects of objects are their directory.
    "filesystem": {"names", "base", "jetstream", "api"},
    "cli": {"base", "protocol", "api", "net", "client", "services", "jetstream", "server", "spark"}
    | {"names", "declare", "workers"},
    "pytest_plugin": {"server", "names", "net", "workers"},
    "top_level": {"spark", "cli"},
}

# The folders inside a part, in the same way. Every folder may import the modules at the top of its
# part. Of these modules, only the ones in `ENTRY_POINTS` may import from the folders.
FOLDERS: dict[str, dict[str, set[str]]] = {
    "jetstream": {"buckets": set(), "partitioned": {"buckets"}},
    "spark": {
        "reading": set(),
        "planning": {"reading"},
        "streaming": {"planning", "reading"},
        "writing": {"reading"},
    },
    "workers": {"runtime": set(), "operations": {"runtime"}},
    "cli": {
        "shared": set(),
        "messages": {"shared"},
        "streams": {"messages", "shared"},
        "consumers": {"streams", "messages", "shared"},
        "buckets": {"streams", "messages", "shared"},
        "server": {"streams", "shared"},
        "workers": {"shared"},
        "top": {"consumers", "workers", "streams", "messages", "shared"},
    },
}
ENTRY_POINTS: dict[str, set[str]] = {
    "jetstream": {"context.py"},
    "spark": {"__init__.py", "source.py", "task_helpers.py", "work_queue.py"},
    # Gauges and reports read the threads of a handler; a command runs a supervisor, and tests a processor.
    "workers": {
        *("__init__.py", "worker.py", "run.py", "metrics.py", "running.py", "command.py"),
        *("testing.py", "verify.py"),
    },
    # The tree of commands, and the commands that need no server.
    "cli": {"main.py", "commands.py", "context.py"},
}

# Where a part may import only some modules of another part.
MAY_IMPORT_OF: dict[tuple[str, str], set[str]] = {
    ("declare", "base"): {"differences"},
    ("workers", "base"): {
        "codec",
        "converters",
        "differences",
        "durations",
        "exact",
        "exit_status",
        "lease_times",
        "locks",
        "options",
        "records",
        "subjects",
    },
    ("filesystem", "base"): {"exact", "subjects", "version"},
    ("filesystem", "api"): {"api.object_store"},
    ("flask", "base"): {"version"},
    # Scripts that do not use the client can start a server.
    ("server", "base"): {"locks", "version"},
    # Deadlines are passed down to every layer; sockets stay in `net`.
    ("jetstream", "net"): {"net.clock"},
    ("services", "net"): {"net.clock"},
    ("workers", "net"): {"net.clock"},
    ("django", "net"): {"net.clock"},
    ("pytest_plugin", "net"): {"net.clock"},
    # Requests are read as the parser delivers them.
    ("services", "protocol"): {"protocol.parser"},
    # jsm uses only the public API, and starts its threads as the client does.
    ("cli", "protocol"): set(),
    ("cli", "api"): set(),
    ("cli", "net"): {"net.clock"},
    ("cli", "client"): {"client.threads"},
    ("cli", "jetstream"): set(),
    # Acks and pull requests are a hot path: they are built and parsed as bytes in wire format.
    ("jetstream", "protocol"): {"protocol.parser"},
}

# Standard library modules that only some places may import.
ONLY_IN: dict[str, set[str]] = {
    "asyncio": set(),
    "concurrent": {"client", "jetstream", "cli", "spark"},
    "json": {"codec.py", "contexts.py", "differences.py", "cli/shared/env.py", "workers"},
    "logging": {"client", "jetstream", "cli", "spark", "workers", "django"},
    # Handlers run in processes: pipes, and the import of the main module.
    "multiprocessing": {"workers/runtime/processes.py", "workers/runtime/child.py"},
    "queue": {"client", "workers"},
    # A read of standard input must not miss a Ctrl-C just before it.
    "select": {"net", "cli/shared/long_running.py", "workers/operations/heartbeat.py"},
    "selectors": {"net"},
    "signal": {"server", "cli", "spark/streaming/reader.py", "workers"},
    "socket": {
        "net",
        "server",
        "workers/operations/health.py",
        "workers/operations/http_server.py",
    },
    "ssl": {"net"},
    # Workers run in several processes, and handlers in processes of their own.
    "subprocess": {
        "server",
        "contexts.py",  # programs that print a secret
        "workers/operations/supervisor.py",
        "workers/runtime/processes.py",
    },
    "threading": {
        "locks.py",
        "client",
        "services",
        "jetstream",
        "server",
        "cli",
        "workers",
        "pytest_plugin",
        "django",
    },
    "time": {"net", "server", "cli", "spark", "workers", "pytest_plugin", "django"},
}

# Files with times that must be those of Django, whose tests that move the clock use `time.time`, or of the server.
WALL_CLOCK: set[str] = {"django/cache.py", "workers/deliveries.py"}

# Third-party packages, and modules of newer Pythons, and where they may be imported.
THIRD_PARTY: dict[str, set[str]] = {
    "annotationlib": {"options.py"},
    "typing_extensions": {"base", "protocol", "api", "net", "client", "services", "jetstream"}
    | {"server", "spark", "cli"},
    "orjson": {"codec.py"},
    "nkeys": {"protocol"},
    "websockets": {"net"},
    "click": {"cli", "flask"},
    "django": {"django"},
    "django_tasks": {"django/tasks.py"},
    "flask": {"flask"},
    "fsspec": {"filesystem"},
    "questionary": {"cli"},
    # questionary draws with it, and takes its output object.
    "prompt_toolkit": {"cli"},
    "rich": {"cli"},
    "textual": {"cli/top/app.py"},
    "aiohttp": {"cli/top/web.py"},
    "aiohttp_jinja2": {"cli/top/web.py"},
    "jinja2": {"cli/top/web.py"},
    "textual_serve": {"cli/top/web.py"},
    "pyarrow": {"spark"},
    "pyspark": {"spark", "top_level"},
    "pytest": {"pytest_plugin"},
    "prometheus_client": {"workers/metrics.py", "spark/listener.py", "django/cache.py"},
    "opentelemetry": {"workers/tracing.py"},
}

# The files that create threads and timers: they name them, make them daemons and report crashes. The
# worker runtime has its own, because it uses only public names.
THREADS_FILES = {"client/threads.py", "workers/events.py"}
#: Tests of users run there; an error of the worker thread is a failure of the test.
THREADS_FILES |= {"pytest_plugin/__init__.py"}

MAX_FILE_LINES = 900
#: A list of short classes, which users find in one module.
LONG_FILES = {"errors.py": 1055}
MAX_FUNCTION_LINES = 80  # without the docstring
MAX_NESTING = 4
MAX_ATTRIBUTES = 20  # that the methods of a class assign to its instances
MAX_PARAMETERS = 10  # without `self` and `cls`
#: Functions with more: each option is a parameter of its own.
MANY_PARAMETERS = {
    "cli/messages/receive.py sub": "click passes each option of the command",
    "cli/streams/messages.py view": "click passes each option of the command",
    "jetstream/context.py schedule": "the public options of a schedule and of a message",
    "workers/worker.py schedule": "the public options of a schedule and of a call",
}

# A handler of Exception or BaseException must raise again, except at the top of a thread and around
# a user's callback, where it records and reports the error.
BROAD_HANDLERS = {
    "cli/__main__.py main": "the top of the process: an unexpected error is one line, too",
    "codec.py text_of": "the text of an exception of a user may fail",
    "workers/logs.py _encodable": "the values that a program adds to a record may fail",
    "workers/logs.py format": "the same",
    "workers/operations/heartbeat.py beat": "an error in a report must not end the heartbeats",
    "workers/runtime/child.py enqueue": "a log record with objects that cannot be pickled is sent as text",
    "workers/runtime/child.py _report": "an exception of a user that cannot be pickled is sent as text",
    "workers/runtime/processes.py _error_of": "the class of an exception may not exist in the main process",
    "workers/runtime/processes.py _log": "the class of an object in a log record may not exist in the main process",
    "client/events.py _run": "a user's callback for connection events may raise anything",
    "client/events.py counted": "the top of a thread for callbacks: it ends what it reads from",
    "client/mailbox.py copy_exception": "an exception of the user may take any arguments",
    "client/subscription_table.py on_connection_change": "a fault of one receiver ends that receiver only",
    "client/subscription_table.py _close_receiver": "a fault of one receiver must not keep others waiting",
    "client/reader.py _dispatch": "a fault of one receiver ends that receiver only",
    "client/reader.py _dispatch_permission_error": "the same",
    "client/connector.py _delay": "the user's reconnect delay callback may raise anything",
    "client/connector.py _chosen": "the user's choice of a server may raise anything",
    "client/subscription.py _run": "a user's callback for messages may raise anything",
    "client/threads.py run": "the top of every thread: it reports the error that ended it",
    "client/tracing.py _call": "a user's callback for the trace may raise anything",
    "jetstream/api_requests.py _tell": "a user's function for requests may raise anything",
    "jetstream/publish.py _call": "a user's callback for a future may raise anything",
    "jetstream/consume_handle.py _run": "a user's callback for messages may raise anything",
    "services/endpoint.py _handle": "a user's handler may raise anything",
    "services/service.py _run_control": "an error in a reply must not end the thread of the service",
    "services/service.py _with_data": "a user's function for statistics may raise anything",
    "services/service.py _call_stop_cb": "a user's callback may raise anything",
    "jetstream/buckets/watch_handle.py _report_current": "a user's callback may raise anything",
    "workers/operations/http_server.py do_GET": "an error in a reply must not end the thread of the server",
    "workers/logs.py log": "a user's log handler may raise anything",
    "workers/tracing.py guarded": "tracers and propagators may raise anything",
    "workers/observer.py emit": "a user's hook may raise anything",
    "spark/session.py start_query": "the errors of Spark have no common class; it repeats one",
    "django/outbox.py _guarded": "the relay outlives any error of the database, and reports it",
    "workers/runtime/processing.py process": "a user's handler may raise anything: the attempt has failed",
    "workers/runtime/processing.py _may_run": "a user's limit_key may raise anything: the attempt has failed",
    "workers/runtime/processing.py _run_anew": "whatever a hook of a commit raises, the run has committed",
    "workers/runtime/processing.py _reply": "the handler has succeeded: its reply must not fail the message",
    "workers/runtime/child.py _handled": "the same in a process: the worker gets the error",
    "workers/runtime/child.py main": "modules of the user may raise anything: the worker gets the error",
    "workers/runtime/processes.py respond": "the process gets the error",
    "workers/runtime/processing.py process_batch": "as in process: the attempt has failed",
    "workers/runtime/pulling.py _key_of": "a user's key function may raise anything: the attempt has failed",
    "workers/runtime/processing.py _bury": "a user's function for the subject may raise anything",
    "workers/events.py run": "the top of every thread: it reports the error that ended it",
}

# What the layers above `client` use of the connection core: its values, its parts, and its own methods.
CORE_INTERFACE = """
address closed_reason info internal max_payload name options reconnects status
callbacks direct encoder events reader requests state table writer
drain_subscriptions flush stop_dropped wait_closed wake
"""

# --- reading the package ----------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported module, and whether it is imported under TYPE_CHECKING only."""

    module: str
    line: int
    typing_only: bool


@dataclass(frozen=True)
class File:
    """A file of the package, its part and its syntax tree."""

    path: Path
    tree: ast.Module

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def part(self) -> str:
        return part_of(self.path.relative_to(PACKAGE).with_suffix("").parts)

    @property
    def module(self) -> str:
        parts = ("jetstream_sync", *self.path.relative_to(PACKAGE).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def is_in(self, places: set[str]) -> bool:
        return self.part in places or self.name in places

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, outer ones first. To walk the tree for each rule would take far longer."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, also those in functions; ``from . import x`` counts as ``.x`` if x is a module."""
        return list(self._imports())

    def _imports(self) -> Iterator[Import]:
        typing_only = {
            id(node)
            for branch in self.nodes
            if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
            for statement in branch.body
            for node in ast.walk(statement)
        }
        package = self.module.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, id(node) in typing_only)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                origin = ".".join([*base, *(node.module or "").split(".")]).strip(".")
                for alias in node.names:
                    inner = f"{origin}.{alias.name}"
                    module = inner if inner in modules() else origin
                    yield Import(module, node.lineno, id(node) in typing_only)


def part_of(parts: tuple[str, ...]) -> str:
    """Return the part that contains a module, given its path below the package."""
    if parts in {(), ("__init__",)}:
        return "names"
    return parts[0] if len(parts) > 1 or (PACKAGE / parts[0]).is_dir() else "base"


@cache
def files() -> tuple[File, ...]:
    """Read every file of the package."""
    return tuple(
        File(path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
        for path in sorted(PACKAGE.rglob("*.py"))
    )


@cache
def modules() -> frozenset[str]:
    return frozenset(file.module for file in files())


def every_file(test: Callable[[File], None]) -> Callable[[], None]:
    """Run a test for each file, and report all files that fail."""

    def of_all_files() -> None:
        wrong = []
        for file in files():
            try:
                test(file)
            except AssertionError as error:
                wrong.append(f"{file}: {error}")
        assert not wrong, "\n".join(wrong)

    of_all_files.__name__, of_all_files.__doc__ = test.__name__, test.__doc__
    return of_all_files


def functions(file: File) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# --- the rules --------------------------------------------------------------------------------


def test_the_tables_know_every_part():
    """Every folder of the package has a line in the table."""
    assert {file.part for file in files()} <= MAY_IMPORT.keys()


def test_no_two_parts_import_each_other():
    """The table does not allow two parts to import each other."""
    for part, lower in MAY_IMPORT.items():
        for other in lower:
            assert part not in MAY_IMPORT[other], f"{part} and {other} import each other"


@every_file
def test_imports_point_downwards(file):
    """A file imports its own part and the parts below it."""
    wrong = []
    for imported in file.imports:
        first, _, rest = imported.module.partition(".")
        if first != "jetstream_sync":
            continue
        part = part_of(tuple(rest.split(".")) if rest else ())
        if rest == "errors":  # a public module at the bottom
            continue
        allowed = part in MAY_IMPORT[file.part] or part == file.part
        if (file.part, part) in MAY_IMPORT_OF:
            allowed = rest in MAY_IMPORT_OF[file.part, part]
        if not allowed:
            wrong.append(f"line {imported.line}: {file.part} imports {imported.module} ({part})")
    assert not wrong


@every_file
def test_codes_of_the_server_have_names(file):
    """Decisions on an ``err_code`` use the names in ``errors.py``; only the table of jsm has numbers."""
    codes = [
        node.value
        for node in file.nodes
        if isinstance(node, ast.Constant)
        and type(node.value) is int
        and 10_000 < node.value < 10_300
    ]
    assert not codes or file.name in {"errors.py", "cli/commands.py"}


def test_the_worker_runtime_uses_public_names():
    """The worker runtime imports only what a user can import from the package."""
    public = set(jetstream_sync.__all__)
    wrong = []
    for file in files():
        if file.part != "workers":
            continue
        for node in file.nodes:
            if isinstance(node, ast.ImportFrom) and (
                node.level > file.name.count("/") or node.module == "jetstream_sync"
            ):
                # `Worker.setup` shows the differences of jsm; exit statuses, subjects, leases, deadlines, growing
                # delays, results of callbacks, exact and stored values, counts and values in JSON have one rule.
                if node.module in {
                    "converters",
                    "declare",
                    "differences",
                    "durations",
                    "errors",
                    "exact",
                    "exit_status",
                    "lease_times",
                    "locks",
                    "net.clock",
                    "options",
                    "records",
                    "subjects",
                }:
                    continue
                assert node.module in {None, "jetstream_sync"}, f"{file}, line {node.lineno}"
                names = {alias.name for alias in node.names} - {"codec", "errors"}
                wrong += [f"{file}, line {node.lineno}: {name}" for name in names - public]
    assert not wrong


@pytest.mark.parametrize("part", FOLDERS)
def test_imports_between_folders_point_downwards(part):
    """A folder imports itself and the folders below it; only entry points import from folders."""
    folders = FOLDERS[part]
    wrong = []
    found = set()
    for file in files():
        if file.part != part:
            continue
        own, _, rest = file.name.removeprefix(f"{part}/").partition("/")
        if rest:
            found.add(own)
        elif own in ENTRY_POINTS[part]:
            continue
        for imported in file.imports:
            folder = imported.module.removeprefix(f"jetstream_sync.{part}.").partition(".")[0]
            if folder in folders and folder != own and folder not in folders.get(own, set()):
                wrong.append(f"{file.name}, line {imported.line}: {imported.module}")
    assert not wrong
    assert found == folders.keys()


@every_file
def test_restricted_modules_are_imported_where_allowed(file):
    """Sockets, clocks, threads, JSON and third-party packages are imported where the tables allow."""
    wrong = []
    for imported in file.imports:
        first = imported.module.partition(".")[0]
        if first == "jetstream_sync" or imported.typing_only:
            continue
        if first in ONLY_IN:
            fine = file.is_in(ONLY_IN[first])
        else:
            fine = first in sys.stdlib_module_names or file.is_in(THIRD_PARTY.get(first, set()))
        if not fine:
            wrong.append(f"line {imported.line}: {imported.module}")
    assert not wrong


@pytest.mark.parametrize("typing_too", [False, True], ids=["at run time", "for types"])
def test_there_are_no_import_cycles(typing_too):
    """Any module can be imported first, and understood before the modules that import it."""
    graph = {
        file.module: {
            imported.module
            for imported in file.imports
            if (typing_too or not imported.typing_only) and imported.module != file.module
        }
        & modules()
        for file in files()
    }
    while True:
        leaves = {module for module, needs in graph.items() if not needs & graph.keys()}
        if not leaves:
            break
        graph = {module: needs for module, needs in graph.items() if module not in leaves}
    assert not graph, f"in an import cycle, or importing from one: {sorted(graph)}"


def test_upper_layers_use_the_interface_of_the_connection_core():
    """Above `client`, the core is used through its methods; each entry of the table is used."""
    used: dict[str, str] = {}
    for file in files():
        if MAY_IMPORT["client"] | {"client"} >= {file.part}:
            continue
        for node in file.nodes:
            if isinstance(node, ast.Attribute) and is_core(node.value):
                used[node.attr] = f"{file.name}, line {node.lineno}"
    assert not {name: where for name, where in used.items() if name not in CORE_INTERFACE.split()}
    assert used.keys() >= set(CORE_INTERFACE.split())


def is_core(node: ast.expr) -> bool:
    """Return whether an expression is the connection core, by its last name."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in {"core", "_core", "internal"}


@every_file
def test_every_file_postpones_annotations(file):
    """Annotations are never evaluated at import."""
    names = {
        alias.name
        for node in file.tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    }
    only_a_docstring = all(isinstance(node, ast.Expr) for node in file.tree.body)
    assert "annotations" in names or only_a_docstring


@every_file
def test_files_and_functions_are_short(file):
    """Files, functions and nesting stay within the limits; split a longer file by noun."""
    wrong = []
    lines = file.path.read_text(encoding="utf-8").count("\n")
    if lines > LONG_FILES.get(file.name, MAX_FILE_LINES):
        wrong.append(f"{lines} lines")
    for function in functions(file):
        length = code_lines(function)
        if length > MAX_FUNCTION_LINES:
            wrong.append(f"line {function.lineno}: {function.name} has {length} lines")
        if (depth := nesting(function)) > MAX_NESTING:
            wrong.append(f"line {function.lineno}: {function.name} is nested {depth} deep")
    assert not wrong


@every_file
def test_classes_and_functions_have_few_names(file):
    """A class has at most 20 attributes and a function 10 parameters; combine more in an object."""
    wrong = [
        f"line {node.lineno}: {node.name} has {len(attributes(node))} attributes"
        for node in file.nodes
        if isinstance(node, ast.ClassDef) and len(attributes(node)) > MAX_ATTRIBUTES
    ]
    for function in functions(file):
        count = len(parameters(function))
        if count > MAX_PARAMETERS and f"{file.name} {function.name}" not in MANY_PARAMETERS:
            wrong.append(f"line {function.lineno}: {function.name} has {count} parameters")
    assert not wrong


def attributes(owner: ast.ClassDef) -> set[str]:
    """Return the attributes that the methods of a class assign to ``self``."""
    return {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of the parameters, without those that Python passes."""
    named = function.args
    every = [*named.posonlyargs, *named.args, *named.kwonlyargs]
    return {argument.arg for argument in every} - {"self", "cls"}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    length = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        length -= (first.end_lineno or 0) - first.lineno + 1
    return length


def nesting(node: ast.AST, depth: int = 0) -> int:
    deepest = depth
    for child in ast.iter_child_nodes(node):
        opens = isinstance(child, ast.If | ast.For | ast.While | ast.With | ast.Try)
        # An elif is an If in the else branch of another If, but adds no level.
        if isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]:
            opens = False
        deepest = max(deepest, nesting(child, depth + opens))
    return deepest


@every_file
def test_the_wall_clock_is_not_used(file):
    """Waits and measurements use the monotonic clock, which is never set back."""
    if file.name in WALL_CLOCK:
        return
    wrong = [
        f"line {node.lineno}"
        for node in file.nodes
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in {"time.time", "time.time_ns"})
        or (
            isinstance(node, ast.Import)
            and any(item.name == "time" and item.asname for item in node.names)
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "time"
            and {"time", "time_ns"} & {alias.name for alias in node.names}
        )
    ]
    assert not wrong


@every_file
def test_pure_parts_are_told_the_time(file):
    """The protocol and the records of the API read no clock: a caller passes the time."""
    if file.part in {"protocol", "api"}:
        assert not calls_of(file, {"now", "utcnow", "today", "monotonic"})


def calls_of(file: File, names: set[str]) -> list[str]:
    """Return the calls of functions with one of these names."""
    return [
        f"line {node.lineno}: {ast.unparse(node.func)}"
        for node in file.nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names
    ]


@every_file
def test_threads_are_created_in_one_file(file):
    """No other file calls Thread, Timer or an executor."""
    if file.name not in THREADS_FILES and file.part not in {"cli", "spark"}:
        assert not calls_of(file, {"Thread", "Timer", "ThreadPoolExecutor"})


@every_file
def test_the_client_waits_with_plain_locks(file):
    """An interrupt leaves an Event or a Condition locked; see ``client/threads.py``."""
    if file.part in {"client", "jetstream"}:
        assert not calls_of(file, {"Event", "Condition"})


def broad_handlers(file: File) -> Iterator[tuple[str, int]]:
    """Yield the broad handlers that do not raise again: the name of the function, and the line."""
    owner = {
        id(node): function.name
        for function in functions(file)  # an inner function comes later and replaces the outer one
        for node in ast.walk(function)
    }
    for node in file.nodes:
        if isinstance(node, ast.ExceptHandler):
            caught = [ast.Name("BaseException") if node.type is None else node.type]
            again = isinstance(node.body[-1], ast.Raise)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught, again = node.args, False
        else:
            continue
        names = {ast.unparse(item) for part in caught for item in ast.walk(part)}
        if {"Exception", "BaseException"} & names and not again:
            yield owner.get(id(node), ""), node.lineno


@every_file
def test_broad_handlers_are_at_the_top_of_threads(file):
    """A handler of all exceptions raises again, or is listed in the table with its reason."""
    wrong = [
        f"line {line}: {function}"
        for function, line in broad_handlers(file)
        if f"{file.name} {function}" not in BROAD_HANDLERS
    ]
    assert not wrong


def test_every_exception_in_the_tables_is_needed():
    """Every line of the tables of broad handlers and of many parameters matches a function."""
    found = {f"{file.name} {function}" for file in files() for function, _ in broad_handlers(file)}
    assert BROAD_HANDLERS.keys() <= found
    long = {
        f"{file.name} {function.name}"
        for file in files()
        for function in functions(file)
        if len(parameters(function)) > MAX_PARAMETERS
    }
    assert MANY_PARAMETERS.keys() <= long
