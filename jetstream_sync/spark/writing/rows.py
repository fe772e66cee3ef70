"""
Rows as Spark passes them, and as they are published.

Rows are processed by column. Columns of Arrow become columns of bytes without an object for each value, unless
they have values that must be checked or converted one by one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, islice, pairwise, repeat
from typing import Any, Final, cast

from ... import errors
from ...api.publish import option_headers, publish_headers
from ...exact import exact
from ...headers import MSG_TTL, encode_header_lines, encode_headers
from ...jetstream.buckets.entries import MAY_BE_MARKER
from ...speedups import are_subjects
from ...subjects import (
    MAX_CONTROL_LINE,
    check_key,
    check_publish_subject,
    check_writable,
    is_reserved,
    subject_matches,
)
from ..bytes_column import NO_BYTES, BytesColumn
from ..option_values import Delivery
from ..options import WriteOptions
from ..schema import READ_TYPES, SchemaError
from ..sink_errors import RowError

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: Spark's name for intervals of fixed length; `_CALENDAR` excludes those with months or years.
_INTERVAL: Final = "interval day to second"
_CALENDAR: Final = re.compile("year|month")

#: The collation of a string, which changes comparisons only.
_COLLATION: Final = re.compile(r" collate \w+")

#: The columns that can be written, with the accepted Spark types.
WRITE_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "data": ("binary", "string"),
    "subject": ("string",),
    "headers": (
        "map<string,array<string>>",
        "map<string,string>",
        "array<struct<name:string,value:string>>",
        "array<struct<key:string,value:binary>>",
    ),
    "msg_id": ("string",),
    "ttl": (
        *("string", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
        _INTERVAL,
    ),
    "expected_last_sequence": ("int", "bigint"),
    "expected_last_subject_sequence": ("int", "bigint"),
    "expected_last_msg_id": ("string",),
    "key": ("string", "binary"),
}
#: Columns that the sources of JetStream and Kafka have, but that cannot be written.
_IGNORED_COLUMNS: Final = (READ_TYPES.keys() - WRITE_TYPES.keys()) | {
    *("partition", "offset", "timestamptype")
}
#: The header with the column ``key``.
_KEY_START: Final = b"Kafka-Key: "

#: The columns of rows for a key-value bucket, all required, with the accepted Spark types.
BUCKET_WRITE_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string",),
    "value": ("binary", "string"),
}


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The columns that can be written to a kind of target."""

    types: Mapping[str, tuple[str, ...]]
    """The accepted Spark types of each column."""
    required: tuple[str, ...]
    aliases: Mapping[str, str]
    """Other names of columns; empty for a column that is ignored."""
    encoded_names: Mapping[str, str]
    """What columns are called in `Columns`, if not the same."""

    def known_names(self, given: Sequence[str]) -> list[str]:
        """Check column names, which are case-insensitive as in Spark; errors have the given ones."""
        names: list[str] = []
        for column in given:
            name = self.aliases.get(column.lower(), column.lower())
            if name and name not in self.types:
                rule = f"cannot be written; the columns to write are {', '.join(self.types)}"
                raise SchemaError(column, rule)
            if name and name in names:
                raise SchemaError(column, "is duplicated")
            names.append(name)
        for name in self.required:
            if name not in names:
                raise SchemaError(name, "is required")
        return names

    def encoded(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return what columns are called in `Columns`."""
        return tuple(self.encoded_names.get(name, name) for name in names)


_STREAM: Final = _Table(
    types=WRITE_TYPES,
    required=("data",),
    aliases={"value": "data", "topic": "subject", **dict.fromkeys(_IGNORED_COLUMNS, "")},
    encoded_names={},
)
_BUCKET: Final = _Table(
    types={**BUCKET_WRITE_TYPES, "operation": ("string",)},
    required=tuple(BUCKET_WRITE_TYPES),
    aliases={},
    encoded_names={"key": "subject", "value": "data"},
)
#: The header lines of the operations of a key-value bucket.
_MARKERS: Final = {
    "PUT": b"",
    "DEL": b"KV-Operation: DEL\r\n",
    "PURGE": b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
}
#: Columns with texts or bytes, which are sent unchanged.
TEXT_COLUMNS: Final = frozenset({"data", "subject", "msg_id", "key"})
#: Columns with the conditions for storing a row, which become headers.
_CONDITIONS: Final = (
    "expected_last_sequence",
    "expected_last_subject_sequence",
    "expected_last_msg_id",
    "ttl",
)
#: Headers of nats-server without an effect on a publish: those of messages that it republished or returned, and of the
#: marker of an expired key.
_HARMLESS_HEADERS: Final = re.compile(
    r"Nats-(?:Stream|Subject|(?:Last-|UpTo-)?Sequence|Time-Stamp|Num-Pending|Msg-Size|Marker-Reason|Service-Error.*)",
    re.IGNORECASE,
)
#: Headers that are expected in messages that were read, and dropped without a warning: those that have their own column,
#: those of the server, and those with effects beyond the message. A rollup would remove other messages, also the
#: checkpoints of the sink.
_DROPPED_HEADERS: Final = re.compile(
    r"Nats-(?:Msg-Id|Expected-.*|Batch-.*|Stream-Source|Rollup|Schedule(?:-.*)?|Trace-.*)",
    re.IGNORECASE,
)
#: The dropped headers that this process has warned about.
_warned: set[str] = set()
#: A Go duration, a number of seconds, or ``never`` (ADR-43).
_TTL_TEXT: Final = re.compile(r"\d+|(?:\d+(?:\.\d+)?(?:h|m|s|ms|us|ns))+|never", re.ASCII)
#: Maximum bytes of a subject; leaves room in a command line for a reply subject and two sizes.
_MAX_SUBJECT_BYTES: Final = MAX_CONTROL_LINE - 512
#: Maximum number of cached header names and subjects.
_MAX_CACHED: Final = 4096


#: The values of some rows by the name of their column; each has a column ``data``.
Columns = dict[str, Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """The checked columns of rows, in order."""

    names: tuple[str, ...]
    """The names of the columns in `Columns`; empty for a column that is ignored."""

    @classmethod
    def of_schema(cls, schema: Any, *, bucket: bool = False) -> RowLayout:
        """Check the schema of a DataFrame, for a stream or a key-value bucket."""
        table = _BUCKET if bucket else _STREAM
        names = table.known_names([field.name for field in schema.fields])
        for field, name in zip(schema.fields, names, strict=True):
            if name:
                _check_type(field, name, table.types[name])
        return cls(names=table.encoded(names))

    @classmethod
    def of_names(cls, names: Iterable[str], *, bucket: bool = False) -> RowLayout:
        """Check column names, for a stream or a key-value bucket."""
        table = _BUCKET if bucket else _STREAM
        return cls(names=table.encoded(table.known_names(list(names))))

    def columns(self, values: Iterable[Sequence[Any]]) -> Columns:
        """Return columns from one list of values for each name; usual values become columns of bytes."""
        named = zip(self.names, values, strict=True)
        return {name: _usual(name, column) for name, column in named if name}


def _check_type(field: Any, name: str, types: Iterable[str]) -> None:
    kind = _COLLATION.sub("", field.dataType.simpleString().lower())
    if kind.startswith("interval") and not _CALENDAR.search(kind):
        kind = _INTERVAL
    if kind.partition("(")[0] not in types:
        reason = f"must be of type {' or '.join(types)}, not {kind}"
        if name == "data":
            reason += f": use to_json({field.name}) or cast({field.name} AS string)"
        raise SchemaError(field.name, reason)


#: Maximum rows of an atomic batch, besides the checkpoint and the list of their keys.
BATCH_ROWS: Final = 998
#: Rows that are converted to columns at once. They are few, because the garbage collector looks at all that exist.
_ROWS_PER_PART: Final = 256
#: Rows or bytes with which a group is complete.
_GROUP_ROWS: Final = 4096
_GROUP_BYTES: Final = 8 * 1024 * 1024
#: Maximum bytes of rows that are sent together, unless it is one row.
_MAX_CHUNK_BYTES: Final = 1024 * 1024


def row_parts(rows: Iterator[Any], options: WriteOptions) -> Iterator[list[Any]]:
    """Yield rows in lists that are converted to columns at once."""
    most = BATCH_ROWS if options.delivery == Delivery.TRANSACTION else _ROWS_PER_PART
    while part := list(islice(rows, most)):
        yield part


def grouped(parts: Iterable[Columns]) -> Iterator[list[Columns]]:
    """Yield the columns of rows in groups, of which all subjects are checked before a row is sent."""
    group: list[Columns] = []
    rows = size = 0
    for part in parts:
        group.append(part)
        rows += len(part["data"])
        size += _size(part["data"])
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    yield group


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Checked rows, as columns of bytes."""

    numbers: Sequence[int]
    """The number of each row in its partition."""
    subjects: BytesColumn
    data: BytesColumn
    header_lines: BytesColumn = NO_BYTES
    """The lines of each row, without those that every row has; no row has any if the column is empty."""
    ids: BytesColumn = NO_BYTES
    """The message ids, empty for none; no row has one if the column is empty."""

    def __len__(self) -> int:
        return len(self.data)

    @property
    def all_have_ids(self) -> bool:
        """Whether each row has an id."""
        return bool(self.ids) and 0 not in self.ids.sizes()

    def _columns(self) -> tuple[BytesColumn, ...]:
        return self.subjects, self.data, self.header_lines, self.ids

    def slice(self, start: int, end: int) -> EncodedRows:
        """Return the rows from one index up to, but not including, another."""
        return EncodedRows(
            self.numbers[start:end], *(column[start:end] for column in self._columns())
        )

    def select(self, indices: Sequence[int]) -> EncodedRows:
        """Return some of the rows, by their indices."""
        if len(indices) == len(self):
            return self
        columns = (column.select(indices) if column else column for column in self._columns())
        return EncodedRows([self.numbers[i] for i in indices], *columns)


#: Bytes that are not possible in an id or in the value of a header.
LINE_BREAKS: Final = (b"\r", b"\n", b"\0")


def _has_line_break(text: bytes) -> bool:
    return any(byte in text for byte in LINE_BREAKS)


def _plain(values: Sequence[Any]) -> BytesColumn | None:
    """Return values of one usual type as a column; ``None``: each value must be checked."""
    if isinstance(values, BytesColumn):
        return values
    kinds = set(map(type, values))
    with suppress(UnicodeEncodeError, OverflowError):
        if kinds == {str}:
            return BytesColumn.of_texts(values)
        if kinds <= {bytes, bytearray}:
            return BytesColumn.of(values)
    return None


def _size(values: Sequence[Any]) -> int:
    """Return the size of payloads, in bytes or characters."""
    if isinstance(values, BytesColumn):
        return values.total_bytes
    try:
        return sum(map(len, filter(None, values)))
    except TypeError:
        return 0  # `RowEncoder` refuses a value of another type, and names its row


#: Values of the column ``headers`` without a header; other false values are errors.
_NO_HEADERS: Final[tuple[Any, ...]] = (None, {}, [], ())
#: Types of a value that is not a list of values.
_TEXT: Final = (str, bytes, bytearray)


def _header_pairs(headers: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield name and values of headers, which are a mapping, or a list of pairs or structs."""
    if isinstance(headers, _TEXT):
        raise TypeError(headers)
    items: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    for item in items:
        # A mapping or a Spark row is a struct, whatever the order of its fields.
        fields = getattr(item, "__fields__", None)
        struct = dict(zip(fields, item, strict=True)) if fields else item
        if isinstance(struct, Mapping):
            name, value = struct["name" if "name" in struct else "key"], struct["value"]
        elif isinstance(item, str):
            raise TypeError(item)
        else:
            name, value = item
        yield name, (value,) if value is None or isinstance(value, _TEXT) else tuple(value)


def header_start(name: str) -> str:
    """
    Return the beginning of the lines of a header, after checking the name; empty: the header is dropped.

    A server may act on each header of its own. So the headers of messages that were read can be written unchanged.
    """
    name = exact(name)
    encode_headers({name: ""})
    if not name.lower().startswith("nats-") or _HARMLESS_HEADERS.fullmatch(name):
        return f"{name}: "
    if not _DROPPED_HEADERS.fullmatch(name) and name not in _warned:
        _warned.add(name)
        instead = ": write the column ttl" if name.lower() == MSG_TTL.lower() else ""
        log.warning("header %s is not written, because nats-server may act on it%s", name, instead)
    return ""


class _HeaderStarts(dict[str, str]):
    """Caches the beginnings of the lines of headers by name; a look-up is faster than that of `lru_cache`."""

    def __missing__(self, name: str) -> str:
        start = header_start(name)
        if len(self) >= _MAX_CACHED:
            self.clear()
        self[name] = start
        return start


_header_starts = _HeaderStarts()


def _usual(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values of a column as bytes if they are usual, else unchanged."""
    if name == "headers":
        with suppress(errors.Error, OverflowError, TypeError, UnicodeEncodeError):
            return _usual_header_lines(values) or values
    plain = _plain(values) if name in TEXT_COLUMNS else None
    return values if plain is None else plain


def _usual_header_lines(headers: Sequence[Any]) -> BytesColumn | None:
    """
    Return the header lines of each row of a column with mappings of names to texts.

    ``None``: a row is unusual, so that each header must be checked.
    """
    texts: list[str] = []
    count = 0
    for item in headers:
        if item is not None and item.__class__ is not dict:
            return None
        lines = _lines_of_mapping(item) if item else ()
        texts.append("".join(lines))
        count += len(lines)
    column = BytesColumn.of_texts(texts)
    data = column.data
    # Each line has one line break of its own.
    is_usual = data.count(b"\r") == data.count(b"\n") == count and b"\0" not in data
    return column if is_usual else None


def _lines_of_mapping(headers: dict[Any, Any]) -> list[str]:
    """Return the lines of headers; raise `TypeError` for a value that is neither a text nor a list of texts."""
    lines: list[str] = []
    for name, values in headers.items():
        start = _header_starts[name]
        if not start:
            continue
        if values.__class__ is list:
            lines += [start + value + "\r\n" for value in values]
        else:
            lines.append(start + values + "\r\n")
    return lines


class RowEncoder:
    """Checks the rows of a partition, and encodes them."""

    #: What the columns are called in errors.
    _data_name = "data"
    _subject_name = "subject"
    _no_subject = "subject is NULL, and the option 'subject' is not set"
    _prefix: bytes = b""

    def __init__(
        self,
        partition: int,
        stream: str,
        subject: str | None,
        patterns: tuple[str, ...] = (">",),
        api_prefix: str | None = None,
    ) -> None:
        self._partition = partition
        self._stream = stream
        self._patterns = patterns
        self._encoded_patterns = tuple(pattern.encode() for pattern in patterns)
        self._api_prefix = api_prefix
        self._subject = None if subject is None else check_publish_subject(subject).encode()
        if subject is not None and len(self._subject or b"") > _MAX_SUBJECT_BYTES:
            raise errors.BadSubjectError(subject, f"it has more than {_MAX_SUBJECT_BYTES} bytes")
        self._subjects: set[bytes] = set()
        self._next_row = 0
        #: The size of all payloads so far.
        self.data_bytes: int = 0
        #: The header lines of every row.
        self.common: bytes = encode_header_lines(publish_headers(None, {"stream": stream}) or {})

    def error(self, row: int, subject: bytes, reason: str) -> RowError:
        """Return an error about a row."""
        return RowError(self._partition, row, subject.decode("utf-8", "replace"), reason)

    def encode(self, group: Iterable[Columns], most: int) -> Iterator[EncodedRows]:
        """
        Yield the next rows, checked and encoded, in chunks that are sent together.

        All subjects are checked before the first chunk.

        Args:
            group: the rows.
            most: the maximum number of rows of a chunk.

        """
        first = self._next_row
        checked: list[Columns] = []
        for part in group:
            rows = len(part["data"])
            subjects = self._subjects_of(part.get("subject"), rows, self._next_row)
            checked.append(part | {"subject": subjects})
            self._next_row += rows
        for columns in checked:
            data = columns["data"]
            rows = len(data)
            if not rows:
                continue
            fitting = _MAX_CHUNK_BYTES * rows // (_size(data) + rows)
            chunks = -(-rows // max(1, min(most, fitting)))
            for start, end in pairwise(rows * chunk // chunks for chunk in range(chunks + 1)):
                chunk = {name: column[start:end] for name, column in columns.items()}
                yield self._encode(chunk, first + start)
            first += rows

    def _encode(self, columns: Columns, first: int) -> EncodedRows:
        """Check the rows of a chunk, and return them encoded."""
        given, subjects = columns["data"], cast("BytesColumn", columns["subject"])
        data = _plain(given) or BytesColumn.of(map(self._payload, given, count(first)))
        lines = self._header_lines(columns, first, subjects)
        operations = columns.get("operation", ())
        if operations or not isinstance(given, BytesColumn):
            lines = self._with_markers(lines, given, operations, first)
        msg_ids = columns.get("msg_id", ())
        ids = _plain(msg_ids)
        if ids is None or _has_line_break(ids.joined()):
            ids = BytesColumn.of(map(self._id, msg_ids, count(first), subjects))
        self.data_bytes += data.total_bytes
        return EncodedRows(
            range(first, first + len(data)),
            subjects,
            data,
            lines,
            ids if ids.total_bytes else NO_BYTES,
        )

    # --- payloads, subjects and ids -------------------------------------------------------------

    def _payload(self, value: object, row: int) -> bytes:
        if value is None:
            return b""  # a marker, see `_with_markers`
        plain = exact(value)
        if isinstance(plain, bytes):
            return plain
        if isinstance(plain, str):
            return self._encoded(plain, row, b"", self._data_name)
        kind = type(value).__name__
        raise self.error(row, b"", f"{self._data_name} is neither binary nor a string: {kind}")

    def _subjects_of(self, given: Sequence[Any] | None, rows: int, first: int) -> BytesColumn:
        """Return the checked subjects of rows."""
        default = self._subject
        if given is None:
            if default is None:
                reason = "the subject is missing: add a column or set the option 'subject'"
                raise self.error(first, b"", reason)
            return BytesColumn.of_width(default * rows, len(default))
        subjects = _plain(given)
        if (
            subjects is not None
            and not self._prefix
            and not self._api_prefix
            and are_subjects is not None
            and are_subjects(*subjects.parts, self._encoded_patterns)
        ):
            return subjects
        return BytesColumn.of(map(self._subject_of, given, count(first)))

    def _check(self, subject: str) -> None:
        """Check a subject; it must not reach anything but the target stream."""
        check_publish_subject(subject)
        if is_reserved(subject, self._api_prefix):
            raise errors.BadSubjectError(
                subject, "it calls a server API or is an inbox, whatever the stream accepts"
            )
        if not any(subject_matches(pattern, subject) for pattern in self._patterns):
            accepted = ", ".join(self._patterns) or "none"
            raise errors.BadSubjectError(
                subject, f"stream {self._stream!r} does not store it; its subjects are {accepted}"
            )

    def _subject_of(self, value: Any, row: int) -> bytes:
        if value is None:
            if self._subject is None:
                raise self.error(row, b"", self._no_subject)
            return self._subject
        name = self._subject_name
        subject = value if isinstance(value, bytes) else self._encoded(value, row, b"", name)
        if subject not in self._subjects:
            try:
                self._check(subject.decode())
            except (errors.Error, UnicodeDecodeError) as error:
                raise self.error(row, subject, str(error)) from error
            longest = _MAX_SUBJECT_BYTES - len(self._prefix)
            if len(subject) > longest:
                reason = f"the {name} has {len(subject)} bytes; the maximum is {longest}"
                raise self.error(row, subject, reason)
            if len(self._subjects) >= _MAX_CACHED:
                self._subjects.clear()
            self._subjects.add(subject)
        return self._prefix + subject

    def _id(self, value: Any, row: int, subject: bytes) -> bytes:
        if value is None:
            return b""
        made = value if isinstance(value, bytes) else self._encoded(value, row, subject, "msg_id")
        if _has_line_break(made):
            raise self.error(row, subject, "msg_id has a line break or a NUL")
        return made

    def _encoded(self, value: Any, row: int, subject: bytes, column: str) -> bytes:
        if not isinstance(value, str):
            raise self.error(row, subject, f"{column} is not a string: {type(value).__name__}")
        try:
            return exact(value).encode()
        except UnicodeEncodeError as error:
            raise self.error(row, subject, f"{column} is not valid Unicode text") from error

    # --- headers --------------------------------------------------------------------------------

    def _header_lines(self, columns: Columns, first: int, subjects: BytesColumn) -> BytesColumn:
        """Return header lines for each row; no lines if no row has any."""
        made: list[BytesColumn] = []
        if not columns.keys().isdisjoint(_CONDITIONS):
            made.append(self._condition_lines(columns, first, subjects))
        if "key" in columns:
            made.append(self._key_lines(columns["key"], first, subjects))
        if "headers" in columns:
            headers = columns["headers"]
            if not isinstance(headers, BytesColumn):
                headers = BytesColumn.of(map(self._lines, headers, count(first), subjects))
            made.append(headers)
        made = [lines for lines in made if lines.total_bytes]
        if len(made) > 1:
            return BytesColumn.of(map(b"".join, zip(*made, strict=True)))
        return made[0] if made else NO_BYTES

    def _key_lines(self, keys: Sequence[Any], first: int, subjects: BytesColumn) -> BytesColumn:
        plain = _plain(keys)
        if plain is not None and plain.joined().isascii() and not _has_line_break(plain.joined()):
            return BytesColumn.of(b"%b%b\r\n" % (_KEY_START, key) for key in plain)
        return BytesColumn.of(map(self._key_line, keys, count(first), subjects))

    def _key_line(self, key: Any, row: int, subject: bytes) -> bytes:
        if key is None:
            return b""
        line = self._line(_KEY_START, key, row, subject, "key")
        try:
            line.decode()
        except UnicodeDecodeError:
            reason = "key is not UTF-8 text: use base64(key)"
            raise self.error(row, subject, reason) from None
        return line

    def _condition_lines(self, columns: Columns, first: int, subjects: BytesColumn) -> BytesColumn:
        names = [name for name in _CONDITIONS if name in columns]
        values = zip(*(columns[name] for name in names), strict=True)
        return BytesColumn.of(
            self._conditions(dict(zip(names, given, strict=True)), row, subject)
            for row, subject, given in zip(count(first), subjects, values, strict=False)
        )

    def _with_markers(
        self, lines: BytesColumn, data: Sequence[Any], operations: Sequence[Any], first: int
    ) -> BytesColumn:
        """Return header lines, with the marker of key-value buckets for each row without a payload."""
        if None not in data and operations.count(None) == len(operations):
            return lines
        made = list(lines or repeat(b"", len(data)))
        for i, value in enumerate(data):
            operation = operations[i] if operations else None
            if operation is None:
                operation = "PUT" if value is not None else "DEL"
            if operation not in tuple(_MARKERS) or (operation == "PUT") != (value is not None):
                reason = "operation must be PUT with a value, or DEL or PURGE without one"
                raise self.error(first + i, b"", f"{reason}, not {operation!r}")
            # A marker that was read has its header already.
            if not MAY_BE_MARKER(made[i]):
                made[i] += _MARKERS[operation]
        return BytesColumn.of(made)

    def _lines(self, items: Any, row: int, subject: bytes) -> bytes:
        """Return the header lines of a map, or of a list of pairs or structs."""
        if not items and items in _NO_HEADERS:
            return b""
        lines = []
        try:
            for name, values in _header_pairs(items):
                start = _header_starts[name].encode()
                if start:
                    column = f"the header {name!r}"
                    # A header without a value keeps its place among the others.
                    lines += [
                        self._line(start, b"" if item is None else item, row, subject, column)
                        for item in values
                    ]
        except errors.InvalidHeaderError as error:
            raise self.error(row, subject, str(error)) from error
        except (KeyError, TypeError, ValueError):
            reason = "headers must be names with values: a mapping, or a list of pairs"
            raise self.error(row, subject, reason) from None
        return b"".join(lines)

    def _line(self, start: bytes, value: Any, row: int, subject: bytes, column: str) -> bytes:
        """Return the line of a header, whose start is checked."""
        is_bytes = isinstance(value, (bytes, bytearray))
        text = value if is_bytes else self._encoded(value, row, subject, column)
        if _has_line_break(text):
            raise self.error(row, subject, f"{column} has a line break or a NUL")
        return b"%b%b\r\n" % (start, text)

    def _conditions(self, given: dict[str, Any], row: int, subject: bytes) -> bytes:
        """Return the header lines with the conditions for storing a row."""
        if all(value is None for value in given.values()):
            return b""
        ttl = given.pop("ttl", None)
        try:
            if not isinstance(ttl, str):
                # ``None``, a number or a timedelta, or an error
                given["msg_ttl"] = float(ttl) if isinstance(ttl, Decimal) else ttl
            headers = option_headers(given)
            if isinstance(ttl, str):
                if not _TTL_TEXT.fullmatch(ttl):
                    raise errors.InvalidOptionError(
                        "ttl", ttl, "must be seconds, or a duration such as 1m30s"
                    )
                headers[MSG_TTL] = ttl
            return encode_header_lines(headers)
        except errors.Error as error:
            raise self.error(row, subject, str(error)) from error


class BucketRowEncoder(RowEncoder):
    """Checks the rows of a partition for a key-value bucket, and encodes them."""

    _data_name = "value"
    _subject_name = "key"
    _no_subject = "key is NULL"

    def __init__(self, partition: int, stream: str, prefix: str) -> None:
        super().__init__(partition, stream, None)
        self._prefix = prefix.encode()

    def _check(self, key: str) -> None:
        check_writable(check_key(key))
