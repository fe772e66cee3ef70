"""Streaming queries whose rows a test inspects, batch by batch, with Spark and without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_threads import SCALE

from jetstream_sync.api.stream import StreamInfo
from jetstream_sync.codec import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from jetstream_sync import Connection, JetStream, Stream
    from jetstream_sync.server import NatsServer
    from jetstream_sync.spark.options import ReadOptions
    from jetstream_sync.spark.reading.ranges import SequenceRange

__all__ = ["Collected", "InProcess", "fill", "new_stream", "stream_info"]


def stream_info(config: dict[str, object] | None = None, **state: object) -> StreamInfo:
    """Return a stream info as sent by a server."""
    full = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
    return decode(
        StreamInfo,
        {
            "config": {"name": "ORDERS", "subjects": ["o.>"], "retention": "limits"}
            | (config or {}),
            "created": "2026-01-02T03:04:05.123456789Z",
            "state": full | state,
        },
    )


def new_stream(js: JetStream, name: str, **config: Any) -> Stream:
    """Create a stream for all subjects below its name, with direct gets by default."""
    defaults = {"subjects": [f"{name}.>"], "storage": "memory", "allow_direct": True}
    return js.create_stream(**{"name": name, **defaults, **config})


def fill(
    js: JetStream,
    subject: str | Callable[[int], str],
    count: int,
    payload: bytes | None = None,
) -> list[str]:
    """
    Publish messages, and return their subjects.

    Args:
        js: the JetStream context.
        subject: the subject of all messages, or a function that returns it for a number from 1 on.
        count: the number of messages.
        payload: the payload of all messages; ``None``: their numbers.

    """
    numbers = range(1, count + 1)
    subjects = [subject if isinstance(subject, str) else subject(number) for number in numbers]
    for number, item in zip(numbers, subjects, strict=True):
        js.publish_async(item, b"%d" % number if payload is None else payload)
    js.publish_async_completed(20 * SCALE)
    return subjects


class Collected:
    """
    Consecutive runs of a query with one checkpoint, and their rows.

    Args:
        spark: the session.
        url: the URL of the server.
        checkpoint: the folder of the checkpoint.

    """

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path) -> None:
        self._spark = spark
        self._url = url
        self.checkpoint = checkpoint
        #: The rows of each batch, as dicts with the partition number under ``partition``.
        self.rows: dict[int, list[dict[str, Any]]] = {}
        #: Called in each batch with its number.
        self.during_batch: Callable[[int], object] | None = None
        #: The progress reports of the last `run`.
        self.progress: list[Any] = []

    def another(self) -> Collected:
        """Return an instance with another checkpoint."""
        return Collected(
            self._spark, self._url, self.checkpoint.with_name(f"{self.checkpoint.name}-other")
        )

    def resumed(self) -> Collected:
        """Return an instance with the same checkpoint and no rows."""
        return Collected(self._spark, self._url, self.checkpoint)

    def start(self, trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        """Start a query that runs until it is stopped, at the latest at the end of the test."""
        from pyspark.sql.functions import spark_partition_id

        from jetstream_sync.spark import start_query

        source = self._spark.readStream.format("jetstream")
        frame = source.options(**{"servers": self._url, **options}).load()
        writer = frame.withColumn("partition", spark_partition_id()).writeStream
        writer = writer.trigger(**trigger) if trigger else writer
        writer = writer.foreachBatch(self._sink)
        return start_query(writer.option("checkpointLocation", str(self.checkpoint)).start)

    def run(self, trigger: dict[str, Any] | None = None, **options: Any) -> None:
        """Run a query until it ends; by default it reads the available messages."""
        query = self.start(trigger or {"availableNow": True}, **options)
        try:
            assert query.awaitTermination(int(60 * SCALE)), "the query does not end"
        finally:
            self.progress = list(query.recentProgress)
            query.stop()

    def _sink(self, frame: DataFrame, batch: int) -> None:
        rows = [row.asDict() for row in frame.collect()]
        if rows:
            self.rows[batch] = rows
        if self.during_batch is not None and rows:
            self.during_batch(batch)

    def sizes(self) -> list[int]:
        """Return the number of rows of each batch that had rows."""
        return [len(rows) for _, rows in sorted(self.rows.items())]

    def sequences(self, first_batch: int = 0) -> list[int]:
        """Return the sequences of all rows, sorted and with duplicates."""
        rows = [row for batch, rows in self.rows.items() if batch >= first_batch for row in rows]
        return sorted(row["sequence"] for row in rows)

    def partitions(self, batch: int) -> list[list[int]]:
        """Return the sequences of each partition of a batch, in the order of arrival."""
        found: dict[int, list[int]] = {}
        for row in self.rows[batch]:
            found.setdefault(row["partition"], []).append(row["sequence"])
        return [found[number] for number in sorted(found)]

    @staticmethod
    def triggers(nc: Connection, stream: str, count: int) -> None:
        """Wait until the query has read the state of a stream a number of times more."""
        requests = nc.subscribe(f"$JS.API.STREAM.INFO.{stream}")
        for _ in range(count):
            requests.next_msg(20 * SCALE)
        requests.unsubscribe()


class InProcess:
    """
    Consecutive runs of a query with one checkpoint, without Spark: its plans, and the rows of each batch.

    The offsets pass through JSON, as in Spark. It is for tests of the options, which take effect in Python.

    Args:
        url: the URL of the server.

    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._end: str | None = None
        #: The stream and the sequence of each row of each batch.
        self.rows: list[list[tuple[str, int]]] = []

    def another(self) -> InProcess:
        """Return an instance with another checkpoint."""
        return InProcess(self._url)

    def run(self, **options: object) -> None:
        """Read the available messages, in batches of the configured size."""
        from jetstream_sync.spark.options import ReadOptions
        from jetstream_sync.spark.streaming.query import QueryPlanner

        texts = {name: str(value) for name, value in options.items()}
        parsed = ReadOptions.from_options({"servers": self._url, **texts})
        query = QueryPlanner(parsed)
        try:
            end = json.dumps(query.initial()) if self._end is None else self._end
            query.prepare_available_now()
            while True:
                start, self._end = end, end
                end = json.dumps(query.latest(json.loads(start), unlimited=False))
                if end == start:
                    return
                plan = query.partitions(json.loads(start), json.loads(end))
                self.rows.append([row for part in plan for row in _rows(parsed, part)])
        finally:
            query.close()

    def sizes(self) -> list[int]:
        """Return the number of rows of each batch."""
        return [len(rows) for rows in self.rows]

    def sequences(self, first_batch: int = 0) -> list[int]:
        """Return the sequences of all rows, sorted and with duplicates."""
        return sorted(sequence for rows in self.rows[first_batch:] for _, sequence in rows)


def _rows(options: ReadOptions, part: SequenceRange) -> Iterator[tuple[str, int]]:
    from jetstream_sync.spark.connections import jetstream
    from jetstream_sync.spark.reading.range_reader import ReadPlan, read_chunks

    plan = ReadPlan(fail_on_data_loss=options.fail_on_data_loss)
    for chunk in read_chunks(jetstream(options.connection), part, frozenset({"sequence"}), plan):
        yield from ((part.stream, sequence) for sequence in chunk.sequences)


@pytest.fixture
def in_process(nats_server: NatsServer) -> InProcess:
    """Return streaming queries that run without Spark."""
    return InProcess(nats_server.url)


@pytest.fixture
def collected(spark: SparkSession, nats_server: NatsServer, tmp_path: Path) -> Collected:
    """Return streaming queries whose rows are collected."""
    return Collected(spark, nats_server.url, tmp_path / "checkpoint")
