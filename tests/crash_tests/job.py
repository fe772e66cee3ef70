"""
The program under test: a streaming query from one stream into another.

`main` prints RUNNING when the query has started. It stops the query in the regular way when a file `STOP`
exists beside the plan.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

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
    #: More Spark settings.
    settings: dict[str, str]


def main(home: object, path: str) -> None:
    """
    Run until the query ends.

    Args:
        home: a `SparkHome`.
        path: a JSON file with the fields of `Plan`.

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
