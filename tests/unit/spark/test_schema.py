"""The columns of the read schema, and which are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jetstream_sync.errors import InvalidArgumentError
from jetstream_sync.spark.schema import (
    BUCKET_TYPES,
    READ_COLUMNS,
    READ_DDL,
    READ_TYPES,
    SchemaError,
    check_read_columns,
)


def test_the_default_columns():
    """Without a schema six columns are read, with these types."""
    assert READ_DDL == (
        "subject string, data binary, headers map<string,array<string>>, "
        "sequence bigint, timestamp timestamp_ltz, stream string"
    )


def test_columns_are_selected_by_name():
    """A schema can have any columns, in any order, but must have one: rows without columns are not counted."""
    fields = [("stream", "string"), ("time_ns", "bigint"), ("size", "int")]
    assert check_read_columns(fields) == ("stream", "time_ns", "size")
    assert check_read_columns(READ_TYPES.items()) == tuple(READ_TYPES)
    with pytest.raises(InvalidArgumentError, match="at least one column of key, value"):
        check_read_columns((), BUCKET_TYPES)
    assert set(READ_COLUMNS) < set(READ_TYPES)


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ([("subject", "string"), ("payload", "binary")], "payload"),
        ([("Subject", "string")], "Subject"),
        ([("data", "string")], "data"),
        ([("data", "binary"), ("data", "binary")], "data"),
        ([("headers", "map<string,string>")], "headers"),
    ],
)
def test_invalid_columns_are_refused(fields, column):
    """The error names a column that does not exist, is duplicated or has the wrong type."""
    with pytest.raises(SchemaError) as caught:
        check_read_columns(fields)
    assert caught.value.column == column
    assert column in str(caught.value)


def test_importing_the_package_is_cheap():
    """The package can be imported without PySpark and PyArrow, and starts no thread."""
    program = (
        "import sys, threading; sys.modules['pyspark'] = sys.modules['pyarrow'] = None; "
        "import jetstream_sync.spark as s; s.ReadOptions.from_options({'stream': 'S'}); "
        "assert 'JetStreamDataSource' in dir(s); assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_unknown_name_is_an_attribute_error():
    """An unknown name of the package raises AttributeError."""
    import jetstream_sync.spark

    with pytest.raises(AttributeError):
        _ = jetstream_sync.spark.nothing
