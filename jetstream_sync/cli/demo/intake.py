"""Reading orders from JSON lines, and refusing what can not be run before anything is sent."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..status import CommandError, ExitStatus
from . import orders
from .orders import OrderError

__all__ = ["InputOrder", "read_input", "read_lines"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SAMPLE = "data/orders.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputOrder:
    """One order of the input: as it was written, and what must come out for it."""

    id: str
    payload: bytes
    fingerprint: int


def read_input(name: str | None, stdin: BinaryIO) -> list[InputOrder]:
    """
    Read all orders of a file.

    Args:
        name: a path; ``-`` for standard input; ``None`` for the sample that ships with the
            package.
        stdin: read to its end when ``name`` is ``-``.

    Raises:
        CommandError: as `read_lines`, and when the file can not be read.

    """
    if name == "-":
        return read_lines(stdin, "standard input")
    source = (
        importlib.resources.files(__package__).joinpath(_SAMPLE) if name is None else Path(name)
    )
    try:
        with source.open("rb") as file:
            return read_lines(file, name or "the sample")
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"can not read {name or _SAMPLE}: {reason}", ExitStatus.USAGE) from error


def read_lines(lines: Iterable[bytes], source: str) -> list[InputOrder]:
    """
    Read one order per line; blank lines are skipped.

    Args:
        lines: UTF-8, with or without line breaks; a byte order mark is accepted.
        source: what the input is called in errors.

    Returns:
        The orders in the order of the lines, at least one, each id once.

    Raises:
        CommandError: a line is not an order, an id comes twice, or there is no order. It names
            the source and the line numbers, which count from 1.

    """
    found: list[InputOrder] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        payload = line.removeprefix(_BYTE_ORDER_MARK).strip() if number == 1 else line.strip()
        if not payload:
            continue
        try:
            order = orders.parse(payload)
        except OrderError as error:
            raise _refused(f"{source}, line {number}: {error}") from error
        if order.id in line_of:
            raise _refused(
                f"{source}, line {number}: order {order.id!r} "
                f"is on line {line_of[order.id]} already"
            )
        line_of[order.id] = number
        price = orders.total(order)
        found.append(
            InputOrder(
                id=order.id,
                payload=payload,
                fingerprint=orders.fingerprint(order.id, order.currency, price),
            )
        )
    if not found:
        raise _refused(f"{source}: there are no orders in it")
    return found


def _refused(message: str) -> CommandError:
    return CommandError(message, ExitStatus.USAGE)
