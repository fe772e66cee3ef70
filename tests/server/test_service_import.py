"""Buckets through a service import between accounts, and through an API that loses pull requests."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Container, Iterator

import pytest
from fixtures.threads import SCALE, within

import jetstream_sync
from jetstream_sync import Connection, JetStream, Msg, ObjectMeta, ObjectMetaOptions, errors
from jetstream_sync.server import NatsServer

#: Account B uses the JetStream of account A. The server forwards one reply to each request.
IMPORT = """
accounts {
    A {
        jetstream: enabled
        users: [{user: a, password: a}]
        exports: [{service: "$JS.API.>"}, {service: "$KV.>"}, {service: "$O.>"}]
    }
    B {
        users: [{user: b, password: b}]
        imports: [
            {service: {account: A, subject: "$JS.API.>"}%s}
            {service: {account: A, subject: "$KV.>"}%s}
        ]
    }
}
"""
#: Pull requests of account B reach account A only if a relay in account B publishes them to `relay.>`.
RELAY = """
accounts {
    A {
        jetstream: enabled
        users: [{user: a, password: a}]
        exports: [{service: "$JS.API.>", response: stream}]
    }
    B {
        users: [{user: b, password: b}]
        imports: [
            {service: {account: A, subject: "$JS.API.INFO"}}
            {service: {account: A, subject: "$JS.API.STREAM.>"}}
            {service: {account: A, subject: "$JS.API.DIRECT.>"}}
            {service: {account: A, subject: "$JS.API.CONSUMER.CREATE.>"}}
            {service: {account: A, subject: "$JS.API.CONSUMER.DELETE.>"}}
            {service: {account: A, subject: "$JS.API.CONSUMER.INFO.>"}}
            {service: {account: A, subject: "$JS.API.CONSUMER.MSG.NEXT.>"}, to: "relay.>"}
        ]
    }
}
"""
KEYS = {f"k{number}" for number in range(1500)}
DATA = bytes(range(256)) * 1000


def small(name: str) -> ObjectMeta:
    """Return the metadata of an object with small chunks."""
    return ObjectMeta(name=name, options=ObjectMetaOptions(max_chunk_size=10_000))


@contextlib.contextmanager
def accounts(config: str) -> Iterator[tuple[Connection, Connection]]:
    """A server, with a connection to each of its two accounts."""
    with (
        NatsServer(config=config) as server,
        jetstream_sync.connect(server.url, user="a", password="a") as owner,
        jetstream_sync.connect(server.url, user="b", password="b") as user,
    ):
        yield owner, user


@pytest.fixture(params=[None, "from-a"])
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[JetStream, JetStream]]:
    """JetStream of the owner, and through an import with the same subjects or under a prefix."""
    prefix = request.param
    to = ("", "") if prefix is None else (f', to: "{prefix}.>"', f', to: "{prefix}.$KV.>"')
    with accounts(IMPORT % to) as (owner, user):
        yield owner.jetstream(), user.jetstream(prefix=prefix, timeout=5 * SCALE)


def test_key_value(shared):
    """Listings, histories and watches return everything, although a request has one reply."""
    own, other = shared
    kv = own.create_key_value(bucket="B", history=3, storage="memory")
    for key in KEYS:
        own.publish_async(f"$KV.B.{key}", b"1")
    own.publish_async_completed(30 * SCALE)
    kv.put("k1", b"2")
    found = other.key_value("B")
    assert set(found.keys()) == KEYS
    assert [entry.value for entry in found.history("k1")] == [b"1", b"2"]
    assert {key: entry.value for key, entry in found.get_many(["k1", "k2"]).items()} == {
        "k1": b"2",
        "k2": b"1",
    }
    assert set(found.get_many(">")) == KEYS
    with found.watch() as watch:
        assert {entry.key for entry in watch.initial(10 * SCALE)} == KEYS
        for _ in range(3):
            changes = [(f"k{number}", b"%d" % kv.put(f"k{number}", b"3")) for number in range(200)]
            seen = [watch.next(10 * SCALE) for _ in changes]
            assert [(entry.key, b"%d" % entry.revision) for entry in seen] == changes


def test_ordered_consumer(shared):
    """An ordered consumer fetches and iterates, once it is known that a request has one reply."""
    own, other = shared
    stream = own.create_stream(name="S", subjects=["s"])
    for number in range(20):
        own.publish("s", b"%d" % number)
    with other.ordered_consumer(stream.name) as ordered:
        with ordered.messages(heartbeat=0.5) as messages:
            found = [messages.next(10 * SCALE).data for _ in range(20)]
        assert found == [b"%d" % number for number in range(20)]
        with within(5):
            fetched = ordered.fetch(10, timeout=5 * SCALE)
            fetched += ordered.fetch_no_wait(20)
        assert [message.data for message in fetched] == found


def test_watch_without_initial_entries(shared, monkeypatch):
    """A watch of an empty bucket reports all changes, also while no reply was lost before."""
    monkeypatch.setattr("jetstream_sync.jetstream.buckets.watch.HEARTBEAT_S", 0.5)
    own, other = shared
    kv = own.create_key_value(bucket="B", history=3, storage="memory")
    with other.key_value("B").watch() as watch:
        for value in (b"1", b"2", b"3"):
            kv.put("a", value)
        assert [watch.next(30 * SCALE).value for _ in range(3)] == [b"1", b"2", b"3"]


def test_object_store(shared, request):
    """An object of several chunks is read, and objects are listed."""
    own, other = shared
    store = own.create_object_store(bucket="B", storage="memory")
    for name in ("a", "b", "c"):
        store.put(small(name), DATA)
    found = other.object_store("B")
    assert found.get_bytes("a") == DATA
    assert [info.name for info in found.list()] == ["a", "b", "c"]
    with found.open("b") as file:
        assert file.read() == DATA
    # The subjects of the data are not imported.
    reason = "can only be read" if request.node.callspec.params["shared"] else "may not exist"
    with within(5), pytest.raises(errors.NoStreamResponseError, match=reason):
        found.put(small("d"), DATA)


def relay(nc: Connection, lost: Container[int]) -> None:
    """Forward pull requests, other than those with these numbers, the first being 0."""
    numbers = itertools.count()

    def forward(msg: Msg) -> None:
        if next(numbers) not in lost:
            consumer = msg.subject.removeprefix("$JS.API.CONSUMER.MSG.NEXT.")
            nc.publish(f"relay.{consumer}", msg.data, reply=msg.reply)

    nc.subscribe("$JS.API.CONSUMER.MSG.NEXT.>", cb=forward)
    nc.flush()


def test_lost_pull_requests_of_a_download():
    """A download whose pull request is lost asks again with another consumer."""
    with accounts(RELAY) as (owner, user):
        store = owner.jetstream().create_object_store(bucket="B", storage="memory")
        store.put(small("a"), DATA)
        relay(user, {0, 1})
        found = user.jetstream().object_store("B")
        assert found.get_bytes("a", timeout=5 * SCALE) == DATA


def test_watch_that_receives_nothing():
    """A watch raises an error if the server has messages for it, and none arrives."""
    with accounts(RELAY) as (owner, user):
        kv = owner.jetstream().create_key_value(bucket="B", storage="memory")
        kv.put("a", b"1")
        relay(user, range(1_000_000))
        with user.jetstream().key_value("B").watch() as watch:
            with within(20), pytest.raises(errors.PullError, match="1 are pending"):
                next(iter(watch))
            with pytest.raises(errors.TimeoutError):
                watch.next(0)
