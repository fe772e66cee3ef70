"""
The JSON of the records that checkpoints and streams store.

Each field of a record names its key and its form, see `stored`. Unlike a reply of the server, see
`jetstream_sync.codec`, a stored record is refused unless it is complete: a missing position is not 0.

Everything here is pure, and any thread may call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")


class Form(NamedTuple):
    """How the values of a field are stored."""

    encode: Callable[[Any], Any]
    """Returns the JSON value of a value."""
    decode: Callable[[Any], Any]
    """Returns the value of a JSON value; raises `ValueError` or `TypeError` for any other."""


class _Place(NamedTuple):
    key: str
    form: Form
    required: bool


def stored(key: str, form: Form, default: Any = MISSING, *, required: bool = False) -> Any:
    """
    Declare a field of a frozen dataclass that is stored under a key.

    A field that has its default is left out, unless it is ``required``.
    """
    required = required or default is MISSING
    return field(default=default, metadata={"stored": _Place(key, form, required)})


def to_json(record: Any) -> dict[str, Any]:
    """Return the JSON object of a record, with its keys in order; equal records give equal texts."""
    values = {
        place.key: place.form.encode(value)
        for item in fields(record)
        if (place := item.metadata.get("stored")) is not None
        if (value := getattr(record, item.name)) != item.default or place.required
    }
    return dict(sorted(values.items()))


def from_json(cls: type[T], data: Any) -> T:
    """Return the record of a JSON object; raise `ValueError` if a value is missing or invalid."""
    if not isinstance(data, Mapping):
        raise ValueError(f"expected an object, got {data!r:.60}")  # noqa: TRY004 - of stored data, not of an argument
    values: dict[str, Any] = {}
    for item in fields(cls):  # type: ignore[arg-type]
        place = item.metadata.get("stored")
        if place is None:
            continue
        if place.key in data:
            try:
                values[item.name] = place.form.decode(data[place.key])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place.key}: {error}") from None
        elif place.required:
            raise ValueError(f"{place.key} is missing")
    return cls(**values)


def _exactly(kind: type[T]) -> Callable[[Any], T]:
    """Return a function that returns a value of a type, and refuses all others."""

    def check(value: Any) -> T:
        if type(value) is not kind:
            raise ValueError(f"expected {kind.__name__}, got {value!r:.60}")
        return value

    return check


def many(item: Form) -> Form:
    """Return the form of a tuple."""
    return Form(
        lambda values: [*map(item.encode, values)],
        lambda raw: tuple(map(item.decode, _exactly(list)(raw))),
    )


def by_name(cls: type[Any]) -> Form:
    """Return the form of a mapping from names to records."""
    return Form(
        lambda values: {name: to_json(values[name]) for name in sorted(values)},
        lambda raw: {name: from_json(cls, entry) for name, entry in _exactly(dict)(raw).items()},
    )


INTEGER: Final = Form(int, _exactly(int))
NUMBER: Final = Form(float, float)
TEXT: Final = Form(str, _exactly(str))
FLAG: Final = Form(bool, _exactly(bool))
#: A time, as text: not every JSON parser supports such large numbers.
NANOSECONDS: Final = Form(str, lambda raw: int(_exactly(str)(raw)))
