"""Locks on keys: one holder at a time, also when holders stop, stall or lose their connection."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from fixtures.server import paused
from fixtures.threads import SCALE, between, run_all, wait_until

import jetstream_sync
from jetstream_sync import Connection, InvalidOptionError, JetStream, KeyValue
from jetstream_sync.errors import Error, LockLostError, TimeoutError
from jetstream_sync.server import NatsServer


@pytest.fixture
def kv(js: JetStream) -> KeyValue:
    """A bucket for locks."""
    return js.create_key_value(bucket="LOCKS", storage="memory")


@pytest.fixture
def other(nats_server: NatsServer, kv: KeyValue) -> Iterator[KeyValue]:
    """The same bucket over another connection."""
    with jetstream_sync.connect(nats_server.url) as nc:
        yield nc.jetstream().key_value(kv.bucket)


def test_one_holder_at_a_time(kv, other):
    """Sixteen threads of two clients take turns; each has a larger token than the one before."""
    inside: list[int] = []
    tokens: list[int] = []

    def work(bucket: KeyValue) -> None:
        for _ in range(5):
            with bucket.lock("a", ttl=30) as lock:
                inside.append(1)
                assert len(inside) == 1
                tokens.append(lock.token)
                lock.check()
                inside.pop()

    run_all(*[partial(work, bucket) for bucket in [kv, other] * 8])
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 80


def test_a_released_lock_is_free_at_once(kv, other):
    """A client that waits gets it long before the ``ttl``."""
    lock = kv.lock("a", ttl=60)
    assert lock.acquire()
    assert repr(lock) == "<Lock 'a' held>"
    assert not other.lock("a").acquire(timeout=0)
    assert not other.lock("a").acquire(timeout=0.2)
    threading.Timer(0.2, lock.release).start()
    with between(0.1, 10), other.lock("a") as second:
        assert (lock.held, lock.lost, second.held) == (False, False, True)
        assert second.token > lock.token
        with pytest.raises(LockLostError):
            lock.check()
    assert not kv.keys()


def test_a_late_renewal_of_an_earlier_hold_does_not_lose_the_lock(kv, other):
    """The thread of a hold that was released meanwhile changes nothing for the next one."""
    lock = kv.lock("a")
    assert lock.acquire()
    earlier = lock._released
    lock.release()
    with lock:
        lock._lose(earlier)
        assert (lock.held, lock.lost) == (True, False)
        lock.check()
        assert not other.lock("a").acquire(timeout=0)


def test_a_lock_is_held_for_longer_than_its_ttl(kv, other):
    """The holder renews it."""
    with kv.lock("a", ttl=1) as lock:
        assert not other.lock("a", ttl=1).acquire(timeout=2)
        assert lock.held
        assert not lock.wait_lost(0)


def test_a_with_block_that_waits_too_long(kv, other):
    """It raises, and the holder is not disturbed."""
    with kv.lock("a") as lock:
        with pytest.raises(TimeoutError, match="'a' was not free"), other.lock("a", timeout=0.1):
            raise AssertionError
        assert lock.held
        with pytest.raises(Error, match="already"):
            lock.acquire()


_HOLDER = """
import sys, time, jetstream_sync
nc = jetstream_sync.connect(sys.argv[1])
lock = nc.jetstream().key_value("LOCKS").lock("a", ttl=1)
lock.acquire()
print(lock.token, flush=True)
time.sleep(600)
"""


def test_a_killed_holder(kv, nats_server):
    """The lock of a process that is killed is free after its ``ttl``."""
    for _ in range(2):
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, nats_server.url], stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        token = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        holder.stdout.close()
        with between(0.5, 20), kv.lock("a", ttl=30) as lock:
            assert lock.token > token


def test_a_holder_without_a_connection(alone, fresh_server):
    """It sees the loss before another client can have the lock."""
    kv = alone.jetstream(timeout=0.5).create_key_value(bucket="LOCKS")
    lock = kv.lock("a", ttl=2)
    lock.acquire()
    with paused(fresh_server):
        with between(1, 2):
            assert lock.wait_lost()
        assert (lock.held, repr(lock)) == (False, "<Lock 'a' lost>")
    assert kv.lock("a", ttl=2).acquire(timeout=20)
    lock.release()
    assert lock.lost
    assert kv.get("a").value  # that of the other object


def test_a_lock_survives_a_short_outage(alone, fresh_server):
    """Renewals whose replies are lost are repeated."""
    kv = alone.jetstream(timeout=0.3).create_key_value(bucket="LOCKS")
    with kv.lock("a", ttl=3 * SCALE) as lock:
        before = kv.get("a").revision
        with paused(fresh_server):
            time.sleep(1.2 * SCALE)  # at least one renewal meanwhile
        # The renewal whose reply was lost, and the next one.
        wait_until(lambda: kv.get("a", consistent=True).revision > before + 1, 20)
        assert lock.held


def test_a_key_that_another_client_changed(kv):
    """The holder loses the lock; a value that is no lock is not overwritten."""
    lock = kv.lock("a", ttl=1)
    lock.acquire()
    kv.put("a", b"mine")
    assert lock.wait_lost(5)
    lock.release()
    assert kv.get("a").value == b"mine"
    with pytest.raises(InvalidOptionError, match="is not a lock"):
        kv.lock("a", ttl=1).acquire(timeout=10)


def test_a_closed_connection(nats_server, kv):
    """The holder loses the lock, and its release raises."""
    nc: Connection = jetstream_sync.connect(nats_server.url)
    lock = nc.jetstream().key_value(kv.bucket).lock("a", ttl=1)
    lock.acquire()
    nc.close()
    assert lock.wait_lost(5)
    with pytest.raises(jetstream_sync.ConnectionClosedError):
        lock.release()
    with kv.lock("a", timeout=20):
        pass


@pytest.mark.parametrize("ttl", [0.5, "1", None])
def test_an_invalid_ttl(kv, ttl):
    """It is refused."""
    with pytest.raises(InvalidOptionError):
        kv.lock("a", ttl=ttl)


def test_a_bucket_that_was_created_again(js, kv, other):
    """The former holder does not take the key of the new one over, although the revisions are equal."""
    former = kv.lock("a", ttl=3 * SCALE)
    assert former.acquire()
    js.delete_key_value(kv.bucket)
    js.create_key_value(bucket=kv.bucket, storage="memory")
    lock = other.lock("a", ttl=60 * SCALE)
    assert lock.acquire()
    assert lock.token == former.token
    mine = other.get("a").value
    assert former.wait_lost(3 * SCALE)
    assert other.get("a").value == mine
    former.release()
    assert other.get("a").value == mine
    lock.check()
    lock.release()


def test_a_stopped_holder_in_a_bucket_that_was_created_again(js, kv, other):
    """A waiting client takes over the key that it has seen, not another one with its revision."""
    entry = kv.get("a", kv.put("a", b'{"owner":"one","ttl":1}'))
    js.delete_key_value(kv.bucket)
    js.create_key_value(bucket=kv.bucket, storage="memory")
    lock = other.lock("a", ttl=60 * SCALE)
    assert lock.acquire()
    assert lock.token == entry.revision
    waiting = kv.lock("a")
    assert not waiting._write_over(entry)
    lock.check()
    assert not waiting.held
    lock.release()
