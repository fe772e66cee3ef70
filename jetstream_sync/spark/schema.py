"""
Column names with their Spark and Arrow types, and column selection.

A schema given by the user selects columns by name. Spark types are compared by name, so this module needs
no PySpark. The functions that create Arrow types import PyArrow when they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from ..headers import Headers
from ..records import with_fields

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The columns that can be read, with their Spark types as ``simpleString`` prints them.
READ_TYPES: Final[Mapping[str, str]] = {
    "subject": "string",
    "data": "binary",
    "headers": "map<string,array<string>>",
    "sequence": "bigint",
    "timestamp": "timestamp",
    "stream": "string",
    "time_ns": "bigint",
    "msg_id": "string",
    "size": "int",
    "domain": "string",
}
#: The columns that are read without a schema.
READ_COLUMNS: Final = ("subject", "data", "headers", "sequence", "timestamp", "stream")
#: The type of times in DDL, where ``timestamp`` depends on ``spark.sql.timestampType``.
_DDL_TYPES: Final = {"timestamp": "timestamp_ltz"}


def _ddl(types: Mapping[str, str], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_DDL_TYPES.get(types[name], types[name])}" for name in names)


#: The default schema, as DDL that means the same in each session.
READ_DDL: Final = _ddl(READ_TYPES, READ_COLUMNS)
#: The columns of the entries of a key-value bucket, with their Spark types.
BUCKET_TYPES: Final[Mapping[str, str]] = {
    "key": "string",
    "value": "binary",
    "revision": "bigint",
    "created": "timestamp",
}
#: The default schema of a bucket, as DDL.
BUCKET_DDL: Final = _ddl(BUCKET_TYPES, BUCKET_TYPES)


@with_fields
class SchemaError(errors.InvalidArgumentError):
    """A column does not exist, or has the wrong type."""

    column: str
    reason: str
    _template = "column {column!r}: {reason}"


def utf8_text(text: str) -> str:
    """Return a text of a message with replacements for bytes that are not UTF-8, which Spark cannot take."""
    return (
        text
        if text.isascii()
        else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    )


def header_texts(headers: Headers | None) -> dict[str, list[str]]:
    """Return headers as Spark can take them: invalid UTF-8 is replaced, as in the data source."""
    if headers is None:
        return {}
    return {utf8_text(name): [*map(utf8_text, headers.get_all(name))] for name in headers}


def check_read_columns(
    fields: Iterable[tuple[str, str]], types: Mapping[str, str] = READ_TYPES
) -> tuple[str, ...]:
    """Return the names of the columns of a read schema; raise `SchemaError` for one that cannot be read so."""
    names: list[str] = []
    for name, kind in fields:
        expected = types.get(name)
        if expected is None:
            raise SchemaError(name, f"cannot be read; the columns to read are {', '.join(types)}")
        if kind != expected:
            rule = f"must be of type {_DDL_TYPES.get(expected, expected)}, not {kind}"
            raise SchemaError(name, rule)
        if name in names:
            raise SchemaError(name, "is duplicated")
        names.append(name)
    if not names:
        # Rows without values cannot be counted.
        raise errors.InvalidArgumentError(f"select at least one column of {', '.join(types)}")
    return tuple(names)


def spark_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires of a read, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - the rest works without it

    parameters = signature(to_arrow_schema).parameters
    # Before PySpark 4.2 the time zone is always UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in parameters else {}
    return to_arrow_schema(schema, **zone)


def arrow_schema(columns: Iterable[str] = READ_COLUMNS) -> pa.Schema:
    """Return the Arrow schema of columns, equal to PySpark's ``to_arrow_schema()`` in UTC."""
    import pyarrow as pa  # noqa: PLC0415 - the constants above are used without it

    values = pa.list_(pa.field("element", pa.string()))
    types: dict[str, Any] = {
        "string": pa.string(),
        "binary": pa.binary(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,array<string>>": pa.map_(
            pa.field("key", pa.string(), nullable=False), pa.field("value", values)
        ),
    }
    names = check_read_columns((name, READ_TYPES.get(name, "")) for name in columns)
    return pa.schema([pa.field(name, types[READ_TYPES[name]]) for name in names])
