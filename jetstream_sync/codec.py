"""JSON encoding and decoding of records. No other module converts between records and JSON."""

# A record is a frozen, slotted, keyword-only dataclass: a subclass of `Record` decorated with `@record`.
# Its fields have the names of the JSON keys, and the *type* of a field determines its JSON form, so a new
# field is one line::
#
#     max_age: Duration = UNSET              int nanoseconds  <->  timedelta
#     created: datetime                      RFC 3339 text    <->  aware datetime, UTC
#     discard: DiscardPolicy | str | None    string           <->  enum member, or `UnknownEnumValue`
#     mirror: StreamSource | None            object           <->  record
#     sources: Sequence[StreamSource] | None array            <->  list of records
#     metadata: Mapping[str, str] | None     object           <->  dict
#     data: bytes | None                     base64 text      <->  bytes
#     return_value: object | None            any JSON         <->  the same
#
# ``None`` means *not set*: the field is not sent, and a JSON ``null`` is treated as absent. Unknown fields
# of newer servers are kept in ``extra``, at every depth, and sent back, so that reading, changing and
# writing a config loses nothing.
#
# Records are created in two ways. A record created by the *user* goes through ``__init__``: values are
# normalized (seconds become a `timedelta`, strings become enum members) and validated. A record received
# from a *server* goes through `decode()`, which checks JSON types only: a server's config is never
# rejected by the validation rules of this client.
#
# Numbers are exact: durations and times keep their nanoseconds, see `jetstream_sync.durations`.
#
# All functions are pure and safe to call from any thread.

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from . import errors
from .durations import (
    check_time,
    duration,
    duration_from_ns,
    duration_to_ns,
    time_from_text,
    time_to_text,
)
from .exact import exact
from .foreign_names import spelling_of
from .records import RecordBase, record

_loads: Callable[[bytes | str], Any]

try:
    import orjson

    # Records and datetimes are converted by encode(); orjson would use its own format.
    _OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
    orjson.dumps(None, option=_OPTIONS)
except (ImportError, TypeError):
    # The package runs from a zip file without its dependencies, or in a subinterpreter: there the import
    # fails, or, if another interpreter of the process has imported orjson, its calls do.
    import json

    def _refuse_constant(name: str) -> None:
        """Reject NaN and the infinities, which are not JSON; orjson rejects them as well."""
        raise ValueError(f"{name} is not valid JSON")

    def _finite(text: str) -> float:
        """Reject a number that no float can be, as orjson does."""
        number = float(text)
        if abs(number) == _INFINITE:
            raise ValueError(f"{text} is too large")
        return number

    def _dumps(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default
        )
        return text.encode()

    def _loads(data: bytes | str) -> Any:
        """Parse JSON in UTF-8; text with half of a pair of surrogates is refused, as by orjson."""
        text = data if isinstance(data, str) else data.decode()
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\u" in text or not text.isascii():
            _dumps(value)
        return value

else:
    _dumps = partial(orjson.dumps, option=_OPTIONS)
    _loads = orjson.loads

_MAX_EXCERPT_CHARS: Final = 60


def dumps(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """
    Return the compact JSON of dicts, lists, strings, numbers, bools and ``None``.

    ``default`` returns the value that represents an object of another type.
    """
    try:
        return _dumps(value, default)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.InvalidArgumentError(f"value cannot be encoded as JSON: {error}") from error


def loads(data: bytes | str) -> Any:
    """Return the value of a JSON text; raise `InvalidResponseError` if it is not valid."""
    try:
        return _loads(data)
    except (ValueError, RecursionError) as error:
        start = data[:_MAX_EXCERPT_CHARS]
        raise errors.InvalidResponseError(f"invalid JSON ({error}): {start!r}") from error


def encodable(text: str) -> str:
    """Return a text that a JSON string can have: half of a pair of surrogates, as in names of files, is escaped."""
    return text.encode(errors="backslashreplace").decode()


def text_of(value: object) -> str:
    """Return the `encodable` text of an error or another object; ``__str__`` of the user's class may fail."""
    text = "<exception str() failed>"
    with suppress(Exception):
        text = str(value)
    return encodable(text)


# --- records ------------------------------------------------------------------------------------


class UnknownEnumValue(str):
    """
    An enum value that this version does not know.

    `decode()` returns one for an unknown value of a newer server. Create one to send such a value.
    """

    __slots__ = ()


class Extra(Mapping[str, Any]):
    """The keys of a JSON object that its record does not define; read-only."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        self._items = dict(items) if items else {}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Extra({self._items!r})"


_NO_EXTRA: Final = Extra()


@record
class Record(RecordBase):
    """
    Base class of all records, which are sent and received as JSON objects.

    Records are compared by their fields and can be pickled; use `dataclasses.replace` to change one.
    They are not hashable, because they contain lists and dicts.
    """

    extra: Mapping[str, Any] = field(default_factory=Extra)
    """Unknown fields that the server sent; read-only, and sent back unchanged."""

    # Fields hold lists and dicts.
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, **values: Any) -> None:
            codec = _record_codec(type(self))
            extra = values.pop("extra", None)
            for wrong, problem in (
                (values.keys() - codec.names, "has no field"),
                (set(codec.required) - values.keys(), "requires the field"),
            ):
                if wrong:
                    text = f"{type(self).__name__} {problem} {', '.join(sorted(wrong))}"
                    if spelling := spelling_of(min(wrong), codec.names):
                        text += f"; use {spelling}"
                    raise TypeError(text)
            for name, conversions, assign, default, optional in codec.fields:
                value = values.get(name, default)
                if value is not None:
                    try:
                        assign(self, conversions.accept(value))
                    except _MismatchError as error:
                        raise errors.InvalidOptionError(name, value, str(error)) from None
                elif optional:
                    assign(self, None)
                else:
                    raise errors.InvalidOptionError(name, value, "must not be None")
            if extra and (known := codec.names & extra.keys()):
                # They would be ignored if the field is set, and not be checked otherwise.
                name = type(self).__name__
                raise errors.InvalidOptionError(
                    "extra", extra, f"{min(known)!r} is a field of {name}"
                )
            object.__setattr__(self, "extra", Extra(extra) if extra else _NO_EXTRA)
            for name, (low, high) in codec.ranges.items():
                if getattr(self, name) != _NO_DURATION:  # it means that there is no limit
                    self._check_range(low, high, name)
            self._check()

    def _check(self) -> None:
        """Validate the fields; called for records that a user creates, not for decoded ones."""

    def _refuse_if(self, wrong: bool, name: str, reason: str) -> None:
        """Raise `InvalidOptionError` for a field if ``wrong`` is true."""
        if wrong:
            raise errors.InvalidOptionError(name, getattr(self, name), reason)

    def _refuse_set(self, reason: str, *names: str) -> None:
        """Raise `InvalidOptionError` for the first of these fields that is set."""
        for name in names:
            self._refuse_if(bool(getattr(self, name)), name, reason)

    def _check_range(self, low: float, high: float, *names: str) -> None:
        """Check that fields are within a range, which is in seconds for a duration."""
        for name in names:
            value = getattr(self, name)
            if value is None:
                continue
            number = value.total_seconds() if isinstance(value, timedelta) else value
            if not low <= number <= high:
                allowed = f"at least {low}" if high == _INFINITE else f"from {low} to {high}"
                unit = " seconds" if isinstance(value, timedelta) else ""
                raise errors.InvalidOptionError(name, value, f"must be {allowed}{unit}")

    def __repr__(self) -> str:
        shown = [
            f"{item.name}={getattr(self, item.name)!r}"
            for item in dataclasses.fields(self)
            if item.name != "extra" and getattr(self, item.name) is not None
        ]
        if self.extra:
            shown.append(f"extra={self.extra!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


_INFINITE: Final = float("inf")
_NO_DURATION: Final = timedelta(0)


# Type checkers see descriptors, so that a field accepts more types than it returns. At run time these
# are the plain types that decode() and encode() use.
if TYPE_CHECKING:

    class Duration:
        """Type of a duration field: accepts a `timedelta` or seconds, returns a `timedelta`."""

        @overload
        def __get__(self, record: None, owner: type) -> Duration: ...
        @overload
        def __get__(self, record: Record, owner: type) -> timedelta | None: ...
        def __get__(self, record: Record | None, owner: type) -> Duration | timedelta | None: ...
        def __set__(self, record: Record, value: timedelta | float | None) -> None: ...

    class Durations:
        """Type of a field with a list of durations."""

        @overload
        def __get__(self, record: None, owner: type) -> Durations: ...
        @overload
        def __get__(self, record: Record, owner: type) -> Sequence[timedelta] | None: ...
        def __get__(
            self, record: Record | None, owner: type
        ) -> Durations | Sequence[timedelta] | None: ...
        def __set__(self, record: Record, value: Sequence[timedelta | float] | None) -> None: ...

else:
    Duration = timedelta | None
    Durations = Sequence[timedelta] | None

#: Default of `Duration` fields: ``None``, typed `Any` to match their descriptor type.
UNSET: Any = None

R = TypeVar("R", bound=Record)


def decode(cls: type[R], data: Any) -> R:
    """Return the record of a JSON object of a server; raise `InvalidResponseError` if it does not fit."""
    # ``__init__`` and validation are skipped. Unknown keys go to ``extra``, a ``null`` counts as absent,
    # and an absent field gets its default. Without a default, a number, flag or duration is 0, and a record
    # has no fields set: servers leave out such values in some contexts (``omitempty`` in nats-server).
    if not isinstance(data, dict):
        raise errors.InvalidResponseError(f"{cls.__name__}: expected an object, got {_short(data)}")
    codec = _record_codec(cls)
    record = cls.__new__(cls)
    found = 0
    name = ""
    try:
        for name, conversions, assign, default, _ in codec.fields:
            raw = data.get(name)
            if raw is not None:
                assign(record, conversions.decode(raw))
                found += 1
                continue
            if default is dataclasses.MISSING:
                if conversions.zero is None:
                    raise errors.InvalidResponseError(
                        f"{cls.__name__}.{name}: required field is missing"
                    )
                default = conversions.zero()  # noqa: PLW2901 - of this record only
            assign(record, default)
    except _MismatchError as error:
        raise errors.InvalidResponseError(f"{cls.__name__}.{name}: {error}") from None
    extra = _NO_EXTRA
    if len(data) > found:
        unknown = {key: value for key, value in data.items() if key not in codec.names}
        extra = Extra(unknown) if unknown else _NO_EXTRA
    object.__setattr__(record, "extra", extra)
    return record


def encode(record: Record) -> dict[str, Any]:
    """Return the JSON object of a record: every field that is set, and the content of ``extra``."""
    data = dict(record.extra)
    for item in _record_codec(type(record)).fields:
        value = getattr(record, item.name)
        if value is not None:
            data[item.name] = item.conversions.encode(value)
    return data


# --- JSON form of each type ---------------------------------------------------------------------


class _MismatchError(Exception):
    """A value has the wrong type for its field; the caller adds the name of the field."""


def _expected(what: str, value: object) -> _MismatchError:
    return _MismatchError(f"expected {what}, got {_short(value)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_EXCERPT_CHARS else f"{text[:_MAX_EXCERPT_CHARS]}..."


class _TypeCodec(NamedTuple):
    """Conversions of one type; `decode` and `accept` raise `_MismatchError`."""

    #: JSON value that is not null -> value.
    decode: Callable[[Any], Any]
    #: Value -> JSON value.
    encode: Callable[[Any], Any]
    #: Argument of the user -> value.
    accept: Callable[[Any], Any]
    #: Makes the value of an absent field without a default; ``None``: the field must be there.
    zero: Callable[[], Any] | None = None


class _FieldCodec(NamedTuple):
    name: str
    conversions: _TypeCodec
    #: Sets the field of a record, bypassing the frozen ``__setattr__``.
    set: Callable[[Record, Any], None]
    default: Any
    optional: bool


class _RecordCodec(NamedTuple):
    fields: tuple[_FieldCodec, ...]
    names: frozenset[str]
    #: The fields without a default.
    required: tuple[str, ...]
    #: The smallest and largest value of a field, if it has limits.
    ranges: Mapping[str, tuple[float, float]]


_record_codecs: dict[type[Record], _RecordCodec] = {}


def _record_codec(cls: type[Record]) -> _RecordCodec:
    """Return the field codecs of a record class, created on first use."""
    codec = _record_codecs.get(cls)
    if codec is None:
        hints = get_type_hints(cls)
        fields = tuple(
            _FieldCodec(
                item.name,
                _type_codec(hints[item.name]),
                getattr(
                    cls, item.name
                ).__set__,  # the slot descriptor bypasses the frozen __setattr__
                item.default,
                NoneType in get_args(hints[item.name]),
            )
            for item in dataclasses.fields(cls)
            if item.name != "extra"
        )
        codec = _record_codecs[cls] = _RecordCodec(
            fields,
            frozenset(item.name for item in fields),
            tuple(item.name for item in fields if item.default is dataclasses.MISSING),
            {
                item.name: item.metadata["range"]
                for item in dataclasses.fields(cls)
                if "range" in item.metadata
            },
        )
    return codec


def _type_codec(hint: Any) -> _TypeCodec:
    if get_origin(hint) in (Union, UnionType):
        choices = [item for item in get_args(hint) if item is not NoneType]
        # "AckPolicy | str": the codec of the enum also handles other strings.
        enums = [choice for choice in choices if issubclass(get_origin(choice) or choice, Enum)]
        return _type_codec(enums[0] if enums else choices[0])
    if get_origin(hint) is Sequence:
        return _sequence_codec(_type_codec(get_args(hint)[0]))
    if get_origin(hint) is Mapping:
        return _mapping_codec(_type_codec(get_args(hint)[1]))
    if issubclass(hint, Enum):
        return _enum_codec(hint)
    if issubclass(hint, Record):
        return _nested_codec(hint)
    return _SCALAR_CODECS[hint]


def _identity(value: Any) -> Any:
    return value


def _bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise _expected("a bool", value)


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    # Subclasses of int come from users only, never from JSON.
    if isinstance(value, int) and not isinstance(value, bool):
        return exact(value)
    raise _expected("an int", value)


def _float(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise _expected("a number", value)


def _str(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return exact(value)
    raise _expected("a string", value)


def _decoder(
    check: Callable[[Any], Any], convert: Callable[[Any], Any], what: str
) -> Callable[[Any], Any]:
    """Return a function that checks the JSON type of a value and converts it."""

    def decode_value(raw: Any) -> Any:
        try:
            return convert(check(raw))
        except (ValueError, OverflowError):
            raise _expected(what, raw) from None

    return decode_value


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _accept_bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return exact(value)  # type: ignore[return-value]
    raise _expected("bytes", value)


def _accept_duration(value: Any) -> timedelta:
    try:
        return duration(value)
    except errors.InvalidOptionError as error:
        raise _MismatchError(error.reason) from None


def _accept_time(value: Any) -> datetime:
    try:
        return check_time(value)
    except errors.InvalidOptionError as error:
        raise _MismatchError(f"{error.reason}, got {_short(value)}") from None


_SCALAR_CODECS: Final[dict[Any, _TypeCodec]] = {
    bool: _TypeCodec(_bool, _identity, _bool, bool),
    int: _TypeCodec(_int, _identity, _int, int),
    float: _TypeCodec(_float, _identity, _float, float),
    str: _TypeCodec(_str, _identity, _str),
    bytes: _TypeCodec(
        _decoder(_str, partial(base64.b64decode, validate=True), "base64"),
        _encode_bytes,
        _accept_bytes,
    ),
    timedelta: _TypeCodec(
        _decoder(_int, duration_from_ns, "a duration in nanoseconds"),
        duration_to_ns,
        _accept_duration,
        timedelta,
    ),
    datetime: _TypeCodec(
        _decoder(_str, time_from_text, "an RFC 3339 time"), time_to_text, _accept_time
    ),
    object: _TypeCodec(_identity, _identity, _identity),
}


def _enum_codec(enum: type[Enum]) -> _TypeCodec:
    members = {member.value: member for member in enum}

    def decode_enum(raw: Any) -> Enum | UnknownEnumValue:
        text = _str(raw)
        return members.get(text) or UnknownEnumValue(text)

    def accept_enum(value: Any) -> Enum | UnknownEnumValue:
        if isinstance(value, (enum, UnknownEnumValue)):
            return value
        text = exact(value)
        if type(text) is str and text in members:
            return members[text]
        raise _expected(f"one of {', '.join(map(repr, members))}", value)

    def encode_enum(value: Enum | UnknownEnumValue) -> str:
        return str(value.value if isinstance(value, Enum) else value)

    return _TypeCodec(decode_enum, encode_enum, accept_enum)


def _nested_codec(cls: type[Record]) -> _TypeCodec:
    def accept_record(value: Any) -> Record:
        if isinstance(value, cls):
            return value
        raise _expected(f"a {cls.__name__}", value)

    return _TypeCodec(lambda raw: decode(cls, raw), encode, accept_record, lambda: decode(cls, {}))


def _sequence_codec(item: _TypeCodec) -> _TypeCodec:
    def decode_items(raw: Any) -> list[Any]:
        if not isinstance(raw, list):
            raise _expected("an array", raw)
        return [item.decode(entry) for entry in raw]

    def accept_items(value: Any) -> list[Any]:
        # A str is a sequence of str as well, but passing one is always a mistake.
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise _expected("a list", value)
        return [item.accept(entry) for entry in value]

    return _TypeCodec(
        decode_items, lambda value: [item.encode(entry) for entry in value], accept_items
    )


def _mapping_codec(item: _TypeCodec) -> _TypeCodec:
    def decode_items(raw: Any) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _expected("an object", raw)
        return {key: item.decode(entry) for key, entry in raw.items()}

    def accept_items(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _expected("a mapping", value)
        return {_str(key): item.accept(entry) for key, entry in value.items()}

    return _TypeCodec(
        decode_items,
        lambda value: {key: item.encode(entry) for key, entry in value.items()},
        accept_items,
    )
