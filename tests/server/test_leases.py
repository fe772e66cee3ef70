"""Leases of buffered messages: expired ones are dropped, renewed ones are returned."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    AckPolicy,
    ConsumerConfig,
    InvalidOptionError,
    JetStream,
    JetStreamMsg,
    MessageIterator,
    PullConsumer,
    Stream,
)


def fill(js: JetStream, stream: Stream, count: int) -> None:
    """Store messages with their numbers as payloads."""
    for number in range(count):
        js.publish_async(f"{stream.cached_info.config.name}.a", b"%d" % number)
    js.publish_async_completed(10)


class Handler:
    """A slow handler that counts the deliveries of each message."""

    def __init__(self, seconds: float) -> None:
        self.runs: Counter[int] = Counter()
        self._seconds = seconds

    def __call__(self, msg: JetStreamMsg) -> None:
        self.runs[int(msg.data)] += 1
        time.sleep(self._seconds)
        msg.ack()

    def once(self, count: int) -> bool:
        """Return whether this number of messages was handled; fail if one was handled twice."""
        assert max(self.runs.values(), default=0) <= 1, self.runs
        return len(self.runs) == count


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["messages", "consume", "next_msg", "cb"])
def test_a_slow_handler_with_a_full_buffer_gets_each_message_once(way, js, stream):
    """A message whose lease expired in the buffer is dropped, and handled when redelivered."""
    count = 12
    fill(js, stream, count)
    handle = Handler(0.1 * SCALE)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(handle_all, way, js, stream, handle, count)
        wait_until(lambda: handle.once(count), 10)
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 0)
        # All other messages are handled before this one.
        js.publish(f"{stream.cached_info.config.name}.a", b"%d" % count)
        done.result(20)
    assert handle.once(count + 1)


def handle_all(way: str, js: JetStream, stream: Stream, handle: Handler, count: int) -> None:
    """Handle this number of messages, and the next one, with a lease as long as five of them take."""
    config = ConsumerConfig(ack_wait=0.5 * SCALE)
    subject = f"{stream.cached_info.config.name}.a"
    if way == "consume":
        with stream.create_consumer(durable_name="C", ack_wait=0.5 * SCALE).consume(handle):
            wait_until(lambda: handle.once(count + 1), 15)
    elif way == "messages":
        consumer = stream.create_consumer(durable_name="C", ack_wait=0.5 * SCALE)
        with consumer.messages(stop_after=count + 1) as messages:
            for msg in messages:
                handle(msg)
    elif way == "next_msg":
        sub = js.subscribe(subject, durable="C", config=config)
        while not handle.once(count + 1):
            handle(sub.next_msg(10))
    else:
        js.subscribe(subject, durable="C", cb=handle, config=config, manual_ack=True)
        wait_until(lambda: handle.once(count + 1), 15)


def start(stream: Stream, js: JetStream, count: int = 2, **config: Any) -> PullConsumer:
    """Return a consumer of a stream with this number of messages."""
    fill(js, stream, count)
    return stream.create_consumer(durable_name="C", **config)


def wait_for_buffered(messages: MessageIterator, count: int) -> None:
    """Wait until this number of deliveries is in an iterator's buffer."""
    wait_until(lambda: len(messages._source._buffer_state()[0]) >= count)


def deliveries(messages: MessageIterator, count: int) -> list[tuple[int, int]]:
    """Read messages; return the stream sequence and delivery count of each."""
    got = []
    for _ in range(count):
        msg = messages.next(5)
        got.append((msg.metadata.stream_seq, msg.metadata.num_delivered))
        msg.ack()
    return got


def test_a_lease_that_has_become_longer_is_noticed(js, stream):
    """Before a message is dropped, the config is read again: `ack_wait` may have changed."""
    consumer = start(stream, js, ack_wait=0.5)
    with consumer.messages() as messages:
        wait_for_buffered(messages, 2)
        stream.update_consumer(durable_name="C", ack_wait=30.0)
        time.sleep(0.6)
        assert deliveries(messages, 2) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("policy", [AckPolicy.ALL, AckPolicy.NONE])
def test_ack_policies_all_and_none_drop_no_message(js, stream, policy):
    """With ack policy all a later ack covers a dropped message; with none there is no lease."""
    consumer = start(stream, js, ack_policy=policy, ack_wait=0.2)
    with consumer.messages(stop_after=2) as messages:
        wait_for_buffered(messages, 2)
        time.sleep(0.3)
        assert deliveries(messages, 2) == [(1, 1), (2, 1)]


def test_each_delivery_has_the_lease_of_its_step(js, stream):
    """The first delivery uses the first step of the back-off, the second one the second."""
    consumer = start(stream, js, backoff=[0.3, 30.0], max_deliver=5)
    with consumer.messages() as messages:
        wait_for_buffered(messages, 4)  # both deliveries of both messages
        time.sleep(0.4)
        assert deliveries(messages, 2) == [(1, 2), (2, 2)]


def test_a_message_refused_by_nak_is_returned_again(js, stream):
    """A message that is redelivered after a nak is not a late copy."""
    consumer = start(stream, js, count=1, ack_wait=0.3)
    with consumer.messages() as messages:
        messages.next(5).nak(delay=0.5)
        assert deliveries(messages, 1) == [(1, 2)]


def test_a_message_without_metadata_has_no_lease(nc, js, stream):
    """A message that was published to the deliver subject directly is returned at any time."""
    fill(js, stream, 1)
    subject = f"{stream.cached_info.config.name}.a"
    with js.subscribe(subject, durable="C", config=ConsumerConfig(ack_wait=0.2)) as sub:
        sub.next_msg(5).ack_sync(5)
        for payload in (b"one", b"two", b"three"):
            time.sleep(0.3)
            nc.publish(sub.subject, payload)
            assert sub.next_msg(5).data == payload


# --- renewing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["messages", "consume"])
def test_renewed_leases_last_until_a_slow_handler_is_done(js, stream, way):
    """With auto_in_progress no message is redelivered, neither a buffered nor a handled one."""
    consumer = start(stream, js, count=2, ack_wait=0.5)
    seen = []

    def handle(msg: JetStreamMsg) -> None:
        time.sleep(0.8)
        seen.append((msg.metadata.stream_seq, msg.metadata.num_delivered))
        msg.ack()

    if way == "consume":
        with consumer.consume(handle, auto_in_progress=True):
            wait_until(lambda: len(seen) == 2)
    else:
        with consumer.messages(stop_after=2, auto_in_progress=True) as messages:
            for msg in messages:
                handle(msg)
    assert seen == [(1, 1), (2, 1)]
    wait_until(lambda: consumer.info().num_ack_pending == 0)


def test_a_callback_that_outlives_stop_keeps_its_message(js, stream):
    """`ConsumeHandle.stop` ends the renewal of buffered messages only."""
    consumer = start(stream, js, ack_wait=0.5)
    begun, go_on = threading.Event(), threading.Event()

    def handle(msg: JetStreamMsg) -> None:
        begun.set()
        assert go_on.wait(20)
        msg.ack()

    handle_of_it = consumer.consume(handle, auto_in_progress=True)
    assert begun.wait(20)
    handle_of_it.stop()
    other = consumer.next(10)  # the buffered messages
    assert other.metadata.stream_seq == 2
    other.ack()
    assert consumer.fetch(1, timeout=0.8) == []
    go_on.set()
    handle_of_it.wait_closed(20)
    wait_until(lambda: consumer.info().num_ack_pending == 0)


@pytest.mark.parametrize("how", ["asked", "ended", "stopped", "dropped", "hour"])
def test_an_abandoned_message_is_redelivered(js, stream, monkeypatch, how):
    """Renewal ends when the thread requests another message or ends, and with the iterator."""
    if how == "hour":
        monkeypatch.setattr("jetstream_sync.jetstream.leases._MAX_RENEWED_S", 0.5)
    consumer = start(stream, js, count=1, ack_wait=0.5)
    messages: MessageIterator | None = consumer.messages(max_messages=1, auto_in_progress=True)
    assert messages is not None
    if how == "ended":
        thread = threading.Thread(target=messages.next)
        thread.start()
        thread.join()
    else:
        messages.next(5)
    if how == "asked":
        assert deliveries(messages, 1) == [(1, 2)]
        messages.stop()
        return
    # Another delivery would go to the iterator's own request.
    messages._source._inbox.close()
    if how == "stopped":
        messages.stop()
    elif how == "dropped":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            messages = None
            gc.collect()
    assert consumer.next(10).metadata.num_delivered == 2
    if messages is not None:
        messages.stop()


def test_renewing_ends_with_the_connection(nats_server, stream):
    """The timer of an iterator that was not stopped ends with its connection."""
    with jetstream_sync.connect(nats_server.url) as nc:
        name = stream.cached_info.config.name
        consumer = nc.jetstream().get_stream(name).create_consumer(durable_name="C")
        messages = consumer.messages(auto_in_progress=True)
        assert [t for t in threading.enumerate() if t.name == "nats-leases-C"]
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "nats-leases-C"])
    assert messages.closed


def test_an_ordered_consumer_renews_nothing(stream):
    """The option is refused for ordered consumers, which acknowledge nothing."""
    with pytest.raises(InvalidOptionError, match="auto_in_progress"):
        stream.ordered_consumer().messages(auto_in_progress=True)
