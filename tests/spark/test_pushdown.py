"""``pushdown=true``, in a Spark session with filter pushdown enabled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from fix_spark_streams import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_sync import Stream
    from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def passing_on(spark: SparkSession) -> Iterator[None]:
    """Enable filter pushdown in Spark."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def load(spark: SparkSession, server: NatsServer, stream: Stream, **options: Any) -> DataFrame:
    reader = spark.read.format("jetstream").options(
        servers=server.url, stream=stream.name, pushdown="true", **options
    )
    return reader.load()


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("sequence > 20 AND sequence <= 30", range(21, 31)),
        ("sequence IN (3, 90)", [3, 90]),
        ("subject = '{0}.a.1'", range(1, 101, 4)),
        ("subject LIKE '{0}.a.%'", range(1, 101, 2)),
        ("subject LIKE '{0}.b.%' AND sequence < 10", range(2, 10, 2)),
        ("subject IN ('{0}.a.1', '{0}.a.3') AND sequence >= 50", range(51, 101, 2)),
        ("subject = 'absent'", []),
        ("timestamp < '1999-01-01'", []),
        ("timestamp > '1999-01-01' AND sequence = 7", [7]),
        ("subject = '{0}.a.1' OR sequence = 2", [1, 2, *range(5, 101, 4)]),
    ],
)
@pytest.mark.usefixtures("passing_on")
def test_filters_give_the_same_rows(js, stream, spark, nats_server, condition, wanted):
    """Reading with pushed filters returns the rows that Spark would filter from the whole stream."""
    fill(js, lambda number: f"{stream.name}.{'ab'[number % 2 == 0]}.{number % 4}", 100)
    frame = load(spark, nats_server, stream).filter(condition.format(stream.name))
    assert sorted(row.sequence for row in frame.collect()) == list(wanted)


@pytest.mark.usefixtures("passing_on")
def test_filters_limit_the_partitions(js, stream, spark, nats_server):
    """With a filter on sequences only the partitions of that range are read."""
    fill(js, f"{stream.name}.a", 1000)
    frame = load(spark, nats_server, stream, maxRecordsPerPartition=100)
    assert frame.rdd.getNumPartitions() == 10
    narrow = load(spark, nats_server, stream, maxRecordsPerPartition=100)
    narrow = narrow.filter("sequence <= 200")
    assert narrow.count() == 200
    assert narrow.rdd.getNumPartitions() == 2


def test_pushdown_disabled_in_spark(js, stream, spark, nats_server):
    """If filter pushdown is disabled in Spark, the option has no effect."""
    fill(js, f"{stream.name}.a", 10)
    frame = load(spark, nats_server, stream)
    assert frame.filter("sequence > 5").count() == 5
    assert frame.count() == 10


@pytest.mark.usefixtures("passing_on")
def test_pushdown_without_the_option(js, stream, spark, nats_server):
    """Without the option, one table can be filtered in several ways, despite Spark's bug in pushdown."""
    fill(js, f"{stream.name}.a", 10)
    frame = (
        spark.read.format("jetstream").options(servers=nats_server.url, stream=stream.name).load()
    )
    assert frame.count() == 10
    assert frame.filter("sequence < 3").count() == 2
    assert frame.count() == 10
    assert frame.filter("sequence < 3").union(frame.filter("sequence > 8")).count() == 4
