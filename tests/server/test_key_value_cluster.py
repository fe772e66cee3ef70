"""Key-value buckets with three replicas: conflicts, and watches while leaders change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.server import running_cluster
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, JetStream, KeyValueEntry, StreamSource, errors
from jetstream_sync.server import NatsCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    """Three servers of these tests, with JetStream clustered."""
    with running_cluster() as servers:
        yield servers


@pytest.fixture
def nc(cluster: NatsCluster) -> Iterator[Connection]:
    """A connection that survives the loss of a server."""
    with jetstream_sync.connect(
        cluster.urls, reconnect_time_wait=0.02, max_reconnect_attempts=-1
    ) as connection:
        yield connection


@pytest.fixture
def js(nc: Connection) -> JetStream:
    """JetStream that waits for the election of a leader."""
    return nc.jetstream(timeout=10 * SCALE)


def step_down(nc: Connection, stream: str) -> None:
    """Make the leader of a stream step down, and wait for another one."""
    js = nc.jetstream(timeout=1)

    def leader() -> str | None:
        try:
            info = js.get_stream(stream).cached_info
        except errors.Error:
            return None
        return info.cluster and info.cluster.leader

    before = wait_until(leader, 20)
    nc.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", timeout=5 * SCALE)
    wait_until(lambda: leader() not in (None, "", before), 20)


def test_conflicts_of_replicated_keys(js):
    """A stale revision changes nothing, and threads that modify one key lose no step."""
    kv = js.create_key_value(bucket="B", history=5, replicas=3)
    first = kv.put("a", b"1")
    kv.put("a", b"2")
    for call in (
        lambda: kv.update("a", b"3", first),
        lambda: kv.delete("a", last=first),
        lambda: kv.purge("a", last=first),
    ):
        with pytest.raises(errors.WrongLastRevisionError):
            call()
    assert [entry.value for entry in kv.history("a")] == [b"1", b"2"]

    def count() -> None:
        for _ in range(20):
            kv.modify("n", lambda entry: b"%d" % (int(entry.value if entry else b"0") + 1), 100)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(count) for _ in range(3)]:
            done.result(60 * SCALE)
    assert kv.get("n", consistent=True).value == b"60"
    js.delete_key_value("B")


def test_watch_through_changes_of_the_leader(nc, js):
    """The last value of each key arrives, never an older one, and one consumer is left."""
    kv = js.create_key_value(bucket="W", history=1, replicas=3)
    seen: dict[str, KeyValueEntry] = {}
    current = threading.Event()
    older: list[KeyValueEntry] = []

    def on_entry(entry: KeyValueEntry) -> None:
        if entry.key in seen and entry.revision <= seen[entry.key].revision:
            older.append(entry)
        seen[entry.key] = entry

    for number in range(50):
        kv.put(f"k{number}", b"0")
    handle = kv.watch(cb=on_entry, current_cb=current.set)
    assert current.wait(20 * SCALE)
    for step in (b"1", b"2"):
        step_down(nc, "KV_W")
        for number in range(50):
            kv.put(f"k{number}", step)
    wait_until(lambda: all(entry.value == b"2" for entry in seen.values()), 30)
    assert (len(seen), older) == (50, [])
    wait_until(lambda: len(js.consumer_names("KV_W")) == 1, 20)
    handle.stop()
    handle.wait_closed(10 * SCALE)
    wait_until(lambda: js.consumer_names("KV_W") == [], 20)
    js.delete_key_value("W")


def test_a_mirror_of_a_bucket(js):
    """A cluster drops the duplicate window of a mirror, which is no reason to refuse the server."""
    kv = js.create_key_value(bucket="O", replicas=3)
    kv.put("a", b"1")
    mirror = js.create_key_value(bucket="M", mirror=StreamSource(name="O"), ttl=3600, replicas=3)
    wait_until(lambda: mirror.value("a") == b"1", 20)
