"""nats-py in a blocking program: ``run_until_complete`` around every call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version

import nats
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from .job import Job, Result, WrongReadError, check_read, serve
from .stopwatch import Stopwatch, Timing

_Work = Callable[[asyncio.AbstractEventLoop, Client, Job], Timing]


def _publish(loop: asyncio.AbstractEventLoop, nc: Client, job: Job) -> Timing:
    run = loop.run_until_complete
    js = nc.jetstream()
    payload = b"x" * job.size
    watch = Stopwatch()
    for _ in range(job.count):
        run(js.publish(job.subject, payload))
    return watch.stop()


def _fetch(loop: asyncio.AbstractEventLoop, nc: Client, job: Job) -> Timing:
    run = loop.run_until_complete
    sub = run(nc.jetstream().pull_subscribe_bind(job.consumer, job.stream))
    left = job.count
    last = b""
    watch = Stopwatch()
    while left:
        messages = run(sub.fetch(min(job.batch, left)))
        for msg in messages:
            if msg.data <= last:
                raise WrongReadError(f"{msg.data!r} after {last!r}")
            last = msg.data
            run(msg.ack())
        left -= len(messages)
    run(nc.flush())
    timing = watch.stop()
    check_read(last, job.count - left, job)
    return timing


def _ordered(loop: asyncio.AbstractEventLoop, nc: Client, job: Job) -> Timing:
    run = loop.run_until_complete
    js = nc.jetstream()
    last = b""
    watch = Stopwatch()
    ordered = job.row != "push"
    config = None if ordered else ConsumerConfig(ack_policy=AckPolicy.NONE)
    sub = run(js.subscribe(job.subject, stream=job.stream, ordered_consumer=ordered, config=config))
    for _ in range(job.count):
        msg = run(sub.next_msg(timeout=5))
        if msg.data <= last:
            raise WrongReadError(f"{msg.data!r} after {last!r}")
        last = msg.data
    timing = watch.stop()
    check_read(last, job.count, job)
    return timing


def _core(loop: asyncio.AbstractEventLoop, nc: Client, job: Job) -> Timing:
    run = loop.run_until_complete
    payload = b"x" * job.size
    watch = Stopwatch()
    for _ in range(job.count):
        run(nc.publish(job.subject, payload))
    run(nc.flush())
    return watch.stop()


def _with_a_loop(work: _Work) -> Callable[[Job], Result]:
    def connected(job: Job) -> Result:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        nc = loop.run_until_complete(nats.connect(job.url))
        timing = work(loop, nc, job)
        loop.run_until_complete(nc.close())
        loop.close()
        return Result.of(job, timing, version("nats-py"))

    return connected


if __name__ == "__main__":
    serve(
        {
            "publish": _with_a_loop(_publish),
            "fetch500": _with_a_loop(_fetch),
            "fetch1": _with_a_loop(_fetch),
            "pull_subscribe500": _with_a_loop(_fetch),
            "pull_subscribe1": _with_a_loop(_fetch),
            "ordered": _with_a_loop(_ordered),
            "push_ordered": _with_a_loop(_ordered),
            "push": _with_a_loop(_ordered),
            "core": _with_a_loop(_core),
        }
    )
