"""The tables of ``docs/reference/spark.rst`` are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jetstream_sync import spark
from jetstream_sync.spark import options
from jetstream_sync.spark.options import ReadOptions, WriteOptions
from jetstream_sync.spark.schema import READ_TYPES
from jetstream_sync.spark.writing.rows import WRITE_TYPES

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "spark.rst"
_TITLE = re.compile(r"^(\S.*)\n-+$", re.MULTILINE)
_ROW = re.compile(r"^   \* - ``(\w+)``\n     -(?: (.*))?$", re.MULTILINE)
_CODE = re.compile(r"``(.+?)``")


def table(title: str) -> list[tuple[str, str]]:
    """Return the first two cells of each row of the table under a title."""
    parts = _TITLE.split(PAGE.read_text(encoding="utf-8"))
    return _ROW.findall(parts[parts.index(title) + 1])


TABLES = {
    "Options of the connection": options._CONNECTION_OPTIONS,
    "Options for reading": options._READ_OPTIONS,
    "Options for writing": options._WRITE_OPTIONS,
}


@pytest.mark.parametrize("title", TABLES)
def test_the_tables_have_every_option_and_no_other(title: str) -> None:
    """What can be given is in the table, once, and what is in the table can be given."""
    assert sorted(name for name, _ in table(title)) == sorted(TABLES[title])


def test_a_default_that_is_given_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of the page are those of the code, and all of those are on the page."""
    monkeypatch.delenv("NATS_URL", raising=False)
    found = {}
    for title in TABLES:
        for name, cell in table(title):
            # NATS_URL is where a default comes from, not one.
            if (default := _CODE.fullmatch(cell)) and default[1] != "NATS_URL":
                found[title, name] = default[1]
    assert len(found) > 15
    for (title, name), default in found.items():
        kind = WriteOptions if title == "Options for writing" else ReadOptions
        needed = {"stream": "ORDERS"}
        if name == "maxTriggerDelay":
            needed["minOffsetsPerTrigger"] = "1"
        assert kind.from_options({**needed, name: default}) == kind.from_options(needed), name


def test_the_tables_have_every_column() -> None:
    """Names and types of columns are those that the schema checks."""
    read = [(name, f"``{kind}``") for name, kind in READ_TYPES.items()]
    assert table("Columns that are read") == read
    written = dict(table("Columns that are written"))
    assert sorted(written) == sorted(WRITE_TYPES)
    for name, cell in written.items():
        # The types of a time to live are told in words.
        assert name == "ttl" or tuple(_CODE.findall(cell)) == WRITE_TYPES[name], name


def test_the_page_has_every_public_name() -> None:
    """What can be imported from `jetstream_sync.spark` can be looked up."""
    described = set(
        re.findall(r"^\.\. (?:auto)?\w+:: (?:\S+\.)?(\w+)", PAGE.read_text(), re.MULTILINE)
    )
    assert set(spark.__all__) <= described
