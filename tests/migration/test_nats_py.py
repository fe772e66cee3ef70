"""A program for nats-py runs here without async and await, as the how-to on that shows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync.server import NatsServer

APPS = Path(__file__).parents[2] / "docs" / "howto" / "apps" / "nats_py"
PAGE = APPS.parents[1] / "from-nats-py.rst"

#: All that changes but ``async`` and ``await``: what stands there, and what takes its place.
CHANGES = {
    """\
import asyncio
import sys
from asyncio import TimeoutError

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy
""": """\
import sys

import jetstream_sync as nats
from jetstream_sync import ConsumerConfig, DeliverPolicy, TimeoutError
""",
    "asyncio.run(main(sys.argv[1]))": "main(sys.argv[1])",
}


@pytest.fixture
def url() -> Iterator[str]:
    """A server of its own with the stream that the program wants."""
    with NatsServer() as server, jetstream_sync.connect(server.url) as nc:
        nc.jetstream().create_stream(name="ORDERS", subjects=["ORDERS.*"], storage="memory")
        yield server.url


def output(program: str, url: str) -> list[str]:
    """Run one of the programs, and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(APPS / program), url],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [line.rstrip() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("program", ["before.py", "after.py"])
def test_both_programs_do_the_same(program, url):
    """The one for nats-py and the one for this package print the same, which is this."""
    assert output(program, url) == [
        "published ORDERS 1",
        "published ORDERS 2",
        "published ORDERS 3",
        "published ORDERS 4",
        "published ORDERS 5",
        "published ORDERS 5 again",
        *(f"billed ORDERS.received order {number} ACME" for number in range(1, 6)),
        "billing: 0 pending, 0 not acknowledged",
        "audited order 5 delivery 1",
        "audited order 5 delivery 2",
        "nothing more to audit",
        "shipped order 1, order 2, order 3, order 4, order 5",
        "counted 5",
    ]


def test_nothing_else_is_changed():
    """Without ``async`` and ``await``, and with other imports, one is the other."""
    text = (APPS / "before.py").read_text(encoding="utf-8")
    for before, after in CHANGES.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    text = re.sub(r"\b(async|await) ", "", text)
    assert text == (APPS / "after.py").read_text(encoding="utf-8")


def test_the_page_shows_both_programs():
    """What is run here is what a reader sees."""
    page = PAGE.read_text(encoding="utf-8")
    for program in ("before.py", "after.py"):
        assert f".. literalinclude:: apps/nats_py/{program}\n" in page
