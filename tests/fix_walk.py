"""
A page of commands with their output, run from top to bottom.

A page has blocks ``.. code-block:: shell-session``: lines that begin with ``$`` are run, all others
are their output. Comments between the blocks, in the page's source only, control the run; one right
above a block applies to it:

``.. answers: LABEL = ANSWER | ...``
    The command prompts: it runs on a terminal, and each answer is typed after its label.
``.. from: LINE``
    The page has the output from this line on only.
``.. with: WORD | ...``
    The page has only the lines with one of these words.
``.. runs: NAME until N``
    The command continues while the following blocks run; it is ready after N lines of output.
``.. stops: NAME after N``
    After N lines of output of that command in all, Ctrl-C is typed.
``.. effect: NAME``
    The effect is checked on the server by a function of the test with that name.

Parts that differ between runs (times, ids, addresses) are masked when a page is compared.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fix_jsm import Terminal
from fix_threads import SCALE, wait_until
from typing_extensions import Self

from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.main import run

__all__ = ["Block", "Page", "Walk", "masked"]

_BLOCK = ".. code-block:: shell-session"
_COMMENT = re.compile(r"\.\. (answers|from|with|runs|stops|effect): (.*)")
_INDENT = "   "
_LEFT_OUT = "..."
DOCUMENTED_URL = "nats://127.0.0.1:4222"

_MASKS = [
    (re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?( ?[+-]\d\d:?\d\d|Z)?"), "<time>"),
    (re.compile(r"\[\d\d:\d\d:\d\d\]"), "[<time>]"),
    (re.compile(r"\b(\d+\.\d+|\d+)(h\d+m|m)?(\d+(\.\d+)?)?(ns|µs|ms|s)\b(?= ago)"), "<duration>"),
    (re.compile(r"\b\d+(\.\d+)?m?(ns|µs|ms)\b"), "<duration>"),
    (re.compile(r"\b\d+\.\d+ ?m?s\b"), "<duration>"),
    (re.compile(r'"(ack_time|ts|time|created)": ?[^,]*'), r'"\1": <value>'),
    (re.compile(r"_INBOX\.[\w.]+"), "<inbox>"),
    (re.compile(r"\bN[A-Z0-9]{55}\b"), "<server>"),
    (re.compile(r"127\.0\.0\.1(:\d+)?"), "<address>"),
    (re.compile(r'"id": "\w{22}"'), '"id": "<id>"'),
    (re.compile(r"(?<=> )[0-9a-f]{16}$|\b[A-Za-z0-9]{22,24}\b"), "<id>"),
    (re.compile(r"in <duration>, [\d,]+ a second"), "in <duration>, <rate>"),
    (re.compile(r"((Server Version|Client ID|Requests|Errors|Level): ).*"), r"\1<value>"),
    (re.compile(r'("_nats\.\w+(\.\w+)?": ).*'), r"\1<value>"),
]


def masked(lines: list[str]) -> list[str]:
    """Return lines without the parts that differ between runs."""
    found = []
    for line in lines:
        for pattern, replacement in _MASKS:
            line = pattern.sub(replacement, line)  # noqa: PLW2901 - one mask after the other
        found.append(line.rstrip())
    return found


@dataclass
class Block:
    """A block: its place in the page, and its commands with their output."""

    first: int
    """The page's line of its first command."""
    last: int
    """The line after its last one."""
    comments: dict[str, str]
    commands: list[str] = field(default_factory=list)
    shown: list[list[str]] = field(default_factory=list)

    def lines(self, shown: list[list[str]]) -> list[str]:
        """Return the lines of a block with this output."""
        found = []
        for command, output in zip(self.commands, shown, strict=True):
            found += [f"$ {command}", *output]
        while found and not found[-1]:
            found.pop()
        return found

    def part(self, output: list[str]) -> list[str]:
        """Return the part of an output that is in the page."""
        begin = self.comments.get("from")
        if begin is not None and begin in output:
            output = [_LEFT_OUT, *output[output.index(begin) :]]
        words = self.comments.get("with")
        if words is None:
            return output
        wanted = words.split(" | ")
        found: list[str] = []
        for line in output:
            if any(word in line for word in wanted):
                found.append(line)
            elif found[-1:] != [_LEFT_OUT]:
                found.append(_LEFT_OUT)
        return found


@dataclass(frozen=True)
class Step:
    """A step: a block to run, or the action of a comment between blocks."""

    kind: str
    text: str = ""
    block: Block | None = None


class Page:
    """A page of commands, parsed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines = path.read_text(encoding="utf-8").split("\n")

    def steps(self) -> Iterator[Step]:
        """Yield the steps in the order of the page."""
        comments: dict[str, str] = {}
        number = 0
        while number < len(self.lines):
            line = self.lines[number]
            number += 1
            if found := _COMMENT.fullmatch(line):
                if found[1] in {"stops", "effect"}:
                    yield Step(found[1], found[2])
                else:
                    comments[found[1]] = found[2]
            elif line == _BLOCK:
                block = self._block(number + 1, comments)
                number = block.last
                comments = {}
                yield Step("block", block=block)
            else:
                assert not line or not comments, f"line {number}: a comment belongs to a block"

    def _block(self, first: int, comments: dict[str, str]) -> Block:
        last = first
        while last < len(self.lines) and (
            not self.lines[last] or self.lines[last].startswith(_INDENT)
        ):
            last += 1
        while not self.lines[last - 1]:
            last -= 1
        block = Block(first, last, comments)
        for line in self.lines[first:last]:
            text = line.removeprefix(_INDENT)
            if text.startswith("$ "):
                block.commands.append(text[2:])
                block.shown.append([])
            else:
                block.shown[-1].append(text)
        return block

    def write(self, results: list[tuple[Block, list[list[str]]]]) -> None:
        """Write the actual output into the page."""
        for block, shown in reversed(results):
            lines = [f"{_INDENT}{line}".rstrip() for line in block.lines(shown)]
            self.lines[block.first : block.last] = lines
        self._path.write_text("\n".join(self.lines), encoding="utf-8")


class _Child:
    """A background command with its output in a file."""

    def __init__(self, words: list[str], environment: dict[str, str], path: Path) -> None:
        self._path = path
        with path.open("wb") as out:
            self.process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    @property
    def text(self) -> str:
        return self._path.read_text(encoding="utf-8")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        return self.process.wait(20 * SCALE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class _OnTerminal(Terminal):
    """The same on a terminal."""

    def interrupt(self) -> None:
        self.send("\x03")


def _asks(terminal: Terminal, question: str, times: int) -> bool:
    return terminal.text.count(question) >= times


class Walk:
    """
    Runs the steps of a page.

    Args:
        page: the page.
        url: the address of the server.
        folder: for files.

    """

    def __init__(self, page: Page, url: str, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._environment = {
            "NATS_URL": url,
            "XDG_CONFIG_HOME": str(folder),
            "TZ": "UTC",
            "TERM": "dumb",
        }
        self._running: dict[str, tuple[Block, _Child | _OnTerminal]] = {}
        self.results: list[tuple[Block, list[list[str]]]] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, effects: dict[str, object]) -> None:
        """Run every step; effects are functions without arguments, and each must be used."""
        used = set()
        for step in self._page.steps():
            if step.kind == "block":
                assert step.block is not None
                self._block(step.block)
            elif step.kind == "stops":
                self._stop(step.text)
            else:
                used.add(step.text)
                look = effects[step.text]
                assert callable(look)
                look()
        assert used == effects.keys()
        assert not self._running

    def _block(self, block: Block) -> None:
        if "runs" in block.comments:
            self._start(block)
            return
        shown = [block.part(self._output(block, command)) for command in block.commands]
        self.results.append((block, shown))

    def _words(self, command: str) -> tuple[list[str], dict[str, str]]:
        words = shlex.split(command)
        variables = {}
        while "=" in words[0]:
            name, _, variables[name] = words.pop(0).partition("=")
        assert words[0] == "jsm", command
        return words[1:], variables

    def _output(self, block: Block, command: str) -> list[str]:
        words, variables = self._words(command)
        if "answers" in block.comments:
            terminal = self._on_terminal(block, words, variables)
            status, text = terminal.wait(), terminal.text
        else:
            # Both streams are one, as on a terminal.
            out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
            status = run(
                words,
                Environment(
                    stdin=io.BytesIO(),
                    stdout=out,
                    stderr=out,
                    variables={**self._environment, **variables},
                ),
            )
            out.seek(0)
            text = out.read()
        assert status == 0, f"line {block.first}: {command}: {status}\n{text}"
        return self._lines(text)

    def _lines(self, text: str) -> list[str]:
        """Return the output as printed with the server address that the page uses."""
        text = text.replace(self._environment["NATS_URL"], DOCUMENTED_URL)
        # The terminal's echo of Ctrl-C.
        text = text.replace("\n\nReceived", "\n^C\nReceived").replace("^Cjsm:", "^C\njsm:")
        return text.expandtabs(8).rstrip("\n").split("\n") if text else []

    def _on_terminal(self, block: Block, words: list[str], more: dict[str, str]) -> _OnTerminal:
        terminal = _OnTerminal(*words, columns=200, **{**self._environment, **more})
        self._open.callback(terminal.close)
        asked: Counter[str] = Counter()
        for each in block.comments["answers"].split(" | "):
            label, _, answer = each.partition(" =")
            question = f"? {label.strip()}"
            asked[question] += 1
            # The same prompt follows its help.
            wait_until(partial(_asks, terminal, question, asked[question]), 10)
            terminal.send(f"{answer.strip()}\n")
        return terminal

    def _start(self, block: Block) -> None:
        name, _, lines = block.comments["runs"].partition(" until ")
        (command,) = block.commands
        words, variables = self._words(command)
        child: _Child | _OnTerminal
        if "answers" in block.comments:
            child = self._on_terminal(block, words, variables)
        else:
            environment = {**os.environ, **self._environment, **variables}
            started = [sys.executable, "-u", "-m", "jetstream_sync.cli", *words]
            child = _Child(started, environment, self._folder / f"{name}.txt")
            self._open.callback(child.close)
        self._running[name] = (block, child)
        self.results.append((block, [[]]))
        wait_until(lambda: child.text.count("\n") >= int(lines), 20)

    def _stop(self, text: str) -> None:
        name, _, lines = text.partition(" after ")
        block, child = self._running.pop(name)
        wait_until(lambda: child.text.count("\n") >= int(lines), 20)
        child.interrupt()
        assert child.wait() == 130, child.text
        output = self._lines(child.text)
        index = next(index for index, (each, _) in enumerate(self.results) if each is block)
        self.results[index] = (block, [block.part(output)])
