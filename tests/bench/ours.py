"""jetstream_sync, as a blocking program uses it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from time import perf_counter

import jetstream_sync
from jetstream_sync import Connection, ConsumerConfig, JetStreamMsg

from .job import Job, Result, WrongReadError, check_read, serve

_ASYNC_TIMEOUT = 60.0

_Work = Callable[[Connection, Job], float]


def _publish(nc: Connection, job: Job) -> float:
    js = nc.jetstream()
    payload = b"x" * job.size
    start = perf_counter()
    for _ in range(job.count):
        js.publish(job.subject, payload)
    return perf_counter() - start


def _publish_async(nc: Connection, job: Job) -> float:
    js = nc.jetstream()  # its window is job.window unless said otherwise
    payload = b"x" * job.size
    start = perf_counter()
    for _ in range(job.count):
        js.publish_async(job.subject, payload)
    js.publish_async_completed(timeout=_ASYNC_TIMEOUT)
    return perf_counter() - start


def _fetch(nc: Connection, job: Job) -> float:
    return _fetched(nc, job, nc.jetstream().get_consumer(job.stream, job.consumer).fetch)


def _pull_subscribe(nc: Connection, job: Job) -> float:
    return _fetched(nc, job, nc.jetstream().pull_subscribe_bind(job.consumer, job.stream).fetch)


def _fetched(nc: Connection, job: Job, fetch: Callable[[int], list[JetStreamMsg]]) -> float:
    left = job.count
    last = b""
    start = perf_counter()
    while left:
        messages = fetch(min(job.batch, left))
        for msg in messages:
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            msg.ack()
        left -= len(messages)
    nc.flush()
    seconds = perf_counter() - start
    check_read(last, job.count - left, job)
    return seconds


def _ordered(nc: Connection, job: Job) -> float:
    stream = nc.jetstream().get_stream(job.stream)
    received = 0
    last = b""
    start = perf_counter()
    with stream.ordered_consumer().messages() as messages:
        for msg in islice(messages, job.count):
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            received += 1
        seconds = perf_counter() - start
    check_read(last, received, job)
    return seconds


def _push(nc: Connection, job: Job) -> float:
    config = None if job.row == "push_ordered" else ConsumerConfig(ack_policy="none")
    ordered = config is None
    received = 0
    last = b""
    start = perf_counter()
    with nc.jetstream().subscribe(
        job.subject, stream=job.stream, ordered_consumer=ordered, config=config
    ) as sub:
        for msg in islice(sub, job.count):
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            received += 1
        seconds = perf_counter() - start
    check_read(last, received, job)
    return seconds


_BUCKET = "JETSTREAM_SYNC_BENCH"


def _key_value(nc: Connection, job: Job) -> float:
    js = nc.jetstream(timeout=_ASYNC_TIMEOUT)
    payload = b"x" * job.size
    kv = js.create_key_value(bucket=_BUCKET, storage="memory")
    try:
        for number in range(job.count if job.row == "kv_read" else 1):
            js.publish_async(f"$KV.{_BUCKET}.key.{number}", payload)
        js.publish_async_completed(timeout=_ASYNC_TIMEOUT)
        start = perf_counter()
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
        return perf_counter() - start
    finally:
        js.delete_key_value(_BUCKET)


def _core(nc: Connection, job: Job) -> float:
    payload = b"x" * job.size
    start = perf_counter()
    for _ in range(job.count):
        nc.publish(job.subject, payload)
    nc.flush()
    return perf_counter() - start


def _connected(work: _Work) -> Callable[[Job], Result]:
    def run(job: Job) -> Result:
        with jetstream_sync.connect(job.url) as nc:
            seconds = work(nc, job)
        return Result(job.count, seconds, jetstream_sync.__version__)

    return run


if __name__ == "__main__":
    serve(
        {
            "publish": _connected(_publish),
            "publish_async": _connected(_publish_async),
            "fetch500": _connected(_fetch),
            "fetch1": _connected(_fetch),
            "pull_subscribe500": _connected(_pull_subscribe),
            "pull_subscribe1": _connected(_pull_subscribe),
            "ordered": _connected(_ordered),
            "push_ordered": _connected(_push),
            "push": _connected(_push),
            "kv_put": _connected(_key_value),
            "kv_get": _connected(_key_value),
            "kv_read": _connected(_key_value),
            "core": _connected(_core),
        }
    )
