"""
Functions to read and write inside your own tasks: ``foreachPartition``, ``mapPartitions``, ``mapInArrow``.

They work with every PySpark that has Python workers, also before 4.0, which has no Python data sources, and
without Spark. All tasks of a worker process share one connection, see `connections.connection`. They take
the options of the data source as a mapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

from .. import errors
from ..durations import time_from_ns
from ..headers import MSG_ID, parse_headers
from .options import ReadOptions, WriteOptions
from .planning.batch_read import plan_read
from .reading.chunks import Chunk
from .reading.range_reader import ReadPlan, read_partition
from .reading.ranges import SequenceRange
from .schema import READ_COLUMNS, READ_TYPES, check_read_columns, header_texts, utf8_text
from .sink_errors import RowError
from .writing.rows import Columns, RowLayout, grouped, row_parts
from .writing.write_plan import WritePlan, Written, write_task_id

if TYPE_CHECKING:
    import pyarrow as pa


#: What a row may be that is a payload alone.
_PAYLOADS: Final = (bytes, bytearray, memoryview, str)
_NO_ROW: Final = object()

# --- writing ------------------------------------------------------------------------------------


def publish_partition(
    rows: Iterable[Any],
    options: Mapping[str, Any] | WriteOptions,
    *,
    columns: Sequence[str] | None = None,
    partition: int | None = None,
) -> Written:
    """
    Publish the rows of a partition; on return the stream has stored all of them.

    In a task of a streaming query (``foreachPartition`` called from ``foreachBatch``) the message ids are
    made from query, batch and partition. So a repeated batch has the same ids. Two calls for one batch need
    different ``jobId`` options, or equal rows of them count as duplicates. In any other job the ids are made
    from the ``jobId``. Without a ``jobId`` they protect this call only, and a repeated task writes its rows
    again.

    Any thread may call it.

    Args:
        rows: Spark rows, mappings or tuples; Arrow record batches; or ``bytes``, which are the payloads.
        options: the options of the sink, see `WriteOptions`.
        columns: the column names of tuples; ``None``: taken from the rows.
        partition: the partition number; ``None``: that of the Spark task, 0 without Spark.

    Returns:
        The number of rows, duplicates and bytes, and the sequences.

    Raises:
        InvalidOptionError: an option is unknown or invalid.
        SchemaError: a column does not exist.
        SinkError: the stream does not store the rows; a `RowError` names the row.
        Error: any other error of `WritePlan.write`.

    """
    parsed = WriteOptions.from_options(options)
    task_id = write_task_id(parsed, partition)
    layout, parts = _columns(rows, columns, task_id.partition, parsed)
    if layout is None:
        return Written(partition=task_id.partition)
    plan = WritePlan.checked(parsed, layout)
    written = plan.write(task_id, grouped(parts))
    plan.confirm([written])
    return written


def _columns(
    rows: Iterable[Any], names: Sequence[str] | None, partition: int, options: WriteOptions
) -> tuple[RowLayout | None, Iterator[Columns]]:
    """Return the layout of the rows, and the rows by column; the layout is ``None`` without rows."""
    # The items of a DataFrame or an Arrow table are its columns or their names.
    if isinstance(rows, (str, bytes, bytearray, Mapping)) or hasattr(rows, "columns"):
        raise errors.InvalidArgumentError(
            f"the rows are one {type(rows).__name__}: pass a list of rows, or of record batches"
        )
    rest = iter(rows)
    first = cast("Any", next(rest, _NO_ROW))
    if first is _NO_ROW:
        return None, iter(())
    every = chain((first,), rest)
    bucket = options.bucket is not None
    if hasattr(first, "num_rows"):
        from .writing.arrow_rows import record_batches  # noqa: PLC0415 - other rows need no PyArrow

        layout = RowLayout.of_names(first.schema.names, bucket=bucket)
        return layout, record_batches(layout, every)
    if isinstance(first, _PAYLOADS):
        layout = RowLayout.of_names(("data",), bucket=bucket)
        parts = _parts(every, _PAYLOADS, partition, options)
        return layout, (layout.columns([part]) for _, part in parts)
    (fields,) = _fields_of([first], ())
    known = names or (tuple(first) if isinstance(first, Mapping) else fields)
    if not known:
        _refuse_none(first, 0, partition)
        raise errors.InvalidArgumentError("the rows do not name their columns: set columns=...")
    layout = RowLayout.of_names(known, bucket=bucket)
    if isinstance(first, Mapping):
        parts = _parts(every, (Mapping,), partition, options)
        columns = _by_name(parts, known, layout, partition)
    else:
        parts = _parts(every, (tuple, list), partition, options)
        columns = _by_place(parts, len(known), fields, partition)
    return layout, map(layout.columns, columns)


def _fields_of(rows: Iterable[Any], default: Sequence[str]) -> list[Sequence[str]]:
    """Return the names of the fields of Spark rows and named tuples, or others for another row."""
    return [
        getattr(row, "__fields__", None) or getattr(row, "_fields", None) or default for row in rows
    ]


def _parts(
    rows: Iterator[Any], kinds: tuple[type, ...], partition: int, options: WriteOptions
) -> Iterator[tuple[int, list[Any]]]:
    """Yield rows in lists, with the number of the first; raise `RowError` for a row of another kind."""
    number = 0
    for part in row_parts(rows, options):
        if not all(issubclass(kind, kinds) for kind in set(map(type, part))):
            for row, value in enumerate(part, number):
                _refuse_none(value, row, partition)
                if not isinstance(value, kinds):
                    reason = f"it is of type {type(value).__name__}, not {kinds[0].__name__}"
                    raise RowError(partition, row, "", reason)
        yield number, part
        number += len(part)


def _refuse_none(row: Any, number: int, partition: int) -> None:
    """Raise `RowError` for a row that is ``None``, which is neither a payload nor a tombstone."""
    if row is None:
        raise RowError(partition, number, "", "it is None: a tombstone is {'data': None}")


def _by_place(
    parts: Iterator[tuple[int, list[Any]]], width: int, fields: Sequence[str], partition: int
) -> Iterator[Iterable[Sequence[Any]]]:
    for first, part in parts:
        widths = [*map(len, part)]
        for count in {*widths} - {width}:
            reason = f"it has {count} values for {width} columns"
            raise RowError(partition, first + widths.index(count), "", reason)
        named = _fields_of(part, fields) if fields else []
        if named.count(fields) < len(named):
            number, names = next((i, item) for i, item in enumerate(named) if item != fields)
            reason = f"its fields are {', '.join(names)}, not {', '.join(fields)}"
            raise RowError(partition, first + number, "", reason)
        yield zip(*part, strict=True)


def _by_name(
    parts: Iterator[tuple[int, list[Any]]], names: Sequence[str], layout: RowLayout, partition: int
) -> Iterator[Iterable[Sequence[Any]]]:
    known, data = set(names), names[layout.names.index("data")]
    for first, part in parts:
        for number, row in enumerate(part, first):
            if data not in row:
                reason = f"it has no {data!r}: a tombstone is {{{data!r}: None}}"
                raise RowError(partition, number, "", reason)
            if not row.keys() <= known:
                more = ", ".join(sorted(map(str, row.keys() - known)))
                raise RowError(
                    partition, number, "", f"it has {more}, which the first row does not have"
                )
        yield [[row.get(name) for row in part] for name in names]


# --- reading ------------------------------------------------------------------------------------


def plan_ranges(options: Mapping[str, Any] | ReadOptions) -> list[SequenceRange]:
    """
    Plan what the tasks read; for the driver.

    Args:
        options: the options of a batch read, see `ReadOptions`.

    Returns:
        Sequence ranges, each for one call of `read_range`.

    Raises:
        Error: any error of `plan_read`.

    """
    return plan_read(ReadOptions.from_options(options))


def read_range(
    range: SequenceRange,  # noqa: A002 - the name of the concept
    options: Mapping[str, Any] | ReadOptions,
    columns: Sequence[str] = READ_COLUMNS,
) -> Iterator[tuple[Any, ...]]:
    """
    Yield the messages of a range as tuples, in sequence order; for ``mapPartitions``.

    Only the selected columns are decoded. Payloads that are not selected may not be sent by the server.

    Args:
        range: the range to read, from `plan_ranges`.
        options: the options of the source, see `ReadOptions`.
        columns: the values of a tuple, see `READ_TYPES`.

    Raises:
        SchemaError: a column does not exist.
        InvalidArgumentError: there are no columns.
        Error: any other error of `read_partition`.

    """
    parsed = ReadOptions.from_options(options)
    for chunk in _chunks(range, parsed, columns):
        made = [_values(chunk, name, parsed.connection.domain) for name in columns]
        yield from zip(*made, strict=True)


def read_range_batches(
    range: SequenceRange,  # noqa: A002 - the name of the concept
    options: Mapping[str, Any] | ReadOptions,
    columns: Sequence[str] = READ_COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """
    Yield the messages of a range as Arrow record batches; for ``mapInArrow``.

    Arguments and errors are those of `read_range`. PyArrow is needed.
    """
    from .reading.arrow import to_batch  # noqa: PLC0415 - the other functions work without PyArrow

    parsed = ReadOptions.from_options(options)
    for chunk in _chunks(range, parsed, columns):
        yield to_batch(chunk, columns, parsed.connection.domain)


def _chunks(part: SequenceRange, options: ReadOptions, columns: Sequence[str]) -> Iterator[Chunk]:
    check_read_columns((name, READ_TYPES.get(name, "")) for name in columns)
    return read_partition(options.connection, part, frozenset(columns), ReadPlan.of(options))


def _values(chunk: Chunk, name: str, domain: str | None) -> Sequence[Any]:
    """Return one column of a chunk as Python values."""
    count = len(chunk)
    if name in {"headers", "msg_id"}:
        blocks = chunk.headers or [b""] * count
        headers = [parse_headers(block) if block else None for block in blocks]
        if name == "msg_id":
            ids = [None if header is None else header.get(MSG_ID) for header in headers]
            return [None if item is None else utf8_text(item) for item in ids]
        return [header_texts(header) for header in headers]
    if name == "subject":
        return [subject.decode("utf-8", "replace") for subject in chunk.subjects]
    if name == "timestamp":
        return [time_from_ns(item) for item in chunk.times_ns]
    if name in {"stream", "domain"}:
        return [chunk.stream if name == "stream" else domain] * count
    if name == "data" and (markers := chunk.markers()) is not None:
        return [
            None if is_marker else data for is_marker, data in zip(markers, chunk.data, strict=True)
        ]
    lists: dict[str, Sequence[Any]] = {
        "data": chunk.data,
        "sequence": chunk.sequences,
        "time_ns": chunk.times_ns,
        "size": chunk.sizes,
    }
    return lists[name]
