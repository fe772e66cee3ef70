"""jetstream_sync in a blocking program."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice

import jetstream_sync
from jetstream_sync import Connection, PubAckFuture, speedups
from jetstream_sync.workers import Worker

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

_TIMEOUT = 60.0


def _repeated(job: Job, call: Callable[[], object]) -> Timing:
    watch = Stopwatch()
    for _ in range(job.count):
        call()
    return watch.stop()


def _publish(nc: Connection, job: Job) -> Timing:
    js, payload = nc.jetstream(), job.payload
    return _repeated(job, lambda: js.publish(job.subject, payload))


def _request(nc: Connection, job: Job) -> Timing:
    return _repeated(job, lambda: nc.request(job.direct_subject))


def _publish_async(nc: Connection, job: Job) -> Timing:
    js = nc.jetstream()  # its window is job.window unless given
    payload = job.payload
    futures: list[PubAckFuture] = []
    watch = Stopwatch()
    for _ in range(job.count):
        futures.append(js.publish_async(job.subject, payload))
        if len(futures) == FUTURES_HELD:
            check_sequences([future.result(_TIMEOUT).seq for future in futures])
            futures.clear()
    check_sequences([future.result(_TIMEOUT).seq for future in futures])
    js.publish_async_completed(timeout=_TIMEOUT)
    return watch.stop()


def _fetch(nc: Connection, job: Job) -> Timing:
    consumer = nc.jetstream().get_consumer(job.stream, job.consumer)
    read: list[bytes] = []
    watch = Stopwatch()
    while len(read) < job.count:
        for msg in consumer.fetch(min(job.batch, job.count - len(read))):
            read.append(msg.data)
            msg.ack()
    nc.flush()
    timing = watch.stop()
    check_read(read, job)
    return timing


def _messages(nc: Connection, job: Job) -> Timing:
    consumer = nc.jetstream().get_consumer(job.stream, job.consumer)
    read: list[bytes] = []
    watch = Stopwatch()
    with consumer.messages() as messages:
        for msg in islice(messages, job.count):
            read.append(msg.data)
            msg.ack()
        nc.flush()
        timing = watch.stop()
    check_read(read, job)
    return timing


def _worker(job: Job) -> Timing:
    worker = Worker(job.url)
    read: list[bytes] = []
    timings: list[Timing] = []

    @worker.handler(stream=job.stream, consumer=job.consumer, prefetch=job.batch)
    def handle(data: bytes) -> None:
        read.append(data)
        if len(read) == job.count:
            timings.append(watch.stop())
            worker.stop()

    watch = Stopwatch()
    worker.run()
    check_read(read, job)
    return timings[0]


def _ack_sync(nc: Connection, job: Job) -> Timing:
    messages = nc.jetstream().get_consumer(job.stream, job.consumer).fetch(job.count)
    watch = Stopwatch()
    for msg in messages:
        msg.ack_sync()
    timing = watch.stop()
    check_read([msg.data for msg in messages], job)
    return timing


def _ordered(nc: Connection, job: Job) -> Timing:
    stream = nc.jetstream().get_stream(job.stream)
    watch = Stopwatch()
    with stream.ordered_consumer().messages() as messages:
        read = [msg.data for msg in islice(messages, job.count)]
        timing = watch.stop()
    check_read(read, job)
    return timing


def _key_value(nc: Connection, job: Job) -> Timing:
    js, payload = nc.jetstream(timeout=_TIMEOUT), job.payload
    kv = js.create_key_value(bucket=BUCKET, storage="memory")
    try:
        for number in range(job.count if job.row == "kv_read" else 1):
            js.publish_async(f"$KV.{BUCKET}.key.{number}", payload)
        js.publish_async_completed(timeout=_TIMEOUT)
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
    js = nc.jetstream(timeout=_TIMEOUT)
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


def _core(nc: Connection, job: Job) -> Timing:
    payload = job.payload
    watch = Stopwatch()
    for _ in range(job.count):
        nc.publish(job.subject, payload)
    nc.flush()
    return watch.stop()


def _core_read(nc: Connection, job: Job) -> Timing:
    payload = job.payload
    with nc.subscribe(job.subject) as sub:
        watch = Stopwatch()
        for _ in range(job.count // BLOCK):
            for _ in range(BLOCK):
                nc.publish(job.subject, payload)
            for _ in range(BLOCK):
                sub.next_msg(timeout=5.0)
        return watch.stop()


_ROWS: dict[str, Callable[[Connection, Job], Timing]] = {
    "publish": _publish,
    "request": _request,
    "publish_async": _publish_async,
    "fetch500": _fetch,
    "fetch1": _fetch,
    "messages": _messages,
    "ack_sync": _ack_sync,
    "ordered": _ordered,
    "core": _core,
    "core_read": _core_read,
    **dict.fromkeys(("kv_put", "kv_get", "kv_read"), _key_value),
    **dict.fromkeys(("obj_put", "obj_get"), _object),
}


def _connected(work: Callable[[Connection, Job], Timing]) -> Callable[[Job], Timing]:
    def run(job: Job) -> Timing:
        with jetstream_sync.connect(job.url) as nc:
            return work(nc, job)

    return run


if __name__ == "__main__":
    version = jetstream_sync.__version__ + ("" if speedups.IN_USE else " without its C extension")
    serve({**{row: _connected(work) for row, work in _ROWS.items()}, "worker": _worker}, version)
