"""Priority groups: overflow, pinned clients, priorities (ADR-42)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import JetStream, PriorityPolicy, PullConsumer, Stream, errors

pytestmark = pytest.mark.server(">=2.11")


def fill(js: JetStream, name: str, count: int) -> None:
    """Store messages with their numbers as payloads."""
    for number in range(count):
        js.publish_async(name, b"%d" % number)
    js.publish_async_completed(5)


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """An empty stream."""
    return js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")


@pytest.fixture
def overflow(stream: Stream) -> PullConsumer:
    """A consumer with groups of policy overflow."""
    return stream.create_consumer(
        durable_name="O", priority_policy=PriorityPolicy.OVERFLOW, priority_groups=["A"]
    )


@pytest.fixture
def pinned(stream: Stream) -> PullConsumer:
    """A consumer that serves one client at a time."""
    return stream.create_consumer(
        durable_name="P",
        priority_policy=PriorityPolicy.PINNED_CLIENT,
        priority_groups=["A"],
        priority_timeout=timedelta(seconds=2),
    )


def test_the_group_is_checked_locally(overflow, stream, nc):
    """A missing or unknown group is refused where the call is made; so is one that is not wanted."""
    plain = stream.create_consumer(durable_name="N")
    sent = nc.stats["out_msgs"]
    for options in ({}, {"group": "B"}):
        for call in (
            lambda given: overflow.fetch(1, **given),
            lambda given: overflow.fetch_no_wait(1, **given),
            lambda given: overflow.next(**given),
            lambda given: overflow.messages(**given),
            lambda given: overflow.consume(print, **given),
        ):
            with pytest.raises(errors.InvalidOptionError) as caught:
                call(options)
            assert caught.value.option == "group"
    with pytest.raises(errors.InvalidOptionError):
        plain.fetch(1, group="A")
    for wrong in ({"min_pending": -1}, {"min_ack_pending": True}, {"priority": 10}):
        with pytest.raises(errors.InvalidOptionError):
            overflow.fetch(1, group="A", **wrong)
    assert nc.stats["out_msgs"] == sent


def test_overflow_serves_only_above_the_pending_messages(js, stream, overflow):
    """With ``min_pending`` messages are delivered only while at least this many messages are pending."""
    fill(js, stream.name, 10)
    assert overflow.fetch(5, timeout=0.2, group="A", min_pending=11) == []
    got = overflow.fetch(10, timeout=0.3, group="A", min_pending=6)
    assert [int(msg.data) for msg in got] == [0, 1, 2, 3, 4]
    assert [int(msg.data) for msg in overflow.fetch(5, group="A")] == [5, 6, 7, 8, 9]


def test_overflow_serves_only_above_the_unacknowledged_messages(js, stream, overflow):
    """With ``min_ack_pending`` messages are delivered only while this many messages are unacknowledged."""
    fill(js, stream.name, 10)
    assert overflow.fetch(1, timeout=0.2, group="A", min_ack_pending=3) == []
    assert len(overflow.fetch(3, group="A")) == 3
    got = overflow.fetch(2, timeout=2, group="A", min_ack_pending=3)
    assert [int(msg.data) for msg in got] == [3, 4]


def test_an_iterator_takes_the_messages_above_min_pending(js, stream, overflow):
    """An iterator with ``min_pending`` takes the messages above it and leaves the rest."""
    fill(js, stream.name, 20)
    with overflow.messages(group="A", min_pending=11, max_messages=4) as messages:
        got = []
        for _ in range(10):
            msg = messages.next(2)
            msg.ack()
            got.append(int(msg.data))
        assert got == list(range(10))
        with pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.2)
    assert overflow.info().num_pending == 10


def test_one_client_is_pinned(js, stream, pinned, other):
    """The first client is pinned and learns its id from the message; others get nothing."""
    fill(js, stream.name, 20)
    first = pinned.next(2, group="A")
    assert first.headers is not None
    pin = first.headers["Nats-Pin-Id"]
    same = other.jetstream().get_consumer(stream.name, "P")
    assert same.fetch(1, timeout=0.3, group="A") == []
    again = pinned.fetch(3, timeout=2, group="A")
    assert [int(msg.data) for msg in again] == [1, 2, 3]
    assert {msg.headers["Nats-Pin-Id"] for msg in again if msg.headers} == {pin}


def test_a_message_with_the_pin_of_a_publisher(js, stream, pinned):
    """The pin is that of the server, which follows the headers of the message."""
    for _ in range(3):
        js.publish(stream.name, headers={"Nats-Pin-Id": "another"})
    assert [len(pinned.fetch(1, timeout=5, group="A")) for _ in range(2)] == [1, 1]
    with pinned.messages(group="A") as messages:
        assert messages.next(5).metadata.stream_seq == 3


def test_a_client_that_lost_the_pin_gets_an_error_and_can_pull_again(js, stream, pinned, other):
    """While another client is pinned a fetch is a `PinIDMismatchError`; the next one waits."""
    fill(js, stream.name, 20)
    pinned.next(2, group="A")
    same = other.jetstream().get_consumer(stream.name, "P")
    # The pin moves to the other client when the first one was silent for the priority_timeout.
    assert int(same.next(10, group="A").data) == 1
    with pytest.raises(errors.PinIDMismatchError) as caught:
        pinned.fetch(1, timeout=2, group="A")
    assert caught.value.code == 423
    assert pinned.fetch(1, timeout=0.3, group="A") == []
    # When that one is silent, the first one is pinned again.
    assert int(pinned.next(10, group="A").data) == 2


def test_an_iterator_takes_over_a_pin(js, stream, pinned, other):
    """When the pinned one of two iterators stops, the other one takes over without a loss."""
    fill(js, stream.name, 40)
    same = other.jetstream().get_consumer(stream.name, "P")
    got: list[int] = []
    with pinned.messages(group="A", max_messages=4) as first:
        got += [int(first.next(2).data) for _ in range(10)]
        with same.messages(group="A", max_messages=4) as second:
            with pytest.raises(jetstream_sync.TimeoutError):
                second.next(0.3)
            got += [int(first.next(2).data) for _ in range(10)]
            assert got == list(range(20))
            first.drain()
            got += [int(msg.data) for msg in first]
            while len(got) < 40:
                got.append(int(second.next(10).data))
    assert got == list(range(40))


def test_an_iterator_survives_the_loss_of_its_pin(js, stream, pinned, other):
    """An iterator whose pin was lost sends a request without one."""
    fill(js, stream.name, 40)
    same = other.jetstream().get_consumer(stream.name, "P")
    with pinned.messages(group="A", max_messages=2, expires=1) as messages:
        assert int(messages.next(2).data) == 0
        began = time.monotonic()
        # No message is read here meanwhile, so none is requested, and the pin moves.
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(same.next, 15, group="A")
            taken = int(waiting.result(20).data)
        assert time.monotonic() - began > 1
        seen: set[int] = set()
        give_up = time.monotonic() + 15
        while len(seen) < 10 and time.monotonic() < give_up:
            try:
                msg = messages.next(1)
            except jetstream_sync.TimeoutError:
                continue
            msg.ack()
            seen.add(int(msg.data))
        assert len(seen) == 10
        assert taken not in seen
        assert not messages.closed


@pytest.mark.server(">=2.12")
def test_lower_priorities_are_served_first(js, stream, other):
    """With policy ``prioritized`` waiting clients are served by priority, not in turn."""
    consumer = stream.create_consumer(
        durable_name="R", priority_policy=PriorityPolicy.PRIORITIZED, priority_groups=["A"]
    )
    same = other.jetstream().get_consumer(stream.name, "R")
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(consumer.fetch, 2, 10, group="A", priority=5)
        wait_until(lambda: consumer.info().num_waiting == 1)
        early = pool.submit(same.fetch, 2, 10, group="A", priority=1)
        wait_until(lambda: consumer.info().num_waiting == 2)
        fill(js, stream.name, 4)
        assert [int(msg.data) for msg in early.result(5)] == [0, 1]
        assert [int(msg.data) for msg in late.result(5)] == [2, 3]
