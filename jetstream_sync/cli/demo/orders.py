"""
Orders of the demo: the input, and what each stage makes of an order. No I/O except `read_orders`.

An order is a JSON object with ``id`` and ``items``; an item has ``quantity`` and ``price``. Other
fields are ignored. Every function returns the same for the same input, so a message that is
delivered twice leads to the same next message twice, and the stream drops the second one.

Amounts are integers in hundredths of the currency.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, BinaryIO, Final

from ... import codec
from ...errors import InvalidResponseError
from ..status import CommandError, ExitStatus

SAMPLE_SIZE: Final = 5_000
_SAMPLE_SEED: Final = 2020
_SAMPLE_PRICES: Final = ("12.90", "19.90", "24.50", "44.00", "84.90", "119.00", "329.00", "649.00")

_MAX_ID_LENGTH: Final = 128
_MAX_ITEMS: Final = 1_000
_MAX_QUANTITY: Final = 10_000
_MAX_PRICE: Final = Decimal(100_000_000)
_UNITS_PER_PARCEL: Final = 20
#: Maximum length of a wrong value in an error, in characters.
_MAX_SHOWN_LENGTH: Final = 40
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class OrderError(ValueError):
    """An order, or a later message about one, is not valid; the text names field and rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputOrder:
    """One order of the input, as it was written, and the total that it must come out with."""

    id: str
    payload: bytes
    total: int


# --- the input ----------------------------------------------------------------------------------


def read_orders(name: str | None, stdin: BinaryIO) -> list[InputOrder]:
    """
    Return all orders of a file, one per line; blank lines are skipped.

    Args:
        name: a path; ``-`` for standard input; ``None`` for a generated sample.
        stdin: read to its end when ``name`` is ``-``.

    Raises:
        CommandError: the file cannot be read, a line is not an order, an id occurs twice, or there
            is no order. The error names the source and the line, counted from 1.

    """
    if name is None:
        return _parse_lines(_sample(), "the sample")
    if name == "-":
        return _parse_lines(stdin, "standard input")
    try:
        with Path(name).open("rb") as file:
            return _parse_lines(file, name)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"cannot read {name}: {reason}", ExitStatus.USAGE) from error


def _parse_lines(lines: Iterable[bytes], source: str) -> list[InputOrder]:
    found: dict[str, InputOrder] = {}
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        payload = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if not payload:
            continue
        where = f"{source}, line {number}"
        try:
            order_id, total, _ = _parse(payload)
        except OrderError as error:
            raise CommandError(f"{where}: {error}", ExitStatus.USAGE) from error
        if order_id in found:
            raise CommandError(
                f"{where}: order {order_id!r} is already on line {line_of[order_id]}; "
                "each id must occur once",
                ExitStatus.USAGE,
            )
        found[order_id] = InputOrder(id=order_id, payload=payload, total=total)
        line_of[order_id] = number
    if not found:
        raise CommandError(f"{source} contains no orders", ExitStatus.USAGE)
    return list(found.values())


def _sample() -> Iterator[bytes]:
    """Generate the same orders in every run."""
    rng = random.Random(_SAMPLE_SEED)  # noqa: S311 - no secret
    for number in range(1, SAMPLE_SIZE + 1):
        items = [
            {
                "sku": f"SKU-{rng.randrange(1_000):03d}",
                "quantity": rng.choice((1, 1, 1, 2, 3, 10, 25)),
                "price": rng.choice(_SAMPLE_PRICES),
            }
            for _ in range(rng.choice((1, 1, 2, 4)))
        ]
        order = {"id": f"SO-{100_000 + number}", "customer": f"C-{rng.randrange(2_500)}"}
        yield json.dumps({**order, "items": items}, separators=(",", ":")).encode()


# --- the stages ---------------------------------------------------------------------------------


def price(payload: bytes, worker: str) -> tuple[str, bytes]:
    """
    Do the work of NEW: check an order and add up its price.

    Args:
        payload: the order as it was received.
        worker: name of the worker, which becomes a part of the result.

    Returns:
        The id of the order, and the message for DISPATCH.

    Raises:
        OrderError: the order is not valid.

    """
    order_id, total, units = _parse(payload)
    priced = {"id": order_id, "units": units, "total": total, "processed_by": worker}
    return order_id, codec.dumps(priced)


def dispatch(payload: bytes, worker: str) -> tuple[str, bytes]:
    """
    Do the work of DISPATCH: pack a priced order and assign a tracking number.

    Args:
        payload: the message that `price` made.
        worker: name of the worker, which becomes a part of the result.

    Returns:
        The id of the order, and the message that completes the order.

    Raises:
        OrderError: the message was not made by `price`.

    """
    record = _load(payload)
    order_id = _order_id(record)
    units = _integer(record, "units", 1, None)
    return order_id, codec.dumps(
        {
            "id": order_id,
            "total": _integer(record, "total", 0, None),
            "parcels": -(-units // _UNITS_PER_PARCEL),
            "tracking_number": f"JS{zlib.crc32(order_id.encode()):010d}",
            "dispatched_by": worker,
        }
    )


def result(stage: str, payload: bytes) -> tuple[str, int]:
    """
    Return the id and the total of an order, from a message of any stage.

    Raises:
        OrderError: the message has no id or no total.

    """
    if stage == "received":
        return _parse(payload)[:2]
    record = _load(payload)
    return _order_id(record), _integer(record, "total", 0, None)


# --- fields -------------------------------------------------------------------------------------


def _parse(payload: bytes) -> tuple[str, int, int]:
    """Return id, total and number of units of an order."""
    record = _load(payload)
    items = record.get("items")
    if not isinstance(items, list) or not 1 <= len(items) <= _MAX_ITEMS:
        raise OrderError(f"items: must be a list of 1 to {_MAX_ITEMS:,} items")
    total = units = 0
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise OrderError(f"item {number}: must be an object, not {type(item).__name__}")
        try:
            quantity = _integer(item, "quantity", 1, _MAX_QUANTITY)
            total += quantity * _price(item)
        except OrderError as error:
            raise OrderError(f"item {number}: {error}") from None
        units += quantity
    return _order_id(record), total, units


def _load(payload: bytes) -> dict[str, Any]:
    try:
        value = codec.loads(payload)
    except InvalidResponseError as error:
        raise OrderError(str(error)) from error
    if not isinstance(value, dict):
        raise OrderError(f"must be a JSON object, not {type(value).__name__}")
    return value


def _order_id(record: Mapping[str, Any]) -> str:
    """Return the field ``id``; an integer becomes text."""
    value = record.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    # The id becomes part of a header value, and headers lose surrounding white space.
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _MAX_ID_LENGTH
        or value != value.strip()
        or not value.isprintable()
    ):
        raise OrderError(
            f"id: {_shown(value)} must be an integer, or text of 1 to {_MAX_ID_LENGTH} characters "
            "without control characters or surrounding white space"
        )
    return value


def _integer(record: Mapping[str, Any], name: str, low: int, high: int | None) -> int:
    value = record.get(name)
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < low
        or (high is not None and value > high)
    ):
        limit = f"of {low} or more" if high is None else f"from {low} to {high:,}"
        raise OrderError(f"{name}: {_shown(value)} must be an integer {limit}")
    return value


def _price(item: Mapping[str, Any]) -> int:
    """Return the field ``price``, a number or decimal text, in hundredths."""
    value = item.get("price")
    try:
        # str() of a float is its shortest form, so 19.9 is 19.90 and not 19.89999...
        exact = Decimal(str(value)) if type(value) in {str, int, float} else Decimal("NaN")
    except InvalidOperation:
        exact = Decimal("NaN")
    # The range keeps 1e999999 from becoming an integer of a million digits.
    if not exact.is_finite() or not 0 <= exact <= _MAX_PRICE or exact != round(exact, 2):
        raise OrderError(
            f"price: {_shown(value)} must be a number from 0 to {_MAX_PRICE:,} "
            "with at most two decimal places"
        )
    return int(exact.scaleb(2))


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}..."
