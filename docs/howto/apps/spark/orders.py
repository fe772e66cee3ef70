"""
Run orders through two streaming queries of Spark, each exactly once: ``python orders.py [COUNT]``.

Orders go to ``ORDERS.received``. The query NEW adds up their price and writes to
``ORDERS.processed``. The query DISPATCH assigns a tracking number and writes to
``ORDERS.completed``. Then both queries write their last batch again, as they do after a crash, and
the program checks that each order is in the stream once, with the right total.

The program starts its own nats-server. It needs the extras ``server`` and ``spark``, and Java.
"""

import itertools
import os
import pathlib
import signal
import sys
import tempfile
import threading
from typing import Any

import orjson
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

import jetstream_sync
from jetstream_sync.server import NatsServer
from jetstream_sync.spark import register, start_query

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
STAGES = ("received", "processed", "completed")

# What each query makes of `order`, which has the fields of the schema in ORDER. The message ids let
# the stream drop a message that is written twice.
ORDER = "id string, items array<struct<quantity: int, cents: bigint>>, cents bigint"
RESULTS = {
    "processed": """named_struct(
        'id', order.id,
        'cents', aggregate(order.items, 0L, (sum, item) -> sum + item.quantity * item.cents)
    )""",
    "completed": """named_struct(
        'id', order.id, 'cents', order.cents, 'tracking_number', concat('JS', crc32(order.id))
    )""",
}


stop = threading.Event()


def wait(seconds):
    """Wait, and raise KeyboardInterrupt after Ctrl-C."""
    if stop.wait(seconds):
        raise KeyboardInterrupt


def make_orders():
    """Return the orders, and the total of each by its id."""
    orders: list[dict[str, Any]] = []
    for number in range(COUNT):
        items = [{"quantity": number % 5 + 1, "cents": 1000 + number}, {"quantity": 1, "cents": 99}]
        orders.append({"id": f"SO-{number}", "items": items[: number % 2 + 1]})
    totals = {
        order["id"]: sum(item["quantity"] * item["cents"] for item in order["items"])
        for order in orders
    }
    return orders, totals


def start_stage(spark, folder, source, target, **trigger):
    """Start the query that reads one stage and writes the next, or continue it."""
    messages = (
        spark.readStream.format("jetstream")
        .option("stream", "ORDERS")
        .option("subjects", f"ORDERS.{source}")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000")
        .load()
    )
    return start_query(
        messages.select(expr(f"from_json(string(data), '{ORDER}')").alias("order"))
        .select(
            expr(f"concat('{target}:', order.id)").alias("msg_id"),
            expr(f"binary(to_json({RESULTS[target]}))").alias("data"),
        )
        .writeStream.format("jetstream")
        .queryName(target)
        .option("stream", "ORDERS")
        .option("subject", f"ORDERS.{target}")
        .option("checkpointLocation", str(folder / target))
        .trigger(**trigger)
        .start
    )


def wait_for(stream, stage, queries):
    """Wait until a stage has all orders, and fail if a query does."""
    count = -1
    while count < COUNT:
        for query in queries:
            if query.exception():
                raise query.exception()
        wait(0.2)
        subjects = stream.info(subjects_filter="ORDERS.*").state.subjects or {}
        if subjects.get(f"ORDERS.{stage}", 0) != count:
            count = subjects.get(f"ORDERS.{stage}", 0)
            print(f"{count} of {COUNT} {stage}")


def repeat_last_batch(spark, folder, source, target):
    """Remove the commit of the last batch, as if the driver had died before it, and continue."""
    commits = folder / target / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    query = start_stage(spark, folder, source, target, availableNow=True)
    while query.isActive:
        wait(0.2)
    if query.exception():
        raise query.exception()
    return query.recentProgress[0]["numInputRows"]


def read_totals(spark, stage):
    """Return the ids and totals of all messages of a stage, read by Spark SQL."""
    rows = (
        spark.read.format("jetstream")
        .option("stream", "ORDERS")
        .option("subjects", f"ORDERS.{stage}")
        .load()
        .select(expr(f"from_json(string(data), '{ORDER}')").alias("order"))
        .select("order.id", "order.cents")
    )
    return sorted((row["id"], row["cents"]) for row in rows.collect())


def run(spark, stream, js, folder):
    """Send all orders through, and return whether each one came through exactly once."""
    orders, totals = make_orders()
    steps = list(itertools.pairwise(STAGES))
    queries = [
        start_stage(spark, folder, *step, processingTime="100 milliseconds") for step in steps
    ]
    futures = [
        js.publish_async("ORDERS.received", orjson.dumps(order), msg_id=order["id"])
        for order in orders
    ]
    for future in futures:
        future.result()
    wait_for(stream, "completed", queries)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    for step in steps:
        count = repeat_last_batch(spark, folder, *step)
        print(f"{step[1]}: repeated a batch of {count} orders")
    expected = sorted(totals.items())
    return all(read_totals(spark, stage) == expected for stage in STAGES[1:])


def main():
    """Start the server and Spark, and remove everything at the end, also after Ctrl-C."""
    with (
        tempfile.TemporaryDirectory(prefix="orders-", ignore_cleanup_errors=True) as name,
        NatsServer() as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        folder = pathlib.Path(name)
        js = nc.jetstream()
        stream = js.create_stream(name="ORDERS", subjects=["ORDERS.*"], duplicate_window=3600)
        os.environ["NATS_URL"] = server.url  # for Spark's processes, which inherit it
        spark = (
            SparkSession.builder.appName("orders")
            .master("local[2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={name} -XX:-UsePerfData")
            .config("spark.local.dir", name)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{name}/warehouse")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        # Spark's own handler, and a KeyboardInterrupt, would break into a call of the JVM.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        try:
            register(spark)
            spark.sparkContext.setLogLevel("ERROR")
            exactly_once = run(spark, stream, js, folder)
        finally:
            for query in spark.streams.active:
                query.stop()
            spark.stop()
    print(f"{COUNT} orders came through", "exactly once" if exactly_once else "WRONG")
    return 0 if exactly_once else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
