"""Options of push consumers; received by a plain subscription, without the push code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fix_threads import STALL, wait_until
from rawnats import RawClient

from jetstream_sync import (
    AckPolicy,
    Connection,
    ConsumerConfig,
    ConsumerInfo,
    JetStream,
    Msg,
    Stream,
    Subscription,
    TimeoutError,
)
from jetstream_sync.codec import decode, encode
from jetstream_sync.headers import parse_status
from jetstream_sync.server import NatsServer


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """An empty stream."""
    return js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")


@pytest.fixture
def raw(nats_server: NatsServer) -> Iterator[RawClient]:
    """An independent client."""
    with RawClient(nats_server.port) as client:
        yield client


@pytest.fixture
def inbox(nc: Connection, stream: Stream) -> Iterator[Subscription]:
    """Subscribe to a deliver subject."""
    with nc.subscribe(f"deliver.{stream.name}") as sub:
        nc.flush()
        yield sub


def make(raw: RawClient, stream: Stream, **options: Any) -> ConsumerInfo:
    """Create a push consumer with this config."""
    given: dict[str, Any] = {"name": "C", "deliver_subject": f"deliver.{stream.name}", **options}
    config = encode(ConsumerConfig(**given))
    route = f"CONSUMER.CREATE.{stream.name}.{given['name']}"
    answer = raw.api(route, stream_name=stream.name, config=config, action="create")
    assert "error" not in answer, answer
    answer.pop("type")
    return decode(ConsumerInfo, answer)


def put(js: JetStream, stream: Stream, count: int, size: int = 1) -> None:
    """Store messages that start with their numbers."""
    for number in range(count):
        js.publish_async(stream.name, b"%d" % number + b"." * (size - 1))
    js.publish_async_completed(10)


def description(msg: Msg) -> str | None:
    """Return the description of a status; ``None`` for a message of the stream."""
    status = None if msg.data or not msg._header else parse_status(msg._header)
    return None if status is None else status.description


def all_of(sub: Subscription, silence: float = 0.2) -> list[Msg]:
    """Return the messages until none follows."""
    messages = []
    while True:
        try:
            messages.append(sub.next_msg(silence))
        except TimeoutError:
            return messages


def test_the_deliver_subject_is_where_messages_go(
    js: JetStream, stream: Stream, raw: RawClient, inbox: Subscription
) -> None:
    """Messages are sent to the deliver subject, with their own subjects in the reply subject."""
    put(js, stream, 2)
    info = make(raw, stream)
    assert info.config.deliver_subject == inbox.subject
    messages = all_of(inbox)
    assert [(msg.subject, msg.data) for msg in messages] == [
        (stream.name, b"0"),
        (stream.name, b"1"),
    ]
    assert all(msg.reply.startswith(f"$JS.ACK.{stream.name}.C.") for msg in messages)


def test_nothing_is_delivered_without_a_subscriber(
    js: JetStream, stream: Stream, raw: RawClient, nc: Connection
) -> None:
    """A late subscriber gets everything; the server reports whether there is a subscriber."""
    put(js, stream, 2)
    assert not make(raw, stream).push_bound
    (before,) = stream.list_consumers()
    assert before.num_pending == 2
    with nc.subscribe(f"deliver.{stream.name}") as sub:
        assert sub.next_msg(2).data == b"0"
        (during,) = stream.list_consumers()
        assert during.push_bound


def test_a_deliver_group_shares_the_messages(
    js: JetStream, stream: Stream, raw: RawClient, nc: Connection
) -> None:
    """Each message goes to one member of the group, and none is sent without a member."""
    put(js, stream, 1)
    subject = f"deliver.{stream.name}"
    with nc.subscribe(subject), nc.subscribe(subject, queue="others"):
        nc.flush()
        assert not make(raw, stream, deliver_group="workers").push_bound
        nc.flush()
        assert stream.list_consumers()[0].num_pending == 1
    with (
        nc.subscribe(subject, queue="workers") as one,
        nc.subscribe(subject, queue="workers") as two,
    ):
        nc.flush()
        put(js, stream, 40)
        wait_until(lambda: one.pending_msgs + two.pending_msgs == 41)
        nc.flush()
        assert min(one.pending_msgs, two.pending_msgs) > 1
        assert one.pending_msgs + two.pending_msgs == 41


@pytest.mark.parametrize(
    ("limit", "least", "most"), [(None, 0, 0.6), (80_000, 0.7, 5)], ids=["none", "10 KB/s"]
)
def test_the_rate_limit_slows_delivery_down(
    js: JetStream,
    stream_name: str,
    raw: RawClient,
    nc: Connection,
    limit: int | None,
    least: float,
    most: float,
) -> None:
    """Nine kilobytes at ten kilobytes per second, given in bits, take about a second."""
    # A burst of max_msg_size is free. A message with subjects must be smaller, or is never sent.
    stream = js.create_stream(
        name=stream_name, subjects=[stream_name], storage="memory", max_msg_size=1024
    )
    put(js, stream, 11, size=800)
    with nc.subscribe(f"deliver.{stream.name}") as sub:
        nc.flush()
        begun = time.monotonic()
        make(raw, stream, rate_limit_bps=limit)
        for _ in range(11):
            sub.next_msg(5)
        assert least < time.monotonic() - begun < most + STALL / 5


def test_an_idle_heartbeat_says_that_the_server_is_there(
    js: JetStream, stream: Stream, raw: RawClient, inbox: Subscription
) -> None:
    """While nothing is published, a status with the position arrives in each interval."""
    put(js, stream, 3)
    begun = time.monotonic()
    make(raw, stream, idle_heartbeat=0.2, ack_policy=AckPolicy.NONE)
    messages = [inbox.next_msg(2) for _ in range(3)]
    assert [description(msg) for msg in messages] == [None] * 3
    beats = [inbox.next_msg(2) for _ in range(3)]
    assert 0.5 < time.monotonic() - begun < 2 + STALL
    for beat in beats:
        assert description(beat) == "Idle Heartbeat"
        assert beat.reply == ""
        assert beat.headers is not None
        assert beat.headers["Nats-Last-Consumer"] == beat.headers["Nats-Last-Stream"] == "3"


def test_without_an_idle_heartbeat_it_is_silent(
    raw: RawClient, stream: Stream, inbox: Subscription
) -> None:
    """Without a heartbeat nothing is sent while nothing is published."""
    make(raw, stream)
    assert all_of(inbox, 0.5) == []


def test_flow_control_waits_for_the_client(
    js: JetStream, stream: Stream, raw: RawClient, nc: Connection, inbox: Subscription
) -> None:
    """The server stops until its request is answered; heartbeats name the pending request."""
    put(js, stream, 600, size=10_000)
    make(raw, stream, flow_control=True, idle_heartbeat=0.2, ack_policy=AckPolicy.NONE)
    received, question, beats = 0, "", 0
    while beats < 2:
        msg = inbox.next_msg(2)
        what = description(msg)
        if what is None:
            received += 1
        elif msg.reply:
            assert what == "FlowControl Request"
            question = msg.reply
        else:
            assert msg.headers is not None
            stalled = msg.headers.get("Nats-Consumer-Stalled")
            beats += stalled == question != ""
    assert 0 < received < 600
    while received < 600:
        if question:
            nc.publish(question)
        msg = inbox.next_msg(2)
        question = msg.reply if description(msg) == "FlowControl Request" else ""
        received += description(msg) is None
    assert received == 600


def test_without_flow_control_it_does_not_wait(
    js: JetStream, stream: Stream, raw: RawClient, inbox: Subscription
) -> None:
    """Without flow control everything is sent, and there is no request."""
    put(js, stream, 600, size=10_000)
    make(raw, stream, ack_policy=AckPolicy.NONE)
    messages = all_of(inbox, 0.5)
    assert len(messages) == 600
    assert {description(msg) for msg in messages} == {None}


def test_a_push_consumer_counts_what_is_open(
    js: JetStream, stream: Stream, raw: RawClient, nc: Connection, inbox: Subscription
) -> None:
    """``max_ack_pending`` counts the messages of all members, and -1 is unlimited."""
    put(js, stream, 5)
    make(raw, stream, max_ack_pending=2)
    first, second = all_of(inbox)
    nc.publish(first.reply, b"+ACK")
    nc.publish(second.reply, b"+ACK")
    assert [msg.data for msg in all_of(inbox)] == [b"2", b"3"]


def test_durations_arrive_as_they_were_said(raw: RawClient, stream: Stream) -> None:
    """Durations in the consumer info are those of the config."""
    said = {
        "ack_wait": timedelta(seconds=12.5),
        "idle_heartbeat": timedelta(milliseconds=1500),
        "inactive_threshold": timedelta(minutes=3),
        "max_ack_pending": 17,
        "max_deliver": 5,
        "rate_limit_bps": 1_000_000,
        "sample_freq": "30%",
        "flow_control": True,
        "headers_only": True,
        "description": "all at once",
    }
    config = make(raw, stream, **said).config
    assert {name: getattr(config, name) for name in said} == said
