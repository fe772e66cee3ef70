"""
Values as JSON, and JSON as objects of annotations: the arguments of tasks, and the requests of typed services.

A value is sent as JSON, and converted to an object of its annotation where the function is called.
"""

from __future__ import annotations

import importlib
import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache, partial
from pathlib import Path, PurePath
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from . import codec

Convert = Callable[[Any], Any]

_LISTS: Final = (list, Sequence, Collection, Iterable)
_MAPPINGS: Final = (dict, Mapping, MutableMapping)
#: Around the types of fields. By name: those of ``typing_extensions`` are other objects.
_QUALIFIERS: Final = ("Required", "NotRequired", "ReadOnly", "Final")
#: Errors of values that do not fit; the same call would fail again.
MISFITS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NameError,
    RecursionError,
    TypeError,
    ValueError,
)


# --- objects to JSON ----------------------------------------------------------------------------


def to_json(value: object) -> bytes:
    """Return JSON; also of dataclasses, named tuples, enums, times, UUIDs, decimals, paths and pydantic models."""
    return codec.dumps(value, _as_json)


def _as_json(value: Any) -> Any:
    """Return what represents an object in JSON."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal, PurePath)):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return dump(value, mode="json")


def check_numbers(value: Any) -> None:
    """Raise `ValueError` for a number that would be null in JSON, as `to_json` writes it."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be a number in JSON")
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_numbers(item)
    elif isinstance(value, dict):
        for item in value.values():
            check_numbers(item)
    elif value is not None and not isinstance(value, (str, int)):
        check_numbers(_as_json(value))


# --- JSON to objects ----------------------------------------------------------------------------


def _misfit(annotation: Any, value: object) -> TypeError:
    name = getattr(annotation, "__name__", None) or str(annotation)
    return TypeError(f"must be {name}, not {type(value).__name__}")


def _expect(annotation: Any, value: object, ok: bool) -> None:
    """Raise `TypeError` unless a value fits."""
    if not ok:
        raise _misfit(annotation, value)


def _exactly(kind: type, value: Any) -> Any:
    _expect(kind, value, type(value) is kind)
    return value


def _float(value: Any) -> float:
    _expect(float, value, type(value) in {int, float})
    return float(value)


def _seconds(value: Any) -> timedelta:
    return timedelta(seconds=_float(value))


def _decimal(value: Any) -> Decimal:
    _expect(Decimal, value, type(value) in {int, str})
    try:
        return Decimal(value)
    except InvalidOperation as error:
        raise ValueError(f"{value!r} is no decimal number") from error


def _from_text(kind: type, parse: Callable[[str], Any], value: Any) -> Any:
    _expect(kind, value, isinstance(value, str))
    return parse(value)


def _datetime(text: str) -> datetime:
    # Python 3.10 does not know the Z of other languages.
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)


_CONVERTERS: Final[Mapping[Any, Convert]] = {
    **{kind: partial(_exactly, kind) for kind in (int, str, bool, dict)},
    None: partial(_exactly, type(None)),
    type(None): partial(_exactly, type(None)),
    float: _float,
    timedelta: _seconds,
    Decimal: _decimal,
    **{
        kind: partial(_from_text, kind, parse)
        for kind, parse in (
            (datetime, _datetime),
            (date, date.fromisoformat),
            (time, time.fromisoformat),
            (UUID, UUID),
            (Path, Path),
            (PurePath, PurePath),
        )
    },
}


def converter(annotation: Any) -> Convert | None:
    """Return a function from a JSON value to an object of an annotation; ``None``: any value is one."""
    if annotation in (Any, object) or isinstance(annotation, (str, TypeVar)):
        return None
    annotation, _ = _unwrapped(annotation)
    if _is_alias(annotation):
        return partial(_alias, annotation)
    if isinstance(annotation, type) or annotation is None:
        found = _CONVERTERS.get(annotation)
        if found is not None:
            return found
    kind = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if kind is Annotated:
        if any(
            type(item).__module__.startswith(("pydantic", "annotated_types"))
            for item in arguments[1:]
        ):
            return _pydantic(annotation)
        return converter(arguments[0])
    if kind is Literal:
        return partial(_literal, annotation, arguments)
    if kind in (Union, types.UnionType):
        return partial(_first_fitting, annotation, [(item, converter(item)) for item in arguments])
    if kind in _LISTS:
        return partial(_list, annotation, converter(arguments[0]) if arguments else None)
    if kind is tuple:
        return partial(_tuple, annotation, [*map(converter, arguments)], arguments[1:] == (...,))
    if kind in _MAPPINGS:
        return partial(_mapping, annotation, [*map(converter, arguments)] or [None, None])
    return _class_converter(kind)


def resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Return an annotation without the strings in it, such as ``Optional["Order"]``, if their names exist."""
    holder = types.SimpleNamespace(__annotations__={"value": annotation})
    with suppress(NameError, AttributeError, TypeError, SyntaxError):
        return _without_strings(
            get_type_hints(holder, names, names, include_extras=True)["value"], names
        )
    return annotation


def _without_strings(annotation: Any, names: dict[str, Any]) -> Any:
    """Return an annotation without the strings in it: Python 3.10 leaves the one of ``list["Order"]``."""
    origin = get_origin(annotation)
    if isinstance(annotation, types.GenericAlias):
        return origin[
            tuple(
                resolved(item, names) if isinstance(item, str) else _without_strings(item, names)
                for item in get_args(annotation)
            )
        ]
    if origin is Annotated:
        inner = _without_strings(get_args(annotation)[0], names)
        parts = (inner, *annotation.__metadata__)
        return Annotated[parts]

    if origin in (Union, types.UnionType):
        parts = tuple(_without_strings(item, names) for item in get_args(annotation))
        return Union[parts]  # noqa: UP007 - of parts that are known at run time
    return annotation


def _unwrapped(annotation: Any) -> tuple[Any, set[str]]:
    """Return the type in NewTypes and qualifiers such as ``Required``, and the names of the qualifiers."""
    names: set[str] = set()
    while not isinstance(annotation, type):
        name = getattr(get_origin(annotation), "_name", None)
        inner = getattr(annotation, "__supertype__", None)
        if name in _QUALIFIERS:
            names.add(name)
            inner = get_args(annotation)[0]
        if inner is None:
            break
        annotation = inner
    return annotation, names


def is_choice(annotation: Any) -> bool:
    """Return whether an annotation is a union of several types besides ``None``."""
    while True:
        annotation, _ = _unwrapped(annotation)
        kind = get_origin(annotation) or annotation
        if kind is Annotated:
            annotation = get_args(annotation)[0]
        elif _is_alias(kind):
            annotation = _value_of(kind)
        else:
            break
    others = [item for item in get_args(annotation) if item is not type(None)]
    return kind in (Union, types.UnionType) and len(others) > 1


def _is_alias(annotation: Any) -> bool:
    # By name: typing_extensions has another class. hasattr(__value__) would evaluate the type.
    return type(get_origin(annotation) or annotation).__name__ == "TypeAliasType"


def _names_around(kind: Any) -> dict[str, Any]:
    return getattr(sys.modules.get(kind.__module__), "__dict__", {})


def _value_of(alias: Any) -> Any:
    return resolved(alias.__value__, _names_around(alias))


@cache
def _alias_converter(alias: Any) -> Convert | None:
    return converter(_value_of(alias))


def _alias(alias: Any, value: Any) -> Any:
    """Convert a value to the type that a ``type`` statement names; later than the type, which may contain itself."""
    return _convert(_alias_converter(alias), value)


def _is_typed_dict(kind: Any) -> bool:
    # is_typeddict() of typing does not know the classes of typing_extensions.
    return hasattr(kind, "__required_keys__") and hasattr(kind, "__total__")


def _class_converter(kind: Any) -> Convert | None:
    if hasattr(kind, "__pydantic_validator__") or hasattr(kind, "__get_pydantic_core_schema__"):
        return _pydantic(kind)
    if _is_typed_dict(kind):
        return partial(_typed_dict, kind)
    if not isinstance(kind, type):
        return None
    if is_dataclass(kind):
        return partial(_dataclass, kind)
    if issubclass(kind, Enum):
        return partial(_enum, kind, {type(member.value) for member in kind})
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return partial(_named_tuple, kind)

    def instance(value: Any) -> Any:
        _expect(kind, value, isinstance(value, kind))
        return value

    return instance


def _pydantic(annotation: Any) -> Convert | None:
    try:
        adapter = importlib.import_module("pydantic").TypeAdapter(annotation)
    except ImportError:
        return None
    return lambda value: adapter.validate_json(to_json(value))


def _convert(convert: Convert | None, value: Any) -> Any:
    return value if convert is None else convert(value)


def _enum(kind: type[Enum], types_of_values: Collection[type], value: Any) -> Enum:
    # For an enum, True and 1.0 are the value 1.
    _expect(kind, value, type(value) in types_of_values)
    return kind(value)


def _literal(annotation: Any, choices: Sequence[Any], value: Any) -> Any:
    for choice in choices:
        plain = choice.value if isinstance(choice, Enum) else choice
        if type(plain) is type(value) and plain == value:
            return choice
    raise ValueError(f"must be one of {annotation}, not {value!r}")


def _first_fitting(
    annotation: Any, choices: Sequence[tuple[Any, Convert | None]], value: Any
) -> Any:
    # A choice that has the type of the value is better than one that would convert it.
    for _, convert in sorted(choices, key=lambda choice: type(value) is not choice[0]):
        with suppress(*MISFITS):
            return _convert(convert, value)
    raise _misfit(annotation, value)


def _list(annotation: Any, convert: Convert | None, value: Any) -> list[Any]:
    _expect(annotation, value, isinstance(value, list))
    return value if convert is None else [convert(item) for item in value]


def _tuple(
    annotation: Any, converters: Sequence[Convert | None], repeats: bool, value: Any
) -> tuple[Any, ...]:
    _expect(annotation, value, isinstance(value, list))
    if repeats or not converters:
        return tuple(_list(annotation, converters[0] if converters else None, value))
    if len(value) != len(converters):
        raise ValueError(f"must have {len(converters)} items, not {len(value)}")
    return tuple(map(_convert, converters, value))


def _mapping(annotation: Any, converters: Sequence[Convert | None], value: Any) -> dict[Any, Any]:
    _expect(annotation, value, isinstance(value, dict))
    keys, values = converters
    return {_convert(keys, key): _convert(values, item) for key, item in value.items()}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    names = _names_around(kind)
    try:
        hints = get_type_hints(kind, include_extras=True)
        return {name: _without_strings(hint, names) for name, hint in hints.items()}
    except NameError as error:
        raise TypeError(f"{kind.__name__}: a type does not exist at run time: {error}") from error


@cache
def _parts(kind: Any) -> dict[str, Convert | None]:
    """Return the converters of the fields of a class; later than the class, which may contain itself."""
    return {name: converter(hint) for name, hint in _hints(kind).items()}


@cache
def _required_keys(kind: Any) -> set[str]:
    """Return the required keys; those of the class are wrong where annotations are strings."""
    required = set(kind.__required_keys__)
    for name, hint in _hints(kind).items():
        annotated = get_origin(hint) is Annotated
        _, qualifiers = _unwrapped(get_args(hint)[0] if annotated else hint)
        if "NotRequired" in qualifiers:
            required.discard(name)
        elif "Required" in qualifiers:
            required.add(name)
    return required


def _typed_dict(kind: Any, value: Any) -> dict[str, Any]:
    _expect(kind, value, isinstance(value, dict))
    parts = _parts(kind)
    wrong = (_required_keys(kind) - value.keys()) | (value.keys() - parts.keys())
    if wrong:
        raise ValueError(f"{kind.__name__}: missing or unknown keys: {', '.join(sorted(wrong))}")
    return {name: _convert(parts[name], item) for name, item in value.items()}


def _dataclass(kind: Any, value: Any) -> Any:
    _expect(kind, value, isinstance(value, dict))
    parts = _parts(kind)
    derived = {item.name for item in fields(kind) if not item.init}
    given = {name: item for name, item in value.items() if name not in derived}
    return kind(**{name: _convert(parts.get(name), item) for name, item in given.items()})


def _named_tuple(kind: Any, value: Any) -> Any:
    _expect(kind, value, isinstance(value, list) and len(value) <= len(kind._fields))
    parts = _parts(kind)
    return kind(
        *[_convert(parts.get(name), item) for name, item in zip(kind._fields, value, strict=False)]
    )


def parsed(annotation: Any, value: object) -> Any:
    """Return a JSON value as an object of an annotation; raise `ValueError` if it does not fit."""
    try:
        return _convert(converter(annotation), value)
    except MISFITS as error:
        raise ValueError(str(error)) from error
