"""nats-py as it is meant to be used: coroutines in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from time import perf_counter

import nats
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, StorageType
from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue

from .job import Job, Result, WrongReadError, check_read, serve

_Work = Callable[[Client, Job], Awaitable[float]]


async def _publish(nc: Client, job: Job) -> float:
    js = nc.jetstream()
    payload = b"x" * job.size
    start = perf_counter()
    for _ in range(job.count):
        await js.publish(job.subject, payload)
    return perf_counter() - start


async def _publish_async(nc: Client, job: Job) -> float:
    js = nc.jetstream(publish_async_max_pending=job.window)
    payload = b"x" * job.size
    start = perf_counter()
    for _ in range(job.count):
        await js.publish_async(job.subject, payload)
    await js.publish_async_completed()
    return perf_counter() - start


async def _fetch(nc: Client, job: Job) -> float:
    js = nc.jetstream()
    sub = await js.pull_subscribe_bind(job.consumer, job.stream)
    left = job.count
    last = b""
    start = perf_counter()
    while left:
        messages = await sub.fetch(min(job.batch, left))
        for msg in messages:
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            await msg.ack()
        left -= len(messages)
    await nc.flush()
    seconds = perf_counter() - start
    check_read(last, job.count - left, job)
    return seconds


async def _ordered(nc: Client, job: Job) -> float:
    js = nc.jetstream()
    last = b""
    start = perf_counter()
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
    seconds = perf_counter() - start
    check_read(last, job.count, job)
    return seconds


_BUCKET = "JETSTREAM_SYNC_BENCH"


async def _keys(kv: KeyValue) -> list[str]:
    """Return the keys; now and then `keys()` misses the answer of its consumer and finds none."""
    while True:
        with suppress(NoKeysError):
            return await kv.keys()


async def _key_value(nc: Client, job: Job) -> float:
    js = nc.jetstream(publish_async_max_pending=job.window)
    payload = b"x" * job.size
    kv = await js.create_key_value(bucket=_BUCKET, storage=StorageType.MEMORY, direct=True)
    try:
        for number in range(job.count if job.row == "kv_read" else 1):
            await js.publish_async(f"$KV.{_BUCKET}.key.{number}", payload)
        await js.publish_async_completed()
        start = perf_counter()
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
        return perf_counter() - start
    finally:
        await js.delete_key_value(_BUCKET)


async def _core(nc: Client, job: Job) -> float:
    payload = b"x" * job.size
    start = perf_counter()
    for _ in range(job.count):
        await nc.publish(job.subject, payload)
    await nc.flush()
    return perf_counter() - start


def _in_a_loop(work: _Work) -> Callable[[Job], Result]:
    async def connected(job: Job) -> Result:
        nc = await nats.connect(job.url)
        seconds = await work(nc, job)
        await nc.close()
        return Result(job.count, seconds, version("nats-py"))

    return lambda job: asyncio.run(connected(job))


if __name__ == "__main__":
    serve(
        {
            "publish": _in_a_loop(_publish),
            "publish_async": _in_a_loop(_publish_async),
            "fetch500": _in_a_loop(_fetch),
            "fetch1": _in_a_loop(_fetch),
            "pull_subscribe500": _in_a_loop(_fetch),
            "pull_subscribe1": _in_a_loop(_fetch),
            "ordered": _in_a_loop(_ordered),
            "push_ordered": _in_a_loop(_ordered),
            "push": _in_a_loop(_ordered),
            "kv_put": _in_a_loop(_key_value),
            "kv_get": _in_a_loop(_key_value),
            "kv_read": _in_a_loop(_key_value),
            "core": _in_a_loop(_core),
        }
    )
