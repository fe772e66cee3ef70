"""A person's session in tmux: shells that complete, and commands that draw on the whole screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from fixtures.tmux import Screen

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]


@pytest.fixture
def screen(jsm, tmp_path) -> Iterator[object]:
    """Return a function that opens a `Screen` with ``jsm`` on the path and the shared server."""
    program = tmp_path / "jsm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m jetstream_sync.cli "$@"\n')
    program.chmod(0o755)
    variables = {
        **dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(tmp_path)),
        "NATS_URL": jsm.url,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PS1": "> ",
    }
    opened: list[Screen] = []

    def start(shell: str = "bash --norc", columns: int = 120) -> Screen:
        opened.append(Screen(shell, columns, variables))
        return opened[-1]

    yield start
    for item in opened:
        item.close()


@pytest.fixture
def orders(js) -> None:
    """A stream with twelve messages."""
    js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
    for number in range(12):
        js.publish("ORDERS.received", b'{"order": %d}' % number)


# --- shells ---------------------------------------------------------------------------------------

SHELLS = {
    "bash --norc": "source <(jsm completion bash)",
    "zsh -f": "autoload -U compinit && compinit -D && source <(jsm completion zsh)",
    "fish --no-config": "jsm completion fish | source",
}


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_a_shell(screen, shell):
    """The key completes a command, the name of a stream through an alias, and the value of an option."""
    terminal = screen(shell)
    terminal.type(
        f"{SHELLS[shell]}; echo loaded $((6 * 7))" if "fish" not in shell else SHELLS[shell]
    )
    terminal.type("", "Enter")
    if "fish" not in shell:
        terminal.expect("loaded 42")
    terminal.type("jsm consu", "Tab")
    terminal.expect("jsm consumer")
    terminal.type("", "C-u")
    terminal.type("jsm ms info ORD", "Tab")
    terminal.expect("jsm ms info ORDERS")
    terminal.type("", "Enter")
    terminal.expect("Information for", "Messages: 12")
    terminal.type("jsm stream add S --retention int", "Tab")
    terminal.expect("--retention interest")


# --- commands at two widths -----------------------------------------------------------------------

WIDTHS = pytest.mark.parametrize("columns", [80, 140])


@WIDTHS
def test_events_are_lines(screen, columns, js):
    """Each event begins with its time, also where it is wider than the terminal."""
    terminal = screen(columns=columns)
    terminal.type("jsm events --js-advisory --count 2", "Enter")
    terminal.expect("Listening on [$JS.EVENT.ADVISORY.>]")
    js.create_stream(name="NEW", subjects=["new"])
    shown = terminal.expect("Advisory: Stream Action", "action=create", "Api Audit")
    lines = [line for line in shown.splitlines() if "Advisory:" in line]
    assert len(lines) == 2
    assert all(line[:4].isdecimal() for line in lines)


@WIDTHS
@pytest.mark.usefixtures("orders")
def test_trace_shows_the_route(screen, columns):
    """The route and the stream that would store the message are on one screen."""
    terminal = screen(columns=columns)
    terminal.type("clear; jsm trace ORDERS.received", "Enter")
    shown = terminal.expect("Client ", "--J", "ORDERS", "Legend:")
    assert 'Client "jsm trace"' in shown
