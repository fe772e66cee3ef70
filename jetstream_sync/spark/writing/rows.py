"""
Rows as Spark passes them, and as they are published.

Rows are processed by column. Columns of Arrow become columns of bytes without an object for each value, unless
they have values that must be checked or converted one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice, repeat
from typing import Any, Final

from ... import errors
from ...api.key_value import check_key, check_writable
from ...api.publish import publish_headers
from ...headers import EXPECTED_STREAM, MSG_TTL, encode_headers
from ...speedups import are_subjects
from ...subjects import MAX_CONTROL_LINE, check_publish_subject, is_reserved, subject_matches
from ..bytes_column import NO_BYTES, BytesColumn
from ..schema import READ_TYPES, SchemaError
from .sink_errors import RowError

#: Spark's name for intervals of fixed length; `_CALENDAR` excludes those with months or years.
_INTERVAL: Final = "interval day to second"
_CALENDAR: Final = re.compile("year|month")

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
        *("string", "tinyint", "smallint", "int", "bigint", "float", "double"),
        _INTERVAL,
    ),
    "expected_last_sequence": ("int", "bigint"),
    "expected_last_subject_sequence": ("int", "bigint"),
    "expected_last_msg_id": ("string",),
    "key": ("string", "binary"),
}
#: Column names of Spark's Kafka sink, with the names here.
_KAFKA_COLUMNS: Final = {"value": "data", "topic": "subject"}
#: Columns that the sources of JetStream and Kafka have, but that cannot be written.
_IGNORED_COLUMNS: Final = frozenset(
    (READ_TYPES.keys() - WRITE_TYPES.keys()) | {"partition", "offset", "timestamptype"}
)
#: The header with the column ``key``.
_KEY_HEADER: Final = "Kafka-Key"

#: The columns of rows for a key-value bucket, all required, with the accepted Spark types.
BUCKET_WRITE_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string",),
    "value": ("binary", "string"),
}
#: The same with a column that need not be there.
_BUCKET_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    **BUCKET_WRITE_TYPES,
    "operation": ("string",),
}
#: What they are called in `RowColumns`.
_BUCKET_COLUMNS: Final = {"key": "subject", "value": "data", "operation": "operation"}
#: Finds the header of a marker, by a client or by the server.
_HAS_MARKER: Final = re.compile(b"KV-Operation|Nats-Marker-Reason", re.IGNORECASE).search
#: The header lines of the operations of a key-value bucket.
_MARKERS: Final = {
    "PUT": b"",
    "DEL": b"KV-Operation: DEL\r\n",
    "PURGE": b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
}
#: Columns that become headers; they are checked value by value.
_HEADER_COLUMNS: Final = (
    "key",
    "expected_last_sequence",
    "expected_last_subject_sequence",
    "expected_last_msg_id",
    "ttl",
)
#: Headers that are dropped from the column ``headers``: those that have their own column, those of the server,
#: and those with effects beyond the message. A rollup would remove other messages, also the checkpoints of the
#: sink. So the headers of messages that were read can be written unchanged.
_DROPPED_HEADERS: Final = re.compile(
    r"Nats-(?:Msg-Id|Expected-.*|Batch-.*|Stream-Source|Rollup|Schedule(?:-.*)?|Trace-.*)",
    re.IGNORECASE,
)
#: A Go duration, a number of seconds, or ``never`` (ADR-43).
_TTL_TEXT: Final = re.compile(r"\d+|(?:\d+(?:\.\d+)?(?:h|m|s|ms|us|ns))+|never")
#: Maximum bytes of a subject; leaves room in a command line for a reply subject and two sizes.
_MAX_SUBJECT_BYTES: Final = MAX_CONTROL_LINE - 512
#: Maximum number of cached header names and subjects.
_MAX_CACHED: Final = 4096
#: The length of the version line, with which the result of `encode_headers` begins.
_VERSION_LINE: Final = len(b"NATS/1.0\r\n")


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """The checked columns of rows, in order."""

    names: tuple[str, ...]
    """The names of the columns; empty for a column that is ignored."""

    @classmethod
    def of_schema(cls, schema: Any, *, bucket: bool = False) -> RowLayout:
        """Check the schema of a DataFrame, for a stream or a key-value bucket."""
        given = [field.name for field in schema.fields]
        layout = cls.of_names(given, bucket=bucket)
        if bucket:
            _check_types(schema, [name.lower() for name in given], _BUCKET_TYPES)
        else:
            _check_types(schema, layout.names, WRITE_TYPES)
        return layout

    @classmethod
    def of_names(cls, names: Iterable[str], *, bucket: bool = False) -> RowLayout:
        """
        Check column names, which are case-insensitive as in Spark.

        The column ``key`` for a bucket becomes ``subject``, and ``value`` becomes ``data``, see `BucketRowEncoder`.
        """
        given = list(names)
        if bucket:
            lower = [name.lower() for name in given]
            _check_names(given, lower, _BUCKET_TYPES, BUCKET_WRITE_TYPES)
            return cls(names=tuple(_BUCKET_COLUMNS[name] for name in lower))
        known = [_KAFKA_COLUMNS.get(name.lower(), name.lower()) for name in given]
        known = ["" if name in _IGNORED_COLUMNS else name for name in known]
        _check_names(given, known, WRITE_TYPES, ("data",))
        return cls(names=tuple(known))

    def columns(self, values: Iterable[Sequence[Any]]) -> RowColumns:
        """Return columns from one list of values for each name."""
        named = zip(self.names, values, strict=True)
        return RowColumns({name: column for name, column in named if name})


def _check_names(
    given: Sequence[str],
    names: Sequence[str],
    types: Mapping[str, tuple[str, ...]],
    required: Iterable[str],
) -> None:
    """Check the names of columns, empty for those that are ignored; errors have the given ones."""
    for index, (column, name) in enumerate(zip(given, names, strict=True)):
        if name and name not in types:
            rule = f"cannot be written; the columns to write are {', '.join(types)}"
            raise SchemaError(column, rule)
        if name and name in names[:index]:
            raise SchemaError(column, "is duplicated")
    for name in required:
        if name not in names:
            raise SchemaError(name, "is required")


def _check_types(schema: Any, names: Sequence[str], types: Mapping[str, tuple[str, ...]]) -> None:
    for field, name in zip(schema.fields, names, strict=True):
        kind = field.dataType.simpleString().lower()
        if kind.startswith("interval") and not _CALENDAR.search(kind):
            kind = _INTERVAL
        if name and kind not in types[name]:
            reason = f"must be of type {' or '.join(types[name])}, not {kind}"
            if name == "data":
                reason += f": use to_json({field.name}) or cast({field.name} AS string)"
            raise SchemaError(field.name, reason)


#: Rows that are converted to columns at once.
_ROWS_PER_PART: Final = 4096


def row_parts(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield rows in lists that are converted to columns at once."""
    while part := list(islice(rows, _ROWS_PER_PART)):
        yield part


class RowColumns:
    """The values of some rows, by column."""

    __slots__ = ("count", "subjects_checked", "values")

    def __init__(self, values: dict[str, Sequence[Any]]) -> None:
        self.subjects_checked: bool = False
        self.values: dict[str, Sequence[Any]] = values
        self.count: int = len(values["data"])

    def data_size(self) -> int:
        """Return the size of the payloads, in bytes or characters."""
        data = self.values["data"]
        if isinstance(data, BytesColumn):
            return data.total_bytes
        try:
            return sum(map(len, filter(None, data)))
        except TypeError:
            return 0  # `RowEncoder` refuses a value of another type, and names its row


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


#: Bytes that are not possible in an id.
_LINE_BREAKS: Final = (b"\r", b"\n", b"\0")


def _plain(values: Sequence[Any]) -> BytesColumn | None:
    """Return values of one usual type as a column; ``None``: each value must be checked."""
    if isinstance(values, BytesColumn):
        return values
    kinds = set(map(type, values))
    with suppress(UnicodeEncodeError):
        if kinds == {str}:
            return BytesColumn.of(map(str.encode, values))
        if kinds <= {bytes, bytearray}:
            return BytesColumn.of(values)
    return None


#: Values of the column ``headers`` without a header; other false values are errors.
_NO_HEADERS: Final[tuple[Any, ...]] = (None, {}, [], ())


def _header_pairs(headers: Any) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield name and values of headers, which are a mapping, or a list of pairs or structs."""
    if isinstance(headers, (str, bytes)):
        raise TypeError(headers)
    for item in headers.items() if isinstance(headers, Mapping) else headers:
        if isinstance(item, Mapping):
            name, value = item["name" if "name" in item else "key"], item["value"]
        elif isinstance(item, str):
            raise TypeError(item)
        else:
            name, value = item
        hash(name)
        one = isinstance(value, (str, bytes))
        yield name, (value,) if one else () if value is None else tuple(value)


def header_start(name: str) -> bytes:
    """Return the beginning of the lines of a header, after checking the name; empty: the header is dropped."""
    start = encode_headers({name: ""})[_VERSION_LINE:-4]
    return b"" if _DROPPED_HEADERS.fullmatch(name) else start


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
        self._names: dict[str, bytes] = {}
        #: The size of all payloads so far.
        self.data_bytes: int = 0
        #: The header lines of every row.
        self.common: bytes = b"%b: %b\r\n" % (EXPECTED_STREAM.encode(), stream.encode())

    def error(self, row: int, subject: bytes, reason: str) -> RowError:
        """Return an error about a row."""
        return RowError(self._partition, row, subject.decode("utf-8", "replace"), reason)

    def check_subjects(self, columns: RowColumns, first: int) -> None:
        """Check all subjects of some rows, of which the first has the given number, before one is sent."""
        if not columns.subjects_checked:
            subjects = self._checked_subjects(
                columns.values.get("subject"), 0, columns.count, first
            )
            columns.values["subject"] = subjects
            columns.subjects_checked = True

    def rows(self, columns: RowColumns, start: int, end: int, first: int) -> EncodedRows:
        """Check rows, and return them encoded; the first returned one has the given number."""
        values = columns.values
        given = values["data"][start:end]
        data = _plain(given) or BytesColumn.of(
            self._payload(item, first + i) for i, item in enumerate(given)
        )
        if columns.subjects_checked:
            subjects: Any = values["subject"][start:end]
        else:
            subjects = self._checked_subjects(values.get("subject"), start, end, first)
        header_lines = self._header_lines(values, start, end, first, subjects)
        operations = values.get("operation", ())[start:end]
        if operations or not isinstance(given, BytesColumn):
            header_lines = self._with_markers(header_lines, given, operations, first)
        given = values.get("msg_id", ())[start:end]
        ids = _plain(given)
        if ids is None or any(byte in ids.data for byte in _LINE_BREAKS):
            ids = BytesColumn.of(
                self._id(item, first + i, subjects[i]) for i, item in enumerate(given)
            )
        self.data_bytes += data.total_bytes
        return EncodedRows(
            range(first, first + len(data)),
            subjects,
            data,
            header_lines,
            ids if ids.total_bytes else NO_BYTES,
        )

    # --- payloads, subjects and ids -------------------------------------------------------------

    def _payload(self, value: object, row: int) -> bytes:
        if value.__class__ is bytes:
            return value
        if isinstance(value, str):
            return self._encoded(value, row, b"", self._data_name)
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if value is None:
            return b""  # a marker, see `_with_markers`
        kind = type(value).__name__
        raise self.error(row, b"", f"{self._data_name} is neither binary nor a string: {kind}")

    def _checked_subjects(
        self, given: Sequence[Any] | None, start: int, end: int, first: int
    ) -> BytesColumn:
        default = self._subject
        if given is None:
            if default is None:
                raise self.error(
                    first, b"", "the subject is missing: add a column or set the option 'subject'"
                )
            return BytesColumn.of_width(default * (end - start), len(default))
        values = given[start:end]
        subjects = _plain(values)
        if (
            subjects is not None
            and not self._prefix
            and not self._api_prefix
            and are_subjects is not None
            and are_subjects(*subjects.parts, self._encoded_patterns)
        ):
            return subjects
        return BytesColumn.of(self._subject_of(item, first + i) for i, item in enumerate(values))

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
        if b"\r" in made or b"\n" in made or b"\0" in made:
            raise self.error(row, subject, "msg_id has a line break or a NUL")
        return made

    def _encoded(self, value: Any, row: int, subject: bytes, column: str) -> bytes:
        if not isinstance(value, str):
            raise self.error(row, subject, f"{column} is not a string: {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise self.error(row, subject, f"{column} is not valid Unicode text") from error

    # --- headers --------------------------------------------------------------------------------

    def _header_lines(
        self,
        values: Mapping[str, Sequence[Any]],
        start: int,
        end: int,
        first: int,
        subjects: BytesColumn,
    ) -> BytesColumn:
        """Return header lines for each row; no lines if no row has any."""
        headers = values.get("headers", ())[start:end]
        if not isinstance(headers, BytesColumn):
            headers = BytesColumn.of(
                self._lines(item, first + i, subjects[i])
                if item or item not in _NO_HEADERS
                else b""
                for i, item in enumerate(headers)
            )
        header_lines = headers if headers.total_bytes else NO_BYTES
        given = {name: values[name][start:end] for name in _HEADER_COLUMNS if name in values}
        conditions = {name: part for name, part in given.items() if part.count(None) < len(part)}
        if not conditions:
            return header_lines
        made = [
            self._condition_lines(
                {name: part[i] for name, part in conditions.items()}, row, subject
            )
            for i, (row, subject) in enumerate(zip(count(first), subjects, strict=False))
        ]
        if header_lines:
            made = [a + b for a, b in zip(made, header_lines, strict=True)]
        return BytesColumn.of(made)

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
            if operation not in _MARKERS or (operation == "PUT") != (value is not None):
                reason = "operation must be PUT with a value, or DEL or PURGE without one"
                raise self.error(first + i, b"", f"{reason}, not {operation!r}")
            # A marker that was read has its header already.
            if not _HAS_MARKER(made[i]):
                made[i] += _MARKERS[operation]
        return BytesColumn.of(made)

    def _lines(self, items: Any, row: int, subject: bytes) -> bytes:
        """Return the header lines of a map, or of a list of pairs or structs."""
        lines = []
        try:
            pairs = [*_header_pairs(items)]
        except (KeyError, TypeError, ValueError):
            reason = "headers must be names with values: a mapping, or a list of pairs"
            raise self.error(row, subject, reason) from None
        for name, values in pairs:
            start = self._names.get(name)
            if start is None:
                start = self._checked_name(name, row, subject)
            if not start:
                continue
            for entry in values:
                if entry is None:
                    raise self.error(row, subject, f"the header {name!r} has the value NULL")
                text = (
                    entry
                    if isinstance(entry, bytes)
                    else self._encoded(entry, row, subject, f"the header {name!r}")
                )
                if b"\r" in text or b"\n" in text or b"\0" in text:
                    reason = f"the header {name!r} has a line break or a NUL"
                    raise self.error(row, subject, reason)
                lines.append(b"%b%b\r\n" % (start, text))
        return b"".join(lines)

    def _checked_name(self, name: Any, row: int, subject: bytes) -> bytes:
        """Return the beginning of a header line; empty: the header is dropped."""
        try:
            start = header_start(name)
        except errors.Error as error:
            raise self.error(row, subject, str(error)) from error
        if len(self._names) >= _MAX_CACHED:
            self._names.clear()
        self._names[name] = start
        return start

    def _condition_lines(self, given: dict[str, Any], row: int, subject: bytes) -> bytes:
        """Return the header lines with the key and the conditions for storing a row."""
        ttl, key = given.pop("ttl", None), given.pop("key", None)
        if key is not None and not isinstance(key, (bytes, bytearray)):
            key = self._encoded(key, row, subject, "key")
        try:
            if not isinstance(ttl, str):
                given["msg_ttl"] = ttl  # ``None``, a number or a timedelta, or an error
            made = publish_headers(None, given)
            lines = dict(made or {})
            if isinstance(ttl, str):
                if not _TTL_TEXT.fullmatch(ttl):
                    raise errors.InvalidOptionError(
                        "ttl", ttl, "must be seconds, or a duration such as 1m30s"
                    )
                lines[MSG_TTL] = ttl
            if key is not None:
                lines[_KEY_HEADER] = key.decode()
            return encode_headers(lines)[_VERSION_LINE:-2] if lines else b""
        except UnicodeDecodeError:
            raise self.error(row, subject, "key is not UTF-8 text: use base64(key)") from None
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
