"""Calls and consumers in a cluster of three with three replicas: leader changes, lost nodes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fixtures.rawnats import RawClient
from fixtures.server import paused, running_cluster
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


class Followed:
    """Watches and ordered readers of one stream, and when each has received which sequence."""

    def __init__(self, url: str, count: int) -> None:
        self._connections = [
            jetstream_sync.connect(url, name=f"reader-{at}", **OPTIONS) for at in range(2)
        ]
        self.received: list[dict[int, float]] = []
        self.ended: list[BaseException] = []
        for at in range(count):
            js = self._connections[at % 2].jetstream(timeout=10 * SCALE)
            watch = js.key_value("B").watch("k")
            messages = js.ordered_consumer("KV_B").messages()
            for reader, sequence_of in (
                (watch, lambda entry: entry.revision),
                (messages, lambda msg: msg.metadata.stream_seq),
            ):
                seen: dict[int, float] = {}
                self.received.append(seen)
                spawn = threading.Thread(target=self._read, args=(reader, sequence_of, seen))
                spawn.daemon = True
                spawn.start()

    def _read(self, reader: Any, sequence_of: Any, seen: dict[int, float]) -> None:
        try:
            for item in reader:
                seen[sequence_of(item)] = time.monotonic()
        except errors.ConnectionClosedError:
            pass
        except BaseException as error:
            self.ended.append(error)
            raise

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@pytest.mark.full
@pytest.mark.timeout(240)
def test_readers_follow_within_a_second_of_a_new_leader(nodes, js):
    """The leader of the stream is killed while writers go on: wherever a reader's consumer was, it follows."""
    store = js.create_key_value(bucket="B", replicas=3, history=64)
    store.put("k", b"")
    name = wait_until(lambda: ask(nodes, "STREAM.INFO.KV_B", "cluster").get("leader"), 15)
    lost = next(server for server in nodes.servers if server.name == name)
    staying = next(server for server in nodes.servers if server is not lost)
    # Of 16 consumers with one replica, some are on the lost node.
    readers = Followed(staying.url, 8)
    stored: dict[int, float] = {}
    stopped = threading.Event()

    def write() -> None:
        with jetstream_sync.connect(staying.url, **OPTIONS) as nc:
            writer = nc.jetstream()
            while not stopped.wait(0.1):
                with contextlib.suppress(errors.Error):
                    seq = writer.publish("$KV.B.k", b"", timeout=0.5, retry_attempts=0).seq
                    stored[seq] = time.monotonic()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_until(lambda: all(len(seen) > 5 for seen in readers.received), 20)
        lost.kill()
        killed = time.monotonic()
        # Requests that the lost leader had accepted are answered late, or never.
        wait_until(lambda: any(at > killed + 1 for at in stored.values()), 40)
        answered = min(at for at in stored.values() if at > killed + 1)
        time.sleep(12)
    finally:
        stopped.set()
        thread.join()
    last = max(stored)
    wait_until(lambda: all(last in seen for seen in readers.received), 5)
    readers.close()
    assert readers.ended == []
    silences = [
        min(at for at in seen.values() if at > killed + 1) - answered for seen in readers.received
    ]
    assert max(silences) < 1.0 + 0.3 * SCALE, silences
    newest = [sequence for sequence, at in stored.items() if at > killed + 1]
    assert all(set(newest) <= set(seen) for seen in readers.received)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_follower_that_is_behind_is_not_taken_for_the_stream(nodes, js):
    """Reads through a follower that lacks 10,000 messages find each of them, at the leader."""
    count = 10_000
    js.create_key_value(bucket="B", replicas=3)
    js.publish("$KV.B.k.first", b"")
    followers = wait_until(lambda: ask(nodes, "STREAM.INFO.KV_B", "cluster").get("replicas"), 15)
    behind = next(server for server in nodes.servers if server.name == followers[0]["name"])
    ahead = [server.url for server in nodes.servers if server is not behind]
    asked: list[str] = []
    with (
        jetstream_sync.connect(behind.url, **OPTIONS) as near,
        jetstream_sync.connect(ahead, **OPTIONS) as nc,
    ):
        near_js = near.jetstream(timeout=10 * SCALE, api_cb=lambda call: asked.append(call.subject))
        reader, stream = near_js.key_value("B"), near_js.get_stream("KV_B")
        keys = [f"k.{item}" for item in range(count)]
        newest = keys[-100:]
        calls: list[tuple[Callable[[], object], object]] = [
            (lambda: reader.get(keys[-1]).value, b"x" * 1000),
            (lambda: sorted(reader.get_many(newest)), sorted(newest)),
            (lambda: stream.get_msg(last_by_subject=f"$KV.B.{keys[-2]}").seq, count),
            (lambda: stream.get_msg(count + 1).subject, f"$KV.B.{keys[-1]}"),
            (lambda: len(reader.keys()), count + 1),
            (lambda: len(reader.history(keys[-3])), 1),
        ]
        writer = nc.jetstream(timeout=10 * SCALE)
        with ThreadPoolExecutor(len(calls)) as pool:
            with paused(behind):
                for key in keys:
                    writer.publish_async(f"$KV.B.{key}", b"x" * 1000, timeout=60)
                writer.publish_async_completed(60)
                # The requests are the first that it reads when it goes on.
                replies = [(pool.submit(call), expected) for call, expected in calls]
                time.sleep(0.3)
            assert [reply.result(30 * SCALE) for reply, _ in replies] == [
                expected for _, expected in replies
            ]
            # It replies from its own copy, which grows meanwhile.
            for call, expected in calls * 5:
                assert call() == expected
        assert any("STREAM.MSG.GET" in subject for subject in asked), "it was not behind"


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
