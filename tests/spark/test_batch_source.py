"""``spark.read.format("jetstream")`` on a real Spark and a real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from fixtures.spark_streams import fill, new_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_sync.server import NatsServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: SparkSession, nats_server: NatsServer) -> Load:
    """Return a function that reads with options given as keyword arguments."""

    def load(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("jetstream").options(servers=nats_server.url, **options)
        return (reader.schema(schema) if schema else reader).load()

    return load


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def partition_sizes(frame: DataFrame) -> list[int]:
    """Return the number of rows of each partition."""
    from pyspark.sql.functions import spark_partition_id

    sizes = Counter(row[0] for row in frame.select(spark_partition_id()).collect())
    return [sizes[number] for number in range(frame.rdd.getNumPartitions())]


#: Settings of a session that give types, names or times another meaning.
SETTINGS = {
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.legacy.interval.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


@pytest.fixture(params=SETTINGS)
def setting(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Set one setting of the session."""
    before = spark.conf.get(request.param, None)
    spark.conf.set(request.param, SETTINGS[request.param])
    yield
    if before is None:
        spark.conf.unset(request.param)
    else:
        spark.conf.set(request.param, before)


@pytest.mark.usefixtures("setting")
def test_settings_of_the_session_do_not_change_what_is_read_and_written(
    js, stream, stream_name, nats_server, load
):
    """Default reads of streams and buckets, and writes, are the same with settings that change a meaning."""
    subject = f"{stream_name}.a"
    for number in range(10):
        js.publish(subject, b"%d" % number, headers={"X": ["1", "2"]})
    times = [stream.get_msg(seq).time_ns // 1000 for seq in range(1, 11)]
    whole = ["struct(subject, data, headers, sequence, stream)", "unix_micros(timestamp)"]
    found = load(stream=stream_name).orderBy("sequence").selectExpr(*whole).collect()
    assert [row[1] for row in found] == times
    assert [row[0].asDict() for row in found] == [
        {
            "subject": subject,
            "data": b"%d" % number,
            "headers": {"X": ["1", "2"]},
            "sequence": number + 1,
            "stream": stream_name,
        }
        for number in range(10)
    ]
    bucket = js.create_key_value(bucket=f"{stream_name}_bucket")
    revision = bucket.put("key", b"value")
    (entry,) = load(bucket=bucket.bucket).selectExpr("*", "unix_micros(created) AS at").collect()
    assert (entry.key, entry.value, entry.revision) == ("key", b"value", revision)
    assert entry.at == bucket.get("key").created_ns // 1000
    writer = load(stream=stream_name).select("subject", "data", "headers").write
    writer = writer.format("jetstream").options(servers=nats_server.url, stream=stream_name)
    writer.mode("append").save()
    assert [stream.get_msg(seq).data for seq in range(11, 21)] == [b"%d" % n for n in range(10)]
    assert stream.get_msg(11).headers.get_all("X") == ["1", "2"]


def test_each_message_becomes_a_row(js, stream, load):
    """Each message is a row with subject, payload, headers, sequence, time and stream."""
    began = datetime.now(timezone.utc) - timedelta(seconds=5)
    subject = f"{stream.name}.a"
    js.publish(subject, b"\x00\xff")
    js.publish(subject, b"", headers={"X": ["1", "2"], "Y": ["z"]})
    frame = load(stream=stream.name)
    assert frame.columns == ["subject", "data", "headers", "sequence", "timestamp", "stream"]
    first, second = frame.orderBy("sequence").collect()
    assert (first.subject, bytes(first.data), first.headers) == (subject, b"\x00\xff", {})
    assert (bytes(second.data), second.headers) == (b"", {"X": ["1", "2"], "Y": ["z"]})
    assert (first.sequence, second.sequence, second.stream) == (1, 2, stream.name)
    # PySpark returns local times without a time zone.
    read, stored = first.timestamp.astimezone(timezone.utc), stream.get_msg(1).time
    assert read == datetime.combine(stored.date(), stored.timetz())
    assert read > began


def test_an_empty_stream_has_no_rows(stream, load):
    """Reading an empty stream returns no rows, and raises no error."""
    assert load(stream=stream.name).count() == 0


def test_a_loaded_table_does_not_change(js, stream, load):
    """A loaded table does not change, and another ``load()`` includes later messages."""
    fill(js, f"{stream.name}.a", 10)
    frame = load(stream=stream.name)
    assert frame.count() == 10
    fill(js, f"{stream.name}.a", 5)
    assert frame.count() == 10
    assert load(stream=stream.name).count() == 15


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"startingOffsets": "latest"}, 21, 20),
        ({"startingOffsets": '{"%s": 7}', "endingOffsets": '{"%s": 8}'}, 7, 7),
        ({"endingOffsets": '{"%s": 1000}'}, 1, 20),
    ],
)
def test_from_one_sequence_to_another(js, stream, load, options, first, last):
    """The start sequence is included, the end sequence is not."""
    fill(js, f"{stream.name}.a", 20)
    named = {key: value.replace("%s", stream.name) for key, value in options.items()}
    assert sequences(load(stream=stream.name, **named)) == list(range(first, last + 1))


def test_from_one_time_to_another(js, stream, load):
    """A read by time includes the first message at the start time, and ends before the one at the end time."""
    fill(js, f"{stream.name}.a", 30)
    times = {seq: stream.get_msg(seq).time_ns for seq in range(1, 31)}
    # These options have millisecond precision here.
    start = times[10] // 1_000_000 + 1
    end = max(start, times[30] // 1_000_000)
    wanted = [seq for seq, ns in times.items() if start * 1_000_000 <= ns < end * 1_000_000]
    frame = load(stream=stream.name, startingTimestamp=str(start), endingTimestamp=str(end))
    assert sequences(frame) == wanted
    text = stream.get_msg(20).time.isoformat()
    wanted = [seq for seq, ns in times.items() if ns >= times[20] // 1000 * 1000]
    assert sequences(load(stream=stream.name, startingTimestamp=text)) == wanted
    assert sequences(load(stream=stream.name, startingTimestamp="2199-01-01T00:00:00Z")) == []


def test_subjects_select_messages(js, stream, load):
    """``subjects`` selects messages, with one filter and with several."""
    subjects = fill(js, lambda number: f"{stream.name}.{'abc'[number % 3]}.{number % 2}", 60)

    def having(*letters: str) -> list[int]:
        return [seq for seq, item in enumerate(subjects, 1) if item.split(".")[1] in letters]

    assert sequences(load(stream=stream.name, subjects=f"{stream.name}.a.*")) == having("a")
    two = f"{stream.name}.a.>,{stream.name}.c.*"
    assert sequences(load(stream=stream.name, subjects=two)) == having("a", "c")
    assert sequences(load(stream=stream.name, subjects=f"{stream.name}.none")) == []


def test_several_streams_and_patterns(js, stream_name, load):
    """A list of names or a pattern reads all the streams into one table."""
    names = [f"{stream_name}_{which}" for which in ("EU", "US", "ASIA")]
    for number, name in enumerate(names, 1):
        new_stream(js, name)
        fill(js, f"{name}.a", number * 10)

    def counts(**options: str) -> dict[str, int]:
        return {
            row.stream: row["count"] for row in load(**options).groupBy("stream").count().collect()
        }

    eu, us, asia = names
    assert counts(stream=f"{eu},{asia}") == {eu: 10, asia: 30}
    assert counts(streamPattern=f"{stream_name}_*") == {eu: 10, us: 20, asia: 30}
    assert counts(streamPattern=f"/{stream_name}_(EU|US)/") == {eu: 10, us: 20}


def test_partitions_are_balanced_where_one_message_in_a_thousand_matches(js, stream, load):
    """Partitions have about equal numbers of rows, not of sequences."""
    # All matches except one are in the last fifth of the stream.
    rare = {1, *range(16_000, 20_000, 205)}
    fill(js, lambda number: f"{stream.name}.{'rare' if number in rare else 'usual'}", 20_000)
    frame = load(stream=stream.name, subjects=f"{stream.name}.rare", minPartitions=4)
    assert sequences(frame) == sorted(rare)
    sizes = partition_sizes(frame)
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 1


def test_the_schema_selects_columns(js, stream, load):
    """A schema selects columns, including those that are not read by default."""
    js.publish(f"{stream.name}.a", b"12345", msg_id="one")
    frame = load("sequence long, size int, msg_id string, time_ns long", stream=stream.name)
    (row,) = frame.collect()
    assert tuple(row) == (1, 5, "one", stream.get_msg(1).time_ns)


@pytest.mark.parametrize(
    "options",
    [
        {"stream": "NONE"},
        {"streamPattern": "NONE_*"},
        {"stream": "%s", "startingOffset": "earliest"},
        {"stream": "%s", "startingOffsets": '{"%s": 99}'},
        {},
    ],
)
def test_invalid_options_fail_on_the_driver(stream, load, options):
    """Unknown streams, unknown options and a start beyond the end of the stream fail on the driver."""
    named = {key: value.replace("%s", stream.name) for key, value in options.items()}
    with pytest.raises(Exception, match=r"NONE|startingOffset|is required"):
        load(**named).count()


@pytest.mark.full
def test_removed_messages_at_the_start_are_data_loss(js, stream, load):
    """With ``failOnDataLoss`` a read fails if messages after its start are gone."""
    fill(js, f"{stream.name}.a", 10)
    stream.purge(seq=6)
    start = {"startingOffsets": f'{{"{stream.name}": 3}}'}
    with pytest.raises(Exception, match="DataLossError"):
        load(stream=stream.name, **start).count()
    assert sequences(load(stream=stream.name, failOnDataLoss="false", **start)) == [6, 7, 8, 9, 10]
    assert sequences(load(stream=stream.name)) == [6, 7, 8, 9, 10]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_batch_read_removes_no_messages(js, stream_name, load, retention):
    """After the read, work queues and interest streams have the same messages and consumers as before."""
    stream = new_stream(js, stream_name, retention=retention)
    if retention == "interest":
        stream.create_consumer(durable_name="other")
    before = stream.consumer_names()
    fill(js, f"{stream.name}.a", 20)
    assert sequences(load(stream=stream_name)) == list(range(1, 21))
    assert sequences(load(stream=stream_name)) == list(range(1, 21))
    assert stream.info().state.messages == 20
    assert stream.consumer_names() == before


def test_a_view_can_be_queried_with_sql(js, stream, spark, nats_server):
    """A temporary view with the options can be queried with SQL."""
    fill(js, lambda number: f"{stream.name}.{number % 2}", 10)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING jetstream "
        f"OPTIONS (servers '{nats_server.url}', stream '{stream.name}')"
    )
    rows = spark.sql("SELECT subject, count(*) n FROM orders GROUP BY subject").collect()
    assert {row.subject: row.n for row in rows} == {
        f"{stream.name}.0": 5,
        f"{stream.name}.1": 5,
    }


def test_representations_contain_no_options(stream):
    """The representations of data source and readers contain no option values, which may be secret."""
    from pyspark.sql.types import StringType, StructType

    from jetstream_sync.spark import JetStreamDataSource

    options = {"stream": stream.name, "user": "me", "password": "s3cret", "consumer": "c"}
    source = JetStreamDataSource(options)
    schema = StructType().add("subject", StringType())
    for shown in (source, source.reader(schema), source.streamReader(schema)):
        assert "s3cret" not in repr(shown)
        assert "s3cret" not in str(vars(shown)) or shown is source
