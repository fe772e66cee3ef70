"""The exact built-in values of a caller's str, bytes, int and float."""

# A member of an enum that is also a str, or an object of another subclass, passes each check by its value, but may be
# formatted as another text. Each check of an argument that is sent therefore returns the exact value.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

_V = TypeVar("_V")


def exact(value: _V) -> _V:
    """Return the value of a subclass of str, bytes, int or float as an object of that type; others as they are."""
    kind: Any = type(value)
    if kind is str or kind is bytes or kind is int or kind is bool:
        return value
    plain: Any = value
    if isinstance(value, str):
        plain = str.__str__(value)
    elif isinstance(value, int):
        plain = int.__int__(value)
    elif isinstance(value, float):
        plain = float.__float__(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        # The constructor of bytes would call a method of the subclass.
        plain = memoryview(value).tobytes()
    return plain  # type: ignore[no-any-return]


def take_values(options: Any) -> None:
    """Replace the values of a dataclass by their exact ones, also those in a list or tuple."""
    for name in options.__dataclass_fields__:
        value = getattr(options, name)
        several = type(value) in (list, tuple)
        object.__setattr__(
            options, name, type(value)(map(exact, value)) if several else exact(value)
        )


class MaskedStr(str):
    """A text that may be a secret: its ``repr`` is masked, where debuggers and reporters of errors show locals."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def masked(value: _V) -> _V:
    """Return an argument of a connection with its texts masked, also those in a mapping, list or tuple."""
    given: Any = value
    if isinstance(given, str):
        given = MaskedStr(exact(given))
    elif isinstance(given, (bytes, bytearray)):
        given = b"***"  # valid in no option, so only its type matters
    elif isinstance(given, Mapping):
        given = {key: masked(item) for key, item in given.items()}
    elif type(given) in (list, tuple):
        given = type(given)(map(masked, given))
    return given  # type: ignore[no-any-return]
