"""
JSON, and the records that travel as JSON: the only place that turns one into the other.

A record is a frozen, slotted, keyword-only dataclass: a class on top of `Record` with `@record` above
it. Its fields carry the wire names, and the *type* of a field says how it travels, so a new field is
one line::

    max_age: Duration = UNSET              int nanoseconds  <->  timedelta
    created: datetime                      RFC 3339 text    <->  aware datetime, UTC
    discard: DiscardPolicy | str | None    its word         <->  enum member, or `UnknownEnumValue`
    mirror: StreamSource | None            object           <->  record
    sources: Sequence[StreamSource] | None array            <->  list of records
    metadata: Mapping[str, str] | None     object           <->  dict
    data: bytes | None                     base64 text      <->  bytes

``None`` means *not said*: such a field is not sent, and a JSON ``null`` is read as if it were not
there. What a newer server sends beyond the known fields is kept in ``extra``, at every depth, and
sent back, so that reading, changing and writing a config loses nothing.

There are two doors. A record that a *user* makes goes through ``__init__``: values are brought into
their one form (seconds become a `timedelta`, words become enum members) and checked. A record that
a *server* sent comes through `decode()`, which checks JSON types only: what a server says is never
refused for breaking a rule about configs.

Numbers are exact: durations and times keep their nanoseconds, see `jetstream_sync.durations`.

Everything here is pure; any thread may call it.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from .durations import duration, duration_from_ns, duration_to_ns, time_from_text, time_to_text
from .errors import InvalidArgumentError, InvalidOptionError, InvalidResponseError
from .records import RecordBase, record

_loads: Callable[[bytes | str], Any]

try:
    import orjson
except ImportError:  # the package was shipped as a bare zip, without its dependencies
    import json

    def _refuse_constant(name: str) -> None:
        """Refuse NaN and the infinities, which JSON does not have and orjson refuses, too."""
        raise ValueError(f"{name} is not JSON")

    def _dumps(value: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()

    _loads = partial(json.loads, parse_constant=_refuse_constant)
else:
    # Records and datetimes go through encode(); orjson would write them its own way.
    _OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

    def _dumps(value: Any) -> bytes:
        return orjson.dumps(value, option=_OPTIONS)

    _loads = orjson.loads

__all__ = [
    "UNSET",
    "Duration",
    "Durations",
    "Extra",
    "Record",
    "UnknownEnumValue",
    "decode",
    "dumps",
    "encode",
    "loads",
    "record",
]

_EXCERPT: Final = 60


def dumps(value: Any) -> bytes:
    """
    Make JSON, without spaces, of dicts, lists, strings, numbers, bools and ``None``.

    Raises:
        InvalidArgumentError: there is something in it that JSON can not say.

    """
    try:
        return _dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"this can not be sent as JSON: {error}") from error


def loads(data: bytes | str) -> Any:
    """
    Read JSON.

    Raises:
        InvalidResponseError: it is not JSON; the message quotes the start of it.

    """
    try:
        return _loads(data)
    except (ValueError, RecursionError) as error:
        start = data[:_EXCERPT]
        raise InvalidResponseError(f"this is not JSON ({error}): {start!r}") from error


# --- records ------------------------------------------------------------------------------------


class UnknownEnumValue(str):
    """
    A policy word that this version does not know.

    `decode()` keeps the word of a newer server as one; make one yourself to send such a word.
    """

    __slots__ = ()


class Extra(Mapping[str, Any]):
    """What came in a JSON object beyond the fields that its record knows; read-only."""

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


_NOTHING: Final = Extra()


@record
class Record(RecordBase):
    """
    The base of everything that travels as a JSON object.

    Records compare by their fields, survive pickle, and are changed with `dataclasses.replace`.
    They can not be hashed, since they hold lists and dicts.
    """

    extra: Mapping[str, Any] = field(default_factory=Extra)
    """What the server sent beyond the known fields; read-only, and sent back as it came."""

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, **values: Any) -> None:
            plan = _plan(type(self))
            extra = values.pop("extra", None)
            for wrong, problem in (
                (values.keys() - plan.names, "has no field"),
                (set(plan.required) - values.keys(), "needs the field"),
            ):
                if wrong:
                    raise TypeError(f"{type(self).__name__} {problem} {', '.join(sorted(wrong))}")
            for name, kind, assign, default, optional in plan.fields:
                value = values.get(name, default)
                if value is not None:
                    try:
                        assign(self, kind.accept(value))
                    except _MismatchError as error:
                        raise InvalidOptionError(name, value, str(error)) from None
                elif optional:
                    assign(self, None)
                else:
                    raise InvalidOptionError(name, value, "it must be given")
            object.__setattr__(self, "extra", Extra(extra) if extra else _NOTHING)
            self._check()

    def _check(self) -> None:
        """Refuse what can not work; called for records that a user makes, not for decoded ones."""

    def _refuse_if(self, wrong: bool, name: str, reason: str) -> None:
        """Refuse the value of a field when ``wrong``."""
        if wrong:
            raise InvalidOptionError(name, getattr(self, name), reason)

    def _check_range(self, low: float, high: float, *names: str) -> None:
        """Refuse fields that are out of range; that of a duration is in seconds."""
        for name in names:
            value = getattr(self, name)
            if value is None:
                continue
            number = value.total_seconds() if isinstance(value, timedelta) else value
            if not low <= number <= high:
                allowed = f"at least {low}" if high == _INFINITE else f"from {low} to {high}"
                unit = " seconds" if isinstance(value, timedelta) else ""
                raise InvalidOptionError(name, value, f"it is {allowed}{unit}")

    def __repr__(self) -> str:
        said = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in dataclasses.fields(self)
            if each.name != "extra" and getattr(self, each.name) is not None
        ]
        if self.extra:
            said.append(f"extra={self.extra!r}")
        return f"{type(self).__name__}({', '.join(said)})"


_INFINITE: Final = float("inf")


# Type checkers see descriptors, so that a field takes more than it gives; at runtime these are the
# plain types that decode() and encode() go by.
if TYPE_CHECKING:

    class Duration:
        """The type of a duration field: give a `timedelta` or seconds, get a `timedelta`."""

        @overload
        def __get__(self, record: None, owner: type) -> Duration: ...
        @overload
        def __get__(self, record: Record, owner: type) -> timedelta | None: ...
        def __get__(self, record: Record | None, owner: type) -> Duration | timedelta | None: ...
        def __set__(self, record: Record, value: timedelta | float | None) -> None: ...

    class Durations:
        """The same for a list of durations."""

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

#: The default of `Duration` fields: ``None``, in a form that fits their descriptor type.
UNSET: Any = None

R = TypeVar("R", bound=Record)


def decode(cls: type[R], data: Any) -> R:
    """
    Make a record of a JSON object that a server sent.

    Its ``__init__`` and its checks do not run. Unknown keys go to ``extra``, a ``null`` counts as
    absent, and an absent field has its default.

    Args:
        cls: the record's class.
        data: what `loads()` returned, or a part of it; it is not changed.

    Raises:
        InvalidResponseError: it is not an object, a field has the wrong JSON type, or one that is
            always there is missing; the message names record and field.

    """
    if not isinstance(data, dict):
        raise InvalidResponseError(f"{cls.__name__}: expected an object, got {_short(data)}")
    plan = _plan(cls)
    for name in plan.required:
        if data.get(name) is None:
            raise InvalidResponseError(f"{cls.__name__}.{name}: it is missing")
    record = cls.__new__(cls)
    found = 0
    name = ""
    try:
        for name, kind, assign, default, _ in plan.fields:
            raw = data.get(name)
            if raw is None:
                assign(record, default)
            else:
                assign(record, kind.decode(raw))
                found += 1
    except _MismatchError as error:
        raise InvalidResponseError(f"{cls.__name__}.{name}: {error}") from None
    extra = _NOTHING
    if len(data) > found:
        unknown = {key: value for key, value in data.items() if key not in plan.names}
        extra = Extra(unknown) if unknown else _NOTHING
    object.__setattr__(record, "extra", extra)
    return record


def encode(record: Record) -> dict[str, Any]:
    """Make the JSON object of a record: every field that is said, and what is in ``extra``."""
    data = dict(record.extra)
    for each in _plan(type(record)).fields:
        value = getattr(record, each.name)
        if value is not None:
            data[each.name] = each.kind.encode(value)
    return data


# --- how each type travels ----------------------------------------------------------------------


class _MismatchError(Exception):
    """A value is not what its field holds; the caller knows the field's name."""


def _expected(what: str, value: object) -> _MismatchError:
    return _MismatchError(f"expected {what}, got {_short(value)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."


class _Kind(NamedTuple):
    """How values of one type travel; `decode` and `accept` raise `_MismatchError`."""

    #: JSON value that is not null -> value.
    decode: Callable[[Any], Any]
    #: Value -> JSON value.
    encode: Callable[[Any], Any]
    #: What a user passed -> value.
    accept: Callable[[Any], Any]


class _Field(NamedTuple):
    name: str
    kind: _Kind
    #: Sets the field of a record, which is frozen for everybody else.
    set: Callable[[Record, Any], None]
    default: Any
    optional: bool


class _Plan(NamedTuple):
    fields: tuple[_Field, ...]
    names: frozenset[str]
    #: The fields that every object has.
    required: tuple[str, ...]


_plans: dict[type[Record], _Plan] = {}


def _plan(cls: type[Record]) -> _Plan:
    """Return how the fields of a record travel, worked out on first use."""
    plan = _plans.get(cls)
    if plan is None:
        hints = get_type_hints(cls)
        fields = tuple(
            _Field(
                each.name,
                _kind_of(hints[each.name]),
                getattr(cls, each.name).__set__,  # the slot's, which a frozen record does not stop
                each.default,
                NoneType in get_args(hints[each.name]),
            )
            for each in dataclasses.fields(cls)
            if each.name != "extra"
        )
        plan = _plans[cls] = _Plan(
            fields,
            frozenset(each.name for each in fields),
            tuple(each.name for each in fields if each.default is dataclasses.MISSING),
        )
    return plan


def _kind_of(hint: Any) -> _Kind:
    if get_origin(hint) in (Union, UnionType):
        choices = [each for each in get_args(hint) if each is not NoneType]
        # "AckPolicy | str": the enum knows what to do with other strings.
        enums = [each for each in choices if issubclass(get_origin(each) or each, Enum)]
        return _kind_of(enums[0] if enums else choices[0])
    if get_origin(hint) is Sequence:
        return _sequence(_kind_of(get_args(hint)[0]))
    if get_origin(hint) is Mapping:
        return _mapping(_kind_of(get_args(hint)[1]))
    if issubclass(hint, Enum):
        return _word(hint)
    if issubclass(hint, Record):
        return _record(hint)
    return _SCALARS[hint]


def _same(value: Any) -> Any:
    return value


def _bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise _expected("a bool", value)


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    # For what users pass; JSON has no such ints.
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise _expected("an int", value)


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _expected("a string", value)


def _decode_bytes(raw: Any) -> bytes:
    try:
        return base64.b64decode(_str(raw), validate=True)
    except (binascii.Error, ValueError):
        raise _expected("base64", raw) from None


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _accept_bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise _expected("bytes", value)


def _decode_duration(raw: Any) -> timedelta:
    try:
        return duration_from_ns(_int(raw))
    except OverflowError:
        raise _expected("a duration in nanoseconds", raw) from None


def _accept_duration(value: Any) -> timedelta:
    try:
        return duration(value)
    except InvalidOptionError as error:
        raise _MismatchError(error.reason) from None


def _decode_time(raw: Any) -> datetime:
    try:
        return time_from_text(_str(raw))
    except ValueError:
        raise _expected("an RFC 3339 time", raw) from None


def _accept_time(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise _expected("a datetime with a time zone", value)
    try:
        value.astimezone(timezone.utc)
    except OverflowError:
        raise _expected("a time in the years 1 to 9999 UTC", value) from None
    return value


_SCALARS: Final[dict[Any, _Kind]] = {
    bool: _Kind(_bool, _same, _bool),
    int: _Kind(_int, _same, _int),
    str: _Kind(_str, _same, _str),
    bytes: _Kind(_decode_bytes, _encode_bytes, _accept_bytes),
    timedelta: _Kind(_decode_duration, duration_to_ns, _accept_duration),
    datetime: _Kind(_decode_time, time_to_text, _accept_time),
}


def _word(enum: type[Enum]) -> _Kind:
    members = {member.value: member for member in enum}

    def decode_word(raw: Any) -> Enum | UnknownEnumValue:
        word = _str(raw)
        return members.get(word) or UnknownEnumValue(word)

    def accept_word(value: Any) -> Enum | UnknownEnumValue:
        if isinstance(value, (enum, UnknownEnumValue)):
            return value
        if isinstance(value, str) and value in members:
            return members[value]
        raise _expected(f"one of {', '.join(map(repr, members))}", value)

    def encode_word(value: Enum | UnknownEnumValue) -> str:
        return str(value.value if isinstance(value, Enum) else value)

    return _Kind(decode_word, encode_word, accept_word)


def _record(cls: type[Record]) -> _Kind:
    def accept_record(value: Any) -> Record:
        if isinstance(value, cls):
            return value
        raise _expected(f"a {cls.__name__}", value)

    return _Kind(lambda raw: decode(cls, raw), encode, accept_record)


def _sequence(item: _Kind) -> _Kind:
    def decode_items(raw: Any) -> list[Any]:
        if not isinstance(raw, list):
            raise _expected("an array", raw)
        return [item.decode(each) for each in raw]

    def accept_items(value: Any) -> list[Any]:
        # A str is a sequence of str, too; nobody who passes one means that.
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise _expected("a list", value)
        return [item.accept(each) for each in value]

    return _Kind(decode_items, lambda value: [item.encode(each) for each in value], accept_items)


def _mapping(item: _Kind) -> _Kind:
    def decode_items(raw: Any) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _expected("an object", raw)
        return {key: item.decode(each) for key, each in raw.items()}

    def accept_items(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _expected("a mapping", value)
        return {_str(key): item.accept(each) for key, each in value.items()}

    return _Kind(
        decode_items,
        lambda value: {key: item.encode(each) for key, each in value.items()},
        accept_items,
    )
