"""
The architecture rules, checked on the syntax tree of every file of the package.

The tables come first: they are the rules. An exception is a line in a table, with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from fix_cases import each_case

PACKAGE = Path(__file__).parents[1] / "jetstream_sync"

# --- the tables -------------------------------------------------------------------------------

# A *part* is a folder of the package; "words" are the modules at its top (layer 0) and "names" is
# its __init__.py. A part may import itself and what stands here: imports point down only.
MAY_IMPORT: dict[str, set[str]] = {
    "words": set(),
    "protocol": {"words"},
    "api": {"words"},
    "net": {"words"},
    "client": {"words", "protocol", "net"},
    "jetstream": {"words", "api", "client"},
    "server": {"words"},
    "names": {"words", "protocol", "api", "net", "client", "jetstream"},
    "spark": {"words", "protocol", "api", "net", "client", "jetstream", "names"},
    "cli": {"words", "protocol", "api", "net", "client", "jetstream", "server", "spark", "names"},
    "top_level": {"spark", "cli"},
}

# The folders of a part that has some, in the same way. What is at its top is for all of them, and only
# its doors, the files that `DOORS` names, look into the folders.
FOLDERS: dict[str, dict[str, set[str]]] = {
    "spark": {
        "reading": set(),
        "planning": {"reading"},
        "streaming": {"planning", "reading"},
        "writing": {"reading"},
    },
}
DOORS: dict[str, set[str]] = {
    "spark": {"__init__.py", "source.py", "task_helpers.py", "work_queue.py"},
}

# Where a part may import some modules of another part only, by that part's name.
MAY_IMPORT_OF: dict[tuple[str, str], set[str]] = {
    # It is for scripts without a client, too.
    ("server", "words"): {"errors", "install"},
    # Deadlines go all the way down; sockets do not come all the way up.
    ("jetstream", "net"): {"net.clock"},
    # jsm uses only the public API; `api.reply` parses a subject that is public, too.
    ("cli", "protocol"): set(),
    ("cli", "api"): {"api.reply"},
    ("cli", "net"): {"net.clock"},
    ("cli", "client"): set(),
    ("cli", "jetstream"): set(),
    # Acks and pulls are made and read by the million: as bytes, in the form that they travel in.
    ("jetstream", "protocol"): {"protocol.commands", "protocol.parser"},
}

# Standard modules that only some places may import; everywhere else they are a mistake.
ONLY_IN: dict[str, set[str]] = {
    "asyncio": set(),
    "concurrent": {"client", "jetstream", "cli", "spark"},
    "json": {"codec.py", "cli", "spark"},
    "logging": {"client", "jetstream", "cli", "spark"},
    "multiprocessing": set(),
    "queue": {"client"},
    "select": {"net"},
    "selectors": {"net"},
    "signal": {"server", "cli", "spark/streaming/reader.py"},
    "socket": {"net", "server"},
    "ssl": {"net"},
    # sub --translate runs a command of the user's; bench has clients in processes of their own.
    "subprocess": {"server", "cli/messages/translate.py", "cli/bench/worker_process.py"},
    "threading": {"client", "jetstream", "server", "cli"},
    "time": {"net", "server", "cli", "spark"},
}

# Other packages, and where they may be imported.
THIRD_PARTY: dict[str, set[str]] = {
    "typing_extensions": {"words", "protocol", "api", "net", "client", "jetstream", "server"}
    | {"spark", "cli"},
    "orjson": {"codec.py"},
    "nkeys": {"protocol"},
    "websockets": {"net"},
    "click": {"cli"},
    "questionary": {"cli"},
    # What questionary draws with, and where it is told to draw.
    "prompt_toolkit": {"cli"},
    "rich": {"cli"},
    "pyarrow": {"spark"},
    "pyspark": {"spark", "top_level"},
}

# The only maker of threads and timers: it names them, makes them daemons and reports their crashes.
MAKES_THREADS = "client/threads.py"

MAX_FILE_LINES = 900
MAX_FUNCTION_LINES = 80  # without the docstring
MAX_NESTING = 4

# A handler of Exception or BaseException is for the top of a thread or of a user's callback,
# where it records and reports, and for a handler that raises again.
BROAD_HANDLERS: dict[tuple[str, str], str] = {
    ("cli/__main__.py", "main"): "the top of the process: an unexpected error is one line, too",
    ("client/events.py", "_run"): "a user's callback for connection events may raise anything",
    ("client/connector.py", "_delay"): "a user's function for the wait may raise anything",
    ("client/subscription.py", "_run"): "a user's callback for messages may raise anything",
    ("client/threads.py", "run"): "the top of every thread: it reports what crashed it",
    ("client/tracing.py", "_call"): "a user's callback for the trace may raise anything",
    ("jetstream/consume.py", "_run"): "a user's callback for messages may raise anything",
}

# --- reading the package ----------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One module that a file imports, and whether it does so for type checkers only."""

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

    def imports(self) -> Iterator[Import]:
        """Every import, also those in functions; ``from . import x`` counts as ``.x`` if it is one."""
        typing_only = {
            id(node)
            for branch in ast.walk(self.tree)
            if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
            for statement in branch.body
            for node in ast.walk(statement)
        }
        package = self.module.split(".")
        if self.path.name != "__init__.py":
            package = package[:-1]
        for node in ast.walk(self.tree):
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
    """Name the part that a module is in, from its path below the package."""
    if parts in {(), ("__init__",)}:
        return "names"
    return parts[0] if len(parts) > 1 or (PACKAGE / parts[0]).is_dir() else "words"


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


def every_file(test: Callable[..., None]) -> Callable[..., None]:
    return each_case("file", files())(test)


def functions(file: File) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# --- the rules --------------------------------------------------------------------------------


def test_the_tables_know_every_part() -> None:
    """A new folder gets its line in the table before its first import."""
    assert {file.part for file in files()} <= MAY_IMPORT.keys()


def test_the_tables_themselves_point_down_only() -> None:
    """No two parts may import each other."""
    for part, lower in MAY_IMPORT.items():
        for other in lower:
            assert part not in MAY_IMPORT[other], f"{part} and {other} import each other"


@every_file
def test_imports_point_down_only(file: File) -> None:
    """A file imports its own part and the parts below it."""
    wrong = []
    for imported in file.imports():
        first, _, rest = imported.module.partition(".")
        if first != "jetstream_sync":
            continue
        part = part_of(tuple(rest.split(".")) if rest else ())
        allowed = part in MAY_IMPORT[file.part] or part == file.part
        if (file.part, part) in MAY_IMPORT_OF:
            allowed = rest in MAY_IMPORT_OF[file.part, part]
        if not allowed:
            wrong.append(f"line {imported.line}: {file.part} imports {imported.module} ({part})")
    assert not wrong


@pytest.mark.parametrize("part", FOLDERS)
def test_folders_of_a_part_import_down_only(part: str) -> None:
    """A folder imports itself and the folders below it; the top of the part imports none of them."""
    folders = FOLDERS[part]
    wrong = []
    found = set()
    for file in files():
        if file.part != part:
            continue
        own, _, rest = file.name.removeprefix(f"{part}/").partition("/")
        if rest:
            found.add(own)
        elif own in DOORS[part]:
            continue
        for imported in file.imports():
            folder = imported.module.removeprefix(f"jetstream_sync.{part}.").partition(".")[0]
            if folder in folders and folder != own and folder not in folders.get(own, set()):
                wrong.append(f"{file.name}, line {imported.line}: {imported.module}")
    assert not wrong
    assert found == folders.keys()


@every_file
def test_outside_modules_stay_where_they_belong(file: File) -> None:
    """Sockets, clocks, threads, JSON and other packages are imported where the tables say."""
    wrong = []
    for imported in file.imports():
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


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Every module can be imported first; what is imported for type checkers only is no circle."""
    graph = {
        file.module: {
            imported.module
            for imported in file.imports()
            if not imported.typing_only and imported.module != file.module
        }
        & modules()
        for file in files()
    }
    while True:
        leaves = {module for module, needs in graph.items() if not needs & graph.keys()}
        if not leaves:
            break
        graph = {module: needs for module, needs in graph.items() if module not in leaves}
    assert not graph, f"in a circle, or above one: {sorted(graph)}"


@every_file
def test_every_file_puts_off_its_annotations(file: File) -> None:
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
def test_files_and_functions_are_short(file: File) -> None:
    """What outgrows its limit is split by noun."""
    wrong = []
    lines = file.path.read_text(encoding="utf-8").count("\n")
    if lines > MAX_FILE_LINES:
        wrong.append(f"{lines} lines")
    for function in functions(file):
        length = code_lines(function)
        if length > MAX_FUNCTION_LINES:
            wrong.append(f"line {function.lineno}: {function.name} has {length} lines")
        if (depth := nesting(function)) > MAX_NESTING:
            wrong.append(f"line {function.lineno}: {function.name} is nested {depth} deep")
    assert not wrong


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
        # An elif is the If in the else branch of an If, one level and not two.
        if isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]:
            opens = False
        deepest = max(deepest, nesting(child, depth + opens))
    return deepest


@every_file
def test_the_wall_clock_is_not_used(file: File) -> None:
    """Waits and measurements use the monotonic clock, which is never set back."""
    wrong = [
        f"line {node.lineno}"
        for node in ast.walk(file.tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in {"time.time", "time.time_ns"})
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "time"
            and {"time", "time_ns"} & {alias.name for alias in node.names}
        )
    ]
    assert not wrong


@every_file
def test_threads_are_made_in_one_place(file: File) -> None:
    """No other file calls Thread, Timer or an executor."""
    wrong = [
        f"line {node.lineno}: {ast.unparse(node.func)}"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"Thread", "Timer", "ThreadPoolExecutor"}
        and file.name != MAKES_THREADS
        and file.part not in {"cli", "spark"}
    ]
    assert not wrong


def broad_handlers(file: File) -> Iterator[tuple[str, int]]:
    """Find handlers of everything that do not raise again, each with its function's name."""
    owner = {
        id(node): function.name
        for function in functions(file)  # inner functions come later, and win
        for node in ast.walk(function)
    }
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = "BaseException" if node.type is None else ast.unparse(node.type)
        again = isinstance(node.body[-1], ast.Raise)
        if {"Exception", "BaseException"} & set(caught.strip("()").split(", ")) and not again:
            yield owner.get(id(node), ""), node.lineno


@every_file
def test_broad_handlers_are_at_the_top_of_threads(file: File) -> None:
    """Nothing swallows an error that it does not know."""
    wrong = [
        f"line {line}: {function}"
        for function, line in broad_handlers(file)
        if (file.name, function) not in BROAD_HANDLERS
    ]
    assert not wrong


def test_every_exception_in_the_tables_is_needed() -> None:
    """A line that excuses nothing is removed."""
    found = {(file.name, function) for file in files() for function, _ in broad_handlers(file)}
    assert BROAD_HANDLERS.keys() <= found
