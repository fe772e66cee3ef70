"""Objects of nats-py are read here, and ours by nats-py."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import ObjectMeta as TheirMeta
from nats.js.api import ObjectMetaOptions as TheirOptions
from nats.js.errors import ObjectNotFoundError as TheirNotFoundError

from jetstream_sync import JetStream, ObjectDeletedError, ObjectMeta, ObjectMetaOptions, ObjectStore
from jetstream_sync.server import NatsServer

SIZES = (0, 1, 131_072, 131_073, 400_000)


@pytest.fixture
def store(js: JetStream) -> ObjectStore:
    """An empty object store in memory."""
    return js.create_object_store(bucket="FILES", storage="memory")


def with_nats_py(server: NatsServer, work: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    """Return the result of a coroutine that uses nats-py."""

    async def run() -> Any:
        nc = await nats.connect(server.url)
        try:
            return await work(nc.jetstream())
        finally:
            await nc.close()

    return asyncio.run(run())


def test_nats_py_reads_ours(nats_server, store):
    """Data, infos, deletions, links and new names are understood by nats-py."""
    data = {f"dir/ü {size}": os.urandom(size) for size in SIZES}
    for name, value in data.items():
        store.put(ObjectMeta(name=name, description="d", metadata={"k": "v"}), value)
    store.put("gone", b"x")
    store.delete("gone")
    store.add_link("link", store.info("dir/ü 400000"))
    store.put(ObjectMeta(name="old", options=ObjectMetaOptions(max_chunk_size=10)), b"x" * 25)
    store.update_meta("old", ObjectMeta(name="new", headers={"A": ["b"]}))

    async def read(js: JetStreamContext) -> None:
        theirs = await js.object_store("FILES")
        for name, value in data.items():
            result = await theirs.get(name)
            assert result.data == value
            assert result.info.description == "d"
            assert result.info.size == len(value)
        assert (await theirs.get("link")).data == data["dir/ü 400000"]
        assert (await theirs.get("new")).data == b"x" * 25
        with pytest.raises(TheirNotFoundError):
            await theirs.get("gone")
        assert {info.name for info in await theirs.list(ignore_deletes=True)} == {
            *data,
            "link",
            "new",
        }

    with_nats_py(nats_server, read)


def test_ours_reads_nats_py(nats_server, store):
    """What nats-py stores, describes and deletes is understood here."""
    data = {f"dir/ü {size}": os.urandom(size) for size in SIZES}

    async def write(js: JetStreamContext) -> None:
        theirs = await js.object_store("FILES")
        for name, value in data.items():
            await theirs.put(
                name, io.BytesIO(value), TheirMeta(description="d", headers={"A": ["b"]})
            )
        await theirs.put("small", b"x" * 25, TheirMeta(options=TheirOptions(max_chunk_size=10)))
        await theirs.put("gone", b"x")
        await theirs.delete("gone")

    with_nats_py(nats_server, write)
    for name, value in data.items():
        assert store.get_bytes(name) == value
        info = store.info(name)
        assert (info.size, info.description, info.headers) == (len(value), "d", {"A": ["b"]})
    assert (store.info("small").chunks, store.get_bytes("small")) == (3, b"x" * 25)
    with pytest.raises(ObjectDeletedError):
        store.get_bytes("gone")
    assert [info.name for info in store.list()] == sorted([*data, "small"])
    store.put("small", b"y")
    store.delete("gone")

    async def replaced(js: JetStreamContext) -> bytes | None:
        return (await (await js.object_store("FILES")).get("small")).data

    assert with_nats_py(nats_server, replaced) == b"y"


def test_buckets_of_nats_py(nats_server, js):
    """A bucket that nats-py created is used here, and the reverse."""
    js.create_object_store(bucket="OURS", storage="memory")

    async def create(theirs: JetStreamContext) -> None:
        store = await theirs.create_object_store("THEIRS")
        await store.put("a", b"x")
        await (await theirs.object_store("OURS")).put("b", b"y")

    with_nats_py(nats_server, create)
    assert js.object_store("THEIRS").get_bytes("a") == b"x"
    assert js.object_store("OURS").get_bytes("b") == b"y"
    assert js.object_store_names() == ["OURS", "THEIRS"]
