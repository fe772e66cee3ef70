"""
The fields of an order: each is read from a JSON object with its checks. No I/O.

A field that is missing or out of range raises an `OrderError` that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ... import codec
from ...errors import InvalidResponseError

__all__ = ["OrderError", "code", "integer", "kind", "load_object", "order_id", "price", "text"]

#: Digits after the decimal point, where they are not two.
_EXPONENTS: Final[Mapping[str, int]] = {"JPY": 0, "KRW": 0, "KWD": 3}
_MAX_PRICE: Final = Decimal(100_000_000)
_MAX_ID_LENGTH: Final = 128
#: How much of a wrong value an error repeats, in characters.
_SHOWN: Final = 40
_CODES: Final = {"currency": re.compile(r"[A-Z]{3}"), "country": re.compile(r"[A-Z]{2}")}
_KINDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "nothing",
}


class OrderError(ValueError):
    """An order, or a later message about one, is not well formed; the text says why."""


def load_object(payload: bytes) -> dict[str, Any]:
    """
    Read a JSON object.

    Raises:
        OrderError: it is not JSON, or not an object.

    """
    try:
        value = codec.loads(payload)
    except InvalidResponseError as error:
        raise OrderError(str(error)) from error
    if not isinstance(value, dict):
        raise OrderError(f"not a JSON object but {kind(value)}")
    return value


def order_id(record: Mapping[str, Any]) -> str:
    """
    Return the field ``id``; an integer becomes its text.

    Raises:
        OrderError: it can not be a message id.

    """
    value = record.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise OrderError("id: text or an integer is needed")
    # The id becomes a header of the message: outer white space would be lost there.
    if len(value) > _MAX_ID_LENGTH or value != value.strip() or not value.isprintable():
        raise OrderError(
            f"id: {value[:_SHOWN]!r} is longer than {_MAX_ID_LENGTH} characters, "
            "has outer white space or control characters"
        )
    return value


def text(record: Mapping[str, Any], name: str) -> str:
    """
    Return a field that is text.

    Raises:
        OrderError: it is empty, or not text.

    """
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise OrderError(f"{name}: text is needed, not {kind(value)}")
    return value


def code(record: Mapping[str, Any], name: str) -> str:
    """
    Return the field ``currency``, of three capital letters, or ``country``, of two.

    Raises:
        OrderError: it is not.

    """
    value = record.get(name)
    if not isinstance(value, str) or not _CODES[name].fullmatch(value):
        raise OrderError(f"{name}: a code of capital letters is needed, not {kind(value)}")
    return value


def integer(record: Mapping[str, Any], name: str, low: int, high: int | None) -> int:
    """
    Return a field that is an integer from ``low`` to ``high``, ``None`` being no limit.

    Raises:
        OrderError: it is not.

    """
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise OrderError(f"{name}: an integer is needed, not {kind(value)}")
    if value < low or (high is not None and value > high):
        raise OrderError(f"{name}: {value} is out of range")
    return value


def price(record: Mapping[str, Any], currency: str) -> int:
    """
    Return the field ``price``, a number or decimal text, in minor units of the currency.

    Raises:
        OrderError: it is not a number, out of range, or finer than a minor unit.

    """
    value = record.get("price")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise OrderError(f"price: a number or decimal text is needed, not {kind(value)}")
    # str() of a float is its shortest form, so 19.9 is 19.90 and not 19.89999...
    shown = str(value)
    try:
        exact = Decimal(shown)
    except InvalidOperation:
        raise OrderError(f"price: {shown[:_SHOWN]!r} is not a number") from None
    # The limit keeps 1e999999 from becoming an integer of a million digits.
    if not exact.is_finite() or not 0 <= exact <= _MAX_PRICE:
        raise OrderError(f"price: {shown[:_SHOWN]} is not between 0 and {_MAX_PRICE}")
    exponent = _EXPONENTS.get(currency, 2)
    minor = int(exact.scaleb(exponent))
    if Decimal(minor).scaleb(-exponent) != exact:
        raise OrderError(f"price: {shown[:_SHOWN]} has more decimal places than {currency}")
    return minor


def kind(value: object) -> str:
    """Say what a value that came from JSON is."""
    return _KINDS[type(value)]
