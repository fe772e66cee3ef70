"""
The code in the documents runs.

The Python blocks of README.md and of every page under docs/ are run in order, file by file, in one
namespace per file and against a fresh nats-server. Lines ``$ jsm ...`` in console blocks are run,
too, and have to succeed. Other shell blocks are not run: `.ci/run` and tox are what they speak of.

One substitution is made: `DOCUMENTED_URL`, where the documents connect to, becomes the address of
the fresh server. A block that can not run says why, in a comment right above it: ``.. not run:
<reason>`` in a page, ``<!-- not run: <reason> -->`` in the README.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import logging
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from typing_extensions import is_typeddict

import jetstream_sync
from jetstream_sync.jetstream import shared
from jetstream_sync.server import NatsServer

ROOT = Path(__file__).parents[1]
DOCUMENTED_URL = "nats://127.0.0.1:4222"

_PAGE_BLOCK = re.compile(
    r"^(?P<indent> *)\.\. code-block:: (?P<language>\w+)\n"
    r"(?:(?P=indent) +:.*\n)*\n*"
    r"(?P<code>(?:(?:(?P=indent) +\S.*)?\n)+)",
    re.MULTILINE,
)
_README_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"(?:\.\. not run: \S.*|<!-- not run: \S.* -->)\s*\Z")


@dataclass(frozen=True)
class Block:
    """A code block and the line of its document where the code begins."""

    language: str
    code: str
    line: int


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst"))]


def blocks(path: Path) -> Iterator[Block]:
    """Find the blocks of a document that are to be run."""
    text = path.read_text(encoding="utf-8")
    pattern = _README_BLOCK if path.suffix == ".md" else _PAGE_BLOCK
    for match in pattern.finditer(text):
        if _NOT_RUN.search(text[: match.start()]):
            continue
        code = match["code"]
        indent = min(len(line) - len(line.lstrip()) for line in code.splitlines() if line.strip())
        yield Block(
            match["language"],
            "\n".join(line[indent:] for line in code.splitlines()) + "\n",
            text.count("\n", 0, match.start("code")) + 1,
        )


def run_python(block: Block, path: Path, names: dict[str, object]) -> None:
    # As many empty lines in front put the document's line numbers into a traceback.
    code = "\n" * (block.line - 1) + block.code
    exec(compile(code, str(path), "exec"), names)


def run_console(block: Block, path: Path) -> None:
    for line in block.code.splitlines():
        if line.startswith("$ jsm"):
            command = [sys.executable, "-m", "jetstream_sync.cli", *shlex.split(line)[2:]]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=50,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, f"{path}:{block.line}: {line}\n{done.stdout}{done.stderr}"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """What is there once for a process is as the page found it: shared connections, and what is logged."""
    log = logging.getLogger("jetstream_sync")
    level = log.level
    yield
    log.setLevel(level)
    for connection in list(shared._shared._open.values()):
        connection.close()


# A page of commands starts Python some dozen times, and may do so on a machine that is busy.
@pytest.mark.timeout(110)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_in_a_document_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever copies the code of a page from top to bottom gets what the page says."""
    found = [block for block in blocks(path) if block.language in {"python", "console"}]
    if not found:
        return
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    # A page may set variables, which the commands of the next page must not find.
    with mock.patch.dict(os.environ), NatsServer() as server:
        # Commands find it as who reads the page finds theirs, and have contexts of their own.
        monkeypatch.setenv("NATS_URL", server.url)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        for block in found:
            code = block.code.replace(DOCUMENTED_URL, server.url)
            here = Block(block.language, code, block.line)
            if block.language == "python":
                run_python(here, path, names)
            else:
                run_console(here, path)


@pytest.mark.parametrize("forgotten", [False, True], ids=["at once", "later"])
def test_the_tutorial_can_be_run_again(forgotten: bool) -> None:
    """A file that grows piece by piece is run many times: it neither hangs nor fails the second time."""
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
                    # The server forgets the ids, as it does two minutes later.
                    js.update_stream(replace(config, duplicate_window=timedelta(milliseconds=100)))
                    time.sleep(0.3)
                    js.update_stream(config)
                stored = stream.info(subjects_filter="ORDERS.received").state.subjects
    assert stored == {"ORDERS.received": 202 if forgotten else 101}


def test_there_is_code_to_run() -> None:
    """The search for blocks finds the README's, whatever becomes of its pattern."""
    assert any(block.language == "python" for block in blocks(ROOT / "README.md"))


def test_blocks_are_found_and_left_out_as_the_rules_say(tmp_path: Path) -> None:
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


def test_a_failing_block_is_reported_at_its_line(tmp_path: Path) -> None:
    """The traceback of an error in a document points into the document."""
    with pytest.raises(ZeroDivisionError) as caught:
        run_python(Block("python", "a = 1\na / 0\n", 40), tmp_path / "page.rst", {})
    assert caught.traceback[-1].lineno == 41 - 1  # counted from 0
    assert str(caught.traceback[-1].path).endswith("page.rst")


_DIRECTIVE = re.compile(
    r"^\.\. (?P<kind>currentmodule|automodule|auto\w+):: (?P<name>[\w.]+).*\n(?P<options>(?: +:.*\n)*)",
    re.MULTILINE,
)


def documented() -> set[int]:
    """Return the identities of what the pages of the reference describe."""
    found: set[int] = set()
    for path in sorted((ROOT / "docs" / "reference").glob("*.rst")):
        module = ""
        for match in _DIRECTIVE.finditer(path.read_text(encoding="utf-8")):
            name = match["name"]
            if match["kind"] == "currentmodule":
                module = name
            elif match["kind"] == "automodule":
                members = importlib.import_module(name)
                assert ":members:" in match["options"], f"{path}: {name} shows nothing"
                found |= {id(members)} | {id(getattr(members, each)) for each in members.__all__}
            else:
                owner, _, last = name.rpartition(".")
                found.add(id(getattr(importlib.import_module(owner or module), last)))
    return found


@pytest.mark.parametrize("package", ["jetstream_sync", "jetstream_sync.server"])
def test_the_reference_has_every_public_name(package: str) -> None:
    """What can be imported can be looked up."""
    module, described = importlib.import_module(package), documented()
    assert [name for name in module.__all__ if id(getattr(module, name)) not in described] == []


def test_every_field_of_the_records_is_documented() -> None:
    """A field without a text would be missing from the reference."""
    records = {
        each
        for name in jetstream_sync.__all__
        if isinstance(each := getattr(jetstream_sync, name), type)
        and (is_dataclass(each) or hasattr(each, "_fields") or is_typeddict(each))
    }
    assert len(records) > 20
    for record in records:
        tree = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                documents_it = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                assert documents_it, f"{record.__name__}.{field.target.id} has no text"


def test_the_pages_are_on_their_indexes() -> None:
    """No page is left out of the tables of contents."""
    for index in sorted((ROOT / "docs").glob("*/index.rst")):
        listed = set(index.read_text(encoding="utf-8").split())
        pages = {path.stem for path in index.parent.glob("*.rst")} - {"index"}
        assert pages <= listed, f"{index} does not list {sorted(pages - listed)}"


def modules_with_examples() -> list[str]:
    package = ROOT / "jetstream_sync"
    return [
        ".".join(("jetstream_sync", *path.relative_to(package).with_suffix("").parts))
        for path in sorted(package.rglob("*.py"))
        if ">>> " in path.read_text(encoding="utf-8")
    ]


def test_the_examples_in_docstrings_are_right() -> None:
    """What an example in a docstring shows is what happens."""
    for name in modules_with_examples():
        result = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
        assert result.failed == 0, f"{name}: {result.failed} of {result.attempted} examples"
