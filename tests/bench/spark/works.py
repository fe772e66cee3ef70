"""The workloads of the comparison; each returns when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from jetstream_sync.spark.task_helpers import publish_partition

from . import plain


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The environment of a measurement."""

    spark: SparkSession
    url: str
    #: A stream with ``rows`` messages from sequence 1 on.
    filled: str = "FILLED"
    #: A stream that is empty before each measurement, for the subjects below its name.
    empty: str = "EMPTY"
    rows: int
    #: Bytes of a message.
    size: int = 128
    #: Headers of a message, and of a written row.
    headers: int = 0
    #: Partitions of a job.
    tasks: int = 2


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
    #: The workload that it is compared with.
    peer: str = ""


def _source_rows(ground: Ground, columns: str = "", **options: str) -> DataFrame:
    """Return the rows of the filled stream, with the given or the default columns."""
    loading = ground.spark.read.format("jetstream").options(
        servers=ground.url,
        stream=ground.filled,
        endingOffsets=f'{{"{ground.filled}": {ground.rows + 1}}}',
        maxRecordsPerPartition=str(-(-ground.rows // ground.tasks)),
        minPartitions=str(ground.tasks),
        **options,
    )
    return (loading.schema(columns) if columns else loading).load()


def _got_directly(ground: Ground) -> DataFrame:
    return _source_rows(ground, readMode="direct")


def _plain(ground: Ground) -> DataFrame:
    per_task = ground.rows // ground.tasks

    def wanted(partition: int) -> range:
        return range(partition * per_task + 1, (partition + 1) * per_task + 1)

    partitions = ground.spark.sparkContext.parallelize(range(ground.tasks), ground.tasks)
    rows = partitions.mapPartitionsWithIndex(partial(plain.read, ground.url, ground.filled, wanted))
    return ground.spark.createDataFrame(rows, "subject string, data binary, sequence long")


def _reading(title: str, frame: Callable[[Ground], DataFrame], **more: Any) -> Work:
    """Return the workload of reading a table to its end."""

    def run(ground: Ground) -> None:
        frame(ground).write.format("noop").mode("overwrite").save()

    return Work(title=title, run=run, frame=frame, **more)


def _made_rows(ground: Ground) -> DataFrame:
    """Return rows that are not read from a source."""
    numbers = ground.spark.range(0, ground.rows, 1, ground.tasks)
    data = sf.lpad(sf.col("id").cast("string"), ground.size, "0").cast("binary").alias("data")
    columns = [_subject(ground, "id"), data]
    if ground.headers:
        values = sf.array(sf.col("id").cast("string"))
        pairs = [(sf.lit(f"Header-{item}"), values) for item in range(ground.headers)]
        columns.append(sf.create_map(*chain.from_iterable(pairs)).alias("headers"))
    return numbers.select(*columns)


def _subject(ground: Ground, column: str) -> Any:
    number = (sf.col(column) % 100).cast("string")
    return sf.concat(sf.lit(f"{ground.empty}."), number).alias("subject")


def _save(rows: DataFrame, ground: Ground, **options: str) -> None:
    saving = rows.write.format("jetstream").mode("append")
    saving.options(servers=ground.url, stream=ground.empty, **options).save()


def _write(ground: Ground) -> None:
    _save(_made_rows(ground), ground)


def _write_transactions(ground: Ground) -> None:
    marker = f"{ground.empty}.marker"
    _save(_made_rows(ground), ground, delivery="transaction", markerSubject=marker)


def _write_partitions(ground: Ground) -> None:
    options = {"servers": ground.url, "stream": ground.empty, "jobId": "bench"}

    def publish(rows: Iterable[Any]) -> None:
        publish_partition(rows, options)

    _made_rows(ground).foreachPartition(publish)


def _write_plain(ground: Ground) -> None:
    _made_rows(ground).foreachPartition(partial(plain.publish, ground.url, "job"))


def _pipe(ground: Ground) -> None:
    # The schema selects the columns, since Spark does not pass them to a Python source.
    headers = ", headers map<string,array<string>>" if ground.headers else ""
    rows = _source_rows(ground, f"data binary, sequence long{headers}")
    others = [column for column in rows.columns if column != "sequence"]
    _save(rows.select(_subject(ground, "sequence"), *others), ground)


WORKS: Mapping[str, Work] = {
    "read": _reading("read", _source_rows, peer="read-nats-py"),
    "read-direct": _reading("read, direct get", _got_directly),
    "read-nats-py": _reading("read, nats-py in each partition", _plain, share=0.1),
    "write": Work(title="write, window", run=_write, writes=True, peer="write-nats-py"),
    "write-transaction": Work(
        title="write, transaction", run=_write_transactions, writes=True, peer="write"
    ),
    "write-partition": Work(
        title="write, publish_partition", run=_write_partitions, writes=True, share=0.5
    ),
    "write-nats-py": Work(
        title="write, nats-py in each partition", run=_write_plain, writes=True, share=0.1
    ),
    "pipe": Work(title="JetStream to Spark to JetStream", run=_pipe, writes=True),
}
