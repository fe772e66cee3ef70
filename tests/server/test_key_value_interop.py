"""Key-value buckets that nats-py created, and nats-py on buckets of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.js.kv import KeyValue as Theirs

from jetstream_sync import KeyValueOperation, errors
from jetstream_sync.server import NatsServer

T = TypeVar("T")


@pytest.fixture
def bucket(stream_name: str) -> str:
    """A name for a bucket of this test alone."""
    return stream_name


def with_nats_py(server: NatsServer, use: Callable[[Client], Awaitable[T]]) -> T:
    """Run a coroutine with a connection of nats-py."""

    async def run() -> T:
        nc = await nats.connect(server.url)
        try:
            return await use(nc)
        finally:
            await nc.close()

    return asyncio.run(run())


def test_their_bucket_here(nats_server, js, bucket):
    """Entries written by nats-py are read with their operations; its config counts as equal."""

    async def write(nc: Client) -> None:
        kv = await nc.jetstream().create_key_value(
            bucket=bucket, history=5, description="theirs", storage="memory"
        )
        await kv.put("a.b", b"1")
        await kv.put("a.b", b"2")
        await kv.create("c", b"3")
        await kv.delete("c")
        await kv.put("d", b"4")
        await kv.purge("d")

    with_nats_py(nats_server, write)
    kv = js.key_value(bucket)
    assert kv.status().history == 5
    assert kv.keys() == ["a.b"]
    assert kv.get("a.b").value == b"2"
    assert [entry.value for entry in kv.history("a.b")] == [b"1", b"2"]
    with kv.watch() as watch:
        found = {entry.key: entry.operation for entry in watch.initial()}
    assert found == {
        "a.b": KeyValueOperation.PUT,
        "c": KeyValueOperation.DELETE,
        "d": KeyValueOperation.PURGE,
    }
    assert kv.create("c", b"5") > 0
    with pytest.raises(errors.KeyExistsError):
        kv.create("a.b", b"6")
    with pytest.raises(errors.BucketExistsError):
        js.create_key_value(bucket=bucket, history=6)


def test_our_bucket_there(nats_server, js, bucket):
    """nats-py reads entries and deletions of this package, and conflicts work both ways."""
    mine = js.create_key_value(bucket=bucket, history=5, description="x", storage="memory")
    mine.put("a.b", b"1")
    last = mine.update("a.b", b"2", 1)
    mine.put("gone", b"3")
    mine.delete("gone")

    async def read(nc: Client) -> None:
        kv: Theirs = await nc.jetstream().key_value(bucket)
        entry = await kv.get("a.b")
        assert (entry.value, entry.revision) == (b"2", last)
        assert await kv.keys() == ["a.b"]
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            await kv.get("gone")
        assert [item.value for item in await kv.history("a.b")] == [b"1", b"2"]
        await kv.update("a.b", b"4", last)
        watcher = await kv.watchall()
        seen: dict[str, Any] = {}
        async for entry in watcher:
            if entry is None:
                break
            seen[entry.key] = entry.operation
        assert seen == {"a.b": None, "gone": "DEL"}
        await watcher.stop()

    with_nats_py(nats_server, read)
    with pytest.raises(errors.WrongLastRevisionError):
        mine.update("a.b", b"5", last)
    assert mine["a.b"] == b"4"
    with pytest.raises(errors.KeyNotFoundError):
        mine.get("gone")
