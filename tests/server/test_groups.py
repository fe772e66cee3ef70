"""
Partitioned consumer groups: order under membership changes, takeover, and the formats of orbit.go.

Go programs are not run here; the formats are derived from the sources of its ``pcgroups``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import pytest
from fixtures.threads import SCALE, between, run_all, wait_until

import jetstream_sync
from jetstream_sync import (
    ConsumerGroupError,
    ConsumerGroupNotFoundError,
    ElasticConsumerGroup,
    GroupConsumeHandle,
    JetStream,
    JetStreamMsg,
    StaticConsumerGroup,
    StreamNotFoundError,
    SubjectTransform,
    TimeoutError,
)
from jetstream_sync.server import NatsServer

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
def source(js: JetStream, stream_name: str) -> str:
    """Return the name of an empty stream with a key as the second token of its subjects."""
    js.create_stream(name=stream_name, subjects=[f"{stream_name}.*"], storage="memory")
    return stream_name


@pytest.fixture
def elastic(js: JetStream, source: str) -> ElasticConsumerGroup:
    """An elastic group with four partitions and no members."""
    return js.consumer_groups.create_elastic(source, "group", 4, {f"{source}.*": [1]})


@pytest.fixture
def partitioned(js: JetStream, stream_name: str) -> str:
    """Return the name of a stream whose subjects begin with one of four partitions."""
    js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.*"],
        storage="memory",
        subject_transform=SubjectTransform(
            src=f"{stream_name}.*", dest=f"{{{{partition(4,1)}}}}.{stream_name}.{{{{wildcard(1)}}}}"
        ),
    )
    return stream_name


class Received:
    """The messages that the members have handled."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._busy: dict[str, str] = {}
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.by_member: dict[str, int] = defaultdict(int)
        self.overlaps: list[str] = []

    def member(
        self, stream: str, member: str, callback: Callable[[JetStreamMsg], object] | None = None
    ) -> GroupConsumeHandle:
        """Let a member take part, on a connection of its own."""
        nc = self._stack.enter_context(jetstream_sync.connect(self._server.url))
        group = nc.jetstream().consumer_groups.get(stream, "group")

        def handle(msg: JetStreamMsg) -> None:
            key = msg.subject.split(".")[1]
            with self._lock:
                if key in self._busy:
                    self.overlaps.append(f"{key}: {self._busy[key]}, {member}")
                self._busy[key] = member
                self.by_key[key].append(int(msg.data))
                self.by_member[member] += 1
            if callback is not None:
                callback(msg)
            else:
                msg.ack()
            with self._lock:
                del self._busy[key]

        return group.consume(member, handle, ack_wait=2 * SCALE)

    @property
    def count(self) -> int:
        """The number of messages, with repeated ones."""
        with self._lock:
            return sum(self.by_member.values())

    def close(self) -> None:
        """Close the connections."""
        self._stack.close()


@pytest.fixture
def received(nats_server: NatsServer) -> Iterator[Received]:
    """The record of the members of a test."""
    record = Received(nats_server)
    yield record
    record.close()


def publish(js: JetStream, stream: str, keys: int, rounds: range) -> None:
    """Publish a number for each key in each round."""
    for number in rounds:
        for key in range(keys):
            js.publish_async(f"{stream}.{key}", b"%d" % number)
    js.publish_async_completed(timeout=60.0 * SCALE)


def test_keys_stay_in_order_under_membership_changes(js, elastic, received):
    """5,000 keys, and a change each half second: in order, once, and one member per key at a time."""
    keys, rounds = 5_000, 2
    elastic.add_members("a")
    handles = [received.member(elastic.stream_name, name) for name in "abc"]
    publish(js, elastic.stream_name, keys, range(rounds))
    changes = 0
    deadline = time.monotonic() + 120 * SCALE
    while received.count < keys * rounds and time.monotonic() < deadline:
        member = "bc"[changes // 2 % 2]
        (elastic.drop_members if changes % 2 else elastic.add_members)(member)
        changes += 1
        time.sleep(0.5)
    assert received.overlaps == []
    expected = list(range(rounds))
    wrong = {key: got for key, got in received.by_key.items() if got != expected}
    assert wrong == {}
    assert len(received.by_key) == keys
    assert changes >= 2
    assert len(received.by_member) >= 2
    wait_until(lambda: js.get_stream(elastic.consumer_stream_name).info().state.messages == 0)
    for handle in handles:
        handle.stop()
        handle.wait_closed(timeout=10.0 * SCALE)
        assert handle.error is None


def test_a_partition_is_given_up_after_the_callback(js, elastic, received):
    """A member that loses a partition finishes its message, which no other member gets."""
    entered, leave = threading.Event(), threading.Event()

    def slow(msg: JetStreamMsg) -> None:
        entered.set()
        leave.wait(10.0 * SCALE)
        msg.ack()

    stream = elastic.stream_name
    elastic.add_members("z")
    with received.member(stream, "z", slow) as former, received.member(stream, "a"):
        publish(js, stream, 1, range(2))
        assert entered.wait(10.0 * SCALE)
        running = former._instance.running
        assert running is not None
        elastic.set_mappings({"a": [0, 1, 2, 3]})
        wait_until(lambda: running._messages.closed, 10.0)
        assert received.by_member == {"z": 1}
        leave.set()
        wait_until(lambda: received.by_key["0"] == [0, 1], 10.0)
    assert received.by_member == {"z": 1, "a": 1}


def test_another_instance_takes_over(js, elastic, received):
    """One of two instances gets the messages; after it has stopped or stepped down, the other one does."""
    elastic.add_members("a")
    stream = elastic.stream_name
    used: list[str] = []

    def instance(name: str) -> GroupConsumeHandle:
        return received.member(stream, "a", lambda msg: (used.append(name), msg.ack()))

    first, second = instance("1"), instance("2")
    publish(js, stream, 10, range(1))
    wait_until(lambda: len(used) == 10, 10.0)
    assert len(set(used)) == 1
    pinned, other = (first, second) if used[0] == "1" else (second, first)
    pinned.stop()
    pinned.wait_closed(timeout=10.0 * SCALE)
    publish(js, stream, 10, range(1, 2))
    wait_until(lambda: len(used) == 20, 10.0)
    assert len(set(used[10:])) == 1
    assert used[0] != used[-1]
    assert elastic.active_members() == ["a"]
    elastic.step_down("a")
    assert not other.closed


def test_another_instance_takes_over_from_a_killed_one(js, elastic, received, nats_server):
    """If the pinned instance is killed while it handles a message, its twin gets it soon after."""
    elastic.add_members("a")
    stream = elastic.stream_name
    program = f"""
import time, jetstream_sync
nc = jetstream_sync.connect({nats_server.url!r})
group = nc.jetstream().consumer_groups.get({stream!r}, "group")
def handle(msg):
    print(msg.subject, flush=True)
    time.sleep(600)
group.consume("a", handle, ack_wait={2 * SCALE})
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            js.publish(f"{stream}.0", b"0")
            assert process.stdout is not None
            assert process.stdout.readline() == f"{stream}.0\n"
            received.member(stream, "a")
        finally:
            process.kill()
    with between(0, 2 * (2 * SCALE) + 1):
        js.publish(f"{stream}.0", b"1")
        wait_until(lambda: received.by_key["0"] == [0, 1], 10.0)


def test_the_consumers_are_those_of_orbit(js, elastic, received):
    """Stream, key and consumer of an elastic group are named and configured as orbit.go does."""
    stream = elastic.stream_name
    stored = json.loads(js.key_value("elastic-consumer-groups")[f"{stream}.group"])
    filters = [{"filter": f"{stream}.*", "partitioning_wildcards": [1]}]
    assert stored == {"max_members": 4, "partitioning_filters": filters}
    config = js.get_stream(f"{stream}-group").cached_info.config
    assert (config.retention, config.discard, config.storage) == ("workqueue", "new", "memory")
    (source,) = config.sources or ()
    (transform,) = source.subject_transforms or ()
    assert source.name == stream
    assert transform.dest == f"{{{{Partition(4,1)}}}}.{stream}.{{{{Wildcard(1)}}}}"
    # As a Go program would add the members.
    stored["members"] = ["b", "a"]
    js.key_value("elastic-consumer-groups")[f"{stream}.group"] = json.dumps(stored).encode()
    assert elastic.partitions() == {"b": [2, 3], "a": [0, 1]}
    assert elastic.absent_members() == ["a", "b"]
    with received.member(stream, "b"):
        wait_until(lambda: elastic.active_members() == ["b"], 10.0)
        assert elastic.absent_members() == ["a"]
        info = js.consumer_info(f"{stream}-group", "b")
        wanted = info.config
        assert wanted.filter_subjects == [f"2.{stream}.*", f"3.{stream}.*"]
        assert (wanted.priority_groups, wanted.priority_policy) == (["PCG"], "pinned_client")
        wait = timedelta(seconds=2 * SCALE)
        assert (wanted.ack_wait, wanted.inactive_threshold, wanted.priority_timeout) == (wait,) * 3
        assert (wanted.durable_name, wanted.max_ack_pending) == (None, 1)


@pytest.mark.parametrize("purge", [False, True])
def test_deleting_the_config_ends_the_members(js, elastic, received, purge):
    """A deleted or purged key is a normal end; deleting the group removes its stream."""
    elastic.add_members("a")
    handle = received.member(elastic.stream_name, "a")
    if purge:
        js.key_value("elastic-consumer-groups").purge(elastic.key)
    else:
        elastic.delete()
        with pytest.raises(StreamNotFoundError):
            js.get_stream(elastic.consumer_stream_name)
    handle.wait_closed(timeout=10.0 * SCALE)
    assert handle.error is None
    with pytest.raises(ConsumerGroupNotFoundError):
        elastic.config()
    with pytest.raises(ConsumerGroupNotFoundError):
        js.consumer_groups.get(elastic.stream_name, "group")
    assert js.consumer_groups.list(elastic.stream_name) == []


def test_a_group_with_a_member_that_cannot_be(js, partitioned):
    """Another client has stored a name that no consumer can have; deleting the group deletes the others' consumers."""
    group = js.consumer_groups.create_static(partitioned, "group", 4, ["z"])
    group.consume("z", print).stop()
    kv = js.key_value("static-consumer-groups")
    kv[group.key] = kv[group.key].replace(b'["z"]', b'["a.b","z"]')
    group.delete()
    assert js.consumer_names(partitioned) == []
    assert kv.keys(group.key) == []


def test_a_forbidden_change_ends_the_members(js, elastic, received):
    """A change of the number of partitions, or a broken config, ends the member with an error."""
    elastic.add_members("a")
    kv = js.key_value("elastic-consumer-groups")
    good = kv[elastic.key]
    for bad in (
        good.replace(b'"max_members":4', b'"max_members":5'),
        b"{",
        b'{"max_members":0}',
        b'{"max_members":9000000000000000000}',
    ):
        handle = received.member(elastic.stream_name, "a")
        kv[elastic.key] = bad
        handle.wait_closed(timeout=10.0 * SCALE)
        assert isinstance(handle.error, ConsumerGroupError)
        kv[elastic.key] = good


def test_members_are_changed_with_cas(elastic):
    """Concurrent changes are all kept; a group with mappings refuses single members."""
    run_all(*[partial(elastic.add_members, f"m{number}") for number in range(8)])
    assert sorted(elastic.config().member_names) == [f"m{number}" for number in range(8)]
    assert elastic.drop_members(*(f"m{number}" for number in range(7))) == ["m7"]
    elastic.set_mappings({"x": [3, 1], "y": [0, 2]})
    assert elastic.partitions() == {"x": [3, 1], "y": [0, 2]}
    with pytest.raises(ConsumerGroupError, match="mappings"):
        elastic.add_members("z")
    with pytest.raises(ConsumerGroupError, match="exactly once"):
        elastic.set_mappings({"x": [0]})
    elastic.set_mappings({})
    assert elastic.add_members("z") == ["z"]


def test_static_groups(js, partitioned, received):
    """The members of a static group share its partitions; a change of the config ends them."""
    groups = js.consumer_groups
    group = groups.create_static(partitioned, "group", 4, ["a", "b"], filters=[f"{partitioned}.*"])
    assert isinstance(group, StaticConsumerGroup)
    assert groups.create_static(
        partitioned, "group", 4, ["a", "b"], filters=[f"{partitioned}.*"]
    ).partitions() == {"a": [0, 1], "b": [2, 3]}
    for members, filters in ((["a", "c"], [f"{partitioned}.*"]), (["a", "b"], ["x"])):
        with pytest.raises(ConsumerGroupError, match="exists with"):
            groups.create_static(partitioned, "group", 4, members, filters=filters)
    with pytest.raises(ConsumerGroupError, match="not a member"):
        received.member(partitioned, "c")
    handles = [received.member(partitioned, name) for name in "ab"]
    publish(js, partitioned, 100, range(3))
    wait_until(lambda: received.count == 300, 20.0)
    assert received.overlaps == []
    assert all(got == [0, 1, 2] for got in received.by_key.values())
    assert group.active_members() == ["a", "b"]
    consumer = js.consumer_info(partitioned, "group-a").config
    assert consumer.durable_name == "group-a"
    assert consumer.filter_subjects == [f"0.{partitioned}.*", f"1.{partitioned}.*"]
    assert [item.key for item in groups.list()] == [group.key]
    js.key_value("static-consumer-groups")[group.key] = b'{"max_members":4,"members":["a"]}'
    for handle in handles:
        handle.wait_closed(timeout=10.0 * SCALE)
        assert isinstance(handle.error, ConsumerGroupError)
    assert js.consumer_names(partitioned) == []
    group.delete()
    assert groups.list() == []


@pytest.mark.parametrize("how", ["drain", "drain of the connection", "drain and stop"])
def test_a_drain_handles_the_buffered_messages(nats_server, js, partitioned, how):
    """The callback gets the buffered messages, unless the member is stopped meanwhile."""
    nc = jetstream_sync.connect(nats_server.url)
    group = nc.jetstream().consumer_groups.create_static(partitioned, "group", 4, ["a"])
    publish(js, partitioned, 10, range(1))
    taken, go_on = threading.Event(), threading.Event()
    handled = []

    def callback(msg: JetStreamMsg) -> None:
        taken.set()
        assert go_on.wait(10)
        handled.append(msg.subject)
        msg.ack_sync()

    handle = group.consume("a", callback, max_ack_pending=100)
    assert taken.wait(10)
    consumer = js.consumer_names(partitioned)[0]
    wait_until(lambda: js.consumer_info(partitioned, consumer).num_ack_pending == 10)
    ends = ThreadPoolExecutor(1)
    ending = ends.submit(nc.drain if how == "drain of the connection" else handle.drain)
    wait_until(lambda: handle._instance.running is None)
    if how == "drain and stop":
        handle.stop()
    go_on.set()
    ending.result(10)
    handle.wait_closed(10)
    left = js.consumer_info(partitioned, consumer).num_ack_pending
    assert (len(handled), left) == ((1, 9) if how == "drain and stop" else (10, 0))
    nc.close()
    ends.shutdown()


def test_the_callback_can_stop_its_member(js, elastic, received):
    """A callback may stop the handle, and cannot wait for its own end; a drain handles what is buffered."""
    elastic.add_members("a")
    handles: list[GroupConsumeHandle] = []
    errors: list[Exception] = []

    def callback(msg: JetStreamMsg) -> None:
        msg.ack()
        handles[0].drain()
        wait_until(lambda: handles[0]._instance.running is None)  # it waits for this callback
        try:
            handles[0].wait_closed()
        except TimeoutError as error:
            errors.append(error)

    handles.append(received.member(elastic.stream_name, "a", callback))
    publish(js, elastic.stream_name, 1, range(1))
    handles[0].wait_closed(timeout=10.0 * SCALE)
    assert len(errors) == 1
    assert handles[0].partitions == [0, 1, 2, 3]
