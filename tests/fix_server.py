"""The nats-server of the tests: fixtures, its version, and tests that depend on it."""

from __future__ import annotations

import itertools
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias
from urllib.request import urlopen

import pytest
from fix_threads import SCALE, wait_until
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from rawnats import RawClient

from jetstream_sync.errors import ServerUnavailableError
from jetstream_sync.server import NatsCluster, NatsServer

if TYPE_CHECKING:
    from jetstream_sync import Connection, JetStream, PullConsumer, Stream

__all__ = [
    "Errors",
    "Monitored",
    "break_link",
    "fill",
    "paused",
    "running_cluster",
    "wait_for_peers",
]

#: A server with monitoring, and a function that returns the subscriptions of its clients.
Monitored: TypeAlias = tuple[NatsServer, Callable[[], list[str]]]

_numbers = itertools.count(1)
_deselected = pytest.StashKey[list[str]]()


def pytest_report_header() -> str:
    """Report the version of the server, since results depend on it."""
    try:
        server = NatsServer()
        return f"nats-server: {server.version} ({server.binary})"
    except ServerUnavailableError as error:
        return f"nats-server: NOT FOUND, every test that needs one will fail: {error}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Deselect the tests that are marked for other versions of the server.

    Without a server nothing is deselected: the tests fail in their fixtures.
    """
    marked = {item: item.get_closest_marker("server") for item in items}
    if not any(marked.values()):
        return
    try:
        version = Version(NatsServer().version)
    except ServerUnavailableError:
        return
    left_out = [
        item
        for item, mark in marked.items()
        if mark is not None and version not in SpecifierSet(mark.args[0], prereleases=True)
    ]
    if left_out:
        config.stash[_deselected] = [
            f"{item.nodeid}: wants nats-server {marked[item].args[0]}" for item in left_out
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that were deselected because of the server's version."""
    left_out = terminalreporter.config.stash.get(_deselected, [])
    if left_out:
        terminalreporter.section(f"not for nats-server {NatsServer().version}")
        for line in left_out:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """
    The server that most tests share.

    Do not stop, pause or reconfigure it: use `fresh_server` for that. With
    ``JETSTREAM_SYNC_TEST_CLUSTER=1`` it is one of a cluster of three: clustered servers check and
    normalize configs in their own way.
    """
    if os.environ.get("JETSTREAM_SYNC_TEST_CLUSTER") == "1":
        with NatsCluster() as cluster:
            wait_for_peers(cluster)
            yield cluster.servers[0]
    else:
        with NatsServer(name="shared") as server:
            yield server


@pytest.fixture
def fresh_server() -> Iterator[NatsServer]:
    """A server of this test alone."""
    with NatsServer(name="fresh") as server:
        yield server


@contextmanager
def paused(server: NatsServer) -> Iterator[None]:
    """Suspend a server for the duration of the block."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


def fill(js: JetStream, name: str, count: int, first: int = 0, size: int = 0) -> None:
    """Store messages with their numbers, padded to a size, on three subjects below a name in turn."""
    for number in range(first, first + count):
        js.publish_async(f"{name}.{number % 3}", (b"%d" % number).ljust(size))
    js.publish_async_completed(20 * SCALE)


class Errors(list[Exception]):
    """The errors that a connection reports."""

    def of(self, kind: type[Exception]) -> list[Exception]:
        """Return those of a class."""
        return [error for error in self if isinstance(error, kind)]


@pytest.fixture
def errors() -> Errors:
    """The errors that the connection `alone` reports."""
    return Errors()


@pytest.fixture
def alone(fresh_server: NatsServer, errors: Errors) -> Iterator[Connection]:
    """A connection to a server of this test alone, with a short reconnect delay."""
    import jetstream_sync

    with jetstream_sync.connect(
        fresh_server.url, reconnect_time_wait=0.05, error_cb=errors.append
    ) as connection:
        yield connection


@pytest.fixture
def monitored() -> Iterator[Monitored]:
    """A server with monitoring, and a function that returns the subscriptions of its clients."""
    with NatsServer(config='http: "127.0.0.1:-1"') as server:
        found = re.search(r"http monitor on (\S+)", server.log())
        assert found

        def subscriptions() -> list[str]:
            with urlopen(f"http://{found[1]}/connz?subs=1", timeout=5) as answer:
                clients = json.load(answer)["connections"]
            return [item for client in clients for item in client.get("subscriptions_list", ())]

        yield server, subscriptions


def break_link(nc: Connection) -> None:
    """Break the link of a connection, and wait until it has another one."""
    link = nc._core.engine.state.transport
    assert link is not None
    link.stream.shutdown()
    wait_until(lambda: nc._core.engine.state.transport not in (link, None) and nc.is_connected)


def wait_for_peers(cluster: NatsCluster) -> None:
    """
    Wait until a stream can have a replica on each server.

    A server is chosen only when the meta leader knows its free space (``selectPeerGroup``),
    which is soon after its start; no monitoring port reports it.
    """
    fields = {"name": "PROBE", "subjects": ["probe"], "storage": "memory"}
    fields["num_replicas"] = len(cluster.servers)
    with RawClient(cluster.servers[0].port, 20) as raw:
        wait_until(lambda: "error" not in raw.api("STREAM.CREATE.PROBE", **fields), 20)
        assert raw.api("STREAM.DELETE.PROBE")["success"]


@contextmanager
def running_cluster(config: str = "") -> Iterator[NatsCluster]:
    """Run three servers with JetStream clustered, until streams can have three replicas."""
    with NatsCluster(config=config) as servers:
        wait_for_peers(servers)
        yield servers


@pytest.fixture
def cluster() -> Iterator[NatsCluster]:
    """Three servers of this test alone, with JetStream clustered."""
    with running_cluster() as servers:
        yield servers


@pytest.fixture
def nc(nats_server: NatsServer) -> Iterator[Connection]:
    """A connection to the shared server."""
    import jetstream_sync

    with jetstream_sync.connect(nats_server.url) as connection:
        yield connection


@pytest.fixture
def other(nats_server: NatsServer) -> Iterator[Connection]:
    """Another connection to the shared server."""
    import jetstream_sync

    with jetstream_sync.connect(nats_server.url) as connection:
        yield connection


@pytest.fixture
def subject() -> str:
    """A subject that no other test uses."""
    return f"subject.{uuid.uuid4().hex}"


@pytest.fixture
def js(nc: Connection, nats_server: NatsServer) -> Iterator[JetStream]:
    """JetStream on the shared server; all streams are deleted afterwards."""
    yield nc.jetstream()
    with RawClient(nats_server.port) as raw:
        raw.delete_all_streams()


@pytest.fixture
def stream_name(request: pytest.FixtureRequest) -> str:
    """Return a stream name that no other test uses, made from the name of the test."""
    test = re.sub(r"\W", "_", request.node.originalname)
    return f"{test[:40]}_{next(_numbers)}"


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """An empty stream for all subjects below its name."""
    return js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], storage="memory")


@pytest.fixture
def consumer(stream: Stream) -> PullConsumer:
    """A durable consumer of the whole stream."""
    return stream.create_consumer(durable_name="C")
