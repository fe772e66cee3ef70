"""
Append what was stored since the last run to a folder of Parquet files: ``python nightly.py FOLDER``.

The folder may be any that Spark can write to, such as ``s3a://bucket/orders``. The servers are in the variable NATS_URL.
"""

import sys

from pyspark.sql import SparkSession

from jetstream_sync.spark import register, start_query


def main(folder):
    """Process the available messages, and return how many there were."""
    spark = SparkSession.builder.appName("nightly").getOrCreate()
    register(spark)

    def save(batch, number):
        batch.write.mode("overwrite").parquet(f"{folder}/batch={number}")

    orders = spark.readStream.format("jetstream").option("startingOffsets", "earliest")
    query = start_query(
        orders.load("ORDERS")
        .writeStream.foreachBatch(save)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start
    )
    query.awaitTermination()  # raises the error of a query that failed, so cron reports it
    rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    spark.stop()
    return rows


if __name__ == "__main__":
    print(main(sys.argv[1]), "new messages")
