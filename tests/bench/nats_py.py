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
from nats.js.api import AckPolicy, ConsumerConfig, ObjectStoreConfig, PubAck, StorageType
from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue

from .job import (
    BLOCK,
    BUCKET,
    CHUNK_BYTES,
    FUTURES_HELD,
    OBJECT_CHUNKS,
    Job,
    Result,
    WrongReadError,
    check_read,
    check_sequences,
    serve,
)
from .stopwatch import Stopwatch, Timing

_Work = Callable[[Client, Job], Awaitable[Timing]]


async def _publish(nc: Client, job: Job) -> Timing:
    js = nc.jetstream()
    payload = b"x" * job.size
    watch = Stopwatch()
    for _ in range(job.count):
        await js.publish(job.subject, payload)
    return watch.stop()


async def _publish_async(nc: Client, job: Job) -> Timing:
    js = nc.jetstream(publish_async_max_pending=job.window)
    payload = b"x" * job.size
    futures: list[asyncio.Future[PubAck]] = []
    watch = Stopwatch()
    for _ in range(job.count):
        future = await js.publish_async(job.subject, payload)
        if job.results:
            futures.append(future)
            if len(futures) == FUTURES_HELD:
                check_sequences([(await each).seq for each in futures])
                futures.clear()
    check_sequences([(await each).seq for each in futures])
    await js.publish_async_completed()
    return watch.stop()


async def _fetch(nc: Client, job: Job) -> Timing:
    js = nc.jetstream()
    sub = await js.pull_subscribe_bind(job.consumer, job.stream)
    left = job.count
    last = b""
    watch = Stopwatch()
    while left:
        messages = await sub.fetch(min(job.batch, left))
        for msg in messages:
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            await msg.ack()
        left -= len(messages)
    await nc.flush()
    timing = watch.stop()
    check_read(last, job.count - left, job)
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
    check_read(messages[-1].data, len(messages), job)
    return timing


async def _request(nc: Client, job: Job) -> Timing:
    watch = Stopwatch()
    for _ in range(job.count):
        await nc.request(job.direct_subject)
    return watch.stop()


async def _ordered(nc: Client, job: Job) -> Timing:
    js = nc.jetstream()
    last = b""
    watch = Stopwatch()
    ordered = job.row != "push"
    config = None if ordered else ConsumerConfig(ack_policy=AckPolicy.NONE)
    sub = await js.subscribe(
        job.subject, stream=job.stream, ordered_consumer=ordered, config=config
    )
    for _ in range(job.count):
        msg = await sub.next_msg(timeout=5)
        if msg.data <= last:
            raise WrongReadError(f"{msg.data!r} after {last!r}")
        last = msg.data
    timing = watch.stop()
    check_read(last, job.count, job)
    return timing


async def _keys(kv: KeyValue) -> list[str]:
    """Return the keys; sometimes `keys()` misses the answer of its consumer and finds none."""
    while True:
        with suppress(NoKeysError):
            return await kv.keys()


async def _key_value(nc: Client, job: Job) -> Timing:
    js = nc.jetstream(publish_async_max_pending=job.window)
    payload = b"x" * job.size
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


async def _core_read(nc: Client, job: Job) -> Timing:
    payload = b"x" * job.size
    sub = await nc.subscribe(job.subject)
    watch = Stopwatch()
    for _ in range(job.count // BLOCK):
        for _ in range(BLOCK):
            await nc.publish(job.subject, payload)
        for _ in range(BLOCK):
            await sub.next_msg(timeout=5)
    return watch.stop()


async def _core(nc: Client, job: Job) -> Timing:
    payload = b"x" * job.size
    watch = Stopwatch()
    for _ in range(job.count):
        await nc.publish(job.subject, payload)
    await nc.flush()
    return watch.stop()


def _in_a_loop(work: _Work) -> Callable[[Job], Result]:
    async def connected(job: Job) -> Result:
        nc = await nats.connect(job.url)
        timing = await work(nc, job)
        await nc.close()
        return Result.of(job, timing, version("nats-py"))

    return lambda job: asyncio.run(connected(job))


if __name__ == "__main__":
    serve(
        {
            "publish": _in_a_loop(_publish),
            "publish_async": _in_a_loop(_publish_async),
            "fetch500": _in_a_loop(_fetch),
            "fetch1": _in_a_loop(_fetch),
            "messages": _in_a_loop(_fetch),  # it has no continuous pull
            "worker": _in_a_loop(_fetch),
            "ack_sync": _in_a_loop(_ack_sync),
            "request": _in_a_loop(_request),
            "pull_subscribe500": _in_a_loop(_fetch),
            "pull_subscribe1": _in_a_loop(_fetch),
            "ordered": _in_a_loop(_ordered),
            "push_ordered": _in_a_loop(_ordered),
            "push": _in_a_loop(_ordered),
            "kv_put": _in_a_loop(_key_value),
            "kv_get": _in_a_loop(_key_value),
            "kv_read": _in_a_loop(_key_value),
            "obj_put": _in_a_loop(_object),
            "obj_get": _in_a_loop(_object),
            "core": _in_a_loop(_core),
            "core_read": _in_a_loop(_core_read),
        }
    )
