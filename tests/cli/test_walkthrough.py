"""The tutorial of ``jsm``: its commands run on a terminal, ask nothing, and show what the page shows."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator

import pytest
from fixtures.jsm import run_jsm
from fixtures.threads import wait_until
from pages import DOCUMENTED_URL, ROOT, blocks

import jetstream_sync
from jetstream_sync.net.clock import monotonic
from jetstream_sync.server import NatsServer

PAGE = ROOT / "docs" / "tutorial" / "jsm.rst"
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00"  # times
    r"|\b[\d.]+(s|ms|µs)(?= ago)"
    r"|2\.15\.\d+"
    r"|127\.0\.0\.1:\d+"
)
#: Longer than the ack wait of the consumer on the page.
_READING_TIME_S = 1.5


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of the page with the lines that follow them."""
    for block in blocks(PAGE):
        if block.language == "shell-session":
            for text in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
                command, *lines = text.rstrip().split("\n")
                yield command, lines


def comparable(lines: list[str]) -> list[str]:
    """Return lines without what differs between runs."""
    return [_VARYING.sub("<varies>", line).rstrip() for line in lines]


def shown(output: list[str], page: list[str]) -> list[str]:
    """Leave lines out of an output where the page has ``...``."""
    if "..." not in page:
        return output
    found: list[str] = []
    for line in output:
        if line in page:
            found.append(line)
        elif found[-1:] != ["..."]:
            found.append("...")
    return found


@pytest.mark.server(">=2.15")
def test_the_tutorial_shows_what_the_commands_show(tmp_path):
    """A newcomer types the commands on a server that other pages have used."""
    differences: list[str] = []
    ended = monotonic()
    with NatsServer(name="js1") as server:
        with jetstream_sync.connect(server.url) as nc:
            # As the README and tutorial/orders do.
            for name in ("EVENTS", "ORDERS", "SHOP"):
                nc.jetstream().create_stream(name=name, subjects=[f"{name}.*"])
        for command, expected in commands():
            if "--count 2" in command and "next" in command:
                # A reader takes longer than the ack wait of the consumer.
                wait_until(lambda since=ended: monotonic() - since > _READING_TIME_S)
            variables = {"NATS_URL": server.url, "XDG_CONFIG_HOME": str(tmp_path)}
            done = run_jsm(*shlex.split(command)[1:], tty=True, **variables)
            assert done.status == 0, f"{command}\n{done.out}{done.err}"
            ended = monotonic()
            output = (done.err + done.out).replace(server.url, DOCUMENTED_URL).rstrip()
            page = comparable(expected)
            differences += difflib.unified_diff(
                page, shown(comparable(output.split("\n")), page), command, "output", lineterm=""
            )
    assert not differences, "\n".join(differences)


def test_the_tutorial_has_commands():
    """The blocks of the page are found."""
    assert len(list(commands())) > 10
