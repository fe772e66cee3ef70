"""The ``jsm`` command in tests: in this process, and as a child on a real terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fix_threads import SCALE
from rawnats import RawClient

from jetstream_sync.cli.env import Environment
from jetstream_sync.cli.main import run
from jetstream_sync.server import NatsServer

__all__ = [
    "CLEAR_LINE",
    "NOWHERE",
    "Jsm",
    "Result",
    "Terminal",
    "jsm",
    "raw",
    "run_jsm",
    "spawn_jsm",
    "terminal",
]

#: An empty home: contexts of the machine must not affect the tests. Not even root can create a
#: folder below this file.
NOWHERE = f"{os.devnull}/nowhere"

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")


@dataclass(frozen=True)
class Result:
    """The exit status of a command, and its output."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The only document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents on stdout, one per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The text of the error document on stderr."""
        return json.loads(self.err)["error"]

    def ok(self) -> Result:
        """Return the result itself; the command must have succeeded."""
        assert self.status == 0, self
        return self


class _Typed(io.BytesIO):
    def isatty(self) -> bool:
        return True


class _Shown(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def run_jsm(*args: str, stdin: bytes = b"", tty: bool = False, **variables: str) -> Result:
    """
    Run a command line in this process.

    Args:
        *args: the arguments of ``jsm``.
        stdin: its standard input.
        tty: whether its streams are (dumb) terminals: then it prompts.
        **variables: the environment.

    """
    kind = _Shown if tty else io.TextIOWrapper
    out = kind(io.BytesIO(), "utf-8", write_through=True)
    err = kind(io.BytesIO(), "utf-8", write_through=True)
    typed = _Typed(stdin) if tty else io.BytesIO(stdin)
    if tty:
        variables.setdefault("TERM", "dumb")
    variables.setdefault("XDG_CONFIG_HOME", NOWHERE)
    env = Environment(stdin=typed, stdout=out, stderr=err, variables=variables)
    status = run(args, env)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return Result(status, *texts)


class Jsm:
    """Runs command lines with one server, in this process."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.url = server.url

    def __call__(
        self, *args: str, stdin: bytes = b"", tty: bool = False, **variables: str
    ) -> Result:
        """Run a command line; see `run_jsm`."""
        variables.setdefault("NATS_URL", self.url)
        return run_jsm(*args, stdin=stdin, tty=tty, **variables)

    def spawn(self, *args: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command as a process; see `spawn_jsm`."""
        return spawn_jsm(*args, **{"NATS_URL": self.url, **variables})


def _environment() -> dict[str, str]:
    # The package of this process, and empty contexts and caches.
    path = os.pathsep.join(item for item in sys.path if item)
    return {**os.environ, "PYTHONPATH": path, "XDG_CONFIG_HOME": NOWHERE}


def spawn_jsm(*args: str, **variables: str) -> subprocess.Popen[bytes]:
    """Start a command as a process, with pipes; the test ends it."""
    return subprocess.Popen(
        [sys.executable, "-m", "jetstream_sync.cli", *args],
        env={**_environment(), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def jsm(nats_server: NatsServer) -> Iterator[Jsm]:
    """Run ``jsm`` against the shared server; all streams are deleted afterwards."""
    yield Jsm(nats_server)
    with RawClient(nats_server.port) as client:
        client.delete_all_streams()


@pytest.fixture
def raw(nats_server: NatsServer) -> Iterator[RawClient]:
    """Read effects back from the shared server, with independent code."""
    with RawClient(nats_server.port) as client:
        yield client


# Runs in the child: makes its standard input the controlling terminal.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


#: What a person types to delete what a line has.
CLEAR_LINE = "\x15"


class Terminal:
    """A command on its own pseudo-terminal: type into it, and wait for its output."""

    def __init__(self, *args: str, columns: int = 120, lines: int = 40, **variables: str) -> None:
        environment = {**_environment(), "TERM": "xterm", **variables}
        for name in ("CI", "NO_COLOR", "JSM_NO_INPUT"):
            if name not in variables:
                environment.pop(name, None)
        environment.update(COLUMNS=str(columns), LINES=str(lines))
        self._shown = ""
        self._changed = threading.Condition()
        self._over = False
        self._fd, inner = pty.openpty()
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        # Not pty.fork(): this process has threads.
        self._child = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, "-m", "jetstream_sync.cli", *args],
            env=environment,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            select.select([self._fd], [], [])
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                data = b""
            with self._changed:
                self._shown += data.decode("utf-8", "replace")
                self._over = not data
                self._changed.notify_all()
            if b"\x1b[6n" in data:  # the cursor's position is requested
                os.write(self._fd, b"\x1b[1;1R")
            if not data:
                return

    @property
    def raw(self) -> str:
        """The whole output, as it was sent."""
        with self._changed:
            return self._shown

    @property
    def text(self) -> str:
        """The whole output, without escape codes."""
        return _ESCAPE.sub("", self.raw).replace("\r", "")

    def expect(self, text: str, timeout: float = 10.0) -> str:
        """Wait until a text is displayed, and return the whole output."""
        with self._changed:
            met = self._changed.wait_for(
                lambda: text in _ESCAPE.sub("", self._shown) or self._over, timeout * SCALE
            )
        assert met, f"{text!r} did not come: {self.text!r}"
        assert text in self.text, f"{text!r} did not come, and it ended: {self.text!r}"
        return self.text

    def send(self, text: str) -> None:
        """Type a text."""
        os.write(self._fd, text.encode())

    def answer(self, question: str, answer: str) -> None:
        """Wait for a prompt, and type the answer."""
        self.expect(question)
        self.send(f"{answer}\n")

    def wait(self, timeout: float = 10.0) -> int:
        """Wait for its end, and return its exit status; negative for signals."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._over, timeout * SCALE), self.text
        return self._child.wait(timeout * SCALE)

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait()
        self._reader.join(10)
        os.close(self._fd)


@pytest.fixture
def terminal(nats_server: NatsServer) -> Iterator[Any]:
    """Return a function that starts ``jsm`` on a terminal, with the shared server: `Terminal`."""
    open_ones: list[Terminal] = []

    def start(*args: str, **variables: Any) -> Terminal:
        open_ones.append(Terminal(*args, **{"NATS_URL": nats_server.url, **variables}))
        return open_ones[-1]

    yield start
    for one in open_ones:
        one.close()
