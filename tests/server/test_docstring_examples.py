"""
The examples in docstrings run.

Each example runs in a namespace with a connection `nc`, its context `js`, the stream ORDERS with
three messages, and the durable consumer `consumer` named billing. The address in examples is
replaced by that of the server.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from pages import DOCUMENTED_URL, ROOT

import jetstream_sync
from jetstream_sync.server import NatsServer

#: Examples that need a newer server than the oldest supported one.
SERVERS = {
    "jetstream.consumer.PullConsumer.reset": ">=2.14",
    "jetstream.groups.ConsumerGroups.create_elastic": ">=2.11",
}


def short_name(test: doctest.DocTest) -> str:
    return test.name.removeprefix("jetstream_sync.")


def docstrings_with_examples() -> list[doctest.DocTest]:
    package = ROOT / "jetstream_sync"
    found = []
    for path in sorted(package.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            tests = doctest.DocTestFinder(exclude_empty=True).find(module)
            found += [test for test in tests if test.examples]
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def names(server: NatsServer) -> Iterator[dict[str, Any]]:
    """The namespace of an example."""
    with jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="ORDERS", subjects=["ORDERS.*"])
        for number in range(1, 4):
            js.publish("ORDERS.received", b"order %d" % number)
        names = {
            "NatsServer": NatsServer,
            "consumer": stream.create_consumer(durable_name="billing"),
            "dataclasses": dataclasses,
            "jetstream_sync": jetstream_sync,
            "js": js,
            "nc": nc,
            "stream": stream,
        }
        yield names
    names["nc"].close()  # the connection that the example opened
    with jetstream_sync.connect(server.url) as nc:
        for name in nc.jetstream().stream_names():
            nc.jetstream().delete_stream(name)


@pytest.mark.parametrize(
    "documented",
    [
        pytest.param(
            test,
            id=short_name(test),
            marks=pytest.mark.server(SERVERS[short_name(test)])
            if short_name(test) in SERVERS
            else (),
        )
        for test in docstrings_with_examples()
    ],
)
def test_an_example_shows_what_happens(documented, names, server):
    """The lines of an example run one after the other, and print the documented results."""
    documented.globs = names
    for example in documented.examples:
        example.source = example.source.replace(DOCUMENTED_URL, server.url)
    report: list[str] = []
    result = doctest.DocTestRunner().run(documented, out=report.append, clear_globs=False)
    assert result.failed == 0, "".join(report)


def test_the_most_used_methods_have_an_example():
    """Examples are found, also those of inherited methods."""
    names = {short_name(test) for test in docstrings_with_examples()}
    assert names >= SERVERS.keys()
    assert {
        "client.connection.Connection.publish",
        "jetstream.connection.connect",
        "jetstream.consumer.PullConsumer.fetch",
        "jetstream.message.JetStreamMsg.ack",
        "server.single.NatsServer",
    } <= names
    assert len(names) >= 30
