"""
The business of the demo: what an order is, what it costs, how it is sent. No I/O, no clock.

An order is a JSON object. Only the fields named in `Order` are looked at; the rest is carried in
the message and ignored. Every function here gives the same answer for the same input, so a
message that is delivered twice leads to the same next message twice, and the stream's
de-duplication can drop the second one.

Amounts are integers in the currency's minor unit (cents; yen have none), from the price tag to the
total: there is no rounding but the one of tax and discount.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ... import codec
from . import fields
from .fields import OrderError

__all__ = ["Line", "Order", "OrderError", "complete", "fingerprint", "parse", "process", "total"]

#: Tax on goods, in percent, by the country that they go to; 0 where it is not listed.
_TAX_PERCENT: Final[Mapping[str, int]] = {
    "AT": 20, "BE": 21, "BR": 17, "CH": 8, "DE": 19, "ES": 21, "FR": 20, "GB": 20, "IE": 23,
    "IN": 18, "IT": 22, "JP": 10, "KR": 10, "NL": 21, "NO": 25, "PL": 23, "PT": 23, "SE": 25,
}  # fmt: skip
#: Who carries a parcel, by country; everybody else's goes by air.
_CARRIERS: Final[Mapping[str, str]] = {
    "AT": "road", "BE": "road", "CH": "road", "DE": "road", "ES": "rail", "FR": "rail",
    "IT": "rail", "NL": "road", "PL": "road", "PT": "rail",
}  # fmt: skip
_DISCOUNT_FROM_QUANTITY: Final = 10
_DISCOUNT_PERCENT: Final = 5
_UNITS_PER_PARCEL: Final = 20
# With the highest price they keep every amount below 2**63, on which JSON libraries agree.
_MAX_QUANTITY: Final = 10_000
_MAX_ITEMS: Final = 1_000
# Weights of the check digit in a postal item's number (UPU standard S10).
_S10_WEIGHTS: Final = (8, 6, 4, 2, 3, 5, 9, 7)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One position of an order; the price is for one unit, in minor units."""

    sku: str
    quantity: int
    price_minor: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the demo needs to know of an order."""

    id: str
    customer: str
    currency: str
    country: str
    lines: tuple[Line, ...]


def parse(payload: bytes) -> Order:
    """
    Read and check an order.

    Args:
        payload: a JSON object with ``id``, ``customer``, ``currency``, ``country`` and ``items``,
            a list of objects with ``sku``, ``quantity`` and ``price`` (a number or decimal text).

    Raises:
        OrderError: it is no JSON object, or a field is missing or out of range.

    """
    record = fields.load_object(payload)
    currency = fields.code(record, "currency")
    items = record.get("items")
    if not isinstance(items, list) or not 1 <= len(items) <= _MAX_ITEMS:
        raise OrderError(f"items: a list of 1 to {_MAX_ITEMS} items is needed")
    return Order(
        id=fields.order_id(record),
        customer=fields.text(record, "customer"),
        currency=currency,
        country=fields.code(record, "country"),
        lines=tuple(_line(item, currency, number) for number, item in enumerate(items, start=1)),
    )


def total(order: Order) -> int:
    """Return what the customer pays for an order: goods less discount, plus tax."""
    net = _goods(order) - _discount(order)
    return net + _tax(order, net)


def process(payload: bytes, worker: str) -> tuple[str, bytes]:
    """
    Do the work of the NEW step: check an order and work out what it costs.

    Args:
        payload: the order as it was received.
        worker: who does it; noted in the result.

    Returns:
        The order's id, and the message for the DISPATCH step.

    Raises:
        OrderError: the order is not well formed.

    """
    order = parse(payload)
    goods, discount = _goods(order), _discount(order)
    tax = _tax(order, goods - discount)
    return order.id, codec.dumps(
        {
            "id": order.id,
            "customer": order.customer,
            "currency": order.currency,
            "country": order.country,
            "units": sum(line.quantity for line in order.lines),
            "goods_minor": goods,
            "discount_minor": discount,
            "tax_minor": tax,
            "total_minor": goods - discount + tax,
            "processed_by": worker,
        }
    )


def complete(payload: bytes, worker: str) -> tuple[str, bytes]:
    """
    Do the work of the DISPATCH step: pack a processed order and give it a tracking number.

    Args:
        payload: what `process` made.
        worker: who does it; noted in the result.

    Returns:
        The order's id, and the message that closes the order.

    Raises:
        OrderError: the message is not one that `process` made.

    """
    record = fields.load_object(payload)
    order_id, country = fields.order_id(record), fields.code(record, "country")
    units = fields.integer(record, "units", 1, None)
    return order_id, codec.dumps(
        {
            "id": order_id,
            "customer": fields.text(record, "customer"),
            "currency": fields.code(record, "currency"),
            "country": country,
            "total_minor": fields.integer(record, "total_minor", 0, None),
            "carrier": _CARRIERS.get(country, "air"),
            "parcels": -(-units // _UNITS_PER_PARCEL),
            "tracking_number": tracking_number(order_id),
            "dispatched_by": worker,
        }
    )


def settle(payload: bytes) -> tuple[str, str, int]:
    """
    Return id, currency and total of a processed or completed order.

    Raises:
        OrderError: one of them is missing.

    """
    record = fields.load_object(payload)
    amount = fields.integer(record, "total_minor", 0, None)
    return fields.order_id(record), fields.code(record, "currency"), amount


def fingerprint(order_id: str, currency: str, total_minor: int) -> int:
    """
    Return 64 bits that stand for an order and what it costs.

    The sum of the fingerprints of many orders does not depend on their order, and an order that
    is missing, doubled or priced differently changes it.
    """
    text = f"{order_id}\n{currency}\n{total_minor}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def tracking_number(order_id: str) -> str:
    """Return an order's tracking number: 8 digits made of its id and their S10 check digit."""
    digest = hashlib.blake2b(order_id.encode(), digest_size=8).digest()
    serial = f"{int.from_bytes(digest, 'big') % 10**8:08d}"
    return f"JS{serial}{check_digit(serial)}ZZ"


def check_digit(serial: str) -> int:
    """Return the check digit of 8 digits as the postal standard S10 has it."""
    weighted = sum(
        int(figure) * weight for figure, weight in zip(serial, _S10_WEIGHTS, strict=True)
    )
    digit = 11 - weighted % 11
    return {10: 0, 11: 5}.get(digit, digit)


def _goods(order: Order) -> int:
    return sum(line.quantity * line.price_minor for line in order.lines)


def _discount(order: Order) -> int:
    return sum(
        _percent(line.quantity * line.price_minor, _DISCOUNT_PERCENT)
        for line in order.lines
        if line.quantity >= _DISCOUNT_FROM_QUANTITY
    )


def _tax(order: Order, net: int) -> int:
    return _percent(net, _TAX_PERCENT.get(order.country, 0))


def _percent(amount: int, percent: int) -> int:
    """Return that share of an amount, half a minor unit rounded up."""
    return (amount * percent + 50) // 100


def _line(item: object, currency: str, number: int) -> Line:
    if not isinstance(item, dict):
        raise OrderError(f"item {number}: not an object but {fields.kind(item)}")
    try:
        return Line(
            sku=fields.text(item, "sku"),
            quantity=fields.integer(item, "quantity", 1, _MAX_QUANTITY),
            price_minor=fields.price(item, currency),
        )
    except OrderError as error:
        raise OrderError(f"item {number}: {error}") from None
