"""Handlers of a partitioned consumer group: order, changes of the members, and kills."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from contextlib import ExitStack

import pytest
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until
from fixtures.worker import RunningWorker, WorkerProgram, running

from jetstream_sync import (
    ConsumerNotFoundError,
    ElasticConsumerGroup,
    InvalidOptionError,
    JetStream,
    Stream,
    SubjectTransform,
    connect,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, DeadLetters, Worker
from jetstream_sync.workers.runtime import membership

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
def group(js: JetStream, stream: Stream) -> ElasticConsumerGroup:
    """An elastic group with four partitions and no members."""
    return js.consumer_groups.create_elastic(stream.name, "group", 4, {f"{stream.name}.*": [1]})


class Handled:
    """What the members have handled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.members: set[str] = set()
        self.overlaps: list[str] = []

    def handle(self, member: str, ctx: Context) -> None:
        """Record a message."""
        key = ctx.message.subject.split(".")[1]
        with self._lock:
            if key in self._busy:
                self.overlaps.append(key)
            self._busy.add(key)
            self.by_key[key].append(int(ctx.message.data))
            self.members.add(member)
        time.sleep(0.001)
        with self._lock:
            self._busy.discard(key)

    @property
    def count(self) -> int:
        """The number of messages, with repeated ones."""
        with self._lock:
            return sum(map(len, self.by_key.values()))

    def worker(self, server: NatsServer, stream: Stream, member: str) -> Worker:
        """Return a worker that records what it handles."""
        worker = Worker(server.url, name=member)

        @worker.handler(stream=stream.name, group="group", member=member, concurrency=4, ack_wait=3)
        def handle(ctx: Context) -> None:
            self.handle(member, ctx)

        return worker


def publish(js: JetStream, stream: Stream, keys: int, rounds: int) -> None:
    """Publish a number for each key in each round."""
    for number in range(rounds):
        for key in range(keys):
            js.publish_async(f"{stream.name}.{key}", b"%d" % number)
    js.publish_async_completed(timeout=60 * SCALE)


def test_keys_stay_in_order_while_members_come_and_go(js, stream, group, nats_server):
    """Each message is handled once, in the order of its key, by one process at a time."""
    handled, keys, rounds = Handled(), 500, 8
    with ExitStack() as stack:
        runs: dict[str, RunningWorker] = {}
        for member in "abc":
            runs[member] = stack.enter_context(running(handled.worker(nats_server, stream, member)))
        wait_until(lambda: group.active_members() == ["a", "b", "c"])
        publish(js, stream, keys, rounds)
        wait_until(lambda: handled.count > keys)
        group.drop_members("c")  # it adds itself again
        wait_until(lambda: handled.count > 2 * keys)
        assert runs["b"].stop() == 0
        group.drop_members("b")
        wait_until(lambda: handled.count >= keys * rounds, 60)
    assert handled.overlaps == []
    assert dict(handled.by_key) == {str(key): list(range(rounds)) for key in range(keys)}
    assert handled.members == {"a", "b", "c"}
    assert js.get_stream(group.consumer_stream_name).cached_info.state.messages == 0


def test_reading_the_state_of_a_member_takes_two_seconds_at_most(fresh_server):
    """The thread that runs the worker does it, and a signal has to wait for that."""
    with connect(fresh_server.url) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["S.*"])
        group = js.consumer_groups.create_elastic("S", "group", 1, {"S.*": [1]})
        worker = Handled().worker(fresh_server, stream, "a")
        with running(worker):
            consumer = membership.GroupConsumer(js, worker.handlers[0], may_change=True)
            with pytest.raises(ConsumerNotFoundError, match="no partitions yet"):
                consumer.read()
            wait_until(lambda: group.active_members() == ["a"])
            stored = js.get_stream(group.consumer_stream_name)
            consumer.joined(stored.get_consumer(group.consumer_name("a")))
            assert consumer.read().name == group.consumer_name("a")
            with paused(fresh_server):
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    consumer.refresh()
                assert time.monotonic() - began < 2 + 0.5 * SCALE


PROGRAM = """
worker = Worker()

@worker.handler(stream="{stream}", group="group", ack_wait=3, concurrency=4)
def handle(ctx: Context) -> None:
    record(f"{{os.getpid()}} {{ctx.message.subject}} {{ctx.message.data.decode()}}")
    time.sleep(0.005)
"""


@pytest.mark.full
def test_the_partitions_of_a_killed_process_go_to_others(
    js, stream, group, nats_server, tmp_path, monkeypatch
):
    """A killed process is dropped from the group; one that stops leaves it."""
    monkeypatch.setattr(membership, "_ABSENT_S", 1.0)
    monkeypatch.setattr("jetstream_sync.workers.run._SAMPLE_S", 0.2)
    handled, keys, rounds = Handled(), 100, 5
    code = PROGRAM.format(stream=stream.name)
    with (
        WorkerProgram(code, nats_server.url, tmp_path) as killed,
        WorkerProgram(code, nats_server.url, tmp_path) as stopped,
    ):
        wait_until(lambda: len(group.active_members()) == 2)
        publish(js, stream, keys, rounds)
        killed.wait_runs(50)
        killed.signal(signal.SIGKILL)
        with running(handled.worker(nats_server, stream, "survivor")):
            stopped.stop()
            wait_until(
                lambda: js.get_stream(group.consumer_stream_name).info().state.messages == 0, 60
            )
            # The killed member may have handled all messages of its partitions.
            wait_until(lambda: group.config().member_names == ["survivor"])
    assert handled.overlaps == []
    seen: dict[str, set[int]] = defaultdict(set)
    for line in killed.runs:
        _, subject, number = line.split()
        seen[subject.split(".")[1]].add(int(number))
    for key, numbers in handled.by_key.items():
        assert numbers == sorted(numbers), key  # what it has handled is in order
        seen[key].update(numbers)
    assert dict(seen) == {str(key): set(range(rounds)) for key in range(keys)}


def test_ids_and_dead_letters_name_the_group(js, stream, group, worker):
    """The id of a message and its dead letter do not depend on the member that has received it."""
    ids: list[str] = []
    letters, stored_in = DeadLetters(js), group.consumer_stream_name

    @worker.handler(stream=stream.name, group="group", reject_on=(ValueError,))
    def handle(ctx: Context) -> None:
        ids.append(ctx.id)
        raise ValueError("no")

    with running(worker):
        js.publish(f"{stream.name}.a", b"1")
        wait_until(lambda: bool(letters.find(stored_in, "group")))
    (letter,) = letters.find(stored_in, "group")
    assert letter.subject == f"{stream.name}.a"
    assert ids[0].startswith(f"{stored_in}/group/1/")
    assert group.config().member_names == []


def test_a_static_group_has_the_members_that_it_was_given(js, stream_name, nats_server):
    """A worker takes part with the name of a member, and cannot without one."""
    transform = SubjectTransform(
        src=f"{stream_name}.*", dest=f"{{{{partition(2,1)}}}}.{stream_name}.{{{{wildcard(1)}}}}"
    )
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.*"], subject_transform=transform
    )
    group = js.consumer_groups.create_static(stream_name, "group", 2, ["a", "b"])
    handled = Handled()
    with (
        running(handled.worker(nats_server, stream, "a")),
        running(handled.worker(nats_server, stream, "b")),
    ):
        publish(js, stream, 20, 2)
        wait_until(lambda: handled.count == 40)
        assert group.absent_members() == []
    assert handled.members == {"a", "b"}
    assert dict(handled.by_key) == {str(key): [0, 1] for key in range(20)}
    (error,) = handled.worker(nats_server, stream, "c").check().errors
    assert "fixed: a, b" in error


def test_a_message_that_is_retried_does_not_delay_a_change_of_the_members(
    js, stream, group, nats_server
):
    """A member that loses partitions returns a message between two attempts."""
    handled: dict[str, set[bytes]] = defaultdict(set)
    failed = threading.Event()
    once_more = Backoff(first=55, maximum=55, jitter=0, attempts=2)

    def new_worker(member: str) -> Worker:
        worker = Worker(nats_server.url, name=member)

        @worker.handler(stream=stream.name, group="group", member=member, retry=once_more)
        def handle(data: bytes) -> None:
            if data == b"bad":
                failed.set()
                raise ValueError("no")
            handled[member].add(data)

        return worker

    with running(new_worker("a")):
        js.publish(f"{stream.name}.bad", b"bad")
        assert failed.wait(10 * SCALE)
        with running(new_worker("b")):
            wait_until(lambda: group.active_members() == ["a", "b"])
            for key in range(40):
                js.publish(f"{stream.name}.{key}", b"%d" % key)
            wait_until(lambda: len(handled["b"]) >= 3)


def test_a_burst_ends_for_a_member_without_partitions(js, stream, nats_server):
    """A member that gets no partition has nothing to do."""
    group = js.consumer_groups.create_elastic(stream.name, "group", 1, {f"{stream.name}.*": [1]})
    group.add_members("a", "b")
    assert group.config().partitions("b") == []
    run = RunningWorker(Handled().worker(nats_server, stream, "b"), burst=True)
    assert run.ended() == 0


@pytest.mark.usefixtures("group")
def test_a_crash_of_the_receiving_thread_ends_the_worker(stream, nats_server, monkeypatch):
    """A group is no exception to the rule that a worker without a thread ends with a failure."""

    def receive(_puller: membership.GroupPuller) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(membership.GroupPuller, "receive", receive)
    run = RunningWorker(Handled().worker(nats_server, stream, "a"))
    assert run.ended() == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("exclusive", True), ("confirm", False), ("filter_subject", "a"), ("max_bytes", 1000)],
)
def test_options_that_a_group_excludes(option, value):
    """Options that the group decides, or whose promise it cannot keep, are refused."""
    worker = Worker()
    with pytest.raises(InvalidOptionError, match="not for groups"):
        worker.handler(stream="S", group="g", **{option: value})(lambda_free)
    with pytest.raises(InvalidOptionError, match="needs 'group'"):
        worker.handler(stream="S", consumer="C", member="a")(lambda_free)


def lambda_free(data: bytes) -> None:
    """Handle nothing."""
