"""Readers that are collected before their end stop, give messages back, and leave nothing on the server."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator

import pytest
from fixtures.internals import open_subscriptions
from fixtures.server import fill
from fixtures.threads import SCALE, wait_until

from jetstream_sync import Connection, JetStream, Stream, WatchHandle
from jetstream_sync.jetstream.continuous_pull import MessagePuller

LIMIT_S = 10 * SCALE


@pytest.fixture
def bucket(stream_name: str) -> str:
    """A name for a bucket of this test alone."""
    return stream_name


@pytest.fixture
def warned() -> Iterator[Callable[[], list[str]]]:
    """Returns the texts of resource warnings so far."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [str(item.message) for item in caught if item.category is ResourceWarning]


def subscriptions(nc: Connection) -> int:
    return len(open_subscriptions(nc))


def test_a_dropped_iterator_gives_its_messages_back(nc, js, stream, warned):
    """Another reader gets them at once, and no request of the dropped one uses up deliveries."""
    before = subscriptions(nc)
    fill(js, stream.name, 20)
    consumer = stream.create_consumer(durable_name="C", ack_wait=60, max_deliver=8)
    for number in range(5):
        for msg in consumer.messages():
            msg.ack()
            break
        wait_until(lambda: consumer.info().num_waiting == 0, LIMIT_S)
        assert len(warned()) == number + 1
    assert "an iterator over the messages of consumer 'C' was dropped" in warned()[0]
    found = []
    while len(found) < 15:
        messages = consumer.fetch(15 - len(found), timeout=LIMIT_S)
        assert messages
        found += messages
        for msg in messages:
            msg.ack_sync()
    assert len({msg.metadata.stream_seq for msg in found}) == 15
    fill(js, stream.name, 3, first=20)
    assert len(consumer.fetch(3, timeout=LIMIT_S)) == 3
    assert subscriptions(nc) <= before + 2  # for replies to requests and fetches


def test_a_dropped_iterator_keeps_no_message(js, stream):
    """Its buffer is freed without a garbage collection."""
    fill(js, stream.name, 100, size=1000)
    consumer = stream.create_consumer(durable_name="C")
    pullers: list[weakref.ref[MessagePuller]] = []

    def read() -> None:
        messages = consumer.messages()
        pullers.append(weakref.ref(messages._source))  # type: ignore[arg-type]
        messages.next(LIMIT_S)

    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="dropped"):
            read()
        wait_until(lambda: pullers[0]() is None, LIMIT_S)
    finally:
        gc.enable()


def test_a_loop_keeps_its_iterator(js, stream, warned):
    """An iterator that only a loop refers to is not stopped in the middle."""
    fill(js, stream.name, 1000)
    consumer = stream.create_consumer(durable_name="C")
    count = 0
    for msg in consumer.messages(max_messages=50, stop_after=1000):
        msg.ack()
        count += 1
        if count % 300 == 0:
            gc.collect()
    assert count == 1000
    count = 0
    for _ in stream.ordered_consumer().messages(max_messages=50, stop_after=1000):
        count += 1
        if count % 300 == 0:
            gc.collect()
    assert count == 1000
    assert not warned()


def ordered_iterator(js: JetStream, stream: Stream) -> None:
    for _ in js.ordered_consumer(stream.name).messages():
        break


def ordered_fetch(js: JetStream, stream: Stream) -> None:
    assert js.ordered_consumer(stream.name).fetch(1, timeout=LIMIT_S)


def ordered_next(js: JetStream, stream: Stream) -> None:
    js.ordered_consumer(stream.name, deliver_policy="new")


def ordered_push(js: JetStream, stream: Stream) -> None:
    js.subscribe(f"{stream.name}.>", ordered_consumer=True).next_msg(LIMIT_S)


@pytest.mark.parametrize("read", [ordered_iterator, ordered_fetch, ordered_next, ordered_push])
def test_a_dropped_ordered_reader_deletes_its_consumer(nc, js, stream, warned, read):
    """Also one that only fetched, which needs no end and does not warn."""
    fill(js, stream.name, 20)
    before = subscriptions(nc)
    threads = threading.active_count()
    for _ in range(3):
        read(js, stream)
    wait_until(lambda: not stream.consumer_names(), LIMIT_S)
    wait_until(lambda: subscriptions(nc) <= before + 1, LIMIT_S)
    wait_until(lambda: threading.active_count() <= threads + 1, LIMIT_S)
    assert len(warned()) == (0 if read in (ordered_fetch, ordered_next) else 3)


@pytest.mark.parametrize("kind", ["watch", "replica", "objects"])
def test_a_dropped_watch_stops(nc, js, bucket, warned, kind):
    """Watches of keys and objects, and replicas, end on the server, and threads end."""
    kv = js.create_key_value(bucket=bucket, storage="memory")
    kv.put("a", b"1")
    store = js.create_object_store(bucket=bucket, storage="memory")
    before, threads = subscriptions(nc), threading.active_count()

    def read() -> None:
        if kind == "watch":
            for _ in kv.watch():
                break
        elif kind == "replica":
            replica = kv.replica()
            replica.wait_current(LIMIT_S)
            assert replica["a"] == b"1"
        else:
            store.watch()

    read()
    name = f"OBJ_{bucket}" if kind == "objects" else f"KV_{bucket}"
    wait_until(lambda: not js.get_stream(name).consumer_names(), LIMIT_S)
    wait_until(lambda: subscriptions(nc) <= before, LIMIT_S)
    wait_until(lambda: threading.active_count() <= threads + 1, LIMIT_S)
    (text,) = warned()
    assert "dropped while it was open" in text


@pytest.mark.parametrize("kind", ["watch", "replica", "objects"])
def test_a_stopped_watch_with_a_callback_is_freed(js, bucket, kind):
    """Nothing keeps the watch, its callback and the values that a replica had."""
    kv = js.create_key_value(bucket=bucket, storage="memory")
    kv.put("a", b"1")
    store = js.create_object_store(bucket=bucket, storage="memory")

    def read() -> weakref.ref[WatchHandle]:
        if kind == "replica":
            with kv.replica() as replica:
                replica.wait_current(LIMIT_S)
                return weakref.ref(replica._handle)
        with (kv if kind == "watch" else store).watch(cb=lambda _: None) as handle:
            handle.wait_current(LIMIT_S)
        return weakref.ref(handle)

    found = read()

    def is_freed() -> bool:
        gc.collect()
        return found() is None

    wait_until(is_freed, LIMIT_S)


def test_a_push_subscription_with_heartbeats_is_collected(js, stream):
    """The monitor of its heartbeats does not keep it."""
    sub = js.subscribe(f"{stream.name}.>", idle_heartbeat=0.5)
    found = weakref.ref(sub)
    del sub
    wait_until(lambda: found() is None, LIMIT_S)


def test_iterators_have_next(js, stream, bucket):
    """`next()` returns one item, and ends with the iterator."""
    fill(js, stream.name, 3)
    kv = js.create_key_value(bucket=bucket, storage="memory")
    kv.put("a", b"1")
    consumer = stream.create_consumer(durable_name="C")
    for reader in (consumer.messages(), stream.ordered_consumer().messages(), kv.watch()):
        assert isinstance(reader, Iterator)
        assert next(reader) is not None
        reader.stop()
        with pytest.raises(StopIteration):
            next(reader)


@pytest.mark.server(">=2.14")
def test_dropped_transfers_end_their_subscriptions(nc, js, stream_name):
    """A fast publish and a snapshot that are collected before their ends leave no inbox."""
    stream = js.create_stream(name=stream_name, subjects=[stream_name], allow_batched=True)
    js.publish(stream_name, b"x")
    before = subscriptions(nc)
    for _ in range(3):
        js.fast_publish().add(stream_name)
        stream.snapshot()
    gc.collect()
    wait_until(lambda: subscriptions(nc) == before, LIMIT_S)
