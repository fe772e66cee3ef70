"""``spark.readStream.format("jetstream")`` with real Spark and nats-server."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from fixtures.spark import batches, forget_commit, offsets_of
from fixtures.spark_streams import fill, new_stream
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.spark import ProgressListener, QueryProgress, start_query
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.planning.data_loss import DataLossError
from jetstream_sync.spark.streaming.query import QueryPlanner

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from jetstream_sync import JetStream, Stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120 * SCALE)]

NOW = {"availableNow": True}
_LARGE_ENOUGH = "spark.sql.adaptive.coalescePartitions.minPartitionSize"


@pytest.mark.full
def test_a_new_query_starts_at_the_end_by_default(js, stream, collected):
    """Without a start option a query reads the messages stored from then on, each once."""
    fill(js, f"{stream.name}.a", 10)
    query = collected.start(stream=stream.name)
    wait_until(lambda: batches(collected.checkpoint), 30)
    fill(js, f"{stream.name}.a", 15)
    query.processAllAvailable()
    fill(js, f"{stream.name}.a", 5)
    query.processAllAvailable()
    assert collected.sequences() == list(range(11, 31))


def test_an_idle_offset_keeps_its_text(js, stream, nats_server):
    """Without new messages Spark gets its offset back unchanged, for any key order: it compares texts."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import StructType

    from jetstream_sync.spark.streaming.reader import JetStreamStreamReader

    fill(js, f"{stream.name}.a", 5)
    options = {"servers": nats_server.url, "stream": stream.name, "startingOffsets": "earliest"}
    reader = JetStreamStreamReader(ReadOptions.from_options(options), StructType())
    try:
        first = reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset(first, ReadAllAvailable())))
        assert [part.value.end_seq for part in reader.partitions(first, end)] == [6]
        text = '{"v": 1,  "streams": ' + json.dumps(end["streams"]) + "}"
        again = reader.latestOffset(json.loads(text), ReadAllAvailable())
        assert json.dumps(again) == json.dumps(json.loads(text))
        assert reader.reportLatestOffset()["streams"][stream.name]["read"] == 5
    finally:
        reader.stop()


@pytest.mark.full
def test_start_query_with_the_memory_sink(spark, js, nats_server, stream):
    """The sink has a name in place of a checkpoint, and is started again after a start that timed out."""
    fill(js, f"{stream.name}.a", 10)
    reader = spark.readStream.format("jetstream").options(servers=nats_server.url)
    rows = reader.option("startingOffsets", "earliest").load(stream.name)
    writer = rows.writeStream.format("memory").queryName("rows")
    attempts = []

    def start() -> StreamingQuery:
        attempts.append(len(attempts))
        query = writer.start()
        if len(attempts) == 1:
            query.stop()
            raise RuntimeError("Python worker failed to connect back.")
        return query

    query = start_query(start)
    try:
        query.processAllAvailable()
        assert sorted(row.sequence for row in spark.table("rows").collect()) == [*range(1, 11)]
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 1), ('{"%s": 7}', 7), ('{"%s": -2}', 1), ('{"%s": -1}', 21)],
)
def test_starting_offsets_of_a_new_query(js, stream, in_process, start, first):
    """``startingOffsets`` sets the start of the first batch."""
    fill(js, f"{stream.name}.a", 20)
    in_process.run(stream=stream.name, startingOffsets=start.replace("%s", stream.name))
    assert in_process.sequences() == list(range(first, 21))


def test_a_new_query_starts_at_a_time(js, stream, in_process):
    """``startingTimestamp`` starts with the first message at that time."""
    fill(js, f"{stream.name}.a", 20)
    time = stream.get_msg(12).time
    wanted = [seq for seq in range(1, 21) if stream.get_msg(seq).time >= time]
    in_process.run(stream=stream.name, startingTimestamp=time.isoformat())
    assert in_process.sequences() == wanted


# --- batch sizes --------------------------------------------------------------------------------


def test_available_now_ends_at_the_initial_end_of_the_stream(js, stream, collected):
    """The trigger reads up to the end of the stream at its start, in batches of the configured size."""
    fill(js, f"{stream.name}.a", 100)
    collected.during_batch = lambda _: fill(js, f"{stream.name}.a", 7)
    collected.run(stream=stream.name, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    assert collected.sizes() == [30, 30, 30, 10]
    assert collected.sequences() == list(range(1, 101))
    collected.during_batch = None
    collected.run(stream=stream.name)
    assert collected.sequences() == list(range(1, 101 + 4 * 7))


@pytest.mark.full
def test_once_reads_everything_in_one_batch(js, stream, collected):
    """The trigger ``once`` ignores the limits."""
    fill(js, f"{stream.name}.a", 100)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 10, "maxBytesPerTrigger": 100}
    collected.run({"once": True}, stream=stream.name, **options)
    assert collected.sizes() == [100]


def test_a_limit_counts_matching_messages(js, stream, in_process):
    """A batch has the configured number of messages despite filters and deleted messages."""
    fill(js, lambda number: f"{stream.name}.{'even' if number % 2 == 0 else 'odd'}", 400)
    gone = set(range(100, 200))
    for seq in gone:
        stream.delete_msg(seq)
    wanted = [seq for seq in range(2, 401, 2) if seq not in gone]
    in_process.run(
        stream=stream.name,
        subjects=f"{stream.name}.even",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
    )
    assert in_process.sizes() == [40, 40, 40, 30]
    assert in_process.sequences() == wanted


def test_a_limit_in_bytes(js, stream, in_process):
    """A batch has about the configured size, by the average message size of the stream."""
    fill(js, f"{stream.name}.a", 100, payload=b"x" * 1000)
    size = stream.info().state.bytes / 100
    in_process.run(
        stream=stream.name, startingOffsets="earliest", maxBytesPerTrigger=int(size * 25.5)
    )
    assert in_process.sizes() == [25, 25, 25, 25]


def test_both_limits_hold(js, stream, in_process):
    """If both limits are set, the smaller one applies."""
    fill(js, f"{stream.name}.a", 60, payload=b"x" * 1000)
    size = int(stream.info().state.bytes / 60)
    options = {"stream": stream.name, "startingOffsets": "earliest"}
    in_process.run(**options, maxOffsetsPerTrigger=20, maxBytesPerTrigger=size * 1000)
    assert in_process.sizes() == [20, 20, 20]
    other = in_process.another()
    other.run(**options, maxOffsetsPerTrigger=50, maxBytesPerTrigger=size * 30 + 10)
    assert other.sizes() == [30, 30]


def test_a_batch_waits_for_enough_messages(js, stream, nc, collected):
    """``minOffsetsPerTrigger`` delays each batch with rows, also the first one, until there are enough."""
    fill(js, f"{stream.name}.a", 6)
    query = collected.start(
        stream=stream.name,
        startingOffsets="earliest",
        minOffsetsPerTrigger=10,
        maxTriggerDelay="10m",
    )
    wait_until(lambda: batches(collected.checkpoint) == [0], 30)
    for expected in ([], [10]):
        collected.triggers(nc, stream.name, 4)
        assert collected.sizes() == expected
        fill(js, f"{stream.name}.a", 4)
        query.processAllAvailable()
        assert collected.sizes() == [*expected, 10]
        fill(js, f"{stream.name}.a", 6)


@pytest.mark.full
def test_a_start_in_the_future_skips_older_messages(js, stream, in_process):
    """Messages that arrive before ``startingTimestamp`` are not read, in any run of the query."""
    since = datetime.now(timezone.utc) + timedelta(seconds=2)
    options = {"stream": stream.name, "startingTimestamp": since.isoformat()}
    fill(js, f"{stream.name}.a", 3)
    in_process.run(**options)
    fill(js, f"{stream.name}.a", 3)
    in_process.run(**options)
    assert in_process.rows == []
    stored: list[datetime] = []

    def reached() -> bool:
        seq = js.publish(f"{stream.name}.a", b"x").seq
        stored.append(stream.get_msg(seq).time)
        return stored[-1] >= since

    wait_until(reached, 20)
    fill(js, f"{stream.name}.a", 3)
    in_process.run(**options)
    first = next(number for number, at in enumerate(stored) if at >= since) + 7
    assert in_process.sequences() == list(range(first, stream.info().state.last_seq + 1))
    with pytest.raises(InvalidOptionError, match="no message"):
        in_process.another().run(
            stream=stream.name,
            startingTimestamp="2100-01-01T00:00:00Z",
            startingOffsetsByTimestampStrategy="error",
        )


def test_messages_after_the_start_that_are_removed_are_lost(js, stream, in_process):
    """A query that waits for ``startingTimestamp`` reports messages of later times that it has not read."""
    since = datetime.now(timezone.utc) + timedelta(seconds=0.5)
    options = {"stream": stream.name, "startingTimestamp": since.isoformat()}
    fill(js, f"{stream.name}.a", 1)
    in_process.run(**options)
    wait_until(lambda: datetime.now(timezone.utc) > since, 20)
    fill(js, f"{stream.name}.a", 2)
    stream.purge()
    with pytest.raises(DataLossError, match="2 sequences are gone"):
        in_process.run(**options)


@pytest.mark.parametrize("start", ["startingOffsets", "startingTimestamp"])
def test_what_expires_before_the_first_batch_is_not_lost(js, stream_name, nats_server, start):
    """A new query that begins with the first message begins with the one that is the first when it is read."""
    stream = new_stream(js, stream_name, max_msgs=10)
    fill(js, f"{stream_name}.a", 10)
    value = "earliest" if start == "startingOffsets" else "2026-01-01T00:00:00Z"
    given = {"servers": nats_server.url, "stream": stream_name, start: value}
    query = QueryPlanner(ReadOptions.from_options(given))
    try:
        begin = query.initial()
        fill(js, f"{stream_name}.a", 5)
        end = query.latest(begin, unlimited=True)
        assert [(part.start_seq, part.end_seq) for part in query.partitions(begin, end)] == [
            (6, 16)
        ]
    finally:
        query.close()
    assert stream.info().state.first_seq == 6


@pytest.mark.full
def test_max_trigger_delay_ends_the_wait(js, stream, collected):
    """After ``maxTriggerDelay`` a batch has the messages that are available."""
    fill(js, f"{stream.name}.a", 10)
    collected.start(
        stream=stream.name,
        startingOffsets="earliest",
        minOffsetsPerTrigger=10,
        maxTriggerDelay="1s",
    )
    wait_until(lambda: batches(collected.checkpoint) == [0], 30)
    fill(js, f"{stream.name}.a", 6)
    wait_until(lambda: collected.sizes() == [10, 6], 30)


def test_streams_share_a_batch(js, stream_name, in_process):
    """A small stream does not wait for a large one."""
    names = [f"{stream_name}_{which}" for which in "AB"]
    for name, count in zip(names, (100, 5), strict=True):
        new_stream(js, name)
        fill(js, f"{name}.a", count)
    in_process.run(stream=",".join(names), startingOffsets="earliest", maxOffsetsPerTrigger=20)
    assert in_process.sizes() == [20, 20, 20, 20, 20, 5]
    assert Counter(stream for stream, _ in in_process.rows[0]) == {names[0]: 15, names[1]: 5}


# --- restarts -----------------------------------------------------------------------------------


def test_a_query_continues_from_its_checkpoint(js, stream, collected):
    """A restarted query ignores its start options, and reads no message twice or never."""
    fill(js, f"{stream.name}.a", 10)
    collected.run(stream=stream.name, startingOffsets="earliest")
    fill(js, f"{stream.name}.a", 10)
    collected.run(stream=stream.name, startingOffsets="latest")
    fill(js, f"{stream.name}.a", 10)
    collected.run(stream=stream.name, startingOffsets="earliest")
    assert collected.sizes() == [10, 10, 10]
    assert collected.sequences() == list(range(1, 31))


@pytest.mark.matrix
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.full
def test_a_repeated_batch_has_the_same_partitions(js, stream, collected, filtered):
    """This holds even if there are more messages or the options have changed."""
    fill(js, lambda number: f"{stream.name}.{number % 3}", 300)
    options = {"subjects": f"{stream.name}.1"} if filtered else {}
    collected.run(
        stream=stream.name, startingOffsets="earliest", maxRecordsPerPartition=30, **options
    )
    before = collected.partitions(0)
    assert len(before) == (4 if filtered else 10)
    forget_commit(collected.checkpoint, 0)
    fill(js, lambda number: f"{stream.name}.{number % 3}", 300)
    again = collected.resumed()
    again.run(stream=stream.name, minPartitions=2, maxOffsetsPerTrigger=1000)
    assert again.partitions(0) == before
    assert again.sequences() == sorted({*collected.sequences(), *again.sequences(1)})


@pytest.mark.full
def test_a_repeated_batch_is_shuffled_alike(js, stream, spark, nats_server, tmp_path):
    """The distribution of rows does not depend on the number of cores after a restart."""
    fill(js, f"{stream.name}.a", 100)
    sink = js.create_stream(name=f"{stream.name}_2", subjects=["o"], duplicate_window=3600)
    to = {"servers": nats_server.url}

    def run() -> None:
        source = spark.readStream.format("jetstream").options(**to, stream=stream.name)
        frame = source.option("startingOffsets", "earliest").load().repartition("sequence")
        writer = frame.select("data").writeStream.format("jetstream").options(**to, subject="o")
        writer = writer.options(stream=sink.name, checkpointLocation=str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    # Otherwise Spark makes as many shuffle partitions as there are cores, if they are large enough.
    spark.conf.set(_LARGE_ENOUGH, "1b")
    try:
        run()
        forget_commit(tmp_path, 0)
        spark.conf.set(_LARGE_ENOUGH, "1g")
        run()
    finally:
        spark.conf.unset(_LARGE_ENOUGH)
    assert sink.info().state.messages == 100


@pytest.mark.full
def test_a_crash_in_the_first_batch_loses_nothing(js, stream, collected):
    """With ``latest`` the first batch is read again from its own start, not from the new end."""
    fill(js, f"{stream.name}.a", 5)
    query = collected.start(stream=stream.name)
    wait_until(lambda: batches(collected.checkpoint), 30)
    query.stop()
    forget_commit(collected.checkpoint, 0)
    fill(js, f"{stream.name}.a", 10)

    def fail(_: int) -> None:
        raise RuntimeError("the sink is broken")

    # The first batch with rows fails, too.
    collected.during_batch = fail
    with pytest.raises(Exception, match="the sink is broken"):
        collected.run(stream=stream.name)
    collected.during_batch = None
    fill(js, f"{stream.name}.a", 10)
    collected.run(stream=stream.name)
    assert collected.sequences() == list(range(6, 26))


# --- streams that change ------------------------------------------------------------------------


@pytest.mark.full
def test_new_streams_are_read_from_their_start(js, stream_name, collected):
    """New streams that match the pattern are read from their first message while the query runs."""

    def add(name: str, count: int) -> None:
        new_stream(js, name)
        fill(js, f"{name}.a", count)

    add(f"{stream_name}_A", 10)
    query = collected.start(streamPattern=f"{stream_name}_*", startingOffsets="earliest")
    query.processAllAvailable()
    add(f"{stream_name}_B", 5)
    wait_until(lambda: len(collected.sequences()) == 15, 20)
    fill(js, f"{stream_name}_A.a", 3)
    wait_until(lambda: len(collected.sequences()) == 18, 20)
    counts = Counter(row["stream"] for rows in collected.rows.values() for row in rows)
    assert counts == {f"{stream_name}_A": 13, f"{stream_name}_B": 5}


def recreated(js: JetStream, stream: Stream) -> None:
    js.delete_stream(stream.name)
    new_stream(js, stream.name)
    fill(js, f"{stream.name}.a", 4)


def purged(js: JetStream, stream: Stream) -> None:
    fill(js, f"{stream.name}.a", 10)
    stream.purge(seq=18)


def deleted(js: JetStream, stream: Stream) -> None:
    js.delete_stream(stream.name)


@pytest.mark.parametrize(
    ("change", "left"),
    [(recreated, [1, 2, 3, 4]), (purged, [18, 19, 20]), (deleted, [])],
)
def test_data_loss_is_an_error_or_skipped(js, stream, in_process, change, left):
    """A re-created, purged or deleted stream ends the query, unless ``failOnDataLoss`` is false."""
    fill(js, f"{stream.name}.a", 10)
    in_process.run(stream=stream.name, startingOffsets="earliest")
    change(js, stream)
    with pytest.raises(DataLossError):
        in_process.run(stream=stream.name)
    in_process.run(stream=stream.name, failOnDataLoss="false")
    assert in_process.sequences(1) == left


def test_data_loss_ends_a_query(js, stream, collected):
    """Spark shows the error, and the query can continue with ``failOnDataLoss`` set to false."""
    fill(js, f"{stream.name}.a", 10)
    collected.run(stream=stream.name, startingOffsets="earliest")
    recreated(js, stream)
    with pytest.raises(Exception, match="DataLossError"):
        collected.run(stream=stream.name)
    collected.run(stream=stream.name, failOnDataLoss="false")
    assert collected.sequences(1) == [1, 2, 3, 4]


@pytest.mark.full
def test_a_purged_stream_that_is_idle_makes_no_batches(js, stream, nc, collected):
    """After a purge of all messages there is no batch until a new message arrives."""
    fill(js, f"{stream.name}.a", 10)
    query = collected.start(stream=stream.name, startingOffsets="earliest", failOnDataLoss="false")
    query.processAllAvailable()
    fill(js, f"{stream.name}.a", 10)
    query.processAllAvailable()
    done = batches(collected.checkpoint, "offsets")
    js.get_stream(stream.name).purge()
    collected.triggers(nc, stream.name, 6)
    assert batches(collected.checkpoint, "offsets") == done
    fill(js, f"{stream.name}.a", 3)
    query.processAllAvailable()
    assert collected.sequences() == list(range(1, 24))


@pytest.mark.full
def test_other_subjects_make_no_batches(js, stream, nc, collected):
    """A query for one subject runs no batch when messages of other subjects arrive."""
    fill(js, f"{stream.name}.a", 10)
    query = collected.start(
        stream=stream.name, startingOffsets="earliest", subjects=f"{stream.name}.a"
    )
    query.processAllAvailable()
    done = batches(collected.checkpoint, "offsets")
    fill(js, f"{stream.name}.b", 10)
    collected.triggers(nc, stream.name, 6)
    assert batches(collected.checkpoint, "offsets") == done


@pytest.mark.full
def test_a_server_restart_is_waited_out(fresh_server, collected):
    """Planning retries while the server does not answer."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.>"])
        fill(js, "s.a", 10)
        query = collected.start(servers=fresh_server.url, stream="S", startingOffsets="earliest")
        query.processAllAvailable()
        fresh_server.stop()
        fresh_server.start()
        wait_until(lambda: nc.is_connected, 20)
        fill(js, "s.a", 10)
        wait_until(lambda: len(collected.sequences()) == 20, 30)
        query.stop()
    assert query.exception() is None


@pytest.mark.full
def test_a_query_that_is_stopped_closes_its_connection(
    js, stream, spark, nats_server, collected, tmp_path
):
    """Spark ends the planning process with a signal, and ``stop()`` of the reader is still called."""
    from jetstream_sync.spark import JetStreamDataSource
    from jetstream_sync.spark.options import ReadOptions
    from jetstream_sync.spark.streaming.reader import JetStreamStreamReader

    note = tmp_path / "stopped"

    class Reader(JetStreamStreamReader):
        def stop(self) -> None:
            super().stop()
            note.write_text("yes")

    class Source(JetStreamDataSource):
        @classmethod
        def name(cls) -> str:
            return "stopping"

        def streamReader(self, schema: Any) -> Reader:  # noqa: N802
            return Reader(ReadOptions.from_options(self.options), schema)

    spark.dataSource.register(Source)
    fill(js, f"{stream.name}.a", 5)
    frame = spark.readStream.format("stopping").options(servers=nats_server.url, stream=stream.name)
    query = (
        frame.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(collected.checkpoint))
        .start()
    )
    wait_until(lambda: batches(collected.checkpoint) == [0], 30)
    query.stop()
    wait_until(note.exists, 10)


# --- progress and checkpoint --------------------------------------------------------------------


@pytest.mark.full
def test_progress_shows_the_backlog(js, stream, collected):
    """``sources[].latestOffset`` contains the bounds of the stream and the number of pending messages."""
    fill(js, f"{stream.name}.a", 100)
    collected.run(stream=stream.name, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    seen = [json.loads(item.sources[0].latestOffset) for item in collected.progress]
    state = stream.info().state
    assert [item["streams"][stream.name]["pending"] for item in seen if item][:3] == [60, 20, 0]
    first = seen[0]["streams"][stream.name]
    assert first.pop("pending_bytes") == pytest.approx(state.bytes * 0.6, abs=100)
    assert 0 < first.pop("lag_seconds") < 120
    assert first == {
        "bytes": state.bytes,
        "first": 1,
        "last": 100,
        "messages": 100,
        "pending": 60,
        "read": 40,
    }


@pytest.mark.full
def test_the_backlog_counts_messages_after_the_end_of_available_now(js, stream, collected):
    """Messages that arrive during a run with AvailableNow are pending, although the run does not read them."""
    fill(js, f"{stream.name}.a", 10)
    collected.during_batch = lambda _: fill(js, f"{stream.name}.a", 5)
    collected.run(stream=stream.name, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    seen = [json.loads(item.sources[0].latestOffset) for item in collected.progress]
    assert [item["streams"][stream.name]["pending"] for item in seen if item][:2] == [5, 5]


def test_a_listener_reports_the_backlog(js, stream, spark, collected):
    """A `ProgressListener` reports what the server has and the query has read, and sets gauges."""
    from prometheus_client import CollectorRegistry

    fill(js, f"{stream.name}.a", 10)
    reports: list[QueryProgress] = []
    registry = CollectorRegistry()
    listener = ProgressListener(reports.append, registry=registry)
    js.create_key_value(bucket="progress", storage="memory")
    spark.streams.addListener(listener)
    try:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 6}
        collected.run(stream=stream.name, progressBucket="progress", **options)
        wait_until(lambda: len(reports) >= 2, 20)
    finally:
        spark.streams.removeListener(listener)
    first, second = (report.streams[0] for report in reports[:2])
    state = stream.info().state
    assert (first.stream, first.read_seq, first.last_seq) == (stream.name, 6, state.last_seq)
    assert (first.pending, second.read_seq, second.pending, second.lag) == (4, 10, 0, 0)
    assert first.lag > 0
    assert [report.rows_read for report in reports[:2]] == [6, 4]
    labels = {"query": reports[0].query_id, "stream": stream.name}
    for name, value in (("pending", 0), ("read_seq", 10), ("last_seq", state.last_seq)):
        assert registry.get_sample_value(f"jetstream_spark_{name}", labels) == value
    rows = registry.get_sample_value("jetstream_spark_rows_read_total", {"query": labels["query"]})
    assert rows == 10
    bucket = js.key_value("progress")
    (key,) = bucket.keys()
    stored = json.loads(bucket.get(key).value)["streams"][stream.name]
    assert (stored["last"], stored["read"], stored["pending"]) == (10, 10, 0)
    (offset,) = offsets_of(collected.checkpoint, 0)
    assert key == offset["query"]


@pytest.mark.full
def test_the_checkpoint_is_readable(js, stream, collected):
    """An offset in the checkpoint contains the start and end of the batch in each stream."""
    fill(js, f"{stream.name}.a", 10)
    collected.run(stream=stream.name, startingOffsets="earliest")
    fill(js, f"{stream.name}.a", 10)
    collected.run(stream=stream.name)
    (offset,) = offsets_of(collected.checkpoint, 1)
    entry = offset["streams"][stream.name]
    assert (entry["from"], entry["next"], entry["cuts"]) == (11, 21, [])
