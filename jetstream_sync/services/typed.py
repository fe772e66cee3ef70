"""
Typed endpoints: functions of a value, whose requests and replies are JSON.

A function is typed if its only parameter is annotated with the type of a value, or if it has no parameter. A handler
of requests has one that is annotated with `ServiceRequest`, or without an annotation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from .. import errors
from ..codec import loads, text_of
from ..converters import MISFITS, check_numbers, converter, resolved, to_json
from ..options import check_returned, signature_of

if TYPE_CHECKING:
    from .endpoint import RequestHandler, ServiceRequest

T = TypeVar("T")

#: Names of the annotations of handlers of requests, which may exist for type checkers only.
_REQUESTS: Final = ("ServiceRequest", "Msg", "Any", "object")
#: Longest text of an error.
_MAX_TEXT: Final = 300


def typed_handler(function: Callable[..., Any]) -> RequestHandler | None:
    """
    Return a handler of requests that calls a typed function; ``None``: it is no typed function.

    Raises:
        InvalidOptionError: its annotation does not exist at run time.

    """
    try:
        parameters = [*signature_of(function).parameters.values()]
    except (TypeError, ValueError):
        return None  # a built-in function that does not describe its parameters
    required = [item for item in parameters if item.default is item.empty]
    if any(
        item.kind not in {item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD} for item in required
    ):
        return None
    if not parameters:
        return _handler(lambda _: function())
    annotation = parameters[0].annotation
    if len(required) > 1 or annotation is inspect.Parameter.empty:
        return None
    inner = inspect.unwrap(function)
    names = getattr(getattr(inner, "__func__", inner), "__globals__", None)
    annotation = resolved(annotation, names or getattr(type(inner).__call__, "__globals__", {}))
    if isinstance(annotation, str) and annotation.rpartition(".")[2] not in _REQUESTS:
        rule = (
            f"has a parameter of the type {annotation!r}, which must exist at the top of its module"
        )
        raise errors.InvalidOptionError("handler", function, rule)
    is_request = hasattr(annotation, "respond")  # also of a protocol of the user
    if is_request or isinstance(annotation, (str, TypeVar)) or annotation in (Any, object):
        return None
    return _handler(lambda data: function(_value(annotation, data, "the request")))


def _handler(call: Callable[[bytes], Any]) -> RequestHandler:
    def handle(request: ServiceRequest) -> None:
        try:
            returned = call(request.data)
        except _MisfitError as error:
            raise errors.ServiceError(400, str(error)) from error
        check_returned(returned, done=True)
        request.respond(_payload(returned))

    return handle


class _MisfitError(Exception):
    """A payload is no value of a type."""


def _value(annotation: Any, data: bytes, what: str) -> Any:
    """Return the value of a payload; raise `_MisfitError`."""
    if annotation is bytes:
        return data
    try:
        convert = converter(annotation)
        value = loads(data)
        return value if convert is None else convert(value)
    except (*MISFITS, errors.InvalidResponseError) as error:
        text = " ".join(text_of(error).split())[:_MAX_TEXT]
        raise _MisfitError(f"{what} does not fit: {text}") from error


def _payload(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    check_numbers(value)
    return to_json(value)


def payload_of(value: object) -> bytes:
    """Return the payload of a request with a value; raise `InvalidOptionError`."""
    try:
        return _payload(value)
    except (*MISFITS, errors.InvalidArgumentError) as error:
        raise errors.InvalidOptionError("value", value, f"is not JSON: {text_of(error)}") from error


def value_of(data: bytes, returns: type[T]) -> T:
    """Return the value of a reply; raise `InvalidResponseError`."""
    try:
        return cast("T", _value(returns, data, "the reply"))
    except _MisfitError as error:
        raise errors.InvalidResponseError(str(error)) from error
