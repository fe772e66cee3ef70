"""Calls and consumers in a cluster of three with three replicas: leader changes, lost nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.rawnats import RawClient
from fixtures.server import running_cluster
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, JetStream, PullConsumer, errors
from jetstream_sync.server import NatsCluster, NatsServer

OPTIONS: dict[str, Any] = {
    "reconnect_time_wait": 0.05,
    "max_reconnect_attempts": -1,
    "connect_timeout": 2.0 * SCALE,
}


@pytest.fixture
def nodes() -> Iterator[NatsCluster]:
    """A cluster of this test alone: after a lost node it may answer no request for a long time."""
    with running_cluster("jetstream { sync_interval: always }\n") as cluster:
        yield cluster


@pytest.fixture
def events() -> list[Exception]:
    return []


@pytest.fixture
def nc(nodes: NatsCluster, events: list[Exception]) -> Iterator[Connection]:
    with jetstream_sync.connect(nodes.urls, error_cb=events.append, **OPTIONS) as nc:
        yield nc


@pytest.fixture
def js(nc: Connection) -> JetStream:
    """JetStream with a replicated stream."""
    js = nc.jetstream(timeout=10 * SCALE)
    js.create_stream(name="S", subjects=["s"], num_replicas=3)
    return js


@pytest.fixture
def durable(js: JetStream) -> PullConsumer:
    return js.create_consumer("S", durable_name="C", ack_wait=2)


def ask(nodes: NatsCluster, name: str, field: str) -> Any:
    """Send API requests on other connections until a reply has a field, and return it."""

    def reply() -> object:
        running = next(server for server in nodes.servers if server.is_running)
        try:
            with RawClient(running.port, 2 * SCALE) as raw:
                return raw.api(name).get(field)  # an error has none, as during an election
        except (OSError, ValueError):
            return None  # the leader has just been lost

    return wait_until(reply, 15)


def leader(nodes: NatsCluster, consumer: str = "") -> NatsServer:
    """Return the server that leads the stream or the consumer."""
    what = f"CONSUMER.INFO.S.{consumer}" if consumer else "STREAM.INFO.S"
    name = wait_until(lambda: ask(nodes, what, "cluster").get("leader"), 15)
    return next(server for server in nodes.servers if server.name == name)


def connected_to(nodes: NatsCluster, nc: Connection) -> NatsServer:
    return next(server for server in nodes.servers if server.url == nc.connected_url)


def step_down(nodes: NatsCluster, what: str) -> None:
    """Make a leader step down."""
    kind, _, name = what.partition(".")
    ask(nodes, f"{kind}.LEADER.STEPDOWN.{name}", "success")


def publish_until_stored(js: JetStream, msg_id: str) -> None:
    """Publish with a message id, and repeat it until it is acknowledged."""

    def acknowledged() -> bool:
        try:
            js.publish("s", msg_id.encode(), msg_id=msg_id, timeout=1 * SCALE)
        except errors.Error:
            return False
        return True

    wait_until(acknowledged, 30)


def stored(nodes: NatsCluster) -> int:
    leader(nodes)
    count: int = ask(nodes, "STREAM.INFO.S", "state")["messages"]
    return count


# The servers notice a lost node after some seconds, so most of these tests are in the full list.


# --- leaders that step down ---------------------------------------------------------------------


def test_a_leader_that_steps_down_loses_no_message(nodes, js):
    """Publishing continues under a new leader; a message with an id is stored once."""
    for round_number in range(3):
        futures = {
            f"{round_number}-{item}": js.publish_async(
                "s", b"", msg_id=f"{round_number}-{item}", timeout=10 * SCALE
            )
            for item in range(100)
        }
        step_down(nodes, "STREAM.S")
        publish_until_stored(js, f"{round_number}-single")
        for msg_id, future in futures.items():
            if future.exception(20 * SCALE) is not None:
                publish_until_stored(js, msg_id)
    assert js.publish_async_pending == 0
    assert stored(nodes) == 303


# --- nodes that are lost ------------------------------------------------------------------------


@pytest.mark.full
def test_an_ordered_fetch_survives_the_node_of_its_consumer(nodes, js):
    """If the only replica of its consumer is lost, it continues with a consumer on another node."""
    for item in range(30):
        publish_until_stored(js, f"{item}")
    consumer = js.ordered_consumer("S")
    got = [consumer.next(10 * SCALE).data for _ in range(10)]
    info = consumer.cached_info
    assert info is not None
    assert info.cluster is not None
    next(server for server in nodes.servers if server.name == info.cluster.leader).kill()
    give_up = time.monotonic() + 30 * SCALE
    while len(got) < 30 and time.monotonic() < give_up:
        got += [msg.data for msg in consumer.fetch(7, timeout=2)]
    assert got == [b"%d" % item for item in range(30)]


@pytest.mark.full
def test_without_a_majority_everything_ends_in_time(nodes, nc, js, durable, events):
    """With two of three nodes lost nothing hangs, and reading continues later."""
    publish_until_stored(js, "0")
    durable.next(10 * SCALE).ack_sync(10 * SCALE)
    messages = durable.messages(heartbeat=1, expires=3)
    here = connected_to(nodes, nc)
    for server in nodes.servers:
        if server is not here:
            server.kill()
    events.clear()
    for _ in range(4):
        with within(2.5), pytest.raises(errors.TimeoutError):
            messages.next(1)
        # The check whether the consumer exists takes at most a second.
    with within(2.5):
        try:
            assert durable.fetch(1, timeout=1) == []
        except errors.PullError as error:
            assert error.code == 503  # noqa: PT017 - either is right
    with within(1.5), pytest.raises(errors.Error):
        js.publish("s", b"", timeout=1)
    assert len([event for event in events if not isinstance(event, errors.NoHeartbeatError)]) <= 1
    nodes.start()
    publish_until_stored(js, "1")
    # A message without an acknowledgement may be stored.
    while messages.next(20 * SCALE).data != b"1":
        pass
    messages.stop()
