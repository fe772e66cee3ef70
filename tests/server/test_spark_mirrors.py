"""Reads of Spark from a stream with mirrors, which answer direct gets for it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from fixtures.rawnats import RawClient
from fixtures.spark_streams import fill
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import StreamConsumerLimits, StreamSource, SubjectTransform
from jetstream_sync.server import NatsServer
from jetstream_sync.spark.connections import connection
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.planning.batch_read import plan_read
from jetstream_sync.spark.planning.offsets import Offset
from jetstream_sync.spark.reading.bucket import read_entries
from jetstream_sync.spark.reading.direct import count_from_each, matching_seqs
from jetstream_sync.spark.streaming.query import QueryPlanner
from jetstream_sync.spark.task_helpers import read_range

if TYPE_CHECKING:
    from jetstream_sync import JetStream

COUNT = 1000
RUNS = 20
COLUMNS = ("sequence", "subject")
KEYS = 50

#: Mirrors that lack messages of their origin, or have them on other subjects.
MIRRORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "filtered": ({"filter_subject": "rows.0"}, {}),
    "limited": ({}, {"max_msgs": 100}),
    "transformed": ({"subject_transforms": (SubjectTransform(src="rows.*", dest="new.$1"),)}, {}),
    "late": ({"opt_start_seq": COUNT // 2}, {}),
}


@pytest.fixture(scope="module", params=[None, *MIRRORS])
def server_with_mirror(request: pytest.FixtureRequest) -> Iterator[tuple[JetStream, str]]:
    """Yield context and URL of a server that has a stream with a mirror, and without one for comparison."""
    with NatsServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="ROWS", subjects=["rows.*"], allow_direct=True, storage="memory")
        fill(js, lambda number: f"rows.{number % 10}", COUNT)
        if request.param is not None:
            source, config = MIRRORS[request.param]
            origin = StreamSource(name="ROWS", **source)
            mirror = js.create_stream(name="MIRROR", mirror=origin, storage="memory", **config)
            assert mirror.info().config.mirror_direct
            wait_until(lambda: mirror.info().state.last_seq > COUNT - 10)
        yield js, server.url


@pytest.fixture
def mirrored(server_with_mirror: tuple[JetStream, str]) -> Iterator[tuple[JetStream, str]]:
    yield server_with_mirror
    connection(ReadOptions.from_options(options(server_with_mirror[1])).connection).close()


def options(url: str, **more: Any) -> dict[str, Any]:
    return {"servers": url, "stream": "ROWS", "minPartitions": 4, **more}


def expected(filters: str) -> list[tuple[int, str]]:
    rows = [(number, f"rows.{number % 10}") for number in range(1, COUNT + 1)]
    return [row for row in rows if not filters or row[1] in filters.split(",")]


@pytest.mark.parametrize("mode", ["auto", "direct", "pull"])
@pytest.mark.parametrize("filters", ["", "rows.1", "rows.0,rows.3"])
def test_a_planned_read_has_all_rows_of_the_origin(mirrored, mode, filters):
    """What a mirror answers is no answer of its origin, in any read mode and with any filter."""
    given = options(mirrored[1], readMode=mode, **({"subjects": filters} if filters else {}))
    for _ in range(RUNS):
        ranges = plan_read(ReadOptions.from_options(given))
        found = [row for piece in ranges for row in read_range(piece, given, COLUMNS)]
        assert found == expected(filters)


@pytest.mark.parametrize("mode", ["direct", "pull"])
def test_a_query_reads_all_rows_of_the_origin(mirrored, mode):
    """The batches of a query with a filter and a limit have the rows of the origin, each batch as many."""
    given = options(
        mirrored[1],
        readMode=mode,
        subjects="rows.1",
        maxOffsetsPerTrigger=30,
        startingOffsets="earliest",
    )
    for _ in range(RUNS // 2):
        query = QueryPlanner(ReadOptions.from_options(given))
        start: Offset = query.initial()
        sizes: list[int] = []
        found: list[tuple[int, str]] = []
        while (end := query.latest(start, unlimited=False)) is not start:
            ranges = query.partitions(start, end)
            rows = [row for piece in ranges for row in read_range(piece, given, COLUMNS)]
            found += rows
            sizes.append(len(rows))
            start = end
        assert found == expected("rows.1")
        assert sizes == [30, 30, 30, 10]


def test_counts_are_those_of_the_origin(mirrored):
    """A mirror counts other messages, and must not say that there are none."""
    js, _ = mirrored
    one, all_of_it = ["rows.1"], [None]
    for _ in range(RUNS):
        found = count_from_each(js, "ROWS", [1, 991, 1001], all_of_it)
        assert found == [(1, 1000), (991, 10), (None, 0)]
        found = count_from_each(js, "ROWS", [1, 982, 992], one)
        assert found == [(1, 100), (991, 1), (None, 0)]
        # None: a mirror has replied, so that the messages are counted.
        assert matching_seqs(js, "ROWS", 1, one, 100) in (None, list(range(1, COUNT, 10)))


@pytest.fixture(scope="module", params=MIRRORS)
def bucket_with_mirror(request: pytest.FixtureRequest) -> Iterator[tuple[JetStream, str]]:
    """Yield context and URL of a server with a bucket, some of whose keys a mirror lacks or has elsewhere."""
    with NatsServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        bucket = js.create_key_value(bucket="STOCK", history=3)
        for number in range(KEYS):
            bucket.put(f"k.{number}", b"%d" % number)
        source, config = {
            "filtered": ({"filter_subject": "$KV.STOCK.k.0"}, {}),
            "limited": ({}, {"max_msgs": 10}),
            "transformed": (
                {"subject_transforms": (SubjectTransform(src="$KV.STOCK.k.*", dest="new.$1"),)},
                {},
            ),
            "late": ({"opt_start_seq": KEYS // 2}, {}),
        }[request.param]
        origin = StreamSource(name="KV_STOCK", **source)
        mirror = js.create_stream(name="MIRROR", mirror=origin, **config)
        assert mirror.info().config.mirror_direct
        wait_until(lambda: mirror.info().state.messages > 0 and mirror.info().mirror.lag == 0)
        yield js, server.url


@pytest.mark.parametrize("keys", [(), ("k.1",), ("k.1", "k.2")])
def test_a_bucket_has_the_entries_of_the_origin(bucket_with_mirror, keys):
    """A mirror with other contents does not answer for its bucket."""
    js, _ = bucket_with_mirror
    wanted = list(keys or [f"k.{number}" for number in range(KEYS)])
    for _ in range(RUNS):
        assert [entry.key for entry in read_entries(js, "STOCK", keys)] == wanted


@pytest.mark.parametrize("mode", ["auto", "direct", "pull"])
@pytest.mark.parametrize("keys", [(), (1,), (1, 2)])
def test_the_stream_of_a_bucket_has_the_rows_of_the_origin(bucket_with_mirror, mode, keys):
    """The same holds for the history of a bucket, which is read as a stream."""
    _, url = bucket_with_mirror
    given = {"servers": url, "stream": "KV_STOCK", "readMode": mode, "minPartitions": 4}
    if keys:
        given["subjects"] = ",".join(f"$KV.STOCK.k.{key}" for key in keys)
    wanted = [(key + 1, f"$KV.STOCK.k.{key}", b"%d" % key) for key in keys or range(KEYS)]
    for _ in range(RUNS):
        ranges = plan_read(ReadOptions.from_options(given))
        assert [
            row for piece in ranges for row in read_range(piece, given, (*COLUMNS, "data"))
        ] == wanted
    connection(ReadOptions.from_options(given).connection).close()


@pytest.mark.parametrize("position", [0, 5])
@pytest.mark.parametrize("filters", ["", "rows.1,rows.2"])
def test_a_header_block_without_an_end_is_read_from_the_leader(position, filters):
    """Another client has stored it; a direct get of it is no valid reply, wherever it is among the messages."""
    with NatsServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="ROWS", subjects=["rows.*"], allow_direct=True, storage="memory")
        for number in range(10):
            if number == position:
                with RawClient(server.port) as client:
                    client.send(b"HPUB rows.1 4 5\r\nnonex\r\nPING\r\n")
                    client.expect(b"PONG\r\n")
            else:
                js.publish("rows.1", b"x")
        given = options(server.url, readMode="direct", **({"subjects": filters} if filters else {}))
        ranges = plan_read(ReadOptions.from_options(given))
        found = [row for piece in ranges for row in read_range(piece, given, COLUMNS)]
        assert found == [(number, "rows.1") for number in range(1, 11)]
        connection(ReadOptions.from_options(given).connection).close()


def test_counting_with_a_limit_of_the_stream_for_consumers(js):
    """The temporary consumer that counts needs no longer inactive time than the stream permits."""
    limits = StreamConsumerLimits(inactive_threshold=2)
    js.create_stream(name="LIMITS", subjects=["limits"], storage="memory", consumer_limits=limits)
    for _ in range(3):
        js.publish("limits")
    assert count_from_each(js, "LIMITS", [1, 3], ["limits"], direct=False) == [(1, 3), (3, 1)]
    js.delete_stream("LIMITS")
