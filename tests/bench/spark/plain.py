"""
The alternative without the data source: nats-py in each partition, with `asyncio.run`.

It is efficient code: it fetches whole batches, and publishes many messages concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header

__all__ = ["publish", "read"]

_FETCHED = 1_000
_PUBLISHED = 500

#: subject, data, sequence
Row = tuple[str, bytearray, int]


def read(
    url: str, stream: str, wanted: Callable[[int], range], partition: int, _: Iterable[Any]
) -> Iterator[Row]:
    """Read the sequences of a partition; for `mapPartitionsWithIndex`."""
    # asyncio.run returns at the end, so nothing can be yielded in between.
    return iter(asyncio.run(_read_all(url, stream, wanted(partition))))


async def _read_all(url: str, stream: str, wanted: range) -> list[Row]:
    nc = await nats.connect(url)
    try:
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=wanted.start,
            inactive_threshold=30,
        )
        js = nc.jetstream()
        name = (await js.add_consumer(stream, config)).name
        subscription = await js.pull_subscribe_bind(name, stream)
        rows: list[Row] = []
        while len(rows) < len(wanted):
            messages = await subscription.fetch(min(_FETCHED, len(wanted) - len(rows)))
            rows.extend(
                (msg.subject, bytearray(msg.data), msg.metadata.sequence.stream) for msg in messages
            )
        return rows
    finally:
        await nc.close()


def publish(url: str, job: str, rows: Iterable[Any]) -> None:
    """Publish rows with ``subject`` and ``data``, with message ids that begin with the name of the job."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    asyncio.run(_publish_all(url, f"{job}-{context.partitionId()}", rows))


async def _publish_all(url: str, name: str, rows: Iterable[Any]) -> None:
    nc = await nats.connect(url)
    try:
        js = nc.jetstream()
        waiting = []
        for number, row in enumerate(rows):
            headers = {Header.MSG_ID: f"{name}-{number}"}
            waiting.append(js.publish(row.subject, bytes(row.data), headers=headers))
            if len(waiting) == _PUBLISHED:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
    finally:
        await nc.close()
