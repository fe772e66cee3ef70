"""Ctrl-C at any time in the life of a ``jsm`` process: no traceback, and exit status 130."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.jsm import Jsm
from fixtures.threads import SCALE

from jetstream_sync.cli.shared.env import guard_standard_streams

ROOT = Path(__file__).parents[2]
#: The folder of the entry point, which an installation has at its top level.
TOP_LEVEL = ROOT / "jetstream_sync" / "top_level"

# What the installed program does, after what sends this process a SIGINT.
_PROGRAM = """
import atexit, gc, os, signal, sys

def strike():
    os.kill(os.getpid(), signal.SIGINT)

{bomb}
from jetstream_sync_jsm import main
sys.exit(main())
"""

_AT_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            strike()

sys.meta_path.insert(0, Finder())
"""

# Not where it would be raised in the main code, but in a callback whose errors Python only reports.
_IN_A_FINALIZER = """
class Cycle:
    def __del__(self):
        strike()
        sum(range(10))

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "jetstream_sync.cli.messages.receive":
            sys.meta_path.remove(self)
            Cycle()

sys.meta_path.insert(0, Finder())
"""


def run(jsm: Jsm, bomb: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``jsm`` as it is installed, with a SIGINT at a chosen moment."""
    path = os.pathsep.join([*filter(None, sys.path), str(ROOT), str(TOP_LEVEL)])
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(bomb=bomb), *args],
        env={**os.environ, "PYTHONPATH": path, "NATS_URL": jsm.url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30 * SCALE,
        check=False,
    )


@pytest.mark.matrix
@pytest.mark.parametrize(
    "module",
    [
        "jetstream_sync",
        "jetstream_sync.client.core",
        "jetstream_sync.jetstream.pull_consumer",
        "jetstream_sync.cli.__main__",
        "click",
        "jetstream_sync.cli.main",
        "jetstream_sync.cli.messages.receive",
    ],
)
def test_while_modules_are_imported(jsm, module):
    """From the first import on there is an exit status, and nothing of Python's."""
    done = run(jsm, _AT_IMPORT.format(name=module), "sub", "interrupt")
    assert done.returncode == 130, done
    # The client is imported by the command that needs it.
    runs = module.endswith((".messages.receive", ".client.core", ".jetstream.pull_consumer"))
    assert done.stderr == ("jsm: interrupted\n" if runs else "")
    assert done.stdout == ""


def test_while_the_process_ends(jsm):
    """When the command is done, there is still no traceback."""
    done = run(jsm, "atexit.register(strike)", "errors", "lookup", "10059", "-j")
    assert (done.returncode, done.stderr) == (130, "")


def test_where_python_can_not_raise_it(jsm):
    """One that Python would report and forget, as in a finalizer, still ends the command."""
    done = run(jsm, _IN_A_FINALIZER, "sub", "interrupt")
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (130, ["jsm: interrupted"])
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr


def test_an_ignored_signal_stays_ignored(jsm):
    """A background job of a shell is started with SIGINT ignored, and does not hear of it."""
    ignoring = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    bomb = f"{ignoring}\n{_AT_IMPORT.format(name='jetstream_sync.cli.commands')}"
    done = run(jsm, bomb, "errors", "lookup", "10059", "-j")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_written_is_not_written_again(monkeypatch):
    """A Ctrl-C just after a write leaves nothing in the buffer that was written."""

    def strike(_frame: object, event: str, function: object) -> None:
        if event == "c_return" and getattr(function, "__name__", "") in {"write", "flush"}:
            sys.setprofile(None)
            raise KeyboardInterrupt

    receiving, sending = os.pipe()
    with os.fdopen(receiving, "rb") as reader:
        with os.fdopen(sending, "w") as original:
            for name in ("stdout", "__stdout__"):
                monkeypatch.setattr(sys, name, original)
            guard_standard_streams()
            out = sys.stdout
            out.write("once\n")
            sys.setprofile(strike)
            with pytest.raises(KeyboardInterrupt):
                out.flush()
            out.flush()
            monkeypatch.undo()
        assert reader.read() == b"once\n"
