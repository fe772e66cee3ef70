"""Column checks and row encoding."""

from __future__ import annotations

import pickle
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.exact import Text

from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.schema import READ_TYPES, SchemaError
from jetstream_sync.spark.sink_errors import RowError
from jetstream_sync.spark.writing import rows
from jetstream_sync.spark.writing.rows import (
    WRITE_TYPES,
    EncodedRows,
    RowEncoder,
    RowLayout,
)


def schema(**types: str) -> Any:
    """Return an imitation of a StructType."""
    return SimpleNamespace(
        fields=[
            SimpleNamespace(
                name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind)
            )
            for name, kind in types.items()
        ]
    )


@pytest.fixture(params=["columns", "values"], autouse=True)
def conversion(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with columns that are converted at once where that is possible, and value by value."""
    if request.param == "values":
        monkeypatch.setattr(rows, "_plain", lambda _: None)
        monkeypatch.setattr(rows, "_usual_header_lines", lambda _: None)


def encoded(default: str | None = "s", **values: list[Any]) -> Any:
    """Return the columns of encoded rows as lists; the first is row 10 of its partition."""
    count = len(values["data"])
    layout = RowLayout(names=tuple(values))
    before = {"data": [b""] * 10, "subject": ["s"] * 10}
    group = [before, layout.columns(values.values())]
    _, made = RowEncoder(2, "STREAM", default).encode(group, count + 10)
    return as_lists(made)


def as_lists(rows: EncodedRows) -> Any:
    return SimpleNamespace(
        **{name: list(getattr(rows, name)) or None for name in EncodedRows.__slots__}
    )


def refusal(default: str | None = "s", **values: list[Any]) -> RowError:
    with pytest.raises(RowError) as error:
        encoded(default, **values)
    return error.value


# --- columns ------------------------------------------------------------------------------------


def test_columns_of_a_source_are_accepted():
    """Rows of this source and of Kafka can be written; what cannot be stored is ignored."""
    source = RowLayout.of_schema(schema(**READ_TYPES))
    names = ("subject", "data", "headers", "", "", "", "", "msg_id", "", "")
    assert source.names == names
    kafka = RowLayout.of_schema(
        schema(
            key="binary",
            value="binary",
            topic="string",
            partition="int",
            offset="bigint",
            timestamp="timestamp",
            timestampType="int",
            headers="array<struct<key:string,value:binary>>",
        )
    )
    assert kafka.names == ("key", "data", "subject", "", "", "", "", "headers")
    with pytest.raises(SchemaError, match="duplicated"):
        RowLayout.of_names(["data", "value"])


def test_a_struct_needs_to_json():
    """The error for a payload that is a struct says how to convert it."""
    with pytest.raises(SchemaError, match="to_json"):
        RowLayout.of_schema(schema(data="struct<id:int>"))


def test_keys_and_headers_of_kafka():
    """A key becomes a header, and a header may be a struct with a binary value."""
    rows = encoded(
        data=["x", "x"],
        key=["k", b"k"],
        headers=[[{"key": "A", "value": b"1"}], None],
    )
    assert rows.header_lines == [b"Kafka-Key: k\r\nA: 1\r\n", b"Kafka-Key: k\r\n"]
    assert "base64" in str(refusal(data=["x"], key=[b"\xff"]))


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in WRITE_TYPES.items() for kind in kinds]
)
def test_each_column_accepts_its_types(name, kind):
    """The check accepts every documented type of a column."""
    layout = RowLayout.of_schema(schema(**({"data": "binary"} | {name: kind})))
    assert name in layout.names


@pytest.mark.parametrize("kind", ["interval day", "interval minute to second", "INTERVAL SECOND"])
def test_every_day_time_interval_is_accepted(kind):
    """A ttl can be any day-time interval of Spark."""
    assert RowLayout.of_schema(schema(data="binary", ttl=kind)).names == ("data", "ttl")


@pytest.mark.parametrize(
    "types",
    [
        {"data": "string collate UTF8_LCASE", "subject": "string collate unicode_ci"},
        {"data": "binary", "headers": "map<string collate UTF8_LCASE,string>"},
    ],
)
def test_a_collation_changes_no_type(types):
    """Collations are for comparisons; the text that is written is the same."""
    assert RowLayout.of_schema(schema(**types)).names == tuple(types)


@pytest.mark.parametrize(
    ("types", "column"),
    [
        ({"subject": "string"}, "data"),
        ({"data": "int"}, "data"),
        ({"data": "binary", "value": "string"}, "value"),
        ({"data": "binary", "Data": "binary"}, "data"),
        ({"data": "binary", "ttl": "interval year to month"}, "ttl"),
        ({"data": "binary", "headers": "map<string,int>"}, "headers"),
    ],
)
def test_invalid_columns_are_refused(types, column):
    """The error names a column that is missing, unknown, duplicated or of the wrong type."""
    with pytest.raises(SchemaError) as error:
        RowLayout.of_schema(schema(**types))
    assert error.value.column.lower() == column


def test_column_names_are_case_insensitive():
    """Column names are case-insensitive, as in Spark."""
    assert RowLayout.of_names(("DATA", "Msg_Id")).names == ("data", "msg_id")


# --- values -------------------------------------------------------------------------------------


def test_payloads_are_bytes():
    """Strings are sent as UTF-8, and bytes unchanged."""
    made = encoded(data=["ä", b"\xff", bytearray(b"x"), memoryview(b"y"), ""])
    assert made.data == [b"\xc3\xa4", b"\xff", b"x", b"y", b""]
    assert list(made.numbers) == [10, 11, 12, 13, 14]
    assert made.subjects == [b"s"] * 5
    assert made.header_lines is None
    assert made.ids is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"data": [5]}, "int"),
        ({"data": ["\ud800"]}, "not valid Unicode text"),
        ({"subject": [""]}, "empty"),
        ({"subject": ["a b"]}, "white space"),
        ({"subject": ["a.*"]}, "wildcard"),
        ({"subject": [b"\xff"]}, "decode"),
        ({"subject": [7]}, "not a string"),
        ({"msg_id": ["a\nb"]}, "line break"),
        ({"headers": [{"K": "a\r"}]}, "line break"),
        ({"headers": [{"K:": "v"}]}, "K:"),
        ({"headers": [[("K", "\ud800")]]}, "not valid Unicode text"),
        ({"ttl": [0]}, "ttl"),
        ({"ttl": ["1 hour"]}, "ttl"),
        ({"expected_last_sequence": [-1]}, "expected_last_sequence"),
    ],
)
def test_an_invalid_value_is_a_row_error(values, said):
    """The error contains partition, row, subject and reason."""
    good: dict[str, list[Any]] = {"data": [b"SECRET"]}
    error = refusal(**(good | values))
    assert (error.partition, error.row) == (2, 10)
    assert said in str(error)
    assert "SECRET" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_row_without_a_subject_needs_the_option():
    """NULL means the subject of the option, and is an error without the option."""
    assert encoded("s", data=[b""] * 2, subject=[None, "t"]).subjects == [b"s", b"t"]
    assert "subject is NULL" in str(refusal(None, data=[b""], subject=[None]))
    assert "add a column" in str(refusal(None, data=[b""]))


class Struct(tuple[Any, ...]):
    """A struct as Spark passes it to Python, in any order of its fields."""

    __slots__ = ()
    __fields__ = ("value", "key")


def test_headers_are_lines():
    """Each value of each name is a line, in the given order; Spark passes binary values as bytearray."""
    made = encoded(
        data=[b""] * 7,
        headers=[
            None,
            {},
            {"A": "1", "B": ["2", "3"]},
            [("A", ["1"]), ("A", "2"), ("N", None)],
            [{"name": "A", "value": "ä"}, {"name": "A", "value": "b"}],
            [Struct((bytearray(b"1"), "A"))],
            {"A": bytearray(b"1"), "B": [bytearray(b"2")]},
        ],
    )
    assert made.header_lines == [
        b"",
        b"",
        b"A: 1\r\nB: 2\r\nB: 3\r\n",
        b"A: 1\r\nA: 2\r\nN: \r\n",
        b"A: \xc3\xa4\r\nA: b\r\n",
        b"A: 1\r\n",
        b"A: 1\r\nB: 2\r\n",
    ]


@pytest.mark.parametrize(
    "headers",
    [
        [("A", "1"), ("A", None), ("A", ["2", None]), ("B", [])],
        [{"name": "A", "value": value} for value in ("1", None, "2", None)],
        {"A": ["1", None, "2", None], "B": []},
    ],
)
def test_a_header_without_a_value_keeps_its_place(headers):
    """NULL is written as an empty value, so that the other values keep their places."""
    made = encoded(data=[b""], headers=[headers])
    assert made.header_lines == [b"A: 1\r\nA: \r\nA: 2\r\nA: \r\n"]


def test_columns_of_nulls_cost_nothing():
    """Columns that are NULL in all rows are skipped."""
    made = encoded(data=[b""] * 2, headers=[None, {}], msg_id=[None, ""], ttl=[None, None])
    assert made.header_lines is None
    assert made.ids is None


@pytest.mark.parametrize(
    "name",
    [
        *("Nats-Msg-Id", "nats-msg-id", "Nats-Expected-Last-Sequence", "Nats-Batch-Id"),
        *("Nats-Rollup", "Nats-Schedule", "Nats-Schedule-Target", "Nats-Trace-Dest"),
        *("Nats-TTL", "nats-ttl", "Nats-Incr", "Nats-Of-A-Later-Server"),
    ],
)
def test_headers_with_side_effects_are_dropped(name, caplog, monkeypatch):
    """Headers with conditions or effects of an earlier publish are not sent again; unexpected ones are named once."""
    monkeypatch.setattr(rows, "_warned", set())
    monkeypatch.setattr(rows, "_header_starts", rows._HeaderStarts())
    for _ in range(2):
        assert encoded(data=[b""], headers=[{name: "x", "K": "v"}]).header_lines == [b"K: v\r\n"]
        rows._header_starts.clear()
    expected = name.lower() in {"nats-ttl", "nats-incr", "nats-of-a-later-server"}
    assert len(caplog.records) == expected
    assert not expected or f"header {name} is not written" in caplog.text


def test_a_header_name_is_sent_as_its_value(monkeypatch):
    """The name of a subclass of str, and the equal names of later rows, are not those that it is formatted as."""
    monkeypatch.setattr(rows, "_header_starts", rows._HeaderStarts())
    made = encoded(data=[b"", b""], headers=[[(Text("A"), ["1"])], {"A": "2"}])
    assert made.header_lines == [b"A: 1\r\n", b"A: 2\r\n"]


@pytest.mark.parametrize("name", ["Nats-Stream", "Nats-Sequence", "Nats-Marker-Reason", "Natsy"])
def test_harmless_headers_are_written(name):
    """What the server added to a message that it republished has no effect when it is published again."""
    assert encoded(data=[b""], headers=[{name: "x"}]).header_lines == [b"%b: x\r\n" % name.encode()]


@pytest.mark.parametrize(
    ("ttl", "text"),
    [
        (60, b"60"),
        (1.5, b"1500000000ns"),
        (Decimal("1.50"), b"1500000000ns"),
        (Decimal(60), b"60"),
        (timedelta(minutes=1), b"60"),
        ("90", b"90"),
        ("1h30m", b"1h30m"),
        ("never", b"never"),
    ],
)
def test_a_ttl_has_the_format_of_the_server(ttl, text):
    """Seconds, intervals and durations are encoded as in ADR-43, before other headers."""
    made = encoded(data=[b""], ttl=[ttl], headers=[{"K": "7", "Nats-TTL": "7"}])
    assert made.header_lines == [b"Nats-TTL: %b\r\nK: 7\r\n" % text]


def test_expectations_are_headers():
    """Expectations of a row become headers, and NULL means no expectation."""
    made = encoded(
        data=[b""] * 2,
        expected_last_sequence=[5, None],
        expected_last_subject_sequence=[None, 0],
        expected_last_msg_id=[None, "m"],
    )
    assert made.header_lines == [
        b"Nats-Expected-Last-Sequence: 5\r\n",
        b"Nats-Expected-Last-Subject-Sequence: 0\r\nNats-Expected-Last-Msg-Id: m\r\n",
    ]


def test_more_subjects_and_names_than_the_caches_hold():
    """The caches are limited, and the result does not depend on them."""
    subjects = [f"s{number}" for number in range(10_000)]
    made = encoded(
        data=[b""] * 10_000, subject=subjects, headers=[{subject: "v"} for subject in subjects]
    )
    assert made.subjects == [subject.encode() for subject in subjects]
    assert made.header_lines[-1] == b"s9999: v\r\n"


def test_rows_are_selected():
    """Selected rows, and slices of rows, have all columns."""
    columns = map(BytesColumn.of, ([b"a"] * 3, [b"1", b"2", b"3"], [b"", b"x", b"y"]))
    rows = EncodedRows(range(3), *columns)
    some, rest = as_lists(rows.select([0, 2])), as_lists(rows.slice(1, 3))
    assert (some.numbers, some.data, some.header_lines) == ([0, 2], [b"1", b"3"], [b"", b"y"])
    assert (rest.numbers, rest.data, rest.header_lines) == ([1, 2], [b"2", b"3"], [b"x", b"y"])
    assert some.ids is rest.ids is None
