"""
The two jobs of ``jsm demo --spark``: each reads orders of one stage and writes those of the next.

That an order is never done twice although a batch may be done again rests on three things:

1. A batch that is done again has the same rows: its offsets, which Spark notes before, are sequences
   of the stream.
2. Its messages have the same ids, made of the stage and the order, so the stream drops the second
   one within its duplicate window. (Without a column ``msg_id`` the sink makes ids of its own.)
3. The step depends on its input alone, so its repetition says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .orders import OrderError
from .workers import message_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Job", "completed_totals", "start_job", "work_of"]

_TRIGGER: Final = "100 milliseconds"
#: So that there are several batches.
_BATCH: Final = "1000"
_RESULT: Final = "msg_id string, data binary, refusal string"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One of the jobs; it says where, and what is done with a message."""

    #: What stands in for the consumer of this name.
    name: str
    #: How to connect: options of the data source.
    place: Mapping[str, str]
    stream: str
    #: What it reads.
    source: str
    #: What it writes.
    subject: str
    #: The stage that its messages belong to.
    stage: str
    #: Makes order id and result of an input and the worker's name; raises `OrderError`.
    work: Callable[[bytes, str], tuple[str, bytes]]
    #: Where Spark keeps the job's progress.
    checkpoint: Path


def start_job(spark: SparkSession, job: Job, *, to_the_end: bool = False) -> StreamingQuery:
    """
    Start a job, or go on with it where its checkpoint says.

    Args:
        spark: knows the data source.
        job: which one.
        to_the_end: end when all has been done that is there now, instead of never.

    """
    from pyspark.sql.functions import (  # noqa: PLC0415 - an extra
        col,
        count,
        lit,
        udf,
    )
    from pyspark.sql.functions import max as greatest  # noqa: PLC0415

    # Rows, not Arrow, which would need pandas here.
    work = udf(work_of(job.name, job.stage, job.work), _RESULT, useArrow=False)
    rows = (
        spark.readStream.format("jetstream")
        .options(**job.place, stream=job.stream, subjects=job.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", _BATCH)
        # A server that goes away is the end of the demo, not something to wait for.
        .option("planningTimeout", "5s")
        .option("timeout", "5s")
        .load()
        .select(work(col("data")).alias("done"))
        .select("done.*")
        .observe(
            job.name,
            count(lit(1)).alias("rows"),
            count(col("refusal")).alias("refused"),
            greatest(col("refusal")).alias("refusal"),
        )
        .where("refusal IS NULL")
        .select("msg_id", "data")
    )
    writer = (
        rows.writeStream.format("jetstream")
        .queryName(job.name)
        .options(**job.place)
        .option("stream", job.stream)
        .option("subject", job.subject)
        .option("checkpointLocation", str(job.checkpoint))
    )
    if to_the_end:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=_TRIGGER).start()


def work_of(
    name: str, stage: str, work: Callable[[bytes, str], tuple[str, bytes]]
) -> Callable[[bytes], tuple[str | None, bytes | None, str | None]]:
    """
    Return what the workers call with each message.

    Args:
        name: the job's.
        stage: the stage that the results belong to.
        work: as in `Job`.

    Returns:
        A function that returns message id, message and ``None``; or the reason why there is no
        message as the third value.

    """

    def result(payload: bytes) -> tuple[str | None, bytes | None, str | None]:
        try:
            order_id, message = work(bytes(payload), name)
        except OrderError as error:
            return None, None, str(error)
        return message_id(stage, order_id), message, None

    return result


def completed_totals(
    spark: SparkSession, place: Mapping[str, str], stream: str, subject: str
) -> DataFrame:
    """
    Return what came out by currency, as Spark SQL adds it up: orders and their totals.

    Args:
        spark: knows the data source.
        place: how to connect: options of the data source.
        stream: the stream's name.
        subject: that of the last stage.

    """
    options = {**place, "stream": stream, "subjects": subject}
    completed = spark.read.format("jetstream").options(**options).load()
    completed.createOrReplaceTempView("completed")
    return spark.sql(
        """
        WITH settled AS (
            SELECT from_json(string(data), 'currency string, total_minor bigint') AS it
            FROM completed
        )
        SELECT it.currency, count(*) AS orders, sum(it.total_minor) AS total_minor
        FROM settled
        GROUP BY it.currency
        ORDER BY it.currency
        """
    )
