"""jetstream_sync in a blocking program."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice

import jetstream_sync
from jetstream_sync import Connection, ConsumerConfig, JetStreamMsg, PubAck, speedups
from jetstream_sync.workers import Worker

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

_ASYNC_TIMEOUT = 60.0
_VERSION = jetstream_sync.__version__ + ("" if speedups.IN_USE else " without its C extension")

_Work = Callable[[Connection, Job], Timing]


def _publish(nc: Connection, job: Job) -> Timing:
    js = nc.jetstream()
    payload = b"x" * job.size
    watch = Stopwatch()
    for _ in range(job.count):
        js.publish(job.subject, payload)
    return watch.stop()


def _publish_async(nc: Connection, job: Job) -> Timing:
    js = nc.jetstream()  # its window is job.window unless given
    payload = b"x" * job.size
    futures: list[Future[PubAck]] = []
    watch = Stopwatch()
    for _ in range(job.count):
        future = js.publish_async(job.subject, payload)
        if job.results:
            futures.append(future)
            if len(futures) == FUTURES_HELD:
                check_sequences([each.result(_ASYNC_TIMEOUT).seq for each in futures])
                futures.clear()
    check_sequences([each.result(_ASYNC_TIMEOUT).seq for each in futures])
    js.publish_async_completed(timeout=_ASYNC_TIMEOUT)
    return watch.stop()


def _fetch(nc: Connection, job: Job) -> Timing:
    return _fetched(nc, job, nc.jetstream().get_consumer(job.stream, job.consumer).fetch)


def _pull_subscribe(nc: Connection, job: Job) -> Timing:
    return _fetched(nc, job, nc.jetstream().pull_subscribe_bind(job.consumer, job.stream).fetch)


def _fetched(nc: Connection, job: Job, fetch: Callable[[int], list[JetStreamMsg]]) -> Timing:
    left = job.count
    last = b""
    watch = Stopwatch()
    while left:
        messages = fetch(min(job.batch, left))
        for msg in messages:
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            msg.ack()
        left -= len(messages)
    nc.flush()
    timing = watch.stop()
    check_read(last, job.count - left, job)
    return timing


def _messages(nc: Connection, job: Job) -> Timing:
    consumer = nc.jetstream().get_consumer(job.stream, job.consumer)
    received = 0
    last = b""
    watch = Stopwatch()
    with consumer.messages() as messages:
        for msg in islice(messages, job.count):
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            msg.ack()
            received += 1
        nc.flush()
        timing = watch.stop()
    check_read(last, received, job)
    return timing


def _worker(job: Job) -> Result:
    worker = Worker(job.url)
    received = 0
    last = b""
    timing: Timing | None = None

    @worker.handler(stream=job.stream, consumer=job.consumer, prefetch=job.batch)
    def handle(data: bytes) -> None:
        nonlocal last, received, timing
        if data <= last:
            raise WrongReadError(f"{data!r} after {last!r}")
        last = data
        received += 1
        if received == job.count:
            timing = watch.stop()
            worker.stop()

    watch = Stopwatch()
    worker.run()
    check_read(last, received, job)
    assert timing is not None
    return Result.of(job, timing, _VERSION)


def _ack_sync(nc: Connection, job: Job) -> Timing:
    consumer = nc.jetstream().get_consumer(job.stream, job.consumer)
    messages = consumer.fetch(job.count)
    watch = Stopwatch()
    for msg in messages:
        msg.ack_sync()
    timing = watch.stop()
    check_read(messages[-1].data, len(messages), job)
    return timing


def _request(nc: Connection, job: Job) -> Timing:
    watch = Stopwatch()
    for _ in range(job.count):
        nc.request(job.direct_subject)
    return watch.stop()


def _ordered(nc: Connection, job: Job) -> Timing:
    stream = nc.jetstream().get_stream(job.stream)
    received = 0
    last = b""
    watch = Stopwatch()
    with stream.ordered_consumer().messages() as messages:
        for msg in islice(messages, job.count):
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            received += 1
        timing = watch.stop()
    check_read(last, received, job)
    return timing


def _push(nc: Connection, job: Job) -> Timing:
    config = None if job.row == "push_ordered" else ConsumerConfig(ack_policy="none")
    ordered = config is None
    received = 0
    last = b""
    watch = Stopwatch()
    with nc.jetstream().subscribe(
        job.subject, stream=job.stream, ordered_consumer=ordered, config=config
    ) as sub:
        for msg in islice(sub, job.count):
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            received += 1
        timing = watch.stop()
    check_read(last, received, job)
    return timing


def _key_value(nc: Connection, job: Job) -> Timing:
    js = nc.jetstream(timeout=_ASYNC_TIMEOUT)
    payload = b"x" * job.size
    kv = js.create_key_value(bucket=BUCKET, storage="memory")
    try:
        for number in range(job.count if job.row == "kv_read" else 1):
            js.publish_async(f"$KV.{BUCKET}.key.{number}", payload)
        js.publish_async_completed(timeout=_ASYNC_TIMEOUT)
        watch = Stopwatch()
        if job.row == "kv_put":
            for _ in range(job.count):
                kv.put("key.0", payload)
        elif job.row == "kv_get":
            for _ in range(job.count):
                if kv.get("key.0").value != payload:
                    raise WrongReadError("another value than the one that was put")
        else:
            values = {key: entry.value for key, entry in kv.get_many(">").items()}
            if len(values) != job.count or set(values.values()) != {payload}:
                raise WrongReadError(f"{len(values)} of {job.count} keys were read")
        return watch.stop()
    finally:
        js.delete_key_value(BUCKET)


def _object(nc: Connection, job: Job) -> Timing:
    data = os.urandom(OBJECT_CHUNKS * CHUNK_BYTES)
    js = nc.jetstream(timeout=_ASYNC_TIMEOUT)
    store = js.create_object_store(bucket=BUCKET, storage="memory")
    try:
        store.put("object", data)
        watch = Stopwatch()
        for _ in range(job.count // OBJECT_CHUNKS):
            if job.row == "obj_put":
                store.put("object", data)
            elif store.get_bytes("object") != data:
                raise WrongReadError("another object than the one that was put")
        return watch.stop()
    finally:
        js.delete_object_store(BUCKET)


def _core_read(nc: Connection, job: Job) -> Timing:
    payload = b"x" * job.size
    with nc.subscribe(job.subject) as sub:
        watch = Stopwatch()
        for _ in range(job.count // BLOCK):
            for _ in range(BLOCK):
                nc.publish(job.subject, payload)
            for _ in range(BLOCK):
                sub.next_msg(timeout=5.0)
        return watch.stop()


def _core(nc: Connection, job: Job) -> Timing:
    payload = b"x" * job.size
    watch = Stopwatch()
    for _ in range(job.count):
        nc.publish(job.subject, payload)
    nc.flush()
    return watch.stop()


def _connected(work: _Work) -> Callable[[Job], Result]:
    def run(job: Job) -> Result:
        with jetstream_sync.connect(job.url) as nc:
            timing = work(nc, job)
        return Result.of(job, timing, _VERSION)

    return run


if __name__ == "__main__":
    serve(
        {
            "publish": _connected(_publish),
            "publish_async": _connected(_publish_async),
            "fetch500": _connected(_fetch),
            "fetch1": _connected(_fetch),
            "messages": _connected(_messages),
            "worker": _worker,
            "ack_sync": _connected(_ack_sync),
            "request": _connected(_request),
            "pull_subscribe500": _connected(_pull_subscribe),
            "pull_subscribe1": _connected(_pull_subscribe),
            "ordered": _connected(_ordered),
            "push_ordered": _connected(_push),
            "push": _connected(_push),
            "kv_put": _connected(_key_value),
            "kv_get": _connected(_key_value),
            "kv_read": _connected(_key_value),
            "obj_put": _connected(_object),
            "obj_get": _connected(_object),
            "core": _connected(_core),
            "core_read": _connected(_core_read),
        }
    )
