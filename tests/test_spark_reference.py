"""The tables of ``docs/reference/spark.rst`` are those of the code, and examples name rows as they should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jetstream_sync import spark
from jetstream_sync.spark import options
from jetstream_sync.spark.option_values import option_names
from jetstream_sync.spark.options import ReadOptions, WriteOptions
from jetstream_sync.spark.schema import BUCKET_TYPES, READ_TYPES
from jetstream_sync.spark.writing.rows import BUCKET_WRITE_TYPES, WRITE_TYPES

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "spark.rst"
_TITLE = re.compile(r"^(\S.*)\n-+$", re.MULTILINE)
_ROW = re.compile(r"^   \* - ``(\w+)``\n     -(?: (.*))?$", re.MULTILINE)
_CODE = re.compile(r"``(.+?)``")


def table(title: str) -> list[tuple[str, str]]:
    """Return the first two cells of each row of the table under a title."""
    parts = _TITLE.split(PAGE.read_text(encoding="utf-8"))
    return _ROW.findall(parts[parts.index(title) + 1])


TABLES = {
    "Options of the connection": options.CONNECTION_OPTIONS,
    "Options for reading": options.READ_OPTIONS,
    "Options for writing": option_names(WriteOptions),
}


@pytest.mark.parametrize("title", TABLES)
def test_tables_contain_exactly_the_known_options(title):
    """The table contains every option once, and no other names."""
    assert sorted(name for name, _ in table(title)) == sorted(TABLES[title])


def test_documented_defaults_are_the_defaults_of_the_code(monkeypatch):
    """Setting an option to the default in the table does not change the parsed options."""
    monkeypatch.delenv("NATS_URL", raising=False)
    found = {}
    for title in TABLES:
        for name, cell in table(title):
            # NATS_URL is the source of a default, not a default.
            if (default := _CODE.fullmatch(cell)) and default[1] != "NATS_URL":
                found[title, name] = default[1]
    assert len(found) > 15
    for (title, name), default in found.items():
        kind = WriteOptions if title == "Options for writing" else ReadOptions
        needed = {"stream": "ORDERS"}
        if name == "maxTriggerDelay":
            needed["minOffsetsPerTrigger"] = "1"
        assert kind.from_options({**needed, name: default}) == kind.from_options(needed), name


def test_tables_contain_every_column():
    """Names and types in the tables are those that the schema checks."""
    read = [(name, f"``{kind}``") for name, kind in READ_TYPES.items()]
    assert table("Columns to read") == read
    bucket = [(name, f"``{kind}``") for name, kind in BUCKET_TYPES.items()]
    assert table("Columns of a bucket") == bucket
    assert BUCKET_WRITE_TYPES.keys() <= BUCKET_TYPES.keys()
    written = dict(table("Columns to write"))
    assert sorted(written) == sorted(WRITE_TYPES)
    for name, cell in written.items():
        # The table describes the types of a TTL in prose.
        assert name == "ttl" or tuple(_CODE.findall(cell)) == WRITE_TYPES[name], name


def test_page_describes_every_public_name():
    """The page describes every name exported by `jetstream_sync.spark`."""
    described = set(
        re.findall(r"^\.\. (?:auto)?\w+:: (?:\S+\.)?(\w+)", PAGE.read_text(), re.MULTILINE)
    )
    assert set(spark.__all__) <= described


def test_no_example_names_the_rows_of_batches_by_their_number():
    """A number of a batch repeats with a new checkpoint, so a jobId of it would drop the rows of the second query."""
    pages = [*DOCS.rglob("*.rst"), *(DOCS / "howto" / "apps").rglob("*.py")]
    found = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    given = [line for line in found if re.search(r"""["']?jobId["']?\s*[:=,]""", line)]
    # A fixed name of a job outside queries; the page itself runs it twice.
    assert given == ['   again = {**options, "jobId": "import of May"}']
