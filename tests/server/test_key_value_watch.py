"""Watches of key-value buckets: their options, when they are current, and faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import (
    BucketNotFoundError,
    Connection,
    ConnectionClosedError,
    InvalidNameError,
    InvalidOptionError,
    IteratorClosedError,
    JetStream,
    KeyValue,
    KeyValueEntry,
    OrderedMessages,
    TimeoutError,
)
from jetstream_sync.server import NatsServer


@pytest.fixture
def bucket(stream_name: str) -> str:
    """A name for a bucket of this test alone."""
    return stream_name


@pytest.fixture
def kv(js: JetStream, bucket: str) -> KeyValue:
    """A bucket with a history."""
    return js.create_key_value(bucket=bucket, history=5, storage="memory")


def consumers(js: JetStream, kv: KeyValue) -> list[str]:
    return js.consumer_names(f"KV_{kv.bucket}")


def shown(entries: list[KeyValueEntry]) -> list[tuple[str, str, bytes]]:
    return [(entry.key, str(entry.operation), entry.value) for entry in entries]


def test_initial_entries_and_changes(js, kv):
    """The last entries come first, deletions included, then all changes in order."""
    kv.put("a", b"1")
    kv.put("b", b"2")
    kv.put("a", b"3")
    kv.delete("b")
    with kv.watch() as watch:
        entries = list(watch.initial())
        assert shown(entries) == [("a", "PUT", b"3"), ("b", "DEL", b"")]
        assert [entry.delta for entry in entries] == [1, 0]
        kv.put("c", b"4")
        kv.purge("a")
        assert shown([watch.next(5 * SCALE) for _ in range(2)]) == [
            ("c", "PUT", b"4"),
            ("a", "PURGE", b""),
        ]
    wait_until(lambda: consumers(js, kv) == [])


def test_consumer_of_a_lost_watch(js, kv):
    """The server deletes the consumer of a watch whose program is gone after half a minute."""
    with kv.watch():
        (name,) = consumers(js, kv)
        config = js.get_consumer(f"KV_{kv.bucket}", name).cached_info.config
        assert config.inactive_threshold == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a=3", "b=", "c.d=5"]),
        ({"history": True}, ["a=1", "b=2", "a=3", "b=", "c.d=5"]),
        ({"ignore_deletes": True}, ["a=3", "c.d=5"]),
        ({"meta_only": True}, ["a=", "b=", "c.d="]),
        ({"updates_only": True}, []),
        ({"resume_from_revision": 3}, ["a=3", "b=", "c.d=5"]),
        ({"keys": "a"}, ["a=3"]),
        ({"keys": ["a", "c.>"]}, ["a=3", "c.d=5"]),
        ({"keys": ["c.*", "*.d", "c.d"]}, ["c.d=5"]),
        ({"keys": ["c.>", "*.e"]}, ["c.d=5"]),
        ({"keys": "none"}, []),
    ],
)
def test_options(kv, options, expected):
    """Each option selects the initial entries, and changes follow in any case."""
    kv.put("a", b"1")
    kv.put("b", b"2")
    kv.put("a", b"3")
    kv.delete("b")
    kv.put("c.d", b"5")
    key = "none" if options.get("keys") == "none" else "a" if options.get("keys") == "a" else "c.d"
    with kv.watch(**options) as watch:
        with within(2):
            found = [f"{entry.key}={entry.value.decode()}" for entry in watch.initial()]
        assert found == expected
        assert watch.is_current
        kv.put(key, b"6")
        assert watch.next(5 * SCALE).key == key


def test_invalid_options(kv):
    """Options that exclude each other, and bad patterns, are refused before a request."""
    for options in (
        {"updates_only": True, "history": True},
        {"updates_only": True, "resume_from_revision": 1},
        {"resume_from_revision": 0},
        {"current_cb": print},
        {"cb": "no"},
    ):
        with pytest.raises(InvalidOptionError):
            kv.watch(**options)
    with pytest.raises(InvalidNameError):
        kv.watch("a*")


@pytest.mark.parametrize(
    "options", [{}, {"ignore_deletes": True}, {"keys": "none.>"}, {"updates_only": True}]
)
def test_current_without_entries(kv, options):
    """A watch with nothing to return becomes current within a second, once."""
    if options:
        for key in ("a", "b"):
            kv.put(key, b"1")
            kv.delete(key)
    with kv.watch(**options) as watch:
        with within(1):
            watch.wait_current(5 * SCALE)
        assert list(watch.initial()) == []
    calls: list[str] = []
    handle = kv.watch(cb=print, current_cb=lambda: calls.append("current"), **options)
    with handle:
        with within(1):
            handle.wait_current(5 * SCALE)
        kv.delete("x")
    handle.wait_closed(5 * SCALE)
    assert calls == ["current"]
    assert handle.is_current


def test_iteration_ends_with_stop(kv):
    """A loop on another thread ends when the watch is stopped; `initial()` raises if incomplete."""
    kv.put("a", b"1")
    watch = kv.watch()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: [entry.key for entry in watch])
        wait_until(lambda: watch.is_current)
        watch.stop()
        assert found.result(5 * SCALE) == ["a"]
    again = kv.watch()
    again.stop()
    with pytest.raises(IteratorClosedError):
        list(again.initial())
    with pytest.raises(IteratorClosedError):
        again.wait_current(1)
    assert again.closed


def test_end_of_the_connection(kv, nats_server):
    """A waiting thread gets the reason when the connection is closed."""
    with jetstream_sync.connect(nats_server.url) as nc:
        watch = nc.jetstream().key_value(kv.bucket).watch()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(watch.next, None)
            nc.close()
            with pytest.raises(ConnectionClosedError):
                waiting.result(5 * SCALE)
        with pytest.raises(ConnectionClosedError):
            watch.next(0)


def test_deleted_bucket(js, kv, monkeypatch):
    """Iterations raise the error, and a handle has it."""
    monkeypatch.setattr("jetstream_sync.jetstream.buckets.watch.HEARTBEAT_S", 0.5)
    watch = kv.watch()
    handle = kv.watch(cb=print)
    js.delete_key_value(kv.bucket)
    with pytest.raises(BucketNotFoundError):
        for _ in watch:
            pass
    handle.wait_closed(20 * SCALE)
    assert isinstance(handle.error, BucketNotFoundError)


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("ignore_deletes", [False, True])
def test_markers_lost_in_an_outage(js, bucket, ignore_deletes):
    """A watch that was cut off for longer than markers are kept reports the missing keys."""
    kv = js.create_key_value(bucket=bucket, limit_marker_ttl=1, storage="memory")
    for key in ("a", "b", "c", "d", "other.a"):
        kv.put(key, b"1")
    kv.delete("d")
    with kv.watch("*", ignore_deletes=ignore_deletes) as watch:
        assert len(list(watch.initial())) == (3 if ignore_deletes else 4)
        js.delete_consumer(f"KV_{bucket}", consumers(js, kv)[0])
        for key in ("a", "b", "d", "other.a"):
            kv.purge(key, ttl=1)
        kv.put("b", b"2")
        wait_until(lambda: kv.status().values == 2, 20)
        if not ignore_deletes:
            missing = watch.next(10 * SCALE)
            assert (missing.key, missing.operation, missing.value) == ("a", "PURGE", b"")
            assert missing.revision == kv.status().info.state.last_seq
        assert watch.next(10 * SCALE).value == b"2"
        kv.put("a", b"3")
        assert watch.next(10 * SCALE).value == b"3"
        with pytest.raises(TimeoutError):
            watch.next(0.1)


def test_errors_of_callbacks(nats_server, kv):
    """An error of a callback is reported, and the next entry follows."""
    errors: list[Exception] = []
    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as nc:
        mine = nc.jetstream().key_value(kv.bucket)
        seen: list[str] = []

        def fail(entry: KeyValueEntry) -> None:
            seen.append(entry.key)
            raise RuntimeError(entry.key)

        def fail_current() -> None:
            raise RuntimeError("current")

        mine.put("a", b"")
        with mine.watch(cb=fail, current_cb=fail_current) as handle:
            handle.wait_current(5 * SCALE)
            mine.put("b", b"")
            wait_until(lambda: len(errors) == 3)
    assert [str(error) for error in errors] == ["a", "current", "b"]
    assert seen == ["a", "b"]


def test_callback_uses_the_bucket(kv):
    """A callback can read and write the bucket, and stop its own watch."""
    copied = threading.Event()

    def copy(entry: KeyValueEntry) -> None:
        if entry.key == "to":
            handle.stop()
            copied.set()
        else:
            kv.put("to", kv.get(entry.key).value)

    handle = kv.watch(cb=copy)
    kv.put("from", b"1")
    assert copied.wait(5 * SCALE)
    handle.wait_closed(5 * SCALE)
    assert kv["to"] == b"1"


# --- restarts -----------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server of this test alone that syncs each stored message to disk."""
    with NatsServer(config="jetstream { sync_interval: always }\n") as starting:
        yield starting


@pytest.fixture
def alone(server: NatsServer) -> Iterator[Connection]:
    with jetstream_sync.connect(
        server.url, reconnect_time_wait=0.02, max_reconnect_attempts=-1
    ) as nc:
        yield nc


def kill(server: NatsServer, nc: Connection) -> None:
    """Kill the server with -9, start it again, and return when the connection is open."""
    before = nc.stats["reconnects"]
    server.kill()
    server.start()
    wait_until(lambda: nc.is_connected and nc.stats["reconnects"] > before, 10)


def test_killed_server_afterwards(server, alone):
    """All changes before and after the restart arrive, and one consumer is left."""
    js = alone.jetstream(timeout=10 * SCALE)
    kv = js.create_key_value(bucket="B", history=3)
    seen: list[bytes] = []
    current: list[int] = []
    handle = kv.watch(
        # A consumer whose deletion was lost with the server is deleted after this time.
        inactive_threshold=2,
        cb=lambda entry: seen.append(entry.value),
        current_cb=lambda: current.append(len(seen)),
    )
    handle.wait_current(5 * SCALE)
    expected = []
    for number in range(3):
        expected.append(b"%d" % number)
        kv.put("a", expected[-1])
        if number == 1:
            # Written after the restart: the watch has to read them later.
            wait_until(lambda: len(seen) == 2)
        kill(server, alone)
    wait_until(lambda: seen == expected, 20)
    assert current == [0]
    wait_until(lambda: len(consumers(js, kv)) == 1, 10)
    handle.stop()
    handle.wait_closed(5 * SCALE)
    assert handle.error is None
    wait_until(lambda: consumers(js, kv) == [])


_NO_PULLS = """
accounts: {
  A: {
    jetstream: enabled, users: [{user: a, password: a}],
    exports: [{service: "$JS.API.>", response: stream}]
  }
  B: {
    users: [{user: b, password: b}],
    imports: [
      {service: {account: A, subject: "$JS.API.INFO"}}
      {service: {account: A, subject: "$JS.API.STREAM.>"}}
      {service: {account: A, subject: "$JS.API.CONSUMER.CREATE.>"}}
      {service: {account: A, subject: "$JS.API.CONSUMER.DELETE.>"}}
      {service: {account: A, subject: "$JS.API.CONSUMER.INFO.>"}}
    ]
  }
}
"""


def poll(messages: OrderedMessages) -> None:
    """Call ``next`` with a short timeout for half a second."""
    end = time.monotonic() + 0.5
    with messages:
        while time.monotonic() < end:
            with suppress(TimeoutError):
                messages.next(timeout=0.01)
        messages.next(timeout=0.01)


def next_of(messages: OrderedMessages) -> None:
    with messages:
        messages.next(timeout=0.6)


def test_consumers_that_end_at_once():
    """If no consumer can be pulled from, the calls end in time and create few consumers."""
    with (
        NatsServer(config=_NO_PULLS) as server,
        jetstream_sync.connect(server.url, user="a", password="a") as owner,
        jetstream_sync.connect(server.url, user="b", password="b") as user,
    ):
        owner.jetstream().create_key_value(bucket="B").put("a", b"1")
        creations = owner.subscribe("$JS.API.CONSUMER.CREATE.>")
        owner.flush()
        kv = user.jetstream(timeout=0.6).key_value("B")
        ordered = user.jetstream().ordered_consumer("KV_B")
        calls = (
            kv.keys,
            lambda: kv.history("a"),
            lambda: kv.purge_deletes(0),
            lambda: next_of(ordered.messages()),
            lambda: poll(ordered.messages()),
        )
        for call in calls:
            with within(4), pytest.raises(TimeoutError):
                call()
            user.flush()
            owner.flush()
            created = [creations.next_msg().subject for _ in range(creations.pending_msgs)]
            assert 1 <= len(created) <= 8


def test_a_ctrl_c_before_the_thread_of_a_callback_starts_stops_the_watch(js, kv, monkeypatch):
    """Nothing stays at the server."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jetstream_sync.jetstream.buckets.watch._WatchSource", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kv.watch("a", cb=print)
    wait_until(lambda: not consumers(js, kv), 10)
