"""Calls and consumers in a cluster of three with three replicas: leader changes, lost nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from fix_server import wait_for_peers
from fix_threads import SCALE, wait_until
from rawnats import RawClient

import jetstream_sync
from jetstream_sync import (
    Connection,
    Error,
    JetStream,
    JetStreamMsg,
    NoHeartbeatError,
    PullConsumer,
    PullError,
    TimeoutError,
)
from jetstream_sync.server import NatsCluster, NatsServer

OPTIONS: dict[str, Any] = {
    "reconnect_time_wait": 0.05,
    "max_reconnect_attempts": -1,
    "connect_timeout": 2.0 * SCALE,
}
HEARTBEAT = 2.0


@pytest.fixture
def nodes() -> Iterator[NatsCluster]:
    """A cluster of this test alone: after a lost node it may answer no request for a long time."""
    with NatsCluster(config="jetstream { sync_interval: always }\n") as cluster:
        wait_for_peers(cluster)
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
    """Send API requests on other connections until an answer has a field, and return it."""

    def answer() -> object:
        running = next(server for server in nodes.servers if server.is_running)
        try:
            with RawClient(running.port, 2 * SCALE) as raw:
                return raw.api(name).get(field)  # an error has none, as during an election
        except (OSError, ValueError):
            return None  # the leader has just been lost

    return wait_until(answer, 15)


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


def lose(nodes: NatsCluster, nc: Connection, which: str) -> NatsServer:
    """Kill a node."""
    choose: dict[str, Callable[[], NatsServer]] = {
        "stream leader": lambda: leader(nodes),
        "connected": lambda: connected_to(nodes, nc),
    }
    lost = choose[which]()
    lost.kill()
    return lost


def publish_until_stored(js: JetStream, msg_id: str) -> None:
    """Publish with a message id, and repeat it until it is acknowledged."""

    def acknowledged() -> bool:
        try:
            js.publish("s", msg_id.encode(), msg_id=msg_id, timeout=1 * SCALE)
        except Error:
            return False
        return True

    wait_until(acknowledged, 30)


def stored(nodes: NatsCluster) -> int:
    leader(nodes)
    count: int = ask(nodes, "STREAM.INFO.S", "state")["messages"]
    return count


every_loss = pytest.mark.parametrize("which", ["stream leader", "connected"])
# The servers notice a lost node after some seconds, so most of these tests are in the full list.


# --- leaders that step down ---------------------------------------------------------------------


def test_a_leader_that_steps_down_loses_no_message(nodes: NatsCluster, js: JetStream) -> None:
    """Publishing continues under a new leader; a message with an id is stored once."""
    for round_number in range(3):
        futures = {
            f"{round_number}-{each}": js.publish_async(
                "s", b"", msg_id=f"{round_number}-{each}", timeout=10 * SCALE
            )
            for each in range(100)
        }
        step_down(nodes, "STREAM.S")
        publish_until_stored(js, f"{round_number}-single")
        for msg_id, future in futures.items():
            if future.exception(20 * SCALE) is not None:
                publish_until_stored(js, msg_id)
    assert js.publish_async_pending == 0
    assert stored(nodes) == 303


@pytest.mark.matrix
@pytest.mark.parametrize("what", ["CONSUMER.S.C", "STREAM.S"])
def test_readers_resume_under_a_new_leader(
    nodes: NatsCluster,
    js: JetStream,
    durable: PullConsumer,
    events: list[Exception],
    what: str,
) -> None:
    """messages, consume and fetch continue within two heartbeats of a new leader."""
    js.create_consumer("S", durable_name="D", ack_wait=30)
    js.create_consumer("S", durable_name="F", ack_wait=30)
    called: SimpleQueue[bytes] = SimpleQueue()

    def callback(msg: JetStreamMsg) -> None:
        msg.ack()
        called.put(msg.data)

    handle = js.get_consumer("S", "D").consume(callback, heartbeat=HEARTBEAT, expires=6)
    with durable.messages(heartbeat=HEARTBEAT, expires=6) as messages:
        publish_until_stored(js, "before")
        messages.next(10 * SCALE).ack_sync(10 * SCALE)
        assert called.get(timeout=10 * SCALE) == b"before"
        js.get_consumer("S", "F").next(10 * SCALE).ack_sync(10 * SCALE)
        with ThreadPoolExecutor(2) as pool:
            fetched = pool.submit(js.get_consumer("S", "F").fetch, 1, 20 * SCALE)
            taken = pool.submit(messages.next, 20 * SCALE)
            step_down(nodes, what)
            if what.startswith("CONSUMER"):
                for each in "DF":
                    step_down(nodes, f"CONSUMER.S.{each}")
            for each in "CDF":
                leader(nodes, each)
            publish_until_stored(js, "after")
            began = time.monotonic()
            assert taken.result(20 * SCALE).data == b"after"
            assert called.get(timeout=20 * SCALE) == b"after"
            assert [msg.data for msg in fetched.result(20 * SCALE)] == [b"after"]
            assert time.monotonic() - began < 2 * HEARTBEAT * SCALE
    handle.stop()
    handle.wait_closed(5 * SCALE)
    assert handle.error is None
    # One event for each of the two continuous readers.
    assert len([event for event in events if isinstance(event, PullError)]) <= 2
    for each in "CDF":
        wait_until(lambda each=each: js.get_consumer("S", each).info().num_waiting == 0)


# --- nodes that are lost ------------------------------------------------------------------------


@pytest.mark.full
@every_loss
def test_a_lost_node_loses_no_message(
    nodes: NatsCluster, nc: Connection, js: JetStream, which: str
) -> None:
    """A node is killed during publishing: every future settles, and messages are stored once."""
    publish_until_stored(js, "first")
    futures = {
        f"{each}": js.publish_async("s", b"", msg_id=f"{each}", timeout=3 * SCALE)
        for each in range(200)
    }
    lose(nodes, nc, which)
    began = time.monotonic()
    failed = [key for key, each in futures.items() if each.exception(10 * SCALE) is not None]
    assert time.monotonic() - began < 5 * SCALE
    for msg_id in failed:
        publish_until_stored(js, msg_id)
    assert js.publish_async_pending == 0
    assert stored(nodes) == 201


@pytest.mark.full
@every_loss
def test_readers_resume_without_a_node(
    nodes: NatsCluster,
    nc: Connection,
    js: JetStream,
    durable: PullConsumer,
    which: str,
) -> None:
    """messages, consume, fetch and ordered consumers continue with the remaining nodes."""
    js.create_consumer("S", durable_name="D", ack_wait=2)
    called: SimpleQueue[bytes] = SimpleQueue()
    ordered: SimpleQueue[bytes] = SimpleQueue()

    def callback(msg: JetStreamMsg) -> None:
        msg.ack()
        called.put(msg.data)

    handle = js.get_consumer("S", "D").consume(callback, heartbeat=HEARTBEAT, expires=6)
    in_order = js.ordered_consumer("S").consume(
        lambda msg: ordered.put(msg.data), heartbeat=1, expires=6
    )
    messages = durable.messages(heartbeat=HEARTBEAT, expires=6)
    for each in range(20):
        publish_until_stored(js, f"{each}")
    got = Counter(messages.next(10 * SCALE).data for _ in range(10))
    lose(nodes, nc, which)
    for each in range(20, 40):
        publish_until_stored(js, f"{each}")
    for each in "CD":
        leader(nodes, each)
    began = time.monotonic()
    want = {b"%d" % each for each in range(40)}
    seen: set[bytes] = set()
    while seen != want:
        seen.add(called.get(timeout=20 * SCALE))
    while set(got) != want:
        msg = messages.next(20 * SCALE)
        msg.ack()
        got[msg.data] += 1
    # Lost deliveries are repeated after ack_wait.
    assert time.monotonic() - began < (2 * HEARTBEAT + 4) * SCALE
    assert [ordered.get(timeout=30 * SCALE) for _ in range(40)] == [b"%d" % n for n in range(40)]
    assert ordered.empty()
    for each_handle in (handle, in_order):
        each_handle.stop()
        each_handle.wait_closed(10 * SCALE)
        assert each_handle.error is None
    messages.stop()


def test_an_ordered_fetch_survives_the_node_of_its_consumer(
    nodes: NatsCluster, js: JetStream
) -> None:
    """If the only replica of its consumer is lost, it continues with a consumer on another node."""
    for each in range(30):
        publish_until_stored(js, f"{each}")
    consumer = js.ordered_consumer("S")
    got = [consumer.next(10 * SCALE).data for _ in range(10)]
    info = consumer.cached_info
    assert info is not None
    assert info.cluster is not None
    next(each for each in nodes.servers if each.name == info.cluster.leader).kill()
    give_up = time.monotonic() + 30 * SCALE
    while len(got) < 30 and time.monotonic() < give_up:
        got += [msg.data for msg in consumer.fetch(7, timeout=2)]
    assert got == [b"%d" % each for each in range(30)]


@pytest.mark.full
def test_without_a_majority_everything_ends_in_time(
    nodes: NatsCluster,
    nc: Connection,
    js: JetStream,
    durable: PullConsumer,
    events: list[Exception],
) -> None:
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
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            messages.next(1)
        # The check whether the consumer exists takes at most a second.
        assert time.monotonic() - began < 2.5 * SCALE
    began = time.monotonic()
    try:
        assert durable.fetch(1, timeout=1) == []
    except PullError as error:
        assert error.code == 503  # noqa: PT017 - either is right
    assert time.monotonic() - began < 2.5 * SCALE
    began = time.monotonic()
    with pytest.raises(Error):
        js.publish("s", b"", timeout=1)
    assert time.monotonic() - began < 1.5 * SCALE
    assert len([each for each in events if not isinstance(each, NoHeartbeatError)]) <= 1
    nodes.start()
    publish_until_stored(js, "1")
    # A message without an acknowledgement may be stored.
    while messages.next(20 * SCALE).data != b"1":
        pass
    messages.stop()
