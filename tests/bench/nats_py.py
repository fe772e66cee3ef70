"""nats-py as intended: coroutines in one event loop."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ObjectStoreConfig, PubAck, StorageType
from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue

from .job import (
    BLOCK,
    BUCKET,
    CHUNK_BYTES,
    FUTURES_HELD,
    OBJECT_CHUNKS,
    Job,
    Stopwatch,
    Timing,
    WrongReadError,
    check_read,
    check_sequences,
    serve,
)


async def _repeated(job: Job, call: Callable[[], Awaitable[object]]) -> Timing:
    watch = Stopwatch()
    for _ in range(job.count):
        await call()
    return watch.stop()


async def _publish(nc: Client, job: Job) -> Timing:
    js, payload = nc.jetstream(), job.payload
    return await _repeated(job, lambda: js.publish(job.subject, payload))


async def _request(nc: Client, job: Job) -> Timing:
    return await _repeated(job, lambda: nc.request(job.direct_subject))


async def _publish_async(nc: Client, job: Job) -> Timing:
    js = nc.jetstream(publish_async_max_pending=job.window)
    payload = job.payload
    futures: list[asyncio.Future[PubAck]] = []
    watch = Stopwatch()
    for _ in range(job.count):
        futures.append(await js.publish_async(job.subject, payload))
        if len(futures) == FUTURES_HELD:
            check_sequences([(await future).seq for future in futures])
            futures.clear()
    check_sequences([(await future).seq for future in futures])
    await js.publish_async_completed()
    return watch.stop()


async def _fetch(nc: Client, job: Job) -> Timing:
    sub = await nc.jetstream().pull_subscribe_bind(job.consumer, job.stream)
    read: list[bytes] = []
    watch = Stopwatch()
    while len(read) < job.count:
        for msg in await sub.fetch(min(job.batch, job.count - len(read))):
            read.append(msg.data)
            await msg.ack()
    await nc.flush()
    timing = watch.stop()
    check_read(read, job)
    return timing


async def _ack_sync(nc: Client, job: Job) -> Timing:
    sub = await nc.jetstream().pull_subscribe_bind(job.consumer, job.stream)
    messages: list[Msg] = []
    while len(messages) < job.count:
        messages += await sub.fetch(job.count - len(messages))
    watch = Stopwatch()
    for msg in messages:
        await msg.ack_sync()
    timing = watch.stop()
    check_read([msg.data for msg in messages], job)
    return timing


async def _ordered(nc: Client, job: Job) -> Timing:
    js = nc.jetstream()
    watch = Stopwatch()
    sub = await js.subscribe(job.subject, stream=job.stream, ordered_consumer=True)
    read = [(await sub.next_msg(timeout=5)).data for _ in range(job.count)]
    timing = watch.stop()
    check_read(read, job)
    return timing


async def _keys(kv: KeyValue) -> list[str]:
    """Return the keys; sometimes `keys()` misses the reply of its consumer and finds none."""
    while True:
        with suppress(NoKeysError):
            return await kv.keys()


async def _key_value(nc: Client, job: Job) -> Timing:
    js = nc.jetstream(publish_async_max_pending=job.window)
    payload = job.payload
    kv = await js.create_key_value(bucket=BUCKET, storage=StorageType.MEMORY, direct=True)
    try:
        for number in range(job.count if job.row == "kv_read" else 1):
            await js.publish_async(f"$KV.{BUCKET}.key.{number}", payload)
        await js.publish_async_completed()
        watch = Stopwatch()
        if job.row == "kv_put":
            for _ in range(job.count):
                await kv.put("key.0", payload)
        elif job.row == "kv_get":
            for _ in range(job.count):
                if (await kv.get("key.0")).value != payload:
                    raise WrongReadError("another value than the one that was put")
        else:
            values = {key: (await kv.get(key)).value for key in await _keys(kv)}
            if len(values) != job.count or set(values.values()) != {payload}:
                raise WrongReadError(f"{len(values)} of {job.count} keys were read")
        return watch.stop()
    finally:
        await js.delete_key_value(BUCKET)


async def _object(nc: Client, job: Job) -> Timing:
    data = os.urandom(OBJECT_CHUNKS * CHUNK_BYTES)
    js = nc.jetstream()
    config = ObjectStoreConfig(storage=StorageType.MEMORY)
    store = await js.create_object_store(BUCKET, config=config)
    try:
        await store.put("object", io.BytesIO(data))
        watch = Stopwatch()
        for _ in range(job.count // OBJECT_CHUNKS):
            if job.row == "obj_put":
                await store.put("object", io.BytesIO(data))
            elif (await store.get("object")).data != data:
                raise WrongReadError("another object than the one that was put")
        return watch.stop()
    finally:
        await js.delete_object_store(BUCKET)


async def _core(nc: Client, job: Job) -> Timing:
    payload = job.payload
    watch = Stopwatch()
    for _ in range(job.count):
        await nc.publish(job.subject, payload)
    await nc.flush()
    return watch.stop()


async def _core_read(nc: Client, job: Job) -> Timing:
    payload = job.payload
    sub = await nc.subscribe(job.subject)
    watch = Stopwatch()
    for _ in range(job.count // BLOCK):
        for _ in range(BLOCK):
            await nc.publish(job.subject, payload)
        for _ in range(BLOCK):
            await sub.next_msg(timeout=5)
    return watch.stop()


_ROWS: dict[str, Callable[[Client, Job], Awaitable[Timing]]] = {
    "publish": _publish,
    "request": _request,
    "publish_async": _publish_async,
    **dict.fromkeys(("fetch500", "fetch1", "messages", "worker"), _fetch),
    "ack_sync": _ack_sync,
    "ordered": _ordered,
    "core": _core,
    "core_read": _core_read,
    **dict.fromkeys(("kv_put", "kv_get", "kv_read"), _key_value),
    **dict.fromkeys(("obj_put", "obj_get"), _object),
}


def _in_a_loop(work: Callable[[Client, Job], Awaitable[Timing]]) -> Callable[[Job], Timing]:
    async def connected(job: Job) -> Timing:
        nc = await nats.connect(job.url)
        try:
            return await work(nc, job)
        finally:
            await nc.close()

    return lambda job: asyncio.run(connected(job))


if __name__ == "__main__":
    serve({row: _in_a_loop(work) for row, work in _ROWS.items()}, version("nats-py"))
