"""Copies and watches of buckets that were deleted and created again, lost, or restored to an old copy."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest
from fixtures.faults import FaultProxy
from fixtures.server import Errors
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import APICall, Connection, JetStream, KeyValue, KeyValueEntry, Watch
from jetstream_sync.errors import Error, StreamRecreatedError, TimeoutError
from jetstream_sync.net.clock import Deadline
from jetstream_sync.server import NatsServer

Writer: TypeAlias = Callable[[KeyValue], object]
LIMIT_S = 10 * SCALE


def create(js: JetStream, **options: object) -> KeyValue:
    """Create the bucket, also when the server is still deleting the files of the old one."""
    created: list[KeyValue] = []

    def is_created() -> bool:
        try:
            created.append(js.create_key_value(bucket="B", **options))  # type: ignore[arg-type]
        except Error:
            return False
        return True

    wait_until(is_created, LIMIT_S)
    return created[0]


@pytest.fixture
def server(fresh_server: NatsServer) -> NatsServer:
    """A server with a bucket of some keys, of which there is a copy, and later changes."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        kv = create(nc.jetstream(timeout=LIMIT_S), history=3)
        for key in ("a", "b", "c", "d"):
            kv.put(key, b"old")
        kv.delete("d")
    fresh_server.stop()
    shutil.copytree(fresh_server.store_dir, f"{fresh_server.store_dir}-copy")
    fresh_server.start()
    with jetstream_sync.connect(fresh_server.url) as nc:
        kv = nc.jetstream(timeout=LIMIT_S).key_value("B")
        for key in ("a", "e", "f"):
            kv.put(key, b"later")
    return fresh_server


@pytest.fixture
def nc(server: NatsServer, errors: Errors) -> Iterator[Connection]:
    with jetstream_sync.connect(
        server.url, reconnect_time_wait=0.05, error_cb=errors.append
    ) as connection:
        yield connection
    shutil.rmtree(f"{server.store_dir}-copy")


@pytest.fixture
def kv(nc: Connection) -> KeyValue:
    return nc.jetstream(timeout=LIMIT_S).key_value("B")


def created_again(server: NatsServer, write: Writer) -> None:
    with jetstream_sync.connect(server.url) as other:
        js = other.jetstream(timeout=LIMIT_S)
        js.delete_key_value("B")
        write(create(js, history=3))


def lost(server: NatsServer, write: Writer) -> None:
    """A bucket in memory is lost with its server, and another program creates it first."""
    server.kill()
    shutil.rmtree(server.store_dir)
    server.start()
    with jetstream_sync.connect(server.url) as other:
        write(create(other.jetstream(timeout=LIMIT_S), storage="memory"))


def restored(server: NatsServer, write: Writer) -> None:
    server.stop()
    shutil.rmtree(server.store_dir)
    shutil.copytree(f"{server.store_dir}-copy", server.store_dir)
    server.start()
    with jetstream_sync.connect(server.url) as other:
        write(other.jetstream(timeout=LIMIT_S).key_value("B"))


def few(kv: KeyValue) -> None:
    kv.put("b", b"new")
    kv.put("x", b"new")


def many(kv: KeyValue) -> None:
    """Make the bucket longer than the old one, with one key."""
    for number in range(20):
        kv.put("x", b"%d" % number)


CHANGES = pytest.mark.parametrize(
    "change", [created_again, pytest.param(lost, marks=pytest.mark.full), restored]
)
WRITERS = pytest.mark.parametrize("write", [few, many])


def current(kv: KeyValue) -> dict[str, bytes]:
    return {key: entry.value for key, entry in kv.get_many(">").items()}


@CHANGES
@WRITERS
def test_a_replica_equals_another_bucket(server, kv, errors, change, write):
    """Keys that vanished are removed, all others are taken over, and revisions are those of the bucket."""
    with kv.replica() as replica:
        replica.wait_current(LIMIT_S)
        assert dict(replica) == {
            "a": b"later",
            "b": b"old",
            "c": b"old",
            "e": b"later",
            "f": b"later",
        }
        change(server, write)
        wait_until(lambda: dict(replica) == current(kv), LIMIT_S)
        replica.wait_current(LIMIT_S)
        assert replica.revision == kv.status().info.state.last_seq
        revision = kv.put("y", b"1")
        with pytest.raises(TimeoutError):
            replica.wait_for(revision + 1, 0.1)
        replica.wait_for(revision, LIMIT_S)
        assert replica["y"] == b"1"
        assert dict(replica) == current(kv)
        assert replica.error is None
    assert [type(error) for error in errors if isinstance(error, StreamRecreatedError)] == [
        StreamRecreatedError
    ]


def follow(watch: Watch[KeyValueEntry], copy: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Apply entries to a copy until it is as expected."""
    while copy != expected:
        entry = watch.next(LIMIT_S)
        if entry.has_value:
            copy[entry.key] = entry.value
        else:
            copy.pop(entry.key, None)


@CHANGES
@WRITERS
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"history": True}, marks=pytest.mark.full),
        pytest.param({"resume_from_revision": 2}, marks=pytest.mark.full),
        pytest.param({"updates_only": True}, marks=pytest.mark.full),
    ],
)
def test_a_watch_reports_the_keys_that_another_bucket_lacks(server, kv, change, write, options):
    """A copy that applies each entry equals the other bucket, whatever the watch started with."""
    with kv.watch(**options) as watch:
        if options.get("updates_only"):
            kv.put("z", b"1")
            kv.put("a", b"2")
            copy = {}
            follow(watch, copy, {"z": b"1", "a": b"2"})
        else:
            copy = {}
            follow(watch, copy, current(kv))
            watch.wait_current(LIMIT_S)
        change(server, write)
        follow(watch, copy, current(kv))
        watch.wait_current(LIMIT_S)
        assert watch.is_current
        kv.put("y", b"1")
        follow(watch, copy, current(kv))


def test_keys_that_vanished_in_an_outage(nc, server, kv):
    """Keys whose markers were purged, and purged keys, are reported after an outage."""
    with kv.watch() as watch, kv.replica() as replica:
        replica.wait_current(LIMIT_S)
        copy = {entry.key: entry.value for entry in watch.initial(LIMIT_S) if entry.has_value}
        server.pause()
        nc.reconnect()  # this connection is away while the other one changes the bucket
        server.resume()
        with jetstream_sync.connect(server.url) as other:
            changed = other.jetstream(timeout=LIMIT_S).key_value("B")
            changed.delete("a")
            changed.delete("b")
            changed.purge_deletes(0)
            other.jetstream().get_stream("KV_B").purge(subject="$KV.B.c")
        nc.reconnect()
        follow(watch, copy, {"e": b"later", "f": b"later"})
        wait_until(lambda: dict(replica) == copy, LIMIT_S)
        assert replica.error is None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_bucket_whose_last_messages_were_replaced_is_the_same(server, errors, restarted):
    """A watch and a replica go on after an outage in which one key was written again and again."""
    with (
        FaultProxy(server.port) as proxy,
        jetstream_sync.connect(proxy.url, reconnect_time_wait=0.05, error_cb=errors.append) as nc,
        jetstream_sync.connect(server.url, reconnect_time_wait=0.05) as other,
    ):
        bucket = nc.jetstream(timeout=LIMIT_S).create_key_value(bucket="HOT")
        for key in "abc":
            bucket.put(key, b"1")
        with bucket.watch() as watch, bucket.replica() as replica:
            replica.wait_current(LIMIT_S)
            assert [entry.key for entry in watch.initial(LIMIT_S)] == ["a", "b", "c"]
            for _ in range(20):
                bucket.put("hot", b"first")
                assert watch.next(LIMIT_S).value == b"first"
            proxy.refuse()
            proxy.cut()
            js = other.jetstream(timeout=LIMIT_S)
            for number in range(30):
                js.key_value("HOT").put("hot", b"%d" % number)
            if restarted:
                server.restart()
            for name in js.consumer_names("KV_HOT"):
                js.delete_consumer("KV_HOT", name)
            proxy.accept()
            seen: list[str] = []
            value = b""
            while value != b"29":
                entry = watch.next(LIMIT_S)
                seen.append(entry.key)
                value = entry.value
            assert set(seen) == {"hot"}
            assert watch.is_current
            wait_until(lambda: replica.get("hot") == b"29", LIMIT_S)
            assert replica.error is None
    assert not [error for error in errors if isinstance(error, StreamRecreatedError)]


def test_a_resume_beyond_the_last_revision(kv):
    """The error names both revisions; the next revision can be waited for."""
    last = kv.status().info.state.last_seq
    with pytest.raises(StreamRecreatedError, match=rf"sequence is {last}, .* {last + 2}"):
        kv.watch(resume_from_revision=last + 2)
    with kv.watch(resume_from_revision=last + 1) as watch:
        kv.put("n", b"1")
        assert watch.next(LIMIT_S).revision == last + 1


def test_a_handle_is_current_again_after_all_entries(server, kv):
    """`current_cb` is called once; a handle waits for the entries of the other bucket."""
    seen: list[str] = []
    calls: list[int] = []
    with kv.watch(
        cb=lambda entry: seen.append(entry.key), current_cb=lambda: calls.append(1)
    ) as handle:
        handle.wait_current(LIMIT_S)
        created_again(server, few)
        wait_until(lambda: "x" in seen, LIMIT_S)
        handle.wait_current(LIMIT_S)
        assert seen[-2:] == ["b", "x"]
        assert calls == [1]


@CHANGES
def test_objects_of_another_bucket(nc, server, change):
    """A watch of objects reports those that vanished as deleted."""
    store = nc.jetstream(timeout=LIMIT_S).create_object_store(bucket="O")
    for name in ("x", "y z"):
        store.put(name, io.BytesIO(b"data"))

    def write(kv: KeyValue) -> None:
        del kv
        with jetstream_sync.connect(server.url) as other:
            js = other.jetstream(timeout=LIMIT_S)
            if change is created_again:
                js.delete_object_store("O")
            wait_until(lambda: "O" not in js.object_store_names(), LIMIT_S)
            js.create_object_store(bucket="O", storage="memory").put("new", io.BytesIO(b"data"))

    with store.watch() as watch:
        assert [info.name for info in watch.initial(LIMIT_S)] == ["x", "y z"]
        change(server, write)
        infos = [watch.next(LIMIT_S) for _ in range(3)]
    assert [(info.name, info.deleted) for info in infos] == [
        ("x", True),
        ("y z", True),
        ("new", False),
    ]


@pytest.mark.parametrize(
    "read",
    [
        lambda kv: list(kv.iter_keys()),
        lambda kv: kv.history("k"),
        lambda kv: kv.purge_deletes(0),
        lambda kv: kv.keys(),
        lambda kv: kv.get_many(">"),
    ],
    ids=["iter_keys", "history", "purge_deletes", "keys", "get_many"],
)
def test_reads_do_not_mix_two_buckets(server, kv, monkeypatch, read):
    """A bucket that is replaced in the middle is an error, or its keys alone are returned."""
    with jetstream_sync.connect(server.url) as other:
        js = other.jetstream(timeout=LIMIT_S)
        config = js.get_stream("KV_B").cached_info.config
        js.update_stream(replace(config, max_msgs_per_subject=-1))
        for number in range(2000):
            js.publish_async(f"$KV.B.k{number}", b"")
            js.publish_async("$KV.B.k", b"")
        js.publish_async_completed(LIMIT_S)
    original = Watch._next_initial
    calls = 0

    def next_initial(self: Watch[KeyValueEntry], deadline: Deadline) -> object:
        nonlocal calls
        calls += 1
        if calls == 100:
            created_again(server, few)
        return original(self, deadline)

    monkeypatch.setattr(Watch, "_next_initial", next_initial)
    try:
        found = read(kv)
    except (StreamRecreatedError, TimeoutError):
        return  # servers before 2.11 do not tell a consumer that its stream is deleted
    assert sorted(found) == ["b", "x"]


def test_markers_of_a_bucket_remove_no_values_of_the_next(nc, kv):
    """The bucket is created again after the first purge; its values have the revisions of the old markers."""
    js = nc.jetstream(timeout=LIMIT_S)
    for key in "abcdef":
        kv.delete(key)
    calls: list[str] = []

    def create_again(call: APICall) -> None:
        calls.append(call.subject)
        if sum(".PURGE." in subject for subject in calls) == 1 and ".PURGE." in call.subject:
            js.delete_key_value("B")
            new = create(js)
            for key in "abcdef":
                new.put(key, b"new")

    with pytest.raises(StreamRecreatedError):
        nc.jetstream(timeout=LIMIT_S, api_cb=create_again).key_value("B").purge_deletes(0)
    assert js.key_value("B").keys() == [*"abcdef"]
