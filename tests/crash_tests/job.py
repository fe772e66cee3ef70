"""
The program that is killed: a stream through Spark into another stream.

`main` prints RUNNING when the query has started, and stops it in the usual way once there is a
file called `STOP` beside the plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["STOP", "Plan", "main"]

STOP = "stop"
#: Seconds between two looks for that file.
_LOOKING = 0.1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the job does; plain values, for JSON."""

    master: str
    source: dict[str, str]
    sink: dict[str, str]
    checkpoint: str
    #: Rows are dealt out anew between reading and writing, so that their order may differ.
    shuffled: bool
    #: More of Spark's settings.
    settings: dict[str, str]


def main(home: object, path: str) -> None:
    """
    Run until the query ends.

    Args:
        home: a `SparkHome`.
        path: of a JSON file with the fields of `Plan`.

    """
    from fix_spark import SparkHome, session
    from pyspark.sql import functions as sf

    assert isinstance(home, SparkHome)
    plan = Plan(**json.loads(Path(path).read_text(encoding="utf-8")))
    spark = session(home, plan.master, **plan.settings)
    rows = spark.readStream.format("jetstream").options(**plan.source).load()
    made = rows.select(
        sf.concat(sf.lit("OUT."), sf.substring_index("subject", ".", -1)).alias("subject"), "data"
    )
    if plan.shuffled:
        made = made.repartition(3)
    query = (
        made.writeStream.format("jetstream")
        .options(**plan.sink)
        .option("checkpointLocation", plan.checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("RUNNING", flush=True)
    stop = Path(path).with_name(STOP)
    while not query.awaitTermination(_LOOKING):
        if stop.exists():
            query.stop()
    spark.stop()
