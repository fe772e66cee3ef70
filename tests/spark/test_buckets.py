"""Key-value buckets as tables of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_sync import JetStream, KeyValue
    from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

Load = Callable[..., "DataFrame"]


@pytest.fixture
def kv(js: JetStream, stream_name: str) -> Iterator[KeyValue]:
    """A bucket with two revisions per key."""
    yield js.create_key_value(bucket=stream_name, history=2)
    js.delete_key_value(stream_name)


@pytest.fixture
def load(spark: SparkSession, nats_server: NatsServer, stream_name: str) -> Load:
    """Return a function that reads the bucket with options given as keyword arguments."""

    def load(schema: str | None = None, **options: Any) -> DataFrame:
        given = {"servers": nats_server.url, "bucket": stream_name, **options}
        reader = spark.read.format("jetstream").options(**given)
        return (reader.schema(schema) if schema else reader).load()

    return load


def test_current_entries_are_rows(kv, load):
    """Each key with a value is a row with its value, revision and time; deleted keys have none."""
    began = datetime.now(timezone.utc) - timedelta(seconds=5)
    kv.put("a", b"old")
    kv.put("b.c", b"\x00\xff")
    kv.put("gone", b"x")
    kv.delete("gone")
    revision = kv.put("a", b"new")
    frame = load()
    assert frame.schema.simpleString() == (
        "struct<key:string,value:binary,revision:bigint,created:timestamp>"
    )
    rows = {row.key: row for row in frame.collect()}
    assert {key: (bytes(row.value), row.revision) for key, row in rows.items()} == {
        "a": (b"new", revision),
        "b.c": (b"\x00\xff", 2),
    }
    assert began < rows["a"].created.astimezone(timezone.utc) < began + timedelta(seconds=65)
    assert [row.key for row in load(keys="b.*, x").collect()] == ["b.c"]
    names = load(schema="revision bigint, key string").collect()
    assert sorted((row.revision, row.key) for row in names) == [(2, "b.c"), (revision, "a")]


def test_each_execution_reads_the_current_entries(kv, load):
    """A DataFrame that is used again shows the bucket as it is then, also when it is empty."""
    frame = load()
    assert frame.collect() == []
    kv.put("a", b"1")
    assert [bytes(row.value) for row in frame.collect()] == [b"1"]
    kv.put("a", b"2")
    assert [bytes(row.value) for row in frame.collect()] == [b"2"]


def test_large_buckets_are_read_in_batches(js, kv, load):
    """No entry is lost where the rows come in several batches."""
    for number in range(3000):
        js.publish_async(f"$KV.{kv.bucket}.{number}", b"%d" % number)
    js.publish_async_completed(20)
    rows = load(batchBytes="1024").collect()
    assert {row.key: bytes(row.value) for row in rows} == {str(n): b"%d" % n for n in range(3000)}


def test_rows_are_written_as_keys(kv, spark, nats_server):
    """Each row puts a key; text is stored as UTF-8."""
    kv.put("k.1", b"old")
    rows = [(f"k.{number}", "v\u00e4lue" if number else "") for number in range(500)]
    frame = spark.createDataFrame(rows, "key string, value string").repartition(3)
    options = {"servers": nats_server.url, "bucket": kv.bucket}
    frame.write.format("jetstream").options(**options).mode("append").save()
    found = kv.get_many("k.*")
    assert {key: entry.value.decode() for key, entry in found.items()} == dict(rows)
    assert [entry.value for entry in kv.history("k.1")] == [b"old", "v\u00e4lue".encode()]


@pytest.mark.full
def test_a_stream_is_joined_with_a_bucket(js, kv, load, spark, nats_server, tmp_path):
    """Every micro-batch sees the current values; the changes of a bucket are a stream, too."""
    name = f"{kv.bucket}-in"
    js.create_stream(name=name, subjects=[f"{name}.*"])
    kv.put("de", b"Germany")
    events = (
        spark.readStream.format("jetstream")
        .options(servers=nats_server.url, stream=name, startingOffsets="earliest")
        .load()
        .selectExpr("cast(data as string) as code")
    )
    countries = load().selectExpr("key as code", "cast(value as string) as country")
    query = (
        events.join(countries, "code")
        .writeStream.format("memory")
        .queryName("joined")
        .option("checkpointLocation", str(tmp_path / "joined"))
        .start()
    )
    try:
        js.publish(f"{name}.a", b"de")
        query.processAllAvailable()
        kv.put("fr", b"France")
        js.publish(f"{name}.a", b"fr")
        query.processAllAvailable()
        rows = spark.sql("select code, country from joined").collect()
        assert {(row.code, row.country) for row in rows} == {("de", "Germany"), ("fr", "France")}
    finally:
        query.stop()

    kv.delete("de")
    changes = (
        spark.readStream.format("jetstream")
        .options(servers=nats_server.url, stream=f"KV_{kv.bucket}", startingOffsets="earliest")
        .load()
        .selectExpr(
            f"substring(subject, {len(f'$KV.{kv.bucket}.') + 1}) as key",
            "headers['KV-Operation'][0] as operation",
        )
        .writeStream.format("memory")
        .queryName("changes")
        .option("checkpointLocation", str(tmp_path / "changes"))
        .trigger(availableNow=True)
        .start()
    )
    changes.awaitTermination(60)
    rows = spark.sql("select key, operation from changes").collect()
    assert {(row.key, row.operation) for row in rows} == {
        ("de", None),
        ("fr", None),
        ("de", "DEL"),
    }


def test_what_does_not_fit_is_refused_on_the_driver(kv, load, spark, nats_server):
    """A bucket that does not exist, and mode overwrite, are refused before a task starts."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="BucketNotFoundError"):
        load(bucket="nothing").collect()
    frame = spark.createDataFrame([("a", "b")], "key string, value string")
    options = {"servers": nats_server.url, "bucket": kv.bucket}
    with pytest.raises(PySparkException, match="mode append replaces"):
        frame.write.format("jetstream").options(**options).mode("overwrite").save()
    assert kv.keys() == []
