"""What each supported PySpark can do: one short test for each way to use the data source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyspark
import pytest
from fixtures.spark_streams import fill

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from jetstream_sync import JetStream, Stream
    from jetstream_sync.server import NatsServer

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.smoke,
    pytest.mark.full,
    pytest.mark.timeout(120),
]
has_data_sources = pytest.mark.skipif(VERSION < (4, 0), reason="PySpark 3.5 has no data sources")


@pytest.mark.skipif(VERSION >= (4, 0), reason="this PySpark has data sources")
def test_register_names_what_an_old_pyspark_can_do(spark: SparkSession) -> None:
    """The error names the version that is needed, and the functions that work without it."""
    from jetstream_sync.spark import register

    with pytest.raises(ImportError, match=r"need PySpark 4.0 .*3\.5.*publish_partition"):
        register(spark)


@has_data_sources
def test_batches_and_streams(
    js: JetStream, stream: Stream, nats_server: NatsServer, spark: SparkSession, tmp_path: Path
) -> None:
    """Rows are read and written in batches, and written by a query; a second registration is harmless."""
    from jetstream_sync.spark import register

    register(spark)
    register(spark)
    name, url = stream.name, nats_server.url
    fill(js, f"{name}.a", 100)
    loaded = spark.read.format("jetstream").options(servers=url, stream=name, minPartitions=2)
    rows = loaded.load()
    assert rows.selectExpr("min(sequence)", "max(sequence)", "count(*)").first() == (1, 100, 100)
    js.create_stream(name="TARGET", subjects=["target"], storage="memory", duplicate_window=600)
    sink = {"servers": url, "stream": "TARGET", "subject": "target"}
    rows.select("data", "headers").write.format("jetstream").options(**sink).mode("append").save()
    assert js.get_stream("TARGET").info().state.messages == 100
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("one\ntwo\n")
    lines = spark.readStream.text(str(tmp_path / "in")).selectExpr("value AS data")
    query = (
        lines.writeStream.format("jetstream")
        .options(**sink, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    found = [js.get_stream("TARGET").get_msg(seq).data for seq in (101, 102)]
    assert sorted(found) == [b"one", b"two"]


@has_data_sources
def test_a_query_reads_a_stream_or_names_the_version(
    js: JetStream, stream: Stream, nats_server: NatsServer, spark: SparkSession, tmp_path: Path
) -> None:
    """PySpark 4.2 reads streams; an older one names the version that is needed."""
    fill(js, f"{stream.name}.a", 10)
    source = {"servers": nats_server.url, "stream": stream.name, "startingOffsets": "earliest"}
    query = None
    error = ""
    try:
        query = (
            spark.readStream.format("jetstream")
            .options(**source)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
    except Exception as failure:
        error = str(failure)
    if VERSION < (4, 2):
        assert re.search("streaming reads need PySpark 4.2", error), error
        return
    assert error == ""
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 10
