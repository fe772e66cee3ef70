"""
The program under test: a streaming query from one stream into another, or batches one after the other.

`main` prints RUNNING when the query has started. It ends in the regular way when a file `STOP` exists beside the
plan.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jetstream_sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["STOP", "Plan", "main"]

STOP = "stop"
#: Seconds between two checks for that file.
_LOOKING = 0.1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parameters of the job; plain values, for JSON."""

    master: str
    source: dict[str, str]
    sink: dict[str, str]
    checkpoint: str
    #: Whether rows are shuffled between read and write, so that their order may change.
    shuffled: bool
    #: Whether the rows are read and written by batch jobs instead of a query.
    in_batches: bool
    #: More Spark settings.
    settings: dict[str, str]


def main(home: object, path: str) -> None:
    """
    Run until the query ends.

    Args:
        home: a `SparkHome`.
        path: a JSON file with the fields of `Plan`.

    """
    from fixtures.spark import SparkHome, session

    from jetstream_sync.spark import start_query

    assert isinstance(home, SparkHome)
    plan = Plan(**json.loads(Path(path).read_text(encoding="utf-8")))
    spark = session(home, plan.master, **plan.settings)
    stop = Path(path).with_name(STOP)
    if plan.in_batches:
        _run_jobs(spark, plan, stop)
        spark.stop()
        return
    source = spark.readStream.format("jetstream").options(**plan.source)
    query = start_query(
        _made(source.load(), plan)
        .writeStream.format("jetstream")
        .options(**plan.sink)
        .option("checkpointLocation", plan.checkpoint)
        .trigger(processingTime="0 seconds")
        .start
    )
    print("RUNNING", flush=True)
    while not query.awaitTermination(_LOOKING):
        if stop.exists():
            query.stop()
    spark.stop()


def _made(rows: DataFrame, plan: Plan) -> DataFrame:
    from pyspark.sql import functions as sf

    subject = sf.concat(sf.lit("OUT."), sf.substring_index("subject", ".", -1))
    made = rows.select(subject.alias("subject"), "data")
    return made.repartition(3) if plan.shuffled else made


def _run_jobs(spark: SparkSession, plan: Plan, stop: Path) -> None:
    """
    Copy what is in the source, one job for each range of sequences.

    The range is written to a file first, so after a crash the same job runs again, with the same ``jobId``.
    """
    position = Path(plan.checkpoint)
    with jetstream_sync.connect(plan.source["servers"], max_reconnect_attempts=-1) as nc:
        source = nc.jetstream(timeout=30).get_stream(plan.source["stream"])
        print("RUNNING", flush=True)
        while not stop.exists():
            number, first, end = _next_job(position)
            if first == end:
                end = source.info().state.last_seq + 1
                if first == end:
                    time.sleep(_LOOKING)
                    continue
                _write(position, number, first, end)
            bounds = {"startingOffsets": str(first), "endingOffsets": str(end)}
            reader = spark.read.format("jetstream").options(**plan.source | bounds)
            (
                _made(reader.load(), plan)
                .write.format("jetstream")
                .options(**plan.sink)
                .option("jobId", f"job-{number}")
                .mode("append")
                .save()
            )
            _write(position, number + 1, end, end)


def _next_job(position: Path) -> tuple[int, int, int]:
    """Return the number of a job, its first sequence and the one after its last."""
    if not position.exists():
        return 0, 1, 1
    number, first, end = map(int, position.read_text().split())
    return number, first, end


def _write(position: Path, *values: int) -> None:
    new = position.with_suffix(".new")
    new.write_text(" ".join(map(str, values)))
    new.replace(position)
