"""The JSON of stored records."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from jetstream_sync.spark.progress import SourceReport, StreamReport, query_progress
from jetstream_sync.spark.stored import INTEGER, TEXT, from_json, stored, to_json


@dataclass(frozen=True, kw_only=True)
class Entry:
    size: int = stored("z", INTEGER)
    name: str = stored("a", TEXT, "none")
    total: int = stored("t", INTEGER, 0, required=True)
    note: str = ""


def test_keys_are_in_order_and_defaults_are_left_out():
    """Equal records give equal texts; a field without a key is not stored."""
    assert list(to_json(Entry(size=1, name="n", note="x")).items()) == [
        ("a", "n"),
        ("t", 0),
        ("z", 1),
    ]
    assert to_json(Entry(size=1)) == {"t": 0, "z": 1}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"z": 1},
        {"t": 0},
        {"t": 0, "z": "1"},
        {"t": 0, "z": True},
        {"a": 1, "t": 0, "z": 1},
    ],
)
def test_incomplete_records_are_refused(data):
    """A stored record without a value, or with one of another type, is an error."""
    with pytest.raises(ValueError):
        from_json(Entry, data)


def test_unknown_keys_are_ignored():
    """A key of a later version does not make a record unreadable."""
    assert from_json(Entry, {"z": 1, "t": 2, "later": 3}) == Entry(size=1, total=2)


def test_a_report_survives_spark():
    """The report of a source is the same after Spark has passed it on as text."""
    report = SourceReport(
        {
            "A": StreamReport(
                bytes=9,
                first_seq=1,
                lag=0.25,
                last_seq=8,
                messages=8,
                pending=2,
                pending_bytes=4,
                read_seq=6,
            )
        }
    )
    assert from_json(SourceReport, to_json(report)) == report
    assert list(to_json(report)["streams"]["A"]) == [
        "bytes",
        "first",
        "lag_seconds",
        "last",
        "messages",
        "pending",
        "pending_bytes",
        "read",
    ]


@pytest.mark.parametrize(
    "text", [None, "", "null", "7", "not JSON", '{"streams": {"A": {"last": 1}}}', '{"0": 17}']
)
def test_sources_of_another_kind_are_left_out(text):
    """The progress of a query contains only the sources that report streams."""
    source = SimpleNamespace(latestOffset=text, endOffset=text)
    progress = SimpleNamespace(
        sources=[source],
        sink=SimpleNamespace(numOutputRows=-1),
        id="q",
        name=None,
        batchId=3,
        numInputRows=5,
    )
    assert query_progress(progress).streams == ()
