"""A user's typed program: every call passes mypy --strict and pyright in strict mode."""

from __future__ import annotations

import io
import logging
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from typing_extensions import assert_type

import jetstream_sync
from jetstream_sync import (
    AckPolicy,
    Connection,
    ConnectionEvent,
    ConsumeHandle,
    ConsumerConfig,
    ConsumerInfo,
    Headers,
    JetStream,
    JetStreamMsg,
    Listing,
    MessageIterator,
    Metadata,
    Msg,
    ObjectStore,
    OrderedConsumer,
    PubAck,
    PubAckFuture,
    PullConsumer,
    PullSubscription,
    PushSubscription,
    StoredMsg,
    Stream,
    StreamConfig,
    StreamInfo,
    StreamState,
    Subscription,
)
from jetstream_sync.errors import APIError, Error, NotFoundError, TimeoutError

log = logging.getLogger(__name__)


def on_error(error: Exception) -> None:
    """Receive an asynchronous error."""
    log.error("%s", error)


def on_event(event: ConnectionEvent) -> None:
    """Receive an event of the connection."""
    log.info("%s", event.kind)


def on_plain_event() -> None:
    """Receive an event without its details."""


def connect() -> Connection:
    """Options from the environment may be `None`, which is the default of most."""
    return jetstream_sync.connect(
        os.environ.get("NATS_URL", "nats://127.0.0.1:4222").split(","),
        name="program",
        user_credentials=os.environ.get("NATS_CREDS"),
        password=os.environ.get("NATS_PASSWORD"),
        tls_hostname=os.environ.get("NATS_TLS_HOSTNAME"),
        connect_timeout=timedelta(seconds=5),
        max_reconnect_attempts=-1,
        error_cb=on_error,
        disconnected_cb=on_event,
        reconnected_cb=on_plain_event,
        closed_cb=None,
    )


def core(nc: Connection) -> None:
    """Publish, subscribe and request."""
    nc.publish("a.b", b"data", headers={"One": "1", "Two": ["2", "3"]})
    nc.publish("a.b", headers={"One": ("1", "2")})
    nc.publish("a.b", headers=Headers({"One": "1"}))
    several: dict[str, list[str]] = {"One": ["1"]}
    nc.publish("a.b", headers=several)
    nc.publish("a.b", headers={"One": 1})  # type: ignore[dict-item]
    assert_type(nc.request("a.b", timeout=1), Msg)
    assert_type(nc.rtt(), timedelta)
    sub = nc.subscribe("a.*", queue="workers")
    assert_type(sub, Subscription)
    assert_type(sub.next_msg(timeout=1.0), Msg)
    for msg in sub:
        assert_type(msg.data, bytes)
        assert_type(msg.headers, Headers | None)
    sub.drain()


def publish(js: JetStream) -> int:
    """Publish with and without waiting."""
    ack = js.publish("ORDERS.new", b"1", msg_id="1", msg_ttl=timedelta(hours=1))
    assert_type(ack, PubAck)
    future = js.publish_async("ORDERS.new", b"2", timeout=5)
    assert_type(future, PubAckFuture)
    js.publish_async_completed(timeout=5.0)
    js.publish("ORDERS.new", "text")  # type: ignore[arg-type]
    js.publish("ORDERS.new", b"", mesage_id="1")  # type: ignore[call-arg]
    js.publish_async("ORDERS.new", expected_last_sequence="1")  # type: ignore[arg-type]
    js.batch().add("ORDERS.new", cancels="a")  # type: ignore[call-arg]
    js.fast_publish().add("ORDERS.new", msg_ttl="never", expected_last_subject_sequence=1)
    return future.result().seq


def manage(js: JetStream) -> Stream:
    """Create, read and change streams."""
    try:
        stream = js.get_stream("ORDERS")
    except NotFoundError:
        stream = js.create_stream(name="ORDERS", subjects=["ORDERS.*"], max_age=timedelta(days=1))
    assert_type(stream, Stream)
    info = stream.info(subjects_filter=">")
    assert_type(info, StreamInfo)
    assert_type(info.state, StreamState)
    assert_type(info.config, StreamConfig)
    assert_type(js.update_stream(replace(info.config, max_msgs=10)), Stream)
    assert_type(js.stream_names(), list[str])
    assert_type(js.list_streams(), Listing[StreamInfo])
    assert_type(stream.get_msg(1), StoredMsg)
    assert_type(stream.get_msgs(10), list[StoredMsg])
    assert_type(stream.purge(keep=1), int)
    return stream


def handle(msg: JetStreamMsg) -> None:
    """Handle and acknowledge a message."""
    metadata = msg.metadata
    assert_type(metadata, Metadata)
    assert_type(metadata.timestamp, datetime)
    if metadata.num_delivered > 1:
        msg.nak(delay=5)
        return
    msg.in_progress()
    msg.ack_sync(timeout=1.0)


def consume(stream: Stream) -> None:
    """Read from a consumer in each way."""
    config = ConsumerConfig(
        durable_name="worker", ack_policy=AckPolicy.EXPLICIT, ack_wait=30, filter_subject="ORDERS.*"
    )
    consumer = stream.create_or_update_consumer(config)
    assert_type(consumer, PullConsumer)
    assert_type(consumer.info(), ConsumerInfo)
    for msg in consumer.fetch(10, timeout=1):
        handle(msg)
    try:
        handle(consumer.next(timeout=0.5))
    except TimeoutError:
        log.info("no message")
    with consumer.messages(max_messages=100) as messages:
        assert_type(messages, MessageIterator)
        for msg in messages:
            handle(msg)
    worker = consumer.consume(handle, max_messages=100, stop_after=10)
    assert_type(worker, ConsumeHandle)
    worker.wait_closed(timeout=10)
    ordered = stream.ordered_consumer(filter_subjects="ORDERS.*")
    assert_type(ordered, OrderedConsumer)
    assert_type(ordered.fetch_no_wait(10), list[JetStreamMsg])
    stream.pause_consumer("worker", datetime.now(timezone.utc) + timedelta(minutes=1))
    stream.ordered_consumer(filter_subject="ORDERS.*")  # type: ignore[call-arg]
    consumer.fetch(10, time_out=1)  # type: ignore[call-arg]
    consumer.messages(max_message=1)  # type: ignore[call-arg]


def read_and_write_text(store: ObjectStore) -> None:
    """Open objects as text files."""
    with io.TextIOWrapper(store.open("report.txt"), encoding="utf-8") as reader:
        assert_type(reader.read(), str)
    with io.TextIOWrapper(store.open("copy.txt", "wb"), encoding="utf-8") as writer:
        writer.write("total: 1")


def subscribe(js: JetStream) -> None:
    """Subscribe to a stream by subject."""
    push = js.subscribe("ORDERS.*", cb=handle, durable="push", manual_ack=True)
    assert_type(push, PushSubscription)
    pull = js.pull_subscribe("ORDERS.*", "pull")
    assert_type(pull, PullSubscription)
    assert_type(pull.fetch(10, timeout=1), list[JetStreamMsg])
    push.unsubscribe()


def main() -> int:
    """Run it all."""
    try:
        with connect() as nc:
            js = nc.jetstream(timeout=10)
            core(nc)
            stream = manage(js)
            publish(js)
            consume(stream)
            subscribe(js)
    except APIError as error:
        assert_type(error.err_code, int)
        return 1
    except Error:
        return 2
    return 0
