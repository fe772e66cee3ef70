"""
The columns: what they are called, what Spark and Arrow type each has, and which are asked for.

A schema that a user gives selects columns by name. Spark's types are compared by their names, so
this needs no PySpark; the functions that make Arrow's types import PyArrow when they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "READ_COLUMNS",
    "READ_DDL",
    "READ_TYPES",
    "WRITE_COLUMNS",
    "SchemaError",
    "arrow_schema",
    "check_read_columns",
]

#: Each column that can be read, with its type as Spark's ``simpleString`` has it.
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
#: Those that are read where no schema is given.
READ_COLUMNS: Final = ("subject", "data", "headers", "sequence", "timestamp", "stream")
#: The schema of these.
READ_DDL: Final = ", ".join(f"{name} {READ_TYPES[name]}" for name in READ_COLUMNS)
#: Each column that can be written.
WRITE_COLUMNS: Final = (
    "data",
    "subject",
    "headers",
    "msg_id",
    "ttl",
    "expected_last_sequence",
    "expected_last_subject_sequence",
    "expected_last_msg_id",
)


class SchemaError(InvalidArgumentError):
    """A column does not exist, or has another type."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.reason}"


def check_read_columns(fields: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """
    Check the columns of a schema that a user gave for reading.

    Args:
        fields: the name and type of each, as ``(field.name, field.dataType.simpleString())``.

    Returns:
        Their names, in order.

    Raises:
        SchemaError: one can not be read, comes twice or has another type.

    """
    names: list[str] = []
    for name, kind in fields:
        expected = READ_TYPES.get(name)
        if expected is None:
            raise SchemaError(name, f"what can be read is {', '.join(READ_TYPES)}")
        if kind != expected:
            raise SchemaError(name, f"it is of type {expected}, not {kind}")
        if name in names:
            raise SchemaError(name, "it is there twice")
        names.append(name)
    return tuple(names)


def arrow_schema(columns: Iterable[str] = READ_COLUMNS) -> pa.Schema:
    """
    Return Arrow's schema for columns, as PySpark's ``to_arrow_schema(..., timezone="UTC")`` has it.

    Args:
        columns: their names; all may be NULL, as in a schema that is given as text.

    Raises:
        SchemaError: there is no such column.

    """
    import pyarrow as pa  # noqa: PLC0415 - the names above are wanted without it

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
