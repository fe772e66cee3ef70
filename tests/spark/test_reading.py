"""Read a sequence range with direct gets or a consumer, into Arrow; needs no Java."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from fixtures.internals import open_subscriptions
from fixtures.rawnats import RawClient
from fixtures.spark_streams import fill, new_stream
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import (
    Headers,
    RePublish,
    StreamConsumerLimits,
    StreamNotFoundError,
    StreamSource,
)
from jetstream_sync.jetstream.consumer_requests import add_consumer
from jetstream_sync.server import NatsServer
from jetstream_sync.spark import (
    DirectGetRefusedError,
    RangeLostError,
    SequenceRange,
    StreamRecreatedError,
)
from jetstream_sync.spark.reading import pull
from jetstream_sync.spark.reading.arrow import to_batch
from jetstream_sync.spark.reading.chunks import Chunk
from jetstream_sync.spark.reading.direct import count_from_each
from jetstream_sync.spark.reading.range_reader import ReadPlan, read_chunks
from jetstream_sync.spark.schema import READ_COLUMNS, READ_TYPES

if TYPE_CHECKING:
    from jetstream_sync import Connection, JetStream, Stream

pytestmark = pytest.mark.spark

ALL = tuple(READ_TYPES)
MODES = ("direct", "pull")
both_modes = pytest.mark.parametrize("mode", MODES)

#: A size that a few messages fill, so that a range needs several responses.
SMALL = 4096


def created_ns(stream: Stream) -> int:
    return jetstream_sync.durations.time_to_ns(stream.info().created)


def whole(stream: Stream, *filters: str) -> SequenceRange:
    """Return the range of all messages that the stream has now."""
    state = stream.info().state
    name = stream.cached_info.config.name
    start = max(1, state.first_seq)
    return SequenceRange(name, start, max(start, state.last_seq + 1), filters, created_ns(stream))


def chunks(
    nc: Connection, piece: SequenceRange, mode: str, columns: tuple[str, ...] = ALL, **plan: Any
) -> Iterator[Chunk]:
    js = nc.jetstream(timeout=plan.get("timeout", 10.0))
    return read_chunks(js, piece, frozenset(columns), ReadPlan(mode=mode, **plan))


def rows(
    nc: Connection, piece: SequenceRange, mode: str, columns: tuple[str, ...] = ALL, **plan: Any
) -> list[dict[str, Any]]:
    found = []
    for chunk in chunks(nc, piece, mode, columns, **plan):
        found += to_batch(chunk, columns).to_pylist()
    return found


def sequences(nc: Connection, piece: SequenceRange, mode: str, **plan: Any) -> list[int]:
    return [row["sequence"] for row in rows(nc, piece, mode, ("sequence",), **plan)]


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    return new_stream(js, stream_name)


@pytest.fixture
def subject(stream_name: str) -> str:
    return f"{stream_name}.x"


# --- columns ------------------------------------------------------------------------------------


@both_modes
def test_columns_contain_the_published_values(nc, js, stream, stream_name, mode):
    """A row has subject, payload, headers, sequence, time, stream, id and size of its message."""
    several = Headers([("Trace", "a"), ("Empty", ""), ("Trace", "b"), ("X", "größe")])
    js.publish(f"{stream_name}.plain", b"one")
    js.publish(f"{stream_name}.headers", b"\r\n\0 two \r\n", headers=several)
    js.publish(f"{stream_name}.empty", b"")
    js.publish(f"{stream_name}.id", b"\xff\xfe", msg_id="id-4")
    js.publish(f"{stream_name}.données.日本", b"five", headers={"Y": "z"})
    found = rows(nc, whole(stream), mode)
    names = ("sequence", "subject", "data", "headers", "msg_id", "size", "stream")
    headers = {"Trace": ["a", "b"], "Empty": [""], "X": ["größe"]}
    assert [tuple(row[name] for name in names) for row in found] == [
        (seq, f"{stream_name}.{subject}", data, list(own.items()), msg_id, len(data), stream_name)
        for seq, subject, data, own, msg_id in (
            (1, "plain", b"one", {}, None),
            (2, "headers", b"\r\n\0 two \r\n", headers, None),
            (3, "empty", b"", {}, None),
            (4, "id", b"\xff\xfe", {"Nats-Msg-Id": ["id-4"]}, "id-4"),
            (5, "données.日本", b"five", {"Y": ["z"]}, None),
        )
    ]
    for row in found:
        message = stream.get_msg(row["sequence"])
        assert row["time_ns"] == message.time_ns
        micros = message.time_ns // 1000 % 10**6
        assert row["timestamp"] == message.time.replace(microsecond=micros)


@both_modes
def test_forged_headers_stay_the_users(nc, js, stream, subject, mode):
    """Published headers with the names of server headers are returned unchanged, without other effects."""
    forged = {
        "Nats-Stream": "OTHER",
        "Nats-Subject": "other.subject",
        "Nats-Sequence": "77",
        "Nats-Time-Stamp": "2001-01-01T00:00:00Z",
        "Nats-Num-Pending": "0",
        "Nats-Last-Sequence": "1",
        "Nats-Msg-Size": "5",
    }
    fill(js, subject, 3)
    js.publish(subject, b"forged", headers=forged)
    js.publish(subject, b"", headers=forged)
    fill(js, subject, 3)
    found = rows(nc, whole(stream), mode)
    assert [row["sequence"] for row in found] == list(range(1, 9))
    assert {row["subject"] for row in found} == {subject}
    assert [dict(row["headers"]) for row in found[3:5]] == [
        {name: [value] for name, value in forged.items()}
    ] * 2
    assert [row["data"] for row in found[3:5]] == [b"forged", b""]
    assert all(row["time_ns"] > 10**18 for row in found)


@both_modes
def test_republished_messages(nc, js, stream, stream_name, mode):
    """A message republished from another stream keeps the headers of that stream, and has its own sequence."""
    source = f"{stream_name}_source"
    republish = RePublish(src=f"{source}.>", dest=f"{stream_name}.again.>")
    new_stream(js, source, republish=republish)
    fill(js, f"{stream_name}.first", 2)
    fill(js, f"{source}.a", 2)
    wait_until(lambda: stream.info().state.messages == 4)
    found = rows(nc, whole(stream), mode)
    assert [row["sequence"] for row in found] == [1, 2, 3, 4]
    assert found[2]["subject"] == f"{stream_name}.again.a"
    headers = dict(found[2]["headers"])
    assert headers["Nats-Stream"] == [source]
    assert headers["Nats-Sequence"] == ["1"]


def test_large_payloads_that_are_not_selected_are_not_sent(nc, js, stream, subject):
    """Without the column data, a headers-only consumer is used, and the payload sizes are still known."""
    js.publish(subject, b"x" * 500_000, headers={"A": "b", "Nats-Msg-Size": "3"})
    js.publish(subject, b"x" * 400_000)
    before = nc.stats["in_bytes"]
    found = rows(nc, whole(stream), "auto", ("sequence", "size", "headers"))
    assert nc.stats["in_bytes"] - before < 20_000
    assert [row["size"] for row in found] == [500_000, 400_000]
    assert [dict(row["headers"]) for row in found] == [{"A": ["b"], "Nats-Msg-Size": ["3"]}, {}]


def test_the_schema_equals_the_one_of_pyspark(nc, js, stream, subject):
    """The schema of a batch equals PySpark's schema for the columns, including nullability."""
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_schema

    texts = types.ArrayType(types.StringType())
    kinds = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "bigint": types.LongType(),
        "int": types.IntegerType(),
        "timestamp": types.TimestampType(),
        "map<string,array<string>>": types.MapType(types.StringType(), texts),
    }
    js.publish(subject, b"one", headers={"A": "b"})
    js.publish(subject, b"two")
    (chunk,) = chunks(nc, whole(stream), "direct")
    for names in (ALL, READ_COLUMNS, ("headers",)):
        for nullable in (True, False):
            fields = [types.StructField(n, kinds[READ_TYPES[n]], nullable) for n in names]
            expected = to_arrow_schema(types.StructType(fields), timezone="UTC")
            batch = to_batch(chunk, expected)
            batch.validate(full=True)
            assert batch.schema.equals(expected, check_metadata=True)
            if nullable:
                assert to_batch(chunk, names).schema.equals(expected, check_metadata=True)


# --- ranges, filters, deleted messages ----------------------------------------------------------


@both_modes
def test_adjacent_ranges_cover_the_stream(nc, js, stream, stream_name, subject, mode):
    """Adjacent half-open ranges return each message once and in order, for any response size."""
    fill(js, subject, 1000)
    created = created_ns(stream)
    bounds = [1, 2, 333, 334, 900, 1001]
    found = []
    for start, end in pairwise(bounds):
        piece = SequenceRange(stream_name, start, end, (), created)
        part = rows(nc, piece, mode, ("sequence", "data"), batch_bytes=SMALL)
        assert [row["sequence"] for row in part] == list(range(start, end))
        found += part
    assert [row["data"] for row in found] == [b"%d" % number for number in range(1, 1001)]
    assert sequences(nc, SequenceRange(stream_name, 7, 7), mode) == []


@both_modes
@pytest.mark.parametrize("batch_bytes", [SMALL, 4_000_000])
def test_one_message_in_a_thousand(nc, js, stream, stream_name, mode, batch_bytes):
    """A sparse filter returns its matches, in ranges with several, one or no match at the end."""
    subjects = fill(
        js, lambda number: f"{stream_name}.{'rare' if number % 1000 == 7 else number % 50}", 6000
    )
    rare = f"{stream_name}.rare"
    expected = [seq for seq, item in enumerate(subjects, 1) if item == rare]
    created = created_ns(stream)
    found = []
    for start in range(1, 6001, 1500):
        piece = SequenceRange(stream_name, start, start + 1500, (rare,), created)
        found += sequences(nc, piece, mode, batch_bytes=batch_bytes)
    assert found == expected
    assert sequences(nc, SequenceRange(stream_name, 8, 1007, (rare,), created), mode) == []


@both_modes
def test_several_filters(nc, js, stream, stream_name, mode):
    """Messages that match several filters are returned in stream order."""
    subjects = fill(js, lambda number: f"{stream_name}.{'abc'[number % 3]}.{number % 5}", 300)
    filters = (f"{stream_name}.a.*", f"{stream_name}.*.4.>", f"{stream_name}.b.1")
    expected = [
        seq
        for seq, item in enumerate(subjects, 1)
        if item.startswith(f"{stream_name}.a.") or item == f"{stream_name}.b.1"
    ]
    found = rows(nc, whole(stream, *filters), mode, batch_bytes=SMALL)
    assert [row["sequence"] for row in found] == expected
    assert [row["subject"] for row in found] == [subjects[seq - 1] for seq in expected]
    assert [row["data"] for row in found] == [b"%d" % seq for seq in expected]


@both_modes
@pytest.mark.parametrize(
    ("gone", "loss"),
    [
        (range(91, 101), "false"),
        (range(1, 11), "false"),
        (range(1, 101), "false"),
        # One by one in the middle: never a loss.
        (range(2, 101, 3), "strict"),
    ],
)
def test_deleted_messages(nc, js, stream, subject, mode, gone, loss):
    """Deleted messages, at any place or all of them, neither end a read early nor delay it."""
    fill(js, subject, 150)
    piece = SequenceRange(stream.cached_info.config.name, 1, 101, (), created_ns(stream))
    for seq in gone:
        stream.delete_msg(seq)
    with within(5.0):
        found = sequences(nc, piece, mode, batch_bytes=SMALL, fail_on_data_loss=loss)
    assert found == [seq for seq in range(1, 101) if seq not in gone]


@both_modes
def test_a_range_without_a_message_at_its_end_is_complete_at_once(
    nc, js, stream, stream_name, mode
):
    """A range without a message at its end is complete as soon as the leader confirms it."""
    fill(js, f"{stream_name}.keep", 10)
    fill(js, f"{stream_name}.drop", 10)
    piece = whole(stream)
    stream.purge(subject=f"{stream_name}.drop")
    with within(2.0):
        assert sequences(nc, piece, mode, timeout=30.0) == list(range(1, 11))
        dropped = SequenceRange(stream_name, 1, 21, (f"{stream_name}.drop",), piece.created_ns)
        assert sequences(nc, dropped, mode, timeout=30.0) == []


@both_modes
def test_streams_that_keep_the_last_of_each_subject(nc, js, stream_name, mode):
    """Replaced messages in a stream with a limit per subject are not data loss, unless ``strict`` is set."""
    stream = new_stream(js, stream_name, max_msgs_per_subject=1, allow_rollup_hdrs=True)
    fill(js, lambda number: f"{stream_name}.{number % 10}", 30)
    piece = SequenceRange(stream_name, 1, 31, (), created_ns(stream))
    assert sequences(nc, piece, mode) == list(range(21, 31))
    with pytest.raises(RangeLostError):
        sequences(nc, piece, mode, fail_on_data_loss="strict")
    js.publish(f"{stream_name}.9", b"all", headers={"Nats-Rollup": "all"})
    assert sequences(nc, piece, mode) == []


# --- data loss ----------------------------------------------------------------------------------


@both_modes
def test_a_purge_before_the_range_is_read(nc, js, stream, subject, mode):
    """A purge is reported with its sequences, or ignored with ``failOnDataLoss=false``."""
    fill(js, subject, 20)
    piece = whole(stream)
    stream.purge()
    with pytest.raises(RangeLostError) as caught:
        sequences(nc, piece, mode)
    assert (caught.value.start_seq, caught.value.end_seq) == (1, 21)
    assert sequences(nc, piece, mode, fail_on_data_loss="false") == []


@both_modes
@pytest.mark.parametrize("filtered", [False, True])
def test_a_purge_in_the_middle_of_a_range(nc, js, stream, subject, mode, filtered):
    """After a purge in the middle, the read raises an error or continues with the remaining messages."""
    fill(js, subject, 5000)
    filters = (subject,) if filtered else ()
    for loss, expected in (("false", list(range(4001, 5001))), ("true", None)):
        piece = whole(stream, *filters)
        start = piece.start_seq
        with closing(chunks(nc, piece, mode, batch_bytes=SMALL, fail_on_data_loss=loss)) as reading:
            found = list(next(reading).sequences)
            stream.purge(seq=start + 4000)
            if expected is None:
                with pytest.raises(RangeLostError) as caught:
                    for chunk in reading:
                        found += chunk.sequences
                assert caught.value.end_seq == start + 4000
                # Messages of an incomplete chunk were received, but not returned.
                assert start + len(found) <= caught.value.start_seq < start + 4000
            else:
                for chunk in reading:
                    found += chunk.sequences
                ahead = [seq for seq in found if seq < 4001]
                assert 0 < len(ahead) < 500
                assert found == list(range(1, len(ahead) + 1)) + expected
        fill(js, subject, 5000)


@both_modes
def test_a_re_created_stream(nc, js, stream, stream_name, subject, mode):
    """A range is not read from another stream of the same name, at its start or later."""
    fill(js, subject, 2000)
    piece = whole(stream)
    with closing(chunks(nc, piece, mode, batch_bytes=SMALL)) as reading:
        found = list(next(reading).sequences)
        js.delete_stream(stream_name)
        again = new_stream(js, stream_name)
        fill(js, subject, 2000)
        with pytest.raises(StreamRecreatedError) as caught:
            for chunk in reading:
                found += chunk.sequences
    assert found == list(range(1, len(found) + 1))
    assert len(found) < 1000
    assert caught.value.found_ns == created_ns(again)
    with pytest.raises(StreamRecreatedError):
        sequences(nc, piece, mode)


@both_modes
def test_a_missing_stream(nc, mode):
    """Reading a stream that does not exist fails at once."""
    with within(2.0), pytest.raises(StreamNotFoundError):
        sequences(nc, SequenceRange("NOT_THERE", 1, 10), mode)


# --- sizes and pace -----------------------------------------------------------------------------


@both_modes
def test_batches_have_a_size_limit(nc, js, stream, subject, mode):
    """No batch exceeds the size limit, except one with a single larger message."""
    sizes = [10] * 200 + [3000] * 20 + [150_000] + [10] * 50 + [900_000, 900_000] + [0] * 30
    for number, size in enumerate(sizes):
        headers = {f"H{index}": "v" * (number % 7) for index in range(number % 5)}
        js.publish_async(subject, b"x" * size, headers=headers)
    js.publish_async_completed(20 * SCALE)
    found = []
    for chunk in chunks(nc, whole(stream), mode, batch_bytes=64 * 1024):
        batch = to_batch(chunk, ALL)
        assert batch.num_rows == 1 or batch.nbytes <= 64 * 1024
        found += batch.column("size").to_pylist()
    assert found == sizes


@pytest.mark.matrix
@both_modes
@pytest.mark.full
def test_a_slow_caller_does_not_lose_the_connection(mode):
    """A pause of the caller between two chunks never makes the server close the connection."""
    with NatsServer(name="impatient", config="write_deadline: '500ms'\n") as server:
        with jetstream_sync.connect(server.url) as nc:
            js = nc.jetstream()
            stream = new_stream(js, "s")
            fill(js, "s.x", 12_000, b"x" * 4096)
            found: list[int] = []
            slept = False
            for chunk in chunks(nc, whole(stream), mode, ("sequence", "data")):
                found += chunk.sequences
                if not slept and len(found) > 2000:
                    slept = True
                    began = time.monotonic()
                    wait_until(lambda began=began: time.monotonic() > began + 2.0)  # type: ignore[misc]
            assert slept
            assert found == list(range(1, 12_001))
            assert nc.stats["reconnects"] == 0
        assert "Slow Consumer" not in server.log()


@both_modes
def test_a_closed_read_leaves_no_state_behind(nc, js, stream, subject, mode):
    """After a range is closed early or complete, there is no consumer and no subscription."""
    fill(js, subject, 1000)
    known = len(open_subscriptions(nc))
    reading = chunks(nc, whole(stream), mode, batch_bytes=SMALL)
    assert len(next(reading))
    reading.close()  # type: ignore[attr-defined]
    assert stream.consumer_names() == []
    assert sequences(nc, whole(stream), mode, batch_bytes=SMALL) == list(range(1, 1001))
    assert stream.consumer_names() == []
    assert len(open_subscriptions(nc)) == known


def test_an_interrupt_during_the_creation_of_a_consumer(nc, js, stream, subject, monkeypatch):
    """An interrupt during the creation of a consumer leaves no consumer behind."""
    fill(js, subject, 10)

    def add(*args: Any) -> None:
        add_consumer(*args)
        assert len(stream.consumer_names()) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "add_consumer", add)
    with pytest.raises(KeyboardInterrupt):
        sequences(nc, whole(stream), "pull")
    assert stream.consumer_names() == []


_READER = """
import resource, sys
import jetstream_sync
from jetstream_sync.spark.reading.arrow import to_batch
from jetstream_sync.spark.reading.ranges import SequenceRange
from jetstream_sync.spark.reading.range_reader import ReadPlan, read_chunks
from jetstream_sync.spark.schema import READ_COLUMNS
url, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows = 0
with jetstream_sync.connect(url) as nc:
    plan = ReadPlan(mode=mode, batch_bytes=500_000)
    js = nc.jetstream(timeout=10.0)
    for chunk in read_chunks(js, SequenceRange("S", 1, count + 1), frozenset(READ_COLUMNS), plan):
        rows += to_batch(chunk, READ_COLUMNS).num_rows
assert rows == count
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.matrix
@both_modes
@pytest.mark.full
def test_memory_does_not_grow_with_the_range(fresh_server, mode):
    """A process that reads ten times as many messages takes about the same memory."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        new_stream(js, "S")
        fill(js, "S.x", 60_000, b"x" * 128)
    peaks = []
    for count in (6000, 60_000):
        command = [sys.executable, "-c", _READER, fresh_server.url, mode, str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        peaks.append(int(done.stdout))
    # All payloads together would take about 30 MB. The unit is KiB, but bytes on macOS.
    assert peaks[1] - peaks[0] < 12_000 * (1024 if sys.platform == "darwin" else 1)


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_consumer_that_is_deleted(nc, js, stream, subject):
    """After its consumer is deleted, the read continues after the last message with another consumer."""
    fill(js, subject, 1000)
    found: list[int] = []
    deleted = 0
    for chunk in chunks(nc, whole(stream), "pull", batch_bytes=SMALL):
        found += chunk.sequences
        if deleted < 3 and len(found) > 200 * deleted:
            for name in stream.consumer_names():
                stream.delete_consumer(name)
                deleted += 1
    assert deleted == 3
    assert found == list(range(1, 1001))


@both_modes
def test_a_broken_connection(nc, js, stream, subject, mode):
    """After a reconnect, the read continues after the last message."""
    fill(js, subject, 3000, b"x" * 200)
    found: list[int] = []
    cuts = 0
    for chunk in chunks(nc, whole(stream), mode, batch_bytes=10 * SMALL):
        found += chunk.sequences
        if cuts < 3 and len(found) > 700 * cuts:
            cuts += 1
            nc.reconnect()
    assert cuts == 3
    assert found == list(range(1, 3001))


@both_modes
@pytest.mark.parametrize("filtered", [False, True])
def test_a_server_crash_and_restart(mode, filtered):
    """After a server restart with the same store, no message is missing or duplicated."""
    with NatsServer(name="mortal") as server:
        nc = jetstream_sync.connect(server.url, reconnect_time_wait=0.05)
        with nc:
            js = nc.jetstream()
            stream = new_stream(js, "s", storage="file")
            fill(js, lambda number: f"s.{number % 2}", 4000, b"x" * 100)
            expected = [seq for seq in range(1, 4001) if not (filtered and seq % 2)]
            piece = whole(stream, *(("s.0",) if filtered else ()))
            found: list[int] = []
            kills = 0
            for chunk in chunks(nc, piece, mode, batch_bytes=10 * SMALL):
                found += chunk.sequences
                if kills < 2 and len(found) > 800 * kills:
                    kills += 1
                    server.kill()
                    server.start()
            assert kills == 2
            assert found == expected


def test_a_server_that_does_not_return():
    """A server that does not return is an error after the retry timeout."""
    with NatsServer(name="gone") as server:
        nc = jetstream_sync.connect(server.url)
        js = nc.jetstream()
        stream = new_stream(js, "s")
        fill(js, "s.x", 1000)
        reading = chunks(
            nc, whole(stream), "auto", batch_bytes=SMALL, timeout=0.2, retry_timeout=0.5
        )
        next(reading)
        server.kill()
        with within(5.0), pytest.raises((jetstream_sync.TimeoutError, ConnectionError)):
            list(reading)
        nc.close()


@pytest.mark.full
def test_a_lagging_replica(nc, js, stream_name):
    """Messages that a mirror does not have yet are not treated as deleted: the stream leader is asked, too."""
    # A mirror and its origin alternate in answering direct gets. This mirror omits the later messages,
    # so it is like a replica that lags behind.
    stream = new_stream(js, stream_name)
    mirror = js.create_stream(
        name=f"{stream_name}_mirror",
        storage="memory",
        mirror=StreamSource(name=stream_name, filter_subject=f"{stream_name}.early"),
        mirror_direct=True,
        allow_direct=True,
    )
    fill(js, f"{stream_name}.early", 5)
    fill(js, f"{stream_name}.late", 5)
    wait_until(lambda: mirror.info().state.messages == 5)
    late = whole(stream, f"{stream_name}.late")
    for _ in range(10):
        assert sequences(nc, whole(stream), "direct") == list(range(1, 11))
        assert sequences(nc, late, "direct") == list(range(6, 11))


# --- read modes ---------------------------------------------------------------------------------


def test_a_stream_without_direct_gets(nc, js, stream_name):
    """They are refused at once; ``auto`` uses a consumer, except for a work queue, which has its own."""
    stream = new_stream(js, stream_name, allow_direct=False)
    fill(js, f"{stream_name}.x", 10)
    with within(1.0), pytest.raises(DirectGetRefusedError) as caught:
        sequences(nc, whole(stream), "direct")
    assert "allow_direct" in str(caught.value)
    assert sequences(nc, whole(stream), "auto") == list(range(1, 11))
    queue = new_stream(
        js, f"{stream_name}_queue", subjects=["q"], retention="workqueue", allow_direct=False
    )
    js.publish("q", b"")
    with pytest.raises(DirectGetRefusedError):
        sequences(nc, whole(queue), "auto")
    with pytest.raises(DirectGetRefusedError):
        count_from_each(js, queue.name, [1], [None])


def test_a_stream_with_a_lower_limit_of_inactivity_is_read(nc, js, stream_name):
    """Its limit applies instead of the threshold of the read."""
    js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        storage="memory",
        consumer_limits=StreamConsumerLimits(inactive_threshold=2),
    )
    js.publish(f"{stream_name}.x", b"1")
    assert sequences(nc, whole(js.get_stream(stream_name)), "pull") == [1]


def test_reading_a_work_queue_removes_nothing(nc, js, stream_name, nats_server):
    """Reading a work queue with any number of filters removes nothing, even beside its consumer."""
    stream = new_stream(js, stream_name, retention="workqueue")
    stream.create_consumer(durable_name="worker")
    fill(js, lambda number: f"{stream_name}.{number % 3}", 30)
    assert sequences(nc, whole(stream), "auto") == list(range(1, 31))
    two = (f"{stream_name}.1", f"{stream_name}.2")
    assert sequences(nc, whole(stream, *two), "auto") == [n for n in range(1, 31) if n % 3]
    with RawClient(nats_server.port) as raw:
        assert len(raw.stored(stream_name)) == 30
    assert count_from_each(js, stream_name, [1], [None]) == [(1, 30)]


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("allow_direct", [True, False])
def test_counts_from_a_sequence(js, stream_name, allow_direct):
    """A probe returns the first match from a sequence on and the number of matches."""
    stream = new_stream(js, stream_name, allow_direct=allow_direct)
    even = f"{stream_name}.0"
    assert count_from_each(js, stream_name, [1], [None]) == [(None, 0)]
    fill(js, lambda number: f"{stream_name}.{number % 2}", 20)
    js.publish(even, b"", headers={"Nats-Sequence": "3", "Nats-Num-Pending": "99"})
    stream.delete_msg(1)
    stream.delete_msg(10)
    assert count_from_each(js, stream_name, [0, 10], [None]) == [(2, 19), (11, 11)]
    assert count_from_each(js, stream_name, [10, 21, 22], [even]) == [(12, 6), (21, 1), (None, 0)]
    assert count_from_each(js, stream_name, [1], [f"{stream_name}.none"]) == [(None, 0)]
    assert stream.consumer_names() == []
