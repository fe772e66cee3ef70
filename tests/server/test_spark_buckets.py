"""Reading the entries of a bucket for Spark, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.threads import SCALE, within

import jetstream_sync
from jetstream_sync import BucketNotFoundError, Connection, JetStream, KeyValue
from jetstream_sync.api.stream import StreamSource
from jetstream_sync.errors import Error, InvalidOptionError, TimeoutError
from jetstream_sync.spark.connections import connection
from jetstream_sync.spark.options import BucketReadOptions, ReadOptions, WriteOptions
from jetstream_sync.spark.reading.bucket import read_entries
from jetstream_sync.spark.schema import BUCKET_TYPES, SchemaError, check_read_columns
from jetstream_sync.spark.sink_errors import RowError, SinkError
from jetstream_sync.spark.task_helpers import publish_partition
from jetstream_sync.spark.writing.message_ids import WriteTaskId
from jetstream_sync.spark.writing.publishing import AckWindow
from jetstream_sync.spark.writing.rows import RowLayout
from jetstream_sync.spark.writing.write_plan import WritePlan, check_target


@pytest.fixture
def kv(js: JetStream, stream_name: str) -> Iterator[KeyValue]:
    """A bucket with one revision per key."""
    yield js.create_key_value(bucket=stream_name)
    js.delete_key_value(stream_name)


def keys(js: JetStream, kv: KeyValue, *patterns: str) -> dict[str, bytes]:
    """Return the keys of the entries."""
    return {entry.key: entry.value for entry in read_entries(js, kv.bucket, patterns)}


@pytest.mark.parametrize("count", [3, 1500])
def test_current_entries_are_read(js, kv, count):
    """Every key has its last value, keys that were deleted are left out, and patterns select keys."""
    for number in range(count):
        js.publish_async(f"$KV.{kv.bucket}.n.{number}", b"%d" % number)
    js.publish_async_completed(20)
    kv.put("n.1", b"new")
    kv.delete("n.2")
    kv.put("other", b"x")
    kv.purge("other")
    wanted = {f"n.{number}": b"%d" % number for number in range(count) if number != 2}
    wanted["n.1"] = b"new"
    assert keys(js, kv) == keys(js, kv, "n.*") == wanted
    assert keys(js, kv, "n.0", "n.1") == {"n.0": b"0", "n.1": b"new"}
    assert keys(js, kv, "x") == {}
    revisions = [entry.revision for entry in read_entries(js, kv.bucket)]
    assert revisions == sorted(revisions)


def test_an_empty_bucket_has_no_entries(js, kv):
    """An empty bucket, or one with only deleted keys, is read without waiting."""
    assert keys(js, kv) == {}
    kv.put("a", b"1")
    kv.delete("a")
    assert keys(js, kv) == {}


def test_a_bucket_that_does_not_exist(js):
    """The error names the bucket."""
    with pytest.raises(BucketNotFoundError, match="nothing"):
        read_entries(js, "nothing")


def test_a_large_bucket_is_not_waited_for_without_an_end(fresh_server, monkeypatch):
    """A server that falls silent while it sends the entries is an error, for a bucket above the limit of a reply."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream(timeout=1.0)
        kv = js.create_key_value(bucket="LARGE")
        for number in range(2000):
            js.publish_async(f"$KV.LARGE.{number}", bytes(16_000))
        js.publish_async_completed(20 * SCALE)
        watch = type(kv).watch

        def watch_and_fall_silent(*given: Any, **options: Any) -> Any:
            found = watch(*given, **options)
            fresh_server.pause()
            return found

        monkeypatch.setattr(type(kv), "watch", watch_and_fall_silent)
        try:
            with within(5.0), pytest.raises(TimeoutError):
                read_entries(js, "LARGE")
        finally:
            fresh_server.resume()


# --- writing ------------------------------------------------------------------------------------


def schema(*columns: tuple[str, str]) -> Any:
    """Return what a layout uses of a Spark schema."""
    return SimpleNamespace(
        fields=[
            SimpleNamespace(
                name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind)
            )
            for name, kind in columns
        ]
    )


LAYOUT = schema(("Key", "string"), ("value", "string"))


def put(
    nc: Connection, url: str, bucket: str, rows: Sequence[tuple[Any, Any]], **options: str
) -> None:
    """Write rows like a Spark task."""
    given = WriteOptions.from_options({"servers": url, "bucket": bucket, **options})
    layout = RowLayout.of_schema(LAYOUT, bucket=True)
    target = check_target(given.connection.jetstream(nc), given, layout)
    columns = layout.columns(zip(*rows, strict=True))
    try:
        written = WritePlan(options=given, layout=layout, target=target).write(
            WriteTaskId(name="t", batch=0, partition=0), [[columns]]
        )
    finally:
        connection(given.connection).close()
    assert written.rows == len(rows)


def test_rows_are_put(nc, js, kv, nats_server):
    """Each row puts a key, and a later row of the same key wins."""
    rows = [("a", "1"), ("b.c", b"\xff"), ("a", ""), ("d", "\u00e4")]
    put(nc, nats_server.url, kv.bucket, rows)
    assert keys(js, kv) == {"a": b"", "b.c": b"\xff", "d": "\u00e4".encode()}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (("a b", "x"), "key"),
        (("", "x"), "key"),
        (("_kv", "x"), "reserved"),
        ((None, "x"), "key is NULL"),
        (("k" * 5000, "x"), "has 5000 bytes"),
    ],
)
def test_rows_that_are_no_entries(nc, js, kv, nats_server, row, text):
    """The error names the column, and nothing of the row is stored."""
    with pytest.raises(RowError, match=text):
        put(nc, nats_server.url, kv.bucket, [row])
    assert keys(js, kv) == {}


@pytest.mark.parametrize("lost", [(0,), (0, 2), (1, 3), (4,)])
def test_the_last_row_of_a_key_wins_although_rows_were_lost(
    nc, js, kv, nats_server, monkeypatch, lost
):
    """A leader that steps down loses rows without a reply, and stores later ones."""
    really, sent = AckWindow._transmit, []

    def forget(window: AckWindow, buffer: bytes, count: int) -> None:
        commands = buffer.split(b"HPUB ")
        if len(sent) < len(lost):
            del commands[1 + lost[len(sent)]]
        sent.append(count)
        really(window, b"HPUB ".join(commands), count)

    monkeypatch.setattr(AckWindow, "_transmit", forget)
    rows = [("a", "0"), ("b", "1"), ("a", "2"), ("b", "3"), ("a", "4")]
    put(nc, nats_server.url, kv.bucket, rows, ackTimeout="2s")
    assert len(sent) == len(lost) + 1
    assert keys(js, kv) == {"a": b"4", "b": b"3"}


def test_rows_that_are_sent_again_are_counted_with_their_new_length(
    nc, js, kv, nats_server, monkeypatch
):
    """The reply subject of a row grows with each resend, and the limit of bytes in flight counts what was sent."""
    windows: list[AckWindow] = []
    finish = AckWindow.finish

    def resend_and_finish(window: AckWindow) -> None:
        windows.append(window)
        for _ in range(3):
            again = window._in_flight.all_again()
            assert window._in_flight.size == sum(map(len, again))
            window._resend(again)
        finish(window)

    monkeypatch.setattr(AckWindow, "finish", resend_and_finish)
    put(nc, nats_server.url, kv.bucket, [(f"k{number}", "x") for number in range(100)])
    assert [(item._in_flight.rows, item._in_flight.size) for item in windows] == [(0, 0)]
    assert len(keys(js, kv)) == 100


def test_a_task_puts_rows_into_a_bucket(js, kv, nats_server):
    """The function for tasks takes the columns of a bucket, in each form of rows, and names a missing one."""
    given = {"servers": nats_server.url, "bucket": kv.bucket}
    publish_partition([{"key": "a", "value": b"1"}, {"key": "b", "value": None}], given)
    publish_partition([("c", b"3")], given, columns=["key", "value"])
    assert keys(js, kv) == {"a": b"1", "c": b"3"}
    for rows in ([b"payload"], [{"subject": "a", "data": b"1"}]):
        with pytest.raises(SchemaError):
            publish_partition(rows, given)
    connection(WriteOptions.from_options(given).connection).close()


def test_buckets_that_take_no_rows(nc, js, kv, nats_server):
    """A bucket that does not exist, and a mirror, are refused by the driver."""
    with pytest.raises(SinkError, match="bucket 'nothing' does not exist"):
        put(nc, nats_server.url, "nothing", [("a", "b")])
    mirror = js.create_key_value(bucket=f"{kv.bucket}-M", mirror=StreamSource(name=kv.bucket))
    try:
        with pytest.raises(SinkError, match="is a mirror"):
            put(nc, nats_server.url, mirror.bucket, [("a", "b")])
    finally:
        js.delete_key_value(mirror.bucket)


@pytest.mark.parametrize(
    "columns",
    [
        [("key", "string")],
        [("value", "string")],
        [("key", "string"), ("value", "int")],
        [("key", "binary"), ("value", "binary")],
        [("key", "string"), ("KEY", "string"), ("value", "binary")],
        [("key", "string"), ("value", "binary"), ("ttl", "int")],
    ],
)
def test_wrong_columns_to_write(columns):
    """Rows for a bucket have a key and a value."""
    with pytest.raises(SchemaError):
        RowLayout.of_schema(schema(*columns), bucket=True)


@pytest.mark.parametrize(
    ("column", "kind"),
    [("key", "binary"), ("value", "string"), ("data", "binary"), ("Key", "string")],
)
def test_wrong_columns_to_read(column, kind):
    """The columns of a bucket are not those of a stream."""
    with pytest.raises(SchemaError):
        check_read_columns([(column, kind)], BUCKET_TYPES)


@pytest.mark.parametrize(
    ("parse", "options"),
    [
        *((BucketReadOptions, {name: "1"}) for name in ("stream", "subjects", "startingOffsets")),
        *((BucketReadOptions, {name: "1"}) for name in ("consumer", "readMode", "minPartitions")),
        (BucketReadOptions, {"bucket": "a.b"}),
        (BucketReadOptions, {"keys": "a b"}),
        (BucketReadOptions, {"keys": "a,a"}),
        (ReadOptions, {}),
        (WriteOptions, {"stream": "S"}),
        (WriteOptions, {"delivery": "window"}),
        (WriteOptions, {"subject": "a"}),
        (WriteOptions, {"jobId": "a"}),
        (WriteOptions, {"overwriteMode": "purge"}),
        (WriteOptions, {"keys": "a"}),
    ],
)
def test_options_that_contradict_a_bucket(parse, options):
    """Options that do not apply to a bucket are refused and not ignored."""
    with pytest.raises(InvalidOptionError):
        parse.from_options({"bucket": "CONFIG", **options})


def test_keys_need_a_bucket():
    """The option ``keys`` is not ignored for a stream, and a stream has no bucket options."""
    with pytest.raises(InvalidOptionError, match="needs bucket"):
        ReadOptions.from_options({"stream": "S", "keys": "a"})
    assert BucketReadOptions.from_options({"stream": "S"}) is None
    with pytest.raises(Error, match="stream=KV_CONFIG"):
        ReadOptions.from_options({"bucket": "CONFIG"})
