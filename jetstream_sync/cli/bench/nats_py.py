"""
The other side of ``jsm bench --vs nats-py``: nats-py as it is meant to be used, in one event loop.

It does the same work per message as `bench_work`, with the defaults of its library but for the window
of publishes without an acknowledgement, which is as large as ours, and takes as many samples. The
conversation is that of `bench_child`.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from .child import Job, Measured, Talk
from .work import STAMP_BYTES, Cell, every

__all__ = ["WORKS", "main"]

#: As many publishes without an acknowledgement as `JetStream.publish_async` has.
_WINDOW: Final = 4000
_PATIENCE: Final = 10.0

_Run = Callable[[], Awaitable[None]]


async def _core(nc: Any, _js: Any, cell: Cell, samples: list[int]) -> _Run:
    payload = b"x" * cell.size

    async def run() -> None:
        subject, publish, now = cell.subject, nc.publish, time.perf_counter_ns
        step = every(cell.count)
        left = cell.count
        while left:
            began = now()
            await publish(subject, payload)
            samples.append(now() - began)
            more = min(left, step) - 1
            for _ in range(more):
                await publish(subject, payload)
            left -= more + 1
        await nc.flush(60)

    return run


async def _publish(_nc: Any, js: Any, cell: Cell, samples: list[int]) -> _Run:
    payload = b"x" * cell.size

    async def run() -> None:
        subject, publish, now = cell.subject, js.publish, time.perf_counter_ns
        for _ in range(cell.count):
            began = now()
            await publish(subject, payload)
            samples.append(now() - began)

    return run


async def _publish_async(_nc: Any, js: Any, cell: Cell, samples: list[int]) -> _Run:
    payload = b"x" * cell.size

    async def run() -> None:
        subject, publish, now = cell.subject, js.publish_async, time.perf_counter_ns
        step = every(cell.count)
        left = cell.count
        while left:
            began = now()
            future = await publish(subject, payload)
            future.add_done_callback(lambda _, began=began: samples.append(now() - began))
            more = min(left, step) - 1
            for _ in range(more):
                await publish(subject, payload)
            left -= more + 1
        await js.publish_async_completed()

    return run


async def _fetch(nc: Any, js: Any, cell: Cell, samples: list[int]) -> _Run:
    sub = await js.pull_subscribe_bind(cell.consumer, cell.stream)

    async def run() -> None:
        now = time.perf_counter_ns
        left = cell.count
        while left:
            began = now()
            messages = await sub.fetch(min(cell.batch, left), timeout=_PATIENCE)
            samples.append(now() - began)
            for msg in messages:
                await msg.ack()
            left -= len(messages)
        await nc.flush(60)

    return run


async def _ordered(_nc: Any, js: Any, cell: Cell, samples: list[int]) -> _Run:
    async def run() -> None:
        now, step = time.perf_counter_ns, every(cell.count)
        sub = await js.subscribe(cell.subject, stream=cell.stream, ordered_consumer=True)
        left = cell.count
        while left:
            began = now()
            await sub.next_msg(timeout=_PATIENCE)
            samples.append(now() - began)
            more = min(left, step) - 1
            for _ in range(more):
                await sub.next_msg(timeout=_PATIENCE)
            left -= more + 1

    return run


async def _sub(nc: Any, _js: Any, cell: Cell, samples: list[int]) -> _Run:
    sub = await nc.subscribe(cell.subject, pending_msgs_limit=0, pending_bytes_limit=0)
    await nc.flush()

    async def run() -> None:
        step = every(cell.count)
        for number in range(1, cell.count + 1):
            msg = await sub.next_msg(timeout=_PATIENCE)
            if number % step == 0:
                samples.append(time.monotonic_ns() - int(msg.data[:STAMP_BYTES], 16))

    return run


#: What nats-py has a way for; it has none to consume with a callback by pulling.
WORKS: Final[dict[str, Callable[[Any, Any, Cell, list[int]], Awaitable[_Run]]]] = {
    "pub": _core,
    "publish": _publish,
    "publish-async": _publish_async,
    "fetch": _fetch,
    "ordered": _ordered,
    "sub": _sub,
}


def _options(job: Job) -> dict[str, Any]:
    """Return the login by the names that nats-py has."""
    options: dict[str, Any] = dict(job.login)
    if "inbox_prefix" in options:
        options["inbox_prefix"] = options["inbox_prefix"].encode()
    return options


async def _work(talk: Talk, nats: Any) -> Measured:
    job, samples = talk.job, list[int]()
    nc = await nats.connect(job.servers, allow_reconnect=False, **_options(job))
    places = {"prefix": job.prefix} if job.prefix else {"domain": job.domain}
    js = nc.jetstream(publish_async_max_pending=_WINDOW, timeout=_PATIENCE, **places)
    run = await WORKS[job.kind](nc, js, talk.cell, samples)
    talk.ready()
    started = time.monotonic()
    await run()
    seconds = time.monotonic() - started
    await nc.close()
    version = importlib.metadata.version("nats-py")
    return Measured(seconds=seconds, samples=samples, version=version)


def main() -> None:
    """Do the job on standard input."""
    talk = Talk()
    nats = importlib.import_module("nats")
    errors = importlib.import_module("nats.errors")
    try:
        talk.done(asyncio.run(_work(talk, nats)))
    except (errors.Error, OSError) as error:
        talk.done(Measured(error=f"nats-py: {error or type(error).__name__}"))


if __name__ == "__main__":
    main()
