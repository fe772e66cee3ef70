"""What must hold after a run, read by a client that shares nothing with the package."""

from __future__ import annotations

import base64
import json
from collections import Counter

from rawnats import RawClient

from .book import Book, read_payload
from .ground import STREAM

__all__ = ["judge", "read_back"]

#: Requests that are sent before their answers are read.
_WINDOW = 200


def read_back(raw: RawClient) -> list[str]:
    """Return the messages that are in the stream, in its order."""
    state = raw.api(f"STREAM.INFO.{STREAM}")["state"]
    first, last = state["first_seq"], state["last_seq"]
    stored: dict[int, str] = {}
    for begin in range(first, last + 1, _WINDOW):
        seqs = range(begin, min(begin + _WINDOW, last + 1))
        bodies = [json.dumps({"seq": seq}).encode() for seq in seqs]
        answers = raw.requests(f"$JS.API.STREAM.MSG.GET.{STREAM}", bodies)
        for answer in answers:
            message = json.loads(answer).get("message")
            if message is not None:
                stored[message["seq"]] = read_payload(base64.b64decode(message.get("data", "")))
    assert len(stored) == state["messages"], (len(stored), state)
    return [stored[seq] for seq in sorted(stored)]


def judge(book: Book, stored: list[str]) -> None:
    """Complain of every promise that was broken."""
    times = Counter(stored)
    twice = [each for each, count in times.items() if count > 1]
    lost = [each for each in book.acknowledged if each not in times]
    if twice:
        book.complain(f"{len(twice)} messages are stored more than once: {twice[:5]}")
    if lost:
        book.complain(f"{len(lost)} acknowledged messages are not stored: {lost[:5]}")
    for name, seen in book.seen.items():
        missing = [each for each in stored if each not in seen]
        if missing:
            book.complain(f"{name} has not seen {len(missing)} messages: {missing[:5]}")
    for name, order in book.order.items():
        if order != stored:
            at = next(
                (i for i, (a, b) in enumerate(zip(order, stored, strict=False)) if a != b),
                min(len(order), len(stored)),
            )
            book.complain(
                f"{name} read {len(order)} of {len(stored)} messages, and goes wrong at {at}: "
                f"{order[at : at + 3]} instead of {stored[at : at + 3]}"
            )
