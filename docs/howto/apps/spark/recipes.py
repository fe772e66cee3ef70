"""
The queries of the page "Spark recipes".

Each function starts one query, which processes the available messages and ends. All of them read the stream
ORDERS, whose messages are orders as JSON.
"""

import json
import os

import psycopg
from pyspark.sql.functions import expr, window

from jetstream_sync.spark import start_query

SERVERS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
ORDER = "id string, country string, cents bigint, ordered_at timestamp"


def read(spark, subjects, **options):
    """Return the messages of the stream ORDERS with these subjects."""
    reader = spark.readStream.format("jetstream").options(servers=SERVERS, **options)
    return reader.options(startingOffsets="earliest", subjects=subjects).load("ORDERS")


def parsed(messages, schema=ORDER):
    """Return the fields of JSON messages as columns."""
    return messages.selectExpr(f"from_json(string(data), '{schema}') AS value").select("value.*")


def run(rows, checkpoint):
    """Start a query that processes the available messages."""
    writer = rows.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return start_query(writer.start)


def publish(rows, checkpoint, **options):
    """Start a query that writes rows to a stream."""
    writer = rows.writeStream.format("jetstream").options(servers=SERVERS, **options)
    return run(writer, checkpoint)


def dead_letters(spark, checkpoint):
    """Copy valid orders to ``checked.valid``, and the others with a reason to ``checked.dead``."""
    schema = f"{ORDER}, broken string"
    checked = (
        read(spark, "ORDERS.received")
        .selectExpr(
            "data",
            "headers",
            f"""from_json(
                string(data), '{schema}', map('columnNameOfCorruptRecord', 'broken')
            ) AS value""",
        )
        .selectExpr(
            "data",
            "headers",
            """CASE WHEN value.broken IS NOT NULL THEN 'no valid JSON'
                    WHEN value.id IS NULL THEN 'no id'
                    WHEN value.cents IS NULL OR value.cents <= 0 THEN 'no positive price'
            END AS reason""",
        )
        .selectExpr(
            "data",
            "if(reason IS NULL, 'checked.valid', 'checked.dead') AS subject",
            "if(reason IS NULL, headers, map_concat(headers, map('Reason', array(reason)))) AS headers",
        )
    )
    return publish(checked, checkpoint, stream="CHECKED")


def windows(spark, checkpoint):
    """Publish the revenue of each country in each minute, once the minute is over."""
    totals = (
        parsed(read(spark, "ORDERS.received"))
        .withWatermark("ordered_at", "2 minutes")
        .groupBy("country", window("ordered_at", "1 minute"))
        .sum("cents")
        .selectExpr(
            "concat('totals.', country) AS subject",
            "to_json(named_struct('minute', window.start, 'cents', `sum(cents)`)) AS data",
        )
    )
    return publish(totals, checkpoint, stream="TOTALS")


def joined_streams(spark, checkpoint):
    """Publish each order together with its payment, if it is paid within ten minutes."""
    placed = parsed(read(spark, "ORDERS.received")).withWatermark("ordered_at", "10 minutes")
    paid = parsed(read(spark, "ORDERS.paid"), "order_id string, paid_at timestamp")
    paid = paid.withWatermark("paid_at", "10 minutes")
    in_time = "paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 10 MINUTES"
    rows = placed.join(paid, expr(f"id = order_id AND {in_time}")).selectExpr(
        "concat('paid-', id) AS msg_id",
        "to_json(named_struct('id', id, 'cents', cents, 'paid_at', paid_at)) AS data",
    )
    return publish(rows, checkpoint, stream="PAID", subject="paid")


def joined_bucket(spark, checkpoint):
    """Publish each order with the name of its country, which is in a key-value bucket."""
    bucket = spark.read.format("jetstream").options(servers=SERVERS, bucket="COUNTRIES").load()
    names = bucket.selectExpr("key AS country", "string(value) AS name")
    rows = (
        parsed(read(spark, "ORDERS.received"))
        .join(names, "country", "left")
        .selectExpr("to_json(named_struct('id', id, 'country', name)) AS data")
    )
    return publish(rows, checkpoint, stream="NAMED", subject="named")


def query_id(batch):
    """Return the id of the query that runs a batch, which is in its checkpoint."""
    return batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")


def parquet(spark, checkpoint, folder, subjects):
    """Write each batch into its own folder, which a repeated batch replaces."""

    def save(batch, number):
        own = f"{folder}/query={query_id(batch)}"
        # Spark's own access to files, which knows s3a:// and hdfs://.
        context = batch.sparkSession.sparkContext
        batches = context._jvm.org.apache.hadoop.fs.Path(f"{own}/batch=*")
        files = batches.getFileSystem(context._jsc.hadoopConfiguration())
        # There are later batches only if the checkpoint was restored: their messages are read again.
        for later in files.globStatus(batches) or ():
            if int(later.getPath().getName().removeprefix("batch=")) > number:
                files.delete(later.getPath(), True)
        batch.write.mode("overwrite").parquet(f"{own}/batch={number}")

    rows = read(spark, subjects).selectExpr("sequence", "subject", "string(data) AS data")
    return run(rows.writeStream.foreachBatch(save), checkpoint)


def postgresql(spark, checkpoint, database):
    """Insert orders into a table whose key is that of the message: its sequence and its time."""
    with psycopg.connect(database) as connection:
        connection.execute("""
            CREATE TABLE IF NOT EXISTS orders (
                sequence bigint, micros bigint, id text, country text, cents bigint,
                PRIMARY KEY (sequence, micros)
            )
        """)

    def insert(rows):
        with psycopg.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE part (LIKE orders) ON COMMIT DROP")
            with cursor.copy("COPY part FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            cursor.execute(
                "INSERT INTO orders SELECT * FROM part ORDER BY sequence ON CONFLICT DO NOTHING"
            )

    messages = read(spark, "ORDERS.received", maxRecordsPerPartition=1000).selectExpr(
        "sequence",
        "unix_micros(timestamp) AS micros",
        f"from_json(string(data), '{ORDER}') AS value",
    )
    rows = messages.select("sequence", "micros", "value.id", "value.country", "value.cents")
    return run(
        rows.writeStream.foreachBatch(lambda batch, _: batch.foreachPartition(insert)), checkpoint
    )


def replay(spark, checkpoint, since):
    """Copy the messages that were stored at a time or later, whatever an earlier query has copied."""
    reader = spark.readStream.format("jetstream").options(servers=SERVERS, startingTimestamp=since)
    return publish(
        reader.load("ORDERS").selectExpr("data", "concat(stream, '-', sequence) AS msg_id"),
        checkpoint,
        stream="COPY",
        subject="copy",
    )


def reread(spark, first, end):
    """Copy the messages between two times again; the stream COPY ignores those that it has."""
    reader = spark.read.format("jetstream").options(servers=SERVERS)
    reader = reader.options(startingTimestamp=first, endingTimestamp=end)
    rows = reader.load("ORDERS").selectExpr("data", "concat(stream, '-', sequence) AS msg_id")
    writer = rows.write.format("jetstream").options(servers=SERVERS, stream="COPY", subject="copy")
    writer.mode("append").save()


def backfill(spark, checkpoint, folder, first):
    """Save the messages before a sequence as one batch, and those from there on as they arrive."""
    earlier = spark.read.format("jetstream").options(servers=SERVERS, endingOffsets=first)
    earlier.load("ORDERS").write.mode("overwrite").parquet(f"{folder}/batch=earlier")

    def save(batch, number):
        batch.write.mode("overwrite").parquet(f"{folder}/batch={number}")

    later = spark.readStream.format("jetstream").options(servers=SERVERS, startingOffsets=first)
    return run(later.load("ORDERS").writeStream.foreachBatch(save), checkpoint)


def catch_up(spark, query, subject):
    """Return the messages of a new subject that are older than the position of a query."""
    position = json.loads(query.lastProgress["sources"][0]["endOffset"])["streams"]["ORDERS"]
    reader = spark.read.format("jetstream").options(servers=SERVERS, subjects=subject)
    return reader.option("endingOffsets", position["next"]).load("ORDERS")
