"""The subscribe workflow on a real server: consumers found, created, shared and deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.internals import api_of
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import (
    AckPolicy,
    ConsumerConfig,
    JetStream,
    JetStreamMsg,
    PushSubscription,
    Stream,
    errors,
)
from jetstream_sync.jetstream.consumer_requests import CREATE, add_consumer
from jetstream_sync.net.clock import Deadline
from jetstream_sync.server import NatsServer


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """A stream with ten messages, numbers on the subjects NAME.0 and NAME.1 in turn."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], storage="memory")
    for number in range(10):
        js.publish(f"{stream_name}.{number % 2}", b"%d" % number)
    return stream


@pytest.fixture
def other(nats_server: NatsServer) -> Iterator[JetStream]:
    """JetStream on another connection, as in another program."""
    with jetstream_sync.connect(nats_server.url) as nc:
        yield nc.jetstream()


def everything(stream: Stream) -> str:
    return f"{stream.cached_info.config.name}.>"


def numbers(sub: PushSubscription, count: int, ack: bool = True) -> list[int]:
    """Read this number of messages."""
    got = []
    for _ in range(count):
        msg = sub.next_msg(5)
        if ack:
            msg.ack()
        got.append(int(msg.data))
    return got


def quiet(sub: PushSubscription) -> bool:
    """Return whether no message arrives for a moment."""
    try:
        sub.next_msg(0.1)
    except errors.TimeoutError:
        return True
    return False


# --- reading ------------------------------------------------------------------------------------


def test_an_ephemeral_subscription_reads_and_goes(js, stream):
    """The stream is found by the subject; the consumer is deleted with the subscription."""
    sub = js.subscribe(everything(stream))
    assert numbers(sub, 10) == list(range(10))
    assert quiet(sub)
    info = sub.consumer_info()
    assert info.name == sub.consumer_name
    assert info.config.filter_subject == everything(stream)
    assert info.config.ack_policy == AckPolicy.EXPLICIT
    assert info.config.durable_name is None
    assert sub.stream_name == stream.cached_info.config.name
    wait_until(lambda: sub.consumer_info().num_ack_pending == 0)
    sub.unsubscribe()
    assert stream.consumer_names() == []
    assert not sub.is_valid


# --- finding and creating -------------------------------------------------------------------------


def test_a_durable_continues_at_its_position(js, stream):
    """A durable consumer that is kept continues behind the acknowledged messages."""
    config = ConsumerConfig(ack_wait=0.2)
    sub = js.subscribe(everything(stream), durable="dur", config=config, delete_consumer=False)
    assert numbers(sub, 4) == [0, 1, 2, 3]
    js.account_info()  # the acks are processed
    sub.unsubscribe()
    sub = js.subscribe(everything(stream), durable="dur", config=config)
    assert sub.consumer_name == "dur"
    got = {int(sub.next_msg(5).data) for _ in range(6)}
    assert got == {4, 5, 6, 7, 8, 9}
    sub.unsubscribe()
    assert stream.consumer_names() == ["dur"]  # it existed before


def test_binding_to_a_consumer(js, stream):
    """An existing push consumer is read and not deleted."""
    name = stream.cached_info.config.name
    config = ConsumerConfig(ack_policy="none", deliver_policy="new", deliver_subject=f"to.{name}")
    first = js.subscribe(everything(stream), durable="dur", config=config, delete_consumer=False)
    first.unsubscribe()
    info = js.list_consumers(name)[0]
    for number in range(10):
        js.publish(f"{name}.x", b"%d" % number)
    with js.subscribe_bind(name, "dur", config=info.config) as sub:
        assert numbers(sub, 10) == list(range(10))
    with js.subscribe_bind(stream=name, consumer="dur"):
        pass
    assert stream.consumer_names() == ["dur"]
    with pytest.raises(errors.ConsumerNotFoundError):
        js.subscribe_bind(name, "missing")
    with pytest.raises(errors.StreamNotFoundError):
        js.subscribe_bind("NOTHING", "dur")
    with pytest.raises(errors.InvalidOptionError, match="name"):
        js.subscribe_bind(name, info.config)  # nats-py's order
    with pytest.raises(errors.InvalidOptionError, match="bound"):
        js.subscribe_bind(name, "dur", ordered_consumer=True)


def test_a_subject_of_no_stream_or_several_is_an_error(js, stream):
    """No stream, or several, for a subject is an error that says so."""
    name = stream.cached_info.config.name
    with pytest.raises(errors.StreamNotFoundError, match="unserved.subject"):
        js.subscribe("unserved.subject")
    js.create_stream(name=f"{name}_MORE", subjects=[f"{name}_more"])
    with pytest.raises(errors.AmbiguousSubjectError) as caught:
        js.subscribe(">")
    assert {name, f"{name}_MORE"} <= set(caught.value.found)


def test_the_checks_hold_against_a_server(js, other, stream):
    """The client's checks agree with the consumer info of the server."""
    name = stream.cached_info.config.name
    everywhere = everything(stream)
    js.create_consumer(name, durable_name="pulled")
    with pytest.raises(errors.PushOnPullConsumerError):
        js.subscribe(everywhere, durable="pulled")
    plain = js.subscribe(everywhere, durable="plain")
    with pytest.raises(errors.DuplicateSubscriptionError):
        other.subscribe(everywhere, durable="plain")
    with pytest.raises(errors.ConfigMismatchError):
        other.subscribe(f"{name}.1", durable="plain")
    plain.unsubscribe()
    member = js.subscribe(everywhere, "workers")
    with pytest.raises(errors.ConfigMismatchError):
        other.subscribe(everywhere, durable="workers")
    with pytest.raises(errors.ConfigMismatchError) as caught:
        other.subscribe(everywhere, "workers", config=ConsumerConfig(max_ack_pending=5))
    assert (caught.value.option, caught.value.asked, caught.value.found) == (
        "max_ack_pending",
        5,
        1000,
    )
    member.unsubscribe()
    beating = {"durable_name": "beating", "deliver_subject": "x", "deliver_group": "g"}
    add_consumer(api_of(js), name, ConsumerConfig(**beating, idle_heartbeat=1), CREATE)
    with pytest.raises(errors.InvalidOptionError):
        js.subscribe(everywhere, "g", durable="beating")
    with pytest.raises(errors.InvalidOptionError, match="no_such"):
        js.subscribe(everywhere, no_such=1)
    with pytest.raises(errors.InvalidOptionError, match="cb"):
        js.subscribe(everywhere, cb="print")
    with pytest.raises(errors.InvalidOptionError, match="heartbeat_intervals"):
        js.subscribe(everywhere, heartbeat_intervals=0)
    assert sorted(stream.consumer_names()) == ["beating", "pulled"]


# --- queues -------------------------------------------------------------------------------------


def test_members_of_a_queue_share_its_messages(js, other, stream):
    """Each message goes to one member, and members come and go without a loss."""
    name = stream.cached_info.config.name
    stream.purge()
    got: list[int] = []
    by: dict[str, int] = {"one": 0, "two": 0, "three": 0}

    def work(who: str, msg: JetStreamMsg) -> None:
        by[who] += 1
        got.append(int(msg.data))

    one = js.subscribe(f"{name}.*", "workers", cb=lambda msg: work("one", msg))
    two = other.subscribe(f"{name}.*", "workers", cb=lambda msg: work("two", msg))
    for number in range(100):
        js.publish(f"{name}.x", b"%d" % number)
    wait_until(lambda: len(got) == 100)
    assert by["one"]
    assert by["two"]
    one.drain()  # the one that created the consumer, which is kept for the other member
    assert stream.consumer_names() == ["workers"]
    three = js.subscribe(f"{name}.*", "workers", cb=lambda msg: work("three", msg))
    for number in range(100, 200):
        js.publish(f"{name}.x", b"%d" % number)
    wait_until(lambda: len(got) == 200)
    assert sorted(got) == list(range(200))
    assert by["three"]
    two.unsubscribe()
    three.unsubscribe()
    assert stream.consumer_names() == ["workers"]  # neither created it


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [None, "dur"])
@pytest.mark.parametrize("end", ["unsubscribe", "drain", "with"])
def test_the_end_of_a_subscription_deletes_its_consumer(js, stream, durable, end):
    """A created consumer is deleted, also a durable one; an existing one is kept."""
    for kept in (False, True):
        sub = js.subscribe(everything(stream), durable=durable, delete_consumer=not kept)
        numbers(sub, 10)
        if end == "with":
            with sub:
                pass
        else:
            getattr(sub, end)()
        if end == "drain":
            with pytest.raises(errors.BadSubscriptionError):
                sub.next_msg(0)  # read to the end
        assert bool(stream.consumer_names()) is kept


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("pull", [False, True])
def test_the_durable_of_another_client_is_kept(js, other, stream, pull, recreated):
    """What another program has created with the name of a deleted durable stays with its position."""
    name = "pull_subscribe" if pull else "subscribe"
    first, second = getattr(js, name), getattr(other, name)
    ended = first(everything(stream), durable="d")
    time.sleep(1.1)  # the times of a server before 2.11 differ
    if recreated:
        js.delete_stream(stream.name)
        js.create_stream(stream.cached_info.config)
        js.publish(f"{stream.name}.0", b"0")
    else:
        stream.delete_consumer("d")
    later = second(everything(stream), durable="d")
    ended.unsubscribe()
    message = later.fetch(1)[0] if pull else later.next_msg(5)
    message.ack_sync()
    assert stream.consumer_info("d").ack_floor.stream_seq == 1
    later.unsubscribe()
    assert stream.consumer_names() == []


def test_draining_leaves_time_to_acknowledge(js, stream):
    """A drained subscription is read to its end before the consumer is deleted."""
    sub = js.subscribe(everything(stream))
    wait_until(lambda: sub.pending_msgs == 10)
    sub.drain()
    assert len(stream.consumer_names()) == 1
    for number, msg in enumerate(sub):
        msg.ack_sync()
        assert int(msg.data) == number
    assert stream.consumer_names() == []


def test_drain_waits_for_the_callback_and_deletes_the_consumer(js, stream):
    """drain() returns when the callback has ended and the consumer is deleted."""
    got: list[int] = []
    go_on = threading.Event()

    def work(msg: JetStreamMsg) -> None:
        go_on.wait(5)
        got.append(int(msg.data))

    sub = js.subscribe(everything(stream), cb=work)
    wait_until(lambda: sub.pending_msgs == 9)
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(sub.drain)
        go_on.set()
        draining.result(10)
    assert got == list(range(10))
    assert stream.consumer_names() == []
    with pytest.raises(errors.SubscriptionError):
        sub.next_msg(0)


@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
def test_a_callback_may_end_its_own_subscription(js, stream, end):
    """A callback that unsubscribes or drains does not wait for itself."""
    got: list[int] = []

    def work(msg: JetStreamMsg) -> None:
        got.append(int(msg.data))
        if len(got) == 3:
            getattr(sub, end)()

    bound = threading.Event()
    sub = js.subscribe(everything(stream), cb=lambda msg: bound.wait(5) and work(msg))
    bound.set()
    wait_until(lambda: stream.consumer_names() == [])
    assert sub._wait_drained(Deadline(5))
    assert got[:3] == [0, 1, 2]
    assert len(got) == 3 or end == "drain"


def test_draining_the_connection(nats_server, stream):
    """Ephemeral consumers are deleted with the connection, durable ones are kept."""
    got: list[int] = []
    with jetstream_sync.connect(nats_server.url) as nc:
        mine = nc.jetstream()
        # Referenced, because a subscription that was garbage-collected is not drained.
        held = [
            mine.subscribe(everything(stream), cb=lambda msg: got.append(int(msg.data))),
            mine.subscribe(everything(stream)),
            mine.subscribe(everything(stream), durable="dur"),
            mine.subscribe(everything(stream), ordered_consumer=True),
        ]
        assert len(stream.consumer_names()) == len(held)
        nc.drain()
    wait_until(lambda: stream.consumer_names() == ["dur"])
    assert got == list(range(len(got)))


def test_closing_the_connection(nats_server, stream):
    """A closed connection deletes nothing: the server deletes ephemeral consumers itself."""
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = nc.jetstream().subscribe(everything(stream), inactive_threshold=0.1, idle_heartbeat=5)
        wait_until(lambda: sub.pending_msgs == 10)
        nc.close()
    assert numbers(sub, 10, ack=False) == list(range(10))
    with pytest.raises(errors.ConnectionClosedError):
        sub.next_msg(0)
    with pytest.raises(errors.ConnectionClosedError):
        sub.unsubscribe()
    wait_until(lambda: stream.consumer_names() == [])


@pytest.mark.parametrize("ordered", [False, True])
def test_a_limit_counts_from_the_start(js, stream, ordered):
    """unsubscribe(limit) ends it after so many messages, without statuses, and deletes."""
    sub = js.subscribe(
        everything(stream), ordered_consumer=ordered, idle_heartbeat=0.1, flow_control=True
    )
    wait_until(lambda: sub.pending_msgs == 10)
    sub.unsubscribe(12)
    for number in (10, 11, 12):
        js.publish(f"{stream.cached_info.config.name}.x", b"%d" % number)
    assert [int(msg.data) for msg in sub] == list(range(12))
    assert sub.delivered == 12
    wait_until(lambda: stream.consumer_names() == [])


def test_a_limit_that_was_reached_ends_the_subscription_at_once(js, stream):
    """If the limit was reached already, the call ends the subscription and deletes."""
    sub = js.subscribe(everything(stream))
    numbers(sub, 10)
    sub.unsubscribe(10)
    assert stream.consumer_names() == []
    with pytest.raises(errors.BadSubscriptionError):
        sub.next_msg(0)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_limit_that_is_reached_drops_the_surplus(js, stream, ordered):
    """Unread messages above the limit are dropped."""
    sub = js.subscribe(everything(stream), ordered_consumer=ordered)
    wait_until(lambda: sub.pending_msgs == 10)
    assert int(sub.next_msg(5).data) == 0
    sub.unsubscribe(4)
    assert [int(msg.data) for msg in sub] == [1, 2, 3]
    sub.unsubscribe(4)
    sub.unsubscribe()
    wait_until(lambda: stream.consumer_names() == [])
