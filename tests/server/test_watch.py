"""The watch engine of buckets: when it is current, and how it survives faults."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from fixtures.internals import api_of
from fixtures.threads import SCALE, within

from jetstream_sync import DeliverPolicy, JetStream, Stream, errors
from jetstream_sync.jetstream.buckets.watch import Watch
from jetstream_sync.protocol.parser import RawMessage


def gone() -> errors.Error:
    """Return the error for a stream that does not exist."""
    return errors.NotFoundError(404, 10059, "gone")


def entry_of(delivery: RawMessage) -> tuple[str, bytes]:
    """Create the entry of a message: its last token and its payload."""
    return delivery[0].decode().rpartition(".")[2], delivery[3]


@pytest.fixture
def store(js: JetStream, stream: Stream) -> Stream:
    """A stream that keeps five messages per subject."""
    return js.update_stream(replace(stream.cached_info.config, max_msgs_per_subject=5))


def watch(js: JetStream, stream: Stream, pattern: str = ">", **options: Any) -> Watch[Any]:
    """Watch the last message of each subject."""
    options.setdefault("deliver_policy", DeliverPolicy.LAST_PER_SUBJECT)
    options["filter_subjects"] = f"{stream.name}.{pattern}"
    return Watch(api_of(js), stream.name, options, entry_of, gone)


def put(js: JetStream, stream: Stream, **values: int) -> None:
    """Store a message on each subject."""
    for name, value in values.items():
        js.publish(f"{stream.name}.{name}", b"%d" % value)


def test_waiting_buffers_the_entries(js, store):
    """`wait_current()` keeps what it receives for the next calls."""
    put(js, store, a=1, b=2, c=3)
    with watch(js, store) as watching:
        watching.wait_current(10 * SCALE)
        assert watching.next(0) == ("a", b"1")
        assert [key for key, _ in watching.initial()] == ["b", "c"]


def test_a_thread_that_reads_on_does_not_delay_those_that_wait_until_current(js, store):
    """They return when the last entry was taken, though the other thread waits for the next change."""
    put(js, store, a=1, b=2)
    last, go = Event(), Event()

    def make(delivery: RawMessage) -> tuple[str, bytes]:
        if entry_of(delivery)[0] == "b":
            last.set()
            go.wait(20 * SCALE)
        return entry_of(delivery)

    options = {"deliver_policy": DeliverPolicy.ALL, "filter_subjects": f"{store.name}.>"}
    with (
        ThreadPoolExecutor(5) as pool,
        Watch(api_of(js), store.name, options, make, gone) as watching,
    ):
        reader = pool.submit(list, watching)
        assert last.wait(10 * SCALE)
        waiters = [pool.submit(watching.wait_current, 20 * SCALE) for _ in range(3)]
        waiters.append(pool.submit(lambda: list(watching.initial(20 * SCALE))))
        go.set()
        for waiter in waiters:
            waiter.result(10 * SCALE)
        with within(0.5):
            watching.wait_current()
            assert list(watching.initial()) == []
        watching.stop()
        assert len(reader.result(10 * SCALE)) == 2


@pytest.mark.parametrize("kept", [1, 5])
@pytest.mark.parametrize("policy", [DeliverPolicy.LAST_PER_SUBJECT, DeliverPolicy.ALL])
def test_replaced_before_delivery(js, store, policy, kept):
    """A key that is replaced before its delivery is not left out when new keys appear before it."""
    js.update_stream(replace(store.cached_info.config, max_msgs_per_subject=kept))
    names = [f"k{number}" for number in range(2000)]
    for name in names:
        js.publish_async(f"{store.name}.{name}", b"")
    js.publish_async_completed(30 * SCALE)
    with watch(js, store, deliver_policy=policy) as watching:
        found = {watching.next(10 * SCALE)[0]}
        for number in range(100):
            js.publish_async(f"{store.name}.new{number}", b"")
        for _ in range(kept):
            for name in names[1500:1600]:
                js.publish_async(f"{store.name}.{name}", b"")
        js.publish_async_completed(30 * SCALE)
        found.update(key for key, _ in watching.initial(10 * SCALE))
    assert found.issuperset(names)


def test_messages_removed_before_their_delivery(js, store):
    """A watch becomes current although fewer messages arrive than the server counted."""
    names = {f"k{number}": number for number in range(3000)}
    for name in names:
        js.publish_async(f"{store.name}.{name}", b"")
    js.publish_async_completed(30 * SCALE)
    with watch(js, store) as watching:
        first = watching.next(10 * SCALE)
        store.purge()
        watching.wait_current(20 * SCALE)
        assert first[0] == "k0"
        assert len(list(watching.initial())) < len(names)


@pytest.fixture
def quick(monkeypatch):
    """Use short heartbeats: a server may drop a request that arrives while its consumer is deleted."""
    monkeypatch.setattr("jetstream_sync.jetstream.buckets.watch.HEARTBEAT_S", 0.5)


@pytest.mark.usefixtures("quick")
def test_lost_consumer_before_current(js, store):
    """After a failure in the initial phase no older revision and no entry is repeated."""
    for value in range(3):
        for key in range(1500):
            js.publish_async(f"{store.name}.k{key}", b"%d" % value)
    js.publish_async_completed(30 * SCALE)
    with watch(js, store) as watching:
        found = [watching.next(10 * SCALE) for _ in range(3)]
        (name,) = store.consumer_names()
        store.delete_consumer(name)
        put(js, store, k1=7)
        found += list(watching.initial())
        assert [item for item in found if item[0] == "k1"] in (
            [("k1", b"2"), ("k1", b"7")],
            [("k1", b"7")],
        )
        others = [item for item in found if item[0] != "k1"]
        assert sorted(others) == sorted((f"k{key}", b"2") for key in range(1500) if key != 1)


@pytest.mark.usefixtures("quick")
def test_lost_consumer_afterwards(js, store):
    """After a failure of a current watch all changes arrive, also several of one subject."""
    with watch(js, store) as watching:
        assert watching.is_current
        (name,) = store.consumer_names()
        store.delete_consumer(name)
        put(js, store, a=1)
        put(js, store, a=2)
        assert [watching.next(10 * SCALE) for _ in range(2)] == [("a", b"1"), ("a", b"2")]
        assert len(store.consumer_names()) == 1
