"""A copy of a bucket in memory follows its bucket, also over restarts."""

from __future__ import annotations

import pytest
from fixtures.threads import SCALE, ClockAhead, wait_until

import jetstream_sync
from jetstream_sync import JetStream, KeyValue, errors
from jetstream_sync.jetstream.buckets import replica as replica_module


@pytest.fixture
def kv(js: JetStream) -> KeyValue:
    """A bucket with three keys, one of them deleted."""
    kv = js.create_key_value(bucket="B", storage="memory")
    for key in ("a", "b", "x.y"):
        kv.put(key, key.encode())
    kv.delete("b")
    return kv


def test_a_replica_is_a_mapping_of_the_current_values(kv):
    """Changes and deletions arrive; a write of this program can be waited for."""
    with kv.replica() as replica:
        replica.wait_current(5 * SCALE)
        assert dict(replica) == {"a": b"a", "x.y": b"x.y"}
        assert (len(replica), "b" in replica, replica.get("b")) == (2, False, None)
        replica.wait_for(kv.put("b", b"2"), 5 * SCALE)
        assert replica["b"] == b"2"
        entry = replica.entry("b")
        assert entry is not None
        assert entry.revision == replica.revision
        replica.wait_for(kv.purge("a"), 5 * SCALE)
        assert sorted(replica) == ["b", "x.y"]
        with pytest.raises(errors.TimeoutError, match="revision 1000"):
            replica.wait_for(1000, 0.1)
    for call in (
        lambda: replica["b"],
        lambda: replica.get("b"),
        lambda: "b" in replica,
        lambda: replica.entry("b"),
        lambda: list(replica),
        lambda: len(replica),
        replica.wait_current,
        lambda: replica.wait_for(1),
    ):
        with pytest.raises(errors.IteratorClosedError, match="the replica was closed"):
            call()
    assert "Replica" in repr(replica)


def test_a_replica_of_some_keys(kv):
    """Other keys are left out."""
    with kv.replica(["x.>", "c"]) as replica:
        replica.wait_current(5 * SCALE)
        replica.wait_for(kv.put("c", b"1"), 5 * SCALE)
        kv.put("a", b"2")
        assert dict(replica) == {"c": b"1", "x.y": b"x.y"}


def test_values_that_expire_leave_a_replica(js):
    """Also without markers of the server."""
    kv = js.create_key_value(bucket="T", ttl=1)
    with kv.replica() as replica:
        replica.wait_for(kv.put("a", b"1"), 5 * SCALE)
        wait_until(lambda: not replica, 5)


def test_a_replica_measures_the_ttl_by_the_clock_of_the_server(js, monkeypatch):
    """The clock of this computer may be ahead by more than the TTL."""
    monkeypatch.setattr(replica_module, "datetime", ClockAhead)
    kv = js.create_key_value(bucket="AHEAD", ttl=60)
    with kv.replica() as replica:
        replica.wait_for(kv.put("a", b"1"), 5 * SCALE)
        assert dict(replica) == {"a": b"1"}


def test_a_replica_catches_up_after_a_restart(alone, fresh_server):
    """What happened meanwhile arrives."""
    kv = alone.jetstream(timeout=10 * SCALE).create_key_value(bucket="B")
    kv.put("a", b"1")
    kv.put("b", b"1")
    with kv.replica() as replica:
        replica.wait_current(5 * SCALE)
        fresh_server.kill()
        fresh_server.start()
        with jetstream_sync.connect(fresh_server.url) as second:
            writer = second.jetstream(timeout=10 * SCALE).key_value("B")
            writer.delete("a")
            last = writer.put("b", b"2")
        replica.wait_for(last, 20 * SCALE)
        assert dict(replica) == {"b": b"2"}


def test_a_deleted_bucket_ends_a_replica(js, kv):
    """The error is kept, and raised by calls that wait."""
    with kv.replica() as replica:
        replica.wait_current(5 * SCALE)
        js.delete_key_value("B")
        wait_until(lambda: replica.error, 20)
        assert isinstance(replica.error, errors.BucketNotFoundError)
        for call in (
            lambda: replica.wait_for(1),
            replica.wait_current,
            lambda: replica["a"],
            lambda: len(replica),
        ):
            with pytest.raises(errors.BucketNotFoundError):
                call()


def test_a_closed_connection_ends_a_replica(fresh_server):
    """Reads raise the reason, also at once."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        kv = nc.jetstream().create_key_value(bucket="B")
        kv.put("a", b"1")
        replica = kv.replica()
        replica.wait_current(5 * SCALE)
    with pytest.raises(errors.ConnectionClosedError):
        replica["a"]
    with pytest.raises(errors.ConnectionClosedError):
        replica.wait_current()


@pytest.mark.server(">=2.11")
def test_a_revision_of_another_bucket_is_waited_for(nc, js):
    """A revision that the bucket before had is not taken for one of the bucket that was created again."""
    bucket = js.create_key_value(bucket="AGAIN", storage="memory")
    for number in range(9):
        bucket.put("a", b"old %d" % number)
    with bucket.replica() as replica, jetstream_sync.connect(nc.connected_url) as other:
        replica.wait_current(5 * SCALE)
        for round_number in range(5):
            admin = other.jetstream()
            admin.delete_key_value("AGAIN")
            again = admin.create_key_value(bucket="AGAIN", storage="memory")
            for number in range(round_number % 2 + 1):
                revision = again.put("a", b"new %d %d" % (round_number, number))
            replica.wait_for(revision, 10 * SCALE)
            assert replica["a"] == b"new %d %d" % (round_number, number)
    js.delete_key_value("AGAIN")


@pytest.mark.server(">=2.11")
def test_a_replica_of_a_mirror_notices_another_origin(js):
    """A write to an origin that was created again is not taken for one that was read before."""
    origin = js.create_key_value(bucket="ORIGIN", storage="memory")
    for _ in range(5):
        origin.put("a", b"old")
    near = js.create_key_value(
        bucket="NEAR", mirror=jetstream_sync.StreamSource(name="ORIGIN"), storage="memory"
    )
    with near.replica() as replica:
        replica.wait_current(5 * SCALE)
        replica.wait_for(5, 5 * SCALE)
        js.delete_key_value("ORIGIN")
        revision = js.create_key_value(bucket="ORIGIN", storage="memory").put("a", b"new")
        with pytest.raises(errors.StreamRecreatedError, match="KV_ORIGIN"):
            replica.wait_for(revision, 2 * SCALE)
    for name in ("NEAR", "ORIGIN"):
        js.delete_key_value(name)
