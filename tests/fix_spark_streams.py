"""Streaming queries whose rows a test looks at, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_threads import SCALE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from jetstream_sync import Connection, JetStream
    from jetstream_sync.server import NatsServer

__all__ = ["Collected", "fill"]


def fill(
    js: JetStream,
    subject: str | Callable[[int], str],
    count: int,
    payload: bytes | None = None,
) -> list[str]:
    """
    Publish messages, and return their subjects.

    Args:
        js: where to.
        subject: of all of them, or what returns that of each by its number, from 1 on.
        count: how many.
        payload: of all of them; ``None``: their numbers.

    """
    numbers = range(1, count + 1)
    subjects = [subject if isinstance(subject, str) else subject(number) for number in numbers]
    for number, each in zip(numbers, subjects, strict=True):
        js.publish_async(each, b"%d" % number if payload is None else payload)
    js.publish_async_completed(20 * SCALE)
    return subjects


class Collected:
    """
    Queries that go on at one checkpoint, one after the other, and the rows that they brought.

    Args:
        spark: where they run.
        url: of the server.
        checkpoint: where their checkpoint is.

    """

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path) -> None:
        self._spark = spark
        self._url = url
        self.checkpoint = checkpoint
        #: The rows of each batch, as dicts with its partition's number under ``partition``.
        self.rows: dict[int, list[dict[str, Any]]] = {}
        #: Called in each batch, with its number.
        self.during_batch: Callable[[int], object] | None = None
        #: What the last `run` has reported.
        self.progress: list[Any] = []

    def another(self) -> Collected:
        """Return one with a checkpoint of its own."""
        return Collected(
            self._spark, self._url, self.checkpoint.with_name(f"{self.checkpoint.name}-other")
        )

    def resumed(self) -> Collected:
        """Return one with the same checkpoint that has seen nothing yet."""
        return Collected(self._spark, self._url, self.checkpoint)

    def start(self, trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        """Start a query that goes on until it is stopped, at the end of the test at the latest."""
        from pyspark.sql.functions import spark_partition_id

        source = self._spark.readStream.format("jetstream")
        frame = source.options(**{"servers": self._url, **options}).load()
        writer = frame.withColumn("partition", spark_partition_id()).writeStream
        writer = writer.trigger(**trigger) if trigger else writer
        return (
            writer.foreachBatch(self._sink)
            .option("checkpointLocation", str(self.checkpoint))
            .start()
        )

    def run(self, trigger: dict[str, Any] | None = None, **options: Any) -> None:
        """Run a query until it ends, by default until it has read what there is."""
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
        """How many rows each batch has had, without those that had none."""
        return [len(rows) for _, rows in sorted(self.rows.items())]

    def sequences(self, first_batch: int = 0) -> list[int]:
        """The sequences of all rows, sorted, those that came twice twice."""
        rows = [row for batch, rows in self.rows.items() if batch >= first_batch for row in rows]
        return sorted(row["sequence"] for row in rows)

    def partitions(self, batch: int) -> list[list[int]]:
        """The sequences of each partition of a batch, in the order in which they came."""
        found: dict[int, list[int]] = {}
        for row in self.rows[batch]:
            found.setdefault(row["partition"], []).append(row["sequence"])
        return [found[number] for number in sorted(found)]

    @staticmethod
    def triggers(nc: Connection, stream: str, count: int) -> None:
        """Wait until the query has looked at a stream so many times more."""
        looks = nc.subscribe(f"$JS.API.STREAM.INFO.{stream}")
        for _ in range(count):
            looks.next_msg(20 * SCALE)
        looks.unsubscribe()


@pytest.fixture
def collected(spark: SparkSession, nats_server: NatsServer, tmp_path: Path) -> Collected:
    """Streaming queries whose rows are kept."""
    return Collected(spark, nats_server.url, tmp_path / "checkpoint")
