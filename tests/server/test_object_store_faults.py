"""Object stores when something fails: servers, links, permissions, Ctrl-C."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.internals import core_of
from fixtures.server import paused
from fixtures.threads import SCALE, ClockAhead, wait_until, within

import jetstream_sync
from jetstream_sync import (
    JetStream,
    ObjectMeta,
    ObjectMetaOptions,
    ObjectStore,
    PubAckFuture,
    errors,
)
from jetstream_sync.jetstream.buckets import object_store
from jetstream_sync.server import NatsServer

#: A number of opcodes that is not reached: the first pass only counts.
NEVER = 10**9
DATA = os.urandom(4_000_000)


def small(name: str, size: int = 1000) -> ObjectMeta:
    """Return the meta of an object with small chunks."""
    return ObjectMeta(name=name, options=ObjectMetaOptions(max_chunk_size=size))


def check_no_orphans(js: JetStream, store: ObjectStore) -> None:
    """Check that the bucket has the infos and the chunks of its objects only."""
    infos = store.list(deleted=True)
    stream = js.get_stream(f"OBJ_{store.bucket}")
    expected = len(infos) + sum(info.chunks for info in infos)
    wait_until(lambda: stream.info().state.messages == expected)
    for info in infos:
        if not info.deleted:
            assert len(store.get_bytes(info.name)) == info.size


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_server_killed_in_put(alone, fresh_server, share):
    """The put fails with a typed error; after the next one there are no orphaned chunks."""
    js = alone.jetstream()
    store = js.create_object_store(bucket="FILES")
    store.put(small("a"), b"old" * 1000)

    def source() -> Iterator[bytes]:
        kill_at = int(share * len(DATA)) // 1000 * 1000
        for start in range(0, len(DATA), 1000):
            if start == kill_at - 20_000:
                fresh_server.pause()  # chunks are in flight
            elif start == kill_at:
                fresh_server.kill()
                fresh_server.start()
            yield DATA[start : start + 1000]

    with pytest.raises(errors.ConnectionLostError):
        store.put(small("a"), source(), timeout=10 * SCALE)
    assert store.get_bytes("a") == b"old" * 1000
    store.put(small("a"), b"new" * 1000)
    assert store.get_bytes("a") == b"new" * 1000
    check_no_orphans(js, store)


def test_server_restarted_between_chunks(alone, fresh_server):
    """A put continues after a restart without chunks in flight; lost chunks are detected."""
    js = alone.jetstream()
    store = js.create_object_store(bucket="FILES")

    def source(lose: bool) -> Iterator[bytes]:
        yield DATA[:10_000]
        js.publish_async_completed(10 * SCALE)
        reconnects = alone.stats["reconnects"]
        fresh_server.kill()
        fresh_server.start()
        wait_until(lambda: alone.stats["reconnects"] > reconnects and alone.is_connected)
        if lose:
            stream = js.get_stream("OBJ_FILES")
            stream.delete_msg(stream.info().state.last_seq)
        yield DATA[10_000:20_000]

    store.put(small("a"), source(lose=False), timeout=10 * SCALE)
    assert store.get_bytes("a") == DATA[:20_000]
    with pytest.raises(errors.ObjectIncompleteError, match="19 of 20"):
        store.put(small("a"), source(lose=True), timeout=10 * SCALE)
    assert store.get_bytes("a") == DATA[:20_000]
    check_no_orphans(js, store)


@pytest.mark.parametrize("how", ["purged", "created again"])
def test_chunks_that_vanish_during_an_upload(js, how):
    """An object whose first chunks are not stored any more is not stored, and the earlier one stays."""
    store = js.create_object_store(bucket="B", storage="memory")
    with pytest.raises(errors.ObjectIncompleteError), store.open("a", "wb") as file:
        file.write(bytes(300_000))
        stream = js.get_stream("OBJ_B")
        wait_until(lambda: stream.info().state.messages == 2)
        if how == "purged":
            stream.purge()
        else:
            js.delete_object_store("B")
            js.create_object_store(bucket="B", storage="memory")
            for number in range(3):
                js.object_store("B").put(f"other {number}", b"1")
    assert [info.name for info in js.object_store("B").list() if info.name == "a"] == []


@pytest.mark.parametrize("stored", [False, True], ids=["lost", "stored"])
def test_server_killed_while_the_info_is_stored(alone, fresh_server, monkeypatch, stored):
    """A put whose last acknowledgement is lost is completed with the server's next reply."""
    js = alone.jetstream()
    store = js.create_object_store(bucket="FILES")
    store.put(small("a"), b"old" * 1000)
    publish = store._bucket.publish_info
    restarted = False

    def killing(*args: Any) -> PubAckFuture:
        nonlocal restarted
        if restarted:
            return publish(*args)
        restarted = True
        if stored:
            publish(*args).result(10 * SCALE)
        fresh_server.kill()
        future = publish(*args)
        fresh_server.start()
        return future

    monkeypatch.setattr(store._bucket, "publish_info", killing)
    store.put(small("a"), b"new" * 1000, timeout=10 * SCALE)
    assert store.get_bytes("a") == b"new" * 1000
    check_no_orphans(js, store)


def test_server_killed_in_get(alone, fresh_server):
    """A get continues after a restart of the server."""
    store = alone.jetstream().create_object_store(bucket="FILES")
    store.put(small("a", 50_000), DATA)
    with store.open("a", timeout=30 * SCALE) as file:
        first = file.read(10_000)
        fresh_server.kill()
        fresh_server.start()
        assert first + file.read() == DATA


def test_server_that_does_not_answer(alone, fresh_server, tmp_path):
    """Without progress for the timeout, put and get fail, also if the chunks cannot be purged yet."""
    js = alone.jetstream()
    store = js.create_object_store(bucket="FILES", storage="memory")
    store.put(small("a", 100_000), 3 * DATA)  # more than is read ahead

    def source() -> Iterator[bytes]:
        yield DATA[:20_000]
        fresh_server.pause()
        yield DATA[:20_000]

    try:  # the source suspends the server
        with within(1.2), pytest.raises(errors.TimeoutError):
            store.put(small("b"), source(), timeout=0.3)
        with within(5), pytest.raises(errors.TimeoutError):
            store.info("a", timeout=0.3)
    finally:
        fresh_server.resume()
    with store.open("a", timeout=0.3) as file:
        file.read(1)
        with paused(fresh_server), within(5), pytest.raises(errors.TimeoutError):
            file.read()
    with pytest.raises(errors.TimeoutError), paused(fresh_server):
        store.get_file("a", tmp_path / "a", timeout=0.3)
    assert list(tmp_path.iterdir()) == []
    store.purge_orphans(older_than=0)
    check_no_orphans(js, store)


def test_slow_source(js):
    """A source that pauses for longer than the timeout does not end the put."""
    store = js.create_object_store(bucket="FILES", storage="memory")

    def source() -> Iterator[bytes]:
        for _ in range(3):
            time.sleep(0.15)
            yield b"x" * 1000

    assert store.put(small("a"), source(), timeout=0.1 * SCALE).chunks == 3


def test_connection_closed_meanwhile(nats_server, js):
    """Closing the connection ends a put and a get at once, with the reason."""
    shared = js.create_object_store(bucket="FILES", storage="memory")
    shared.put(small("a", 100_000), 3 * DATA)  # more than is read ahead
    nc = jetstream_sync.connect(nats_server.url)
    store = nc.jetstream().object_store("FILES")
    file = store.open("a")
    file.read(1)

    def source() -> Iterator[bytes]:
        yield DATA[:5000]
        closer = threading.Thread(target=nc.close)
        closer.start()
        closer.join()
        yield DATA

    with within(5), pytest.raises(errors.ConnectionClosedError):
        store.put(small("b"), source())
    with within(5), pytest.raises(errors.ConnectionClosedError):
        file.read()
    file.close()
    for call in (store.list, store.watch, store.status, lambda: store.info("a")):
        with pytest.raises(errors.ConnectionClosedError):
            call()


DENIED = """authorization { users: [
    { user: admin, password: a }
    { user: reader, password: r, permissions: { publish: { deny: "$O.>" } } }
    { user: deaf, password: d, permissions: { publish: { deny: "$JS.API.STREAM.>" } } }
    { user: idle, password: i, permissions: { publish: { deny: "$JS.API.CONSUMER.>" } } }
    { user: asker, password: k, permissions: { publish: { deny: "$JS.API.DIRECT.>" } } }
] }"""


def test_small_object_without_direct_gets():
    """A user who may ask the leader only reads a small object, too."""
    with (
        NatsServer(name="denied", config=DENIED) as server,
        jetstream_sync.connect(server.url, user="admin", password="a") as admin,
        jetstream_sync.connect(
            server.url, user="asker", password="k", error_cb=lambda _: None
        ) as asking,
    ):
        admin.jetstream().create_object_store(bucket="FILES").put("a", b"x" * 300_000)
        with within(5):
            assert asking.jetstream().object_store("FILES").get_bytes("a") == b"x" * 300_000


def test_permissions():
    """An action that the user's permissions forbid is an error at once, and nothing is left."""
    with (
        NatsServer(name="denied", config=DENIED) as server,
        jetstream_sync.connect(server.url, user="admin", password="a") as admin,
        jetstream_sync.connect(
            server.url, user="reader", password="r", error_cb=lambda _: None
        ) as reading,
        jetstream_sync.connect(
            server.url, user="deaf", password="d", error_cb=lambda _: None
        ) as deaf,
        jetstream_sync.connect(
            server.url, user="idle", password="i", error_cb=lambda _: None
        ) as idle,
    ):
        js = admin.jetstream()
        shared = js.create_object_store(bucket="FILES", storage="memory")
        shared.put(small("a"), b"x" * 5000)
        reader = reading.jetstream().object_store("FILES")
        assert reader.get_bytes("a") == b"x" * 5000
        idler = idle.jetstream().object_store("FILES")
        for call in (
            lambda: reader.put(small("b"), b"x" * 5000),
            lambda: reader.put("b", b""),
            lambda: reader.delete("a"),
            lambda: deaf.jetstream().object_store("FILES"),
            idler.list,
            idler.watch,
            lambda: idler.get_bytes("a"),
        ):
            with within(5), pytest.raises(errors.PermissionsError):
                call()
        check_no_orphans(js, shared)


@pytest.mark.matrix
@sends_ctrl_c
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", ["put", "replace", "delete", "get_file"])
def test_ctrl_c_anywhere(js, tmp_path, call):
    """Wherever a Ctrl-C interrupts, there is one whole object, and no partial file."""
    store = js.create_object_store(bucket="FILES", storage="memory")
    old, new = b"o" * 25, b"n" * 35
    calls = {
        "put": lambda: store.put(small("new", 10), new),
        "replace": lambda: store.put(small("a", 10), new),
        "delete": lambda: store.delete("a"),
        "get_file": lambda: store.get_file("a", tmp_path / "a"),
    }
    store.put(small("a", 10), old)
    interrupted(calls[call], NEVER)
    moment, struck = 1, 0
    while True:
        store.put(small("a", 10), old)
        if not interrupted(calls[call], moment):
            break
        struck += 1
        moment += 1 + struck // 4  # the first opcodes, then fewer and fewer
        for path in tmp_path.iterdir():
            assert path.name == "a"
            assert path.read_bytes() == old
        try:
            assert store.get_bytes("a") in (old, new)
        except errors.ObjectDeletedError:
            assert call == "delete"
    assert struck > 15
    store.purge_orphans(older_than=0)  # removes what an interrupted purge left
    check_no_orphans(js, store)


def test_errors_of_a_forgotten_file(js):
    """A writable file that is collected after the connection was closed raises nothing."""
    store = js.create_object_store(bucket="FILES", storage="memory")
    with jetstream_sync.connect(core_of(js).address.url) as nc:
        file = nc.jetstream().object_store("FILES").open("a", "wb", meta=small("a"))
        file.write(b"x" * 5000)
    with pytest.raises(errors.Error):
        file.close()
    assert store.list() == []


def test_chunks_of_killed_writers_are_deleted(js):
    """Those of objects, and those of uploads that may go on, stay."""
    store = js.create_object_store(bucket="KILLED", storage="memory")
    store.put("kept", b"k" * 300_000)
    for number in range(4):
        js.publish(f"$O.{store.bucket}.C.killed{number % 2}", b"chunk")
    with store.open("open", "wb") as upload:
        upload.write(b"u" * 300_000)
        assert store.purge_orphans() == 0
        assert store.purge_orphans(older_than=60) == 0
        time.sleep(1.1)
        js.publish(f"$O.{store.bucket}.C.killed1", b"chunk")
        upload.write(b"u" * 300_000)
        assert store.purge_orphans(older_than=1) == 2
    assert store.purge_orphans(older_than=0) == 3
    assert store.purge_orphans(older_than=0) == 0
    assert (len(store.get_bytes("kept")), len(store.get_bytes("open"))) == (300_000, 600_000)
    with pytest.raises(errors.InvalidOptionError):
        store.purge_orphans(older_than="1d")


def test_the_age_of_chunks_is_measured_by_the_clock_of_the_server(js, monkeypatch):
    """An upload that goes on keeps its chunks if the clock of this computer is ahead."""
    monkeypatch.setattr(object_store, "datetime", ClockAhead)
    store = js.create_object_store(bucket="AHEAD", storage="memory")
    with store.open("open", "wb") as upload:
        upload.write(b"u" * 300_000)
        assert store.purge_orphans(older_than=60) == 0
    assert len(store.get_bytes("open")) == 300_000
