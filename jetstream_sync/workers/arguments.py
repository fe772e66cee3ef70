"""
Arguments and return values of tasks: their JSON, and the objects of their annotations.

A value is sent as JSON, and converted to an object of its annotation where the function is called. What would
not arrive as it was sent is refused when it is sent.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, cast, get_args, get_origin

from .. import codec, errors
from ..converters import MISFITS, Convert, check_numbers, converter, is_choice, resolved, to_json
from ..options import signature_of
from .checks import implementation
from .context import is_context
from .errors import Reject, ReturnValueError, TaskArgumentsError, misfit

if TYPE_CHECKING:
    from .context import Context

#: Types that arrive as they were sent.
_JSON_TYPES: Final = (int, float, str, bool, type(None))
#: The type of no value.
_NEVER: Final = object()
#: Integers below that are exact in every JSON.
_MAX_INT: Final = 2**53
#: Types of what JSON has, and tuples, which arrive as lists.
_FORMS: Final = (*_JSON_TYPES, list, tuple, dict)
#: Types whose equal values may be unequal: a time in an hour that comes twice, and NaN.
_COMPARED_AS_JSON: Final = (datetime, time, Decimal)


# --- the arguments of a function ----------------------------------------------------------------


def payload_type(function: Callable[..., object], *, of_items: bool) -> Any:
    """
    Return the annotation of the first parameter of a handler, or of the items of a list; ``Any``: it has none.

    ``of_items``: the parameter is a list of payloads.
    """
    try:
        parameters = [*signature_of(function).parameters.values()]
    except (TypeError, ValueError):  # as in `Arguments`
        return Any
    annotation = parameters[0].annotation if parameters else inspect.Parameter.empty
    if annotation is inspect.Parameter.empty or is_context(annotation):
        return Any
    annotation = resolved(annotation, getattr(_inner(function), "__globals__", {}))
    return next(iter(get_args(annotation)), Any) if of_items else annotation


def _inner(function: Callable[..., object]) -> Callable[..., Any]:
    """Return what has the code of a function, inside of partials and decorators."""
    found: Callable[..., Any] = inspect.unwrap(cast("Any", implementation(function)))
    return found


def may_be(annotation: Any, kind: type) -> bool:
    """Return whether a parameter with an annotation may get objects of a type; in doubt, it may."""
    origin = get_origin(annotation)
    if origin in {Union, UnionType}:
        return any(may_be(item, kind) for item in get_args(annotation))
    if origin is Annotated:
        return may_be(get_args(annotation)[0], kind)
    plain = annotation if origin is None else origin
    try:
        return not isinstance(plain, type) or plain is Any or issubclass(kind, plain)
    except TypeError:  # a protocol, for example
        return True


def converted(function: Callable[..., object], value: Any) -> Any:
    """Return a value from JSON as an object of the return annotation of a function, if it fits."""
    inner = _inner(function)
    with suppress(*MISFITS):
        annotation = signature_of(inner).return_annotation
        if annotation is not inspect.Parameter.empty:
            convert = converter(resolved(annotation, getattr(inner, "__globals__", {})))
            return value if convert is None else convert(value)
    return value


def encoded_value(value: object, limit: int) -> bytes:
    """Return a return value as JSON of at most ``limit`` bytes; raise `ReturnValueError`."""
    try:
        data = to_json(value)
        if b"null" in data:
            check_numbers(value)
    except Exception as error:
        raise ReturnValueError(f"the return value cannot be stored as JSON: {error}") from error
    if len(data) > limit:
        text = f"the return value cannot be stored: it has {len(data)} bytes of JSON, at most {limit} fit"
        raise ReturnValueError(text)
    return data


class Arguments:
    """The parameters of a task; one annotated with `Context` is not sent."""

    def __init__(self, function: Callable[..., object]) -> None:
        try:
            self._signature = signature_of(function)
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
        names = getattr(_inner(function), "__globals__", {})
        annotations = {
            parameter.name: resolved(parameter.annotation, names)
            for parameter in self._sent.parameters.values()
            if parameter.annotation is not parameter.empty
        }
        # The parameters whose values are converted.
        self._converters: dict[str, Convert] = {}
        for name, annotation in annotations.items():
            convert = converter(annotation)
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

    def check(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, follows: bool = False
    ) -> dict[str, Any]:
        """
        Return the arguments as JSON has them, with which a worker can call the function.

        ``follows``: those after the first one, which is the value of another call.
        """
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
            rule = "'args' must be a list or tuple, and 'kwargs' a mapping"
            raise TaskArgumentsError(f"task {task}: {rule}")
        if not follows and self._is_kept(args, kwargs):
            return {"args": list(args), "kwargs": dict(kwargs)}
        try:
            sent = {"args": args, "kwargs": kwargs}
            data = to_json(sent)
            if b"null" in data:
                check_numbers(sent)
            received: dict[str, Any] = codec.loads(data)
        except MISFITS as error:
            raise TaskArgumentsError(f"task {task}: the arguments are not JSON: {error}") from error
        first = (None,) if follows else ()
        values = [*first, *received["args"]]
        bound = self.bind(task, values, received["kwargs"], follows=follows).arguments
        given = self._sent.bind(*first, *args, **kwargs).arguments
        for name, value in [*given.items()][len(first) :]:
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
                and not is_choice(self._annotations[name])
            ):
                return _keeps_objects(received, given)
            # A member of an enum of strings is a string, and may be passed where one is asked for.
            if isinstance(given, Enum) and self._annotations[name] is type(received) in (str, int):
                return bool(received == given)
            return _is_same(received, given)
        except MISFITS:  # they cannot be compared
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
        *,
        follows: bool = False,
    ) -> inspect.BoundArguments:
        """Return the arguments of a call; raises `TaskArgumentsError` if they do not fit. ``follows``: as `check`."""
        where = f"task {task}"
        try:
            found = self._sent.bind(*args, **kwargs).arguments
            names = found.keys() & self._converters.keys()
            for name in names.difference([*found][:1]) if follows else names:
                where = f"task {task}, argument {name!r}"
                found[name] = self._converted(name, found[name])
        except MISFITS as error:
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

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that differ from their defaults by name, as JSON; raises `TypeError` if they do not fit."""
        found = self._sent.bind(*args, **kwargs).arguments
        return {name: value for name, value in found.items() if not self._is_default(name, value)}

    def _is_default(self, name: str, value: Any) -> bool:
        default = self._sent.parameters[name].default
        with suppress(errors.InvalidArgumentError):  # a default that is not JSON, or none
            return ordered_json(value) == ordered_json(default)
        return False

    def _converted(self, name: str, value: Any) -> Any:
        convert = self._converters[name]
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(map(convert, value))
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: convert(item) for key, item in value.items()}
        return convert(value)


def ordered_json(value: object) -> bytes:
    """Return JSON that is the same for mappings with the same items in another order."""
    return to_json(_ordered(codec.loads(to_json(value))))


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [*map(_ordered, value)] if isinstance(value, list) else value


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
