"""Columns of many messages that are read or written at once, with a real server; needs no Java."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from fixtures.spark_streams import fill, new_stream
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark import plan_ranges, publish_partition, read_range, read_range_batches
from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.reading.arrow import HeaderColumns
from jetstream_sync.spark.schema import READ_TYPES, arrow_schema
from jetstream_sync.spark.sink_errors import RowError
from jetstream_sync.spark.writing.arrow_rows import arrow_columns
from jetstream_sync.spark.writing.rows import Columns, EncodedRows, RowEncoder, RowLayout

if TYPE_CHECKING:
    from jetstream_sync import JetStream, Stream
    from jetstream_sync.jetstream.direct_get import StoredMsg
    from jetstream_sync.server import NatsServer

pytestmark = [
    pytest.mark.spark,
    # The wait of a client that reconnects is random, in a thread that other tests have left.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

ALL = tuple(READ_TYPES)
#: So that the numbers of remaining messages lose a digit three times.
COUNT = 1200


_BLOCKS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["A", "a", "Nats-Msg-Id", "B-C"]),
            st.text("xy :\t\xe9\u20ac", max_size=4).map(str.encode) | st.just(b"\xff"),
        ),
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)


@given(_BLOCKS)
def test_headers_of_many_messages(pairs):
    """Blocks that are split in C give the same columns as blocks that are parsed one by one."""
    blocks = [
        b"NATS/1.0\r\n"
        + b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in own)
        + b"\r\n"
        if own
        else b""
        for own in pairs
    ]
    columns = arrow_schema(["headers", "msg_id"])

    def made() -> list[Any]:
        found = HeaderColumns(BytesColumn.of(blocks), len(blocks))
        arrays = [
            found.map_array(columns.field("headers").type),
            found.message_ids(pa.string()),
        ]
        for array in arrays:
            array.validate(full=True)
        return [array.to_pylist() for array in arrays]

    in_c = made()
    with mock.patch.object(HeaderColumns, "_split", return_value=False):
        assert in_c == made()


_MAPS = pa.map_(pa.string(), pa.list_(pa.string()))
_STRUCTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_NAMES = st.sampled_from(["A", "B-\xe9", "Nats-Msg-Id", "a b", ""])
_VALUES = st.text("xy\r\n\0\xe9", max_size=3)


def _encoded(columns: Columns, count: int) -> Any:
    """Return the columns of encoded rows, or the error of one."""
    try:
        chunks = list(RowEncoder(1, "S", "default").encode([columns], count))
    except RowError as error:
        return str(error)
    return [[list(getattr(rows, name)) for name in EncodedRows.__slots__] for rows in chunks]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "a.b", "a..b", "\xe9", "", None]),
            st.binary(max_size=3) | st.none(),
            st.dictionaries(_NAMES, st.lists(_VALUES, max_size=2) | st.none(), max_size=2)
            | st.none(),
            st.lists(st.tuples(_NAMES, _VALUES.map(str.encode)), max_size=2),
            st.sampled_from(["one", "", "\r", None]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
    st.sampled_from([_MAPS, _STRUCTS]),
)
def test_columns_of_arrow_are_written_as_their_values(rows, skipped, headers):
    """A batch, or a slice of one, is encoded as the same values one by one, or has the same error."""
    subjects, data, maps, structs, ids = (list(column) for column in zip(*rows, strict=True))
    pairs: list[Any] = maps
    if headers is _STRUCTS:
        pairs = [[{"key": name, "value": value} for name, value in row] for row in structs]
    entries = [list(pair.items()) if isinstance(pair, dict) else pair for pair in pairs]
    layout = RowLayout.of_names(("subject", "data", "headers", "msg_id"))
    arrays = [
        pa.array(subjects),
        pa.array(data, pa.binary()),
        pa.array(entries, headers),
        pa.array(ids),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, layout.names).slice(skipped)
    values = layout.columns(column[skipped:] for column in (subjects, data, pairs, ids))
    assert _encoded(arrow_columns(layout, batch), batch.num_rows) == _encoded(
        values, batch.num_rows
    )


def test_a_part_of_a_table_has_the_bytes_of_its_rows():
    """A large table that is written in small parts is not copied for each part."""
    table = pa.table(
        {"data": ["x" * 100] * 10_000, "headers": pa.array([[("A", ["b"])]] * 10_000, _MAPS)}
    )
    layout = RowLayout.of_names(table.column_names)
    for batch in table.to_batches(max_chunksize=2500):
        columns = arrow_columns(layout, batch)
        if batch["data"].offset:
            assert [len(columns[name].data) for name in layout.names] == [250_000, 15_000]


_REVERSED = pa.list_(pa.struct([("value", pa.string()), ("name", pa.string())]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (_REVERSED, [{"name": "A", "value": "b"}]),
        (pa.map_(pa.large_string(), pa.large_list(pa.large_string())), [("A", ["b"])]),
        (pa.map_(pa.string(), pa.string_view()), [("A", "b")]),
    ],
    ids=str,
)
def test_headers_of_unusual_types(nats_server, stream, kind, value):
    """Fields of a struct are matched by name, and large types of Arrow are accepted."""
    rows = batch(data=["x"], headers=pa.array([value], kind))
    publish_partition([rows], options(nats_server, stream, subject=f"{stream.name}.a"))
    (found,) = stored(stream)
    assert found.headers is not None
    assert found.headers["A"] == "b"
    rows = batch(data=["x"], headers=pa.array([["A"]]))
    with pytest.raises(RowError, match="must be names with values"):
        publish_partition([rows], options(nats_server, stream, subject=f"{stream.name}.a"))


def test_empty_columns_may_have_no_offsets():
    """Arrow in Java writes no offsets for a column without values, such as the headers of rows without headers."""
    unreadable = pa.foreign_buffer(64, 0)
    nothing = pa.Array.from_buffers(pa.string(), 0, [None, unreadable, unreadable])
    lists = pa.Array.from_buffers(_MAPS.item_type, 0, [None, unreadable], children=[nothing])
    entries = pa.StructArray.from_arrays(
        [nothing, lists], fields=[_MAPS.key_field, _MAPS.item_field]
    )
    headers = pa.Array.from_buffers(_MAPS, 2, [None, pa.py_buffer(bytes(12))], children=[entries])
    rows = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), headers], ["data", "headers"])
    layout = RowLayout.of_names(rows.schema.names)
    for batch in (rows, rows.slice(1), rows.slice(2)):
        columns = arrow_columns(layout, batch)
        assert list(columns["data"]) == batch["data"].cast(pa.binary()).to_pylist()
        assert not any(columns["headers"])


def test_reading_does_not_import_pandas():
    """Importing it takes longer than reading 300,000 rows."""
    program = """if True:
        import sys
        from jetstream_sync.spark.bytes_column import BytesColumn
        from jetstream_sync.spark.reading.arrow import to_batch
        from jetstream_sync.spark.reading.chunks import Chunk
        from jetstream_sync.spark.schema import READ_TYPES

        blocks = [b"NATS/1.0\\r\\nNats-Msg-Id: a\\r\\nB: c\\r\\n\\r\\n", b""]
        times = [1700000000123456789] * 2
        for sequences in (range(1, 3), [1, 3]):
            chunk = Chunk(
                stream="S", sequences=sequences, subjects=BytesColumn.of([b"a", b"b"]),
                data=BytesColumn.of([b"1", b"2"]), headers=BytesColumn.of(blocks),
                times_ns=times, sizes=[1, 1],
            )
            rows = to_batch(chunk, tuple(READ_TYPES), "hub")
        assert "pandas" not in sys.modules, "pandas was imported"
        print(rows.to_pylist()[0]["msg_id"], rows.num_rows)
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["a", "2"], done.stderr


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    return new_stream(js, stream_name, duplicate_window=600)


def options(server: NatsServer, stream: Stream, **more: str) -> dict[str, str]:
    return {"servers": server.url, "stream": stream.name, **more}


def read(
    server: NatsServer, stream: Stream, columns: tuple[str, ...] = ALL, **more: str
) -> list[pa.RecordBatch]:
    """Return the batches of all messages."""
    given = options(server, stream, **more)
    (part,) = plan_ranges(given)
    found = list(read_range_batches(part, given, columns))
    for batch in found:
        batch.validate(full=True)
    return found


def stored(stream: Stream) -> list[StoredMsg]:
    """Return all messages, with requests to the leader for one message each."""
    state = stream.info(deleted_details=True).state
    gone = set(state.deleted or ())
    return [
        stream.get_msg(seq)
        for seq in range(max(1, state.first_seq), state.last_seq + 1)
        if seq not in gone
    ]


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_bytes", ["4096", "4000000"])
@pytest.mark.parametrize("mode", ["direct", "pull"])
def test_a_long_range(nats_server, js, stream, mode, batch_bytes):
    """All columns of a range with gaps, empty payloads and a few headers, in one batch or in many."""
    fill(js, lambda number: f"{stream.name}.{number % 7}", COUNT - 4)
    js.publish(f"{stream.name}.empty", b"")
    js.publish(f"{stream.name}.headers", b"", headers={"A": "b"})
    js.publish(f"{stream.name}.id", b"last", msg_id="id")
    js.publish(f"{stream.name}.empty", b"")
    for seq in (2, 500, 501, COUNT - 20):
        stream.delete_msg(seq)
    expected = stored(stream)
    batches = read(nats_server, stream, readMode=mode, batchBytes=batch_bytes)
    assert len(batches) == 1 or batch_bytes == "4096"
    table = pa.Table.from_batches(batches)
    assert table["sequence"].to_pylist() == [item.seq for item in expected]
    assert table["subject"].to_pylist() == [item.subject for item in expected]
    assert table["data"].to_pylist() == [item.data for item in expected]
    times_ns = [item.time_ns for item in expected]
    assert table["time_ns"].to_pylist() == times_ns
    micros = table["timestamp"].cast(pa.int64()).to_pylist()
    assert micros == [time_ns // 1000 for time_ns in times_ns]
    assert table["size"].to_pylist() == [len(item.data) for item in expected]
    assert table["headers"].to_pylist()[-5:] == [
        *([], [], [("A", ["b"])], [("Nats-Msg-Id", ["id"])]),
        [],
    ]
    assert table["msg_id"].to_pylist()[-3:] == [None, "id", None]


@pytest.mark.parametrize("mode", ["direct", "pull"])
def test_any_selection_of_columns(nats_server, js, stream, mode):
    """A column has the same values whichever other columns are selected, as tuples and in Arrow."""
    fill(js, lambda number: f"{stream.name}.{number}", 30)
    js.publish(f"{stream.name}.x", b"", headers={"A": "b"})
    stream.delete_msg(9)
    (whole,) = read(nats_server, stream, readMode=mode)
    given = options(nats_server, stream, readMode=mode)
    (part,) = plan_ranges(given)
    for name in ALL:
        (alone,) = read(nats_server, stream, (name,), readMode=mode)
        assert alone.column(0).equals(whole[name])
    pair = ("time_ns", "sequence")
    expected = zip(*(whole[name].to_pylist() for name in pair), strict=True)
    assert list(read_range(part, given, pair)) == list(expected)


# --- writing ------------------------------------------------------------------------------------


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("more", [{"delivery": "at-least-once"}, {"ids": "content"}])
def test_columns_with_null_and_empty_values(nats_server, stream, more):
    """NULL in each optional column, empty payloads and equal rows are written; and empty maps too."""
    subject = f"{stream.name}.default"
    texts = pa.string()
    rows = batch(
        data=pa.array([b"", b"same", b"same", b"x" * 3000], pa.binary()),
        subject=pa.array([None, f"{stream.name}.a", f"{stream.name}.a", None], texts),
        msg_id=pa.array([None, None, None, "own"], texts),
        headers=pa.array([None, [], [], [("A", ["b", "c"])]], pa.map_(texts, pa.list_(texts))),
    )
    written = publish_partition(
        [rows], options(nats_server, stream, subject=subject, jobId="j", **more)
    )
    assert (written.rows, written.duplicates, written.bytes) == (4, 0, 3008)
    found = stored(stream)
    assert [item.data for item in found] == [b"", b"same", b"same", b"x" * 3000]
    assert [item.subject.rpartition(".")[2] for item in found] == ["default", "a", "a", "default"]
    headers = found[3].headers
    assert headers is not None
    assert (headers.get_all("A"), headers["Nats-Msg-Id"]) == (["b", "c"], "own")


@pytest.mark.parametrize("ids", [["a", "b", "c"], ["a", "bb", "ccc"]])
def test_a_row_above_the_size_limit_in_a_chunk(nats_server, stream, ids):
    """Rows that exceed the size limit only together are written; a row that exceeds it alone is named."""
    given = options(nats_server, stream, subject=f"{stream.name}.a")
    most = 1024 * 1024
    rows = batch(data=[b"x" * (most // 2)] * 3, msg_id=ids)
    assert publish_partition([rows], given).rows == 3
    rows = batch(data=[b"x", b"x" * most, b"x"], msg_id=[item + "2" for item in ids])
    with pytest.raises(RowError, match=r"row 1 of partition 0.*max_payload"):
        publish_partition([rows], given)


def test_some_rows_of_a_chunk_are_duplicates(nats_server, stream):
    """Rows that are repeated with other rows between them are counted as duplicates, and stored once."""
    given = options(nats_server, stream, subject=f"{stream.name}.a", jobId="j")
    first = batch(data=[b"%d" % number for number in range(0, 1500, 3)])
    every = batch(data=[b"%d" % number for number in range(1500)])
    assert publish_partition([first], given).duplicates == 0
    written = publish_partition([every], given)
    assert (written.rows, written.duplicates) == (1500, 500)
    assert (written.first_seq, written.last_seq) == (1, 1500)
    assert sorted(int(item.data) for item in stored(stream)) == list(range(1500))
