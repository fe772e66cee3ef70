"""The workloads of the comparison; each returns when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from jetstream_sync.spark import JetStreamDataSource
from jetstream_sync.spark.task_helpers import publish_partition

from .memory import MemoryDataSource
from .plain import publisher, reader
from .tuples import TupleDataSource

__all__ = ["TASKS", "WORKS", "Ground", "Work", "register"]

#: Tasks of a job: one for each core of the machine that the targets are for.
TASKS: Final = 2


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The environment of a measurement."""

    spark: SparkSession
    url: str
    #: A stream with ``rows`` messages from sequence 1 on.
    filled: str
    #: A stream that is empty before each measurement, for the subjects below its name.
    empty: str
    rows: int
    #: Bytes of a message.
    size: int


@dataclass(frozen=True, kw_only=True)
class Work:
    """A workload: one way to do one kind of work."""

    title: str
    run: Callable[[Ground], None]
    #: The rows to read, with a column ``sequence``, for a workload that only reads.
    frame: Callable[[Ground], DataFrame] | None = None
    #: Whether all rows must be in the empty stream afterwards, once.
    writes: bool = False
    #: The share of the rows for this workload, so that a slow one does not take minutes.
    share: float = 1.0
    #: The target rate, in rows per second.
    aim: int | None = None
    #: The target ratios to the rates of other workloads.
    ratios: Mapping[str, float] | None = None


def _options(ground: Ground) -> dict[str, str]:
    per_task = -(-ground.rows // TASKS)
    return {
        "servers": ground.url,
        "stream": ground.filled,
        "endingOffsets": f'{{"{ground.filled}": {ground.rows + 1}}}',
        "maxRecordsPerPartition": str(per_task),
        "minPartitions": str(TASKS),
    }


def _source_rows(ground: Ground, columns: str = "", **options: str) -> DataFrame:
    """Return the rows of the filled stream, with the given or the default columns."""
    loading = ground.spark.read.format("jetstream").options(**_options(ground), **options)
    return (loading.schema(columns) if columns else loading).load()


def _drop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _reading(title: str, frame: Callable[[Ground], DataFrame], **more: Any) -> Work:
    """Return the workload of reading a table to its end."""
    return Work(title=title, run=lambda ground: _drop(frame(ground)), frame=frame, **more)


def _pulled(ground: Ground) -> DataFrame:
    return _source_rows(ground, readMode="pull")


def _got_directly(ground: Ground) -> DataFrame:
    return _source_rows(ground, readMode="direct")


def _tuples(ground: Ground) -> DataFrame:
    return ground.spark.read.format("jetstream-tuples").options(**_options(ground)).load()


def _memory(ground: Ground, form: str = "arrow") -> DataFrame:
    options: dict[str, str | int] = {"form": form, "tasks": TASKS}
    options |= {"rows": ground.rows, "size": ground.size}
    return ground.spark.read.format("jetstream-memory").options(**options).load()


def _memory_tuples(ground: Ground) -> DataFrame:
    return _memory(ground, "tuples")


def _plain(ground: Ground) -> DataFrame:
    per_task = ground.rows // TASKS

    def wanted(partition: int) -> range:
        return range(partition * per_task + 1, (partition + 1) * per_task + 1)

    partitions = ground.spark.sparkContext.parallelize(range(TASKS), TASKS)
    rows = partitions.mapPartitionsWithIndex(reader(ground.url, ground.filled, wanted))
    return ground.spark.createDataFrame(rows, "subject string, data binary, sequence long")


def _made_rows(ground: Ground) -> DataFrame:
    """Return rows that are not read from a source."""
    numbers = ground.spark.range(0, ground.rows, 1, TASKS)
    return numbers.select(
        sf.concat(sf.lit(f"{ground.empty}."), (sf.col("id") % 100).cast("string")).alias("subject"),
        sf.lpad(sf.col("id").cast("string"), ground.size, "0").cast("binary").alias("data"),
    )


def _save(rows: DataFrame, ground: Ground, **options: str) -> None:
    saving = rows.write.format("jetstream").mode("append")
    saving.options(servers=ground.url, stream=ground.empty, **options).save()


def _write(ground: Ground) -> None:
    _save(_made_rows(ground), ground)


def _write_without_ids(ground: Ground) -> None:
    _save(_made_rows(ground), ground, delivery="at-least-once")


def _write_partitions(ground: Ground) -> None:
    options = {"servers": ground.url, "stream": ground.empty, "jobId": "bench"}

    def publish(rows: Iterable[Any]) -> None:
        publish_partition(rows, options)

    _made_rows(ground).foreachPartition(publish)


def _write_plain(ground: Ground) -> None:
    _made_rows(ground).foreachPartition(publisher(ground.url, "job"))


def _pipe(ground: Ground) -> None:
    # The schema selects the columns, since Spark does not pass them to a Python source.
    rows = _source_rows(ground, "data binary, sequence long").select(
        sf.concat(sf.lit(f"{ground.empty}."), (sf.col("sequence") % 100).cast("string")).alias(
            "subject"
        ),
        "data",
    )
    _save(rows, ground)


def register(spark: SparkSession) -> None:
    """Register the data sources in a session."""
    spark.dataSource.register(JetStreamDataSource)
    spark.dataSource.register(TupleDataSource)
    spark.dataSource.register(MemoryDataSource)


WORKS: Mapping[str, Work] = {
    # A job has a fixed cost, so compared workloads have as many rows.
    "read": _reading(
        "read", _source_rows, aim=350_000, ratios={"read-tuples": 3.0, "read-nats-py": 1.0}
    ),
    "read-pull": _reading("read, pull consumer", _pulled),
    "read-direct": _reading("read, direct get", _got_directly),
    "read-tuples": _reading("read, a tuple for each row", _tuples),
    "read-nats-py": _reading("read, nats-py in each partition", _plain, share=0.1),
    "memory": _reading("rows in memory", _memory, ratios={"memory-tuples": 3.0}),
    "memory-tuples": _reading("rows in memory, a tuple for each", _memory_tuples),
    "write": Work(
        title="write, with ids", run=_write, writes=True, aim=150_000, ratios={"write-nats-py": 1.0}
    ),
    "write-no-ids": Work(title="write, at least once", run=_write_without_ids, writes=True),
    "write-partition": Work(
        title="write, publish_partition", run=_write_partitions, writes=True, share=0.5
    ),
    "write-nats-py": Work(
        title="write, nats-py in each partition", run=_write_plain, writes=True, share=0.1
    ),
    "pipe": Work(title="JetStream to Spark to JetStream", run=_pipe, writes=True, aim=150_000),
}
