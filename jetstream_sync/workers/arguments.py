"""
Arguments of tasks: their JSON, and the objects of their annotations.

A value is sent as JSON, and converted to an object of its annotation where the function is called. What would
not arrive as it was sent is refused when it is sent.
"""

from __future__ import annotations

import importlib
import inspect
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
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from .. import codec, errors
from .checks import implementation
from .context import is_context
from .errors import Reject, TaskArgumentsError, misfit

if TYPE_CHECKING:
    from .context import Context

_Convert = Callable[[Any], Any]

#: Types that arrive as they were sent.
_JSON_TYPES: Final = (int, float, str, bool, type(None))
#: The type of no value.
_NEVER: Final = object()
#: Integers below that are exact in every JSON.
_MAX_INT: Final = 2**53
#: Types of what JSON has, and tuples, which arrive as lists.
_FORMS: Final = (*_JSON_TYPES, list, tuple, dict)
_LISTS: Final = (list, Sequence, Collection, Iterable)
_MAPPINGS: Final = (dict, Mapping, MutableMapping)
#: Types whose equal values may be unequal: a time in an hour that comes twice, and NaN.
_COMPARED_AS_JSON: Final = (datetime, time, Decimal)
#: Around the types of fields. By name: those of ``typing_extensions`` are other objects.
_QUALIFIERS: Final = ("Required", "NotRequired", "ReadOnly", "Final")
#: Errors of values that do not fit; the same call would fail again.
_MISFITS: Final = (
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


_CONVERTERS: Final[Mapping[Any, _Convert]] = {
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


def _converter(annotation: Any) -> _Convert | None:
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
        return _converter(arguments[0])
    if kind is Literal:
        return partial(_literal, annotation, arguments)
    if kind in (Union, types.UnionType):
        return partial(_first_fitting, annotation, [(item, _converter(item)) for item in arguments])
    if kind in _LISTS:
        return partial(_list, annotation, _converter(arguments[0]) if arguments else None)
    if kind is tuple:
        return partial(_tuple, annotation, [*map(_converter, arguments)], arguments[1:] == (...,))
    if kind in _MAPPINGS:
        return partial(_mapping, annotation, [*map(_converter, arguments)] or [None, None])
    return _class_converter(kind)


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
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
                _resolved(item, names) if isinstance(item, str) else _without_strings(item, names)
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


def _is_choice(annotation: Any) -> bool:
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
    return _resolved(alias.__value__, _names_around(alias))


@cache
def _alias_converter(alias: Any) -> _Convert | None:
    return _converter(_value_of(alias))


def _alias(alias: Any, value: Any) -> Any:
    """Convert a value to the type that a ``type`` statement names; later than the type, which may contain itself."""
    return _convert(_alias_converter(alias), value)


def _is_typed_dict(kind: Any) -> bool:
    # is_typeddict() of typing does not know the classes of typing_extensions.
    return hasattr(kind, "__required_keys__") and hasattr(kind, "__total__")


def _class_converter(kind: Any) -> _Convert | None:
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


def _pydantic(annotation: Any) -> _Convert | None:
    try:
        adapter = importlib.import_module("pydantic").TypeAdapter(annotation)
    except ImportError:
        return None
    return lambda value: adapter.validate_json(to_json(value))


def _convert(convert: _Convert | None, value: Any) -> Any:
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
    annotation: Any, choices: Sequence[tuple[Any, _Convert | None]], value: Any
) -> Any:
    # A choice that has the type of the value is better than one that would convert it.
    for _, convert in sorted(choices, key=lambda choice: type(value) is not choice[0]):
        with suppress(*_MISFITS):
            return _convert(convert, value)
    raise _misfit(annotation, value)


def _list(annotation: Any, convert: _Convert | None, value: Any) -> list[Any]:
    _expect(annotation, value, isinstance(value, list))
    return value if convert is None else [convert(item) for item in value]


def _tuple(
    annotation: Any, converters: Sequence[_Convert | None], repeats: bool, value: Any
) -> tuple[Any, ...]:
    _expect(annotation, value, isinstance(value, list))
    if repeats or not converters:
        return tuple(_list(annotation, converters[0] if converters else None, value))
    if len(value) != len(converters):
        raise ValueError(f"must have {len(converters)} items, not {len(value)}")
    return tuple(map(_convert, converters, value))


def _mapping(annotation: Any, converters: Sequence[_Convert | None], value: Any) -> dict[Any, Any]:
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
def _parts(kind: Any) -> dict[str, _Convert | None]:
    """Return the converters of the fields of a class; later than the class, which may contain itself."""
    return {name: _converter(hint) for name, hint in _hints(kind).items()}


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


# --- the arguments of a function ----------------------------------------------------------------


def parsed(annotation: Any, value: object) -> Any:
    """Return a JSON value as an object of an annotation; raise `ValueError` if it does not fit."""
    try:
        return _convert(_converter(annotation), value)
    except _MISFITS as error:
        raise ValueError(str(error)) from error


def payload_converter(function: Callable[..., object], *, of_items: bool) -> _Convert | None:
    """
    Return what converts the JSON value of a payload for the first parameter of a handler; ``None``: nothing does.

    ``of_items``: the parameter is a list of such values.
    """
    try:
        parameters = [*inspect.signature(function, eval_str=True).parameters.values()]
    except (NameError, TypeError, ValueError):  # as in `Arguments`
        return None
    annotation = parameters[0].annotation if parameters else inspect.Parameter.empty
    if annotation is inspect.Parameter.empty or is_context(annotation):
        return None
    inner = inspect.unwrap(cast("Callable[..., object]", implementation(function)))
    annotation = _resolved(annotation, getattr(inner, "__globals__", {}))
    if of_items:
        annotation = next(iter(get_args(annotation)), Any)
    return _converter(annotation)


class Arguments:
    """The parameters of a task; one annotated with `Context` is not sent."""

    def __init__(self, function: Callable[..., object]) -> None:
        try:
            self._signature = inspect.signature(function, eval_str=True)
        except NameError:  # the annotations do not exist at run time, and are not checked
            self._signature = inspect.signature(function)
        except ValueError as error:  # a function written in C that does not describe its parameters
            raise errors.InvalidOptionError(
                "function", function, "must have a signature"
            ) from error
        parameters = self._signature.parameters.values()
        self.context: list[str] = [
            parameter.name for parameter in parameters if is_context(parameter.annotation)
        ]
        self._sent = self._signature.replace(
            parameters=[parameter for parameter in parameters if parameter.name not in self.context]
        )
        inner = inspect.unwrap(cast("Callable[..., object]", implementation(function)))
        names = getattr(inner, "__globals__", {})
        annotations = {
            parameter.name: _resolved(parameter.annotation, names)
            for parameter in self._sent.parameters.values()
            if parameter.annotation is not parameter.empty
        }
        # The parameters whose values are converted.
        self._converters: dict[str, _Convert] = {}
        for name, annotation in annotations.items():
            convert = _converter(annotation)
            if convert is not None:
                self._converters[name] = convert
        self._annotations = annotations
        parameters = self._sent.parameters.values()
        # The types that values have if they need no conversion; ``None``: any.
        self._types: list[Any] = []
        # The positions of those that may be given by name.
        self._keywords: dict[str, int] = {}
        for parameter in parameters:
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                self._keywords[parameter.name] = len(self._types)
            elif parameter.kind is not parameter.POSITIONAL_ONLY:
                continue
            kind = annotations.get(parameter.name)
            converts = parameter.name in self._converters
            self._types.append((kind if kind in _JSON_TYPES else _NEVER) if converts else None)
        self._required = {item.name for item in parameters if item.default is item.empty}
        #: Whether every call may be passed on without a look at its signature.
        self.is_simple: bool = not self.context and len(self._types) == len(parameters)

    def are_plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether values can be passed as they are; if some are missing, the call itself fails."""
        types, keywords, count = self._types, self._keywords, len(args)
        if count > len(types):
            return False
        for value, kind in zip(args, types, strict=False):
            if kind is not None and type(value) is not kind:
                return False
        for name, value in kwargs.items():
            index = keywords.get(name, -1)
            if index < count or (types[index] is not None and type(value) is not types[index]):
                return False
        return True

    def check(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as JSON has them, with which a worker can call the function."""
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
            rule = "'args' must be a list or tuple, and 'kwargs' a mapping"
            raise TaskArgumentsError(f"task {task}: {rule}")
        if self._is_kept(args, kwargs):
            return {"args": list(args), "kwargs": dict(kwargs)}
        try:
            sent = {"args": args, "kwargs": kwargs}
            data = to_json(sent)
            if b"null" in data:
                check_numbers(sent)
            received: dict[str, Any] = codec.loads(data)
        except _MISFITS as error:
            raise TaskArgumentsError(f"task {task}: the arguments are not JSON: {error}") from error
        bound = self.bind(task, received["args"], received["kwargs"]).arguments
        for name, value in self._sent.bind(*args, **kwargs).arguments.items():
            if not self._arrives(name, bound[name], value):
                kind = type(value).__name__
                rule = (
                    "arrives as another value"
                    if name in self._converters
                    else "needs an annotation to arrive as it is"
                )
                raise TaskArgumentsError(f"task {task}, argument {name!r}: {kind} {rule}")
        return received

    def _arrives(self, name: str, received: Any, given: Any) -> bool:
        try:
            # The caller may pass what JSON has for an object: "2026-01-01" for a date. Several types of a
            # union may have this form.
            if (
                name in self._converters
                and type(given) in _FORMS
                and type(received) not in _FORMS
                and not _is_choice(self._annotations[name])
            ):
                return _keeps_objects(received, given)
            # A member of an enum of strings is a string, and may be passed where one is asked for.
            if isinstance(given, Enum) and self._annotations[name] is type(received) in (str, int):
                return bool(received == given)
            return _is_same(received, given)
        except _MISFITS:  # they cannot be compared
            return False

    def _is_kept(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call fits, and its values need no conversion: the usual case, which costs little."""
        return (
            self.is_simple
            and self.are_plain(args, kwargs)
            and all(map(_is_plain, args))
            and all(map(_is_plain, kwargs.values()))
            and self._required <= {*list(self._sent.parameters)[: len(args)], *kwargs}
        )

    def bind(
        self,
        task: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        context: Context | None = None,
    ) -> inspect.BoundArguments:
        """Return the arguments of a call; raises `TaskArgumentsError` if they do not fit."""
        where = f"task {task}"
        try:
            found = self._sent.bind(*args, **kwargs).arguments
            for name in found.keys() & self._converters.keys():
                where = f"task {task}, argument {name!r}"
                found[name] = self._converted(name, found[name])
        except _MISFITS as error:
            raise TaskArgumentsError(f"{where}: {error}") from error
        for name in self.context:
            found[name] = context
        ordered = {name: found[name] for name in self._signature.parameters if name in found}
        return inspect.BoundArguments(self._signature, cast("Any", ordered))

    @property
    def names(self) -> list[str]:
        """The names of the parameters that are sent."""
        return list(self._sent.parameters)

    def named(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, as JSON, with defaults; raises `Reject` if they do not fit."""
        try:
            bound = self._sent.bind(*args, **kwargs)
        except TypeError as error:
            raise misfit(Reject(f"the message is no call of the task {task}: {error}")) from error
        bound.apply_defaults()
        return dict(bound.arguments)

    def _converted(self, name: str, value: Any) -> Any:
        convert = self._converters[name]
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(map(convert, value))
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: convert(item) for key, item in value.items()}
        return convert(value)


def _is_plain(value: object) -> bool:
    """Return whether JSON keeps a value for certain, without a look at its elements."""
    if isinstance(value, str):
        return type(value) is str and value.isascii()
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    if value is None or isinstance(value, bool):
        return True
    return type(value) is int and -_MAX_INT < value < _MAX_INT


def _keeps_objects(received: Any, given: Any) -> bool:
    """Return whether objects inside of the JSON form of an object have arrived as they were sent."""
    if type(given) is dict:
        if isinstance(received, Mapping):
            pairs = [(received.get(name, value), value) for name, value in given.items()]
        else:
            pairs = [(getattr(received, name, value), value) for name, value in given.items()]
    elif type(given) in {list, tuple} and isinstance(received, (list, tuple)):
        pairs = list(zip(received, given, strict=False))
    else:
        return type(given) in _FORMS or _is_same(received, given)
    return all(_keeps_objects(*pair) for pair in pairs)


def _is_same(received: Any, given: Any) -> bool:
    """Return whether a value has arrived as it was sent; a tuple may arrive as a list."""
    if isinstance(given, (list, tuple)) and isinstance(received, (list, tuple)):
        pairs = zip(received, given, strict=False)
        return len(received) == len(given) and all(_is_same(*pair) for pair in pairs)
    if isinstance(given, Mapping) and isinstance(received, Mapping):
        return received.keys() == given.keys() and all(
            _is_same(received[key], value) for key, value in given.items()
        )
    if isinstance(given, _COMPARED_AS_JSON) and isinstance(received, _COMPARED_AS_JSON):
        return to_json(received) == to_json(given) or bool(received == given)
    if type(received) is not type(given):
        return bool(received == given) and not isinstance(given, Enum)
    if is_dataclass(given):
        names = [item.name for item in fields(given)]
    elif hasattr(given, "model_dump"):
        # Its == ignores what is inside of a field: that an enum has become a string.
        names = [*getattr(type(given), "model_fields", vars(given)), "__pydantic_extra__"]
    else:
        return bool(received == given)
    return all(
        _is_same(getattr(received, name, None), getattr(given, name, None)) for name in names
    )
