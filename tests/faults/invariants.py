"""The invariants of a run, checked by a client that is independent of the package, and its verdict."""

from __future__ import annotations

from collections import Counter

from fixtures.rawnats import RawClient

from .recorder import Recorder, read_payload
from .testbed import STREAM

__all__ = ["judge", "listed", "read_back", "verdict"]


def read_back(raw: RawClient) -> list[str]:
    """Return the messages of the stream, in its order."""
    return [read_payload(item.data) for item in raw.stored(STREAM)]


def judge(recorder: Recorder, stored: list[str]) -> None:
    """Report every promise that was broken."""
    times = Counter(stored)
    twice = [item for item, count in times.items() if count > 1]
    lost = [item for item in recorder.acknowledged if item not in times]
    if twice:
        recorder.complain(f"{len(twice)} messages are stored more than once: {twice[:5]}")
    if lost:
        recorder.complain(f"{len(lost)} acknowledged messages are not stored: {lost[:5]}")
    for name, seen in recorder.seen.items():
        missing = [item for item in stored if item not in seen]
        if missing:
            recorder.complain(f"{name} has not seen {len(missing)} messages: {missing[:5]}")
    for name, order in recorder.order.items():
        if order != stored:
            at = next(
                (i for i, (a, b) in enumerate(zip(order, stored, strict=False)) if a != b),
                min(len(order), len(stored)),
            )
            recorder.complain(
                f"{name} read {len(order)} of {len(stored)} messages, and goes wrong at {at}: "
                f"{order[at : at + 3]} instead of {stored[at : at + 3]}"
            )


def listed(counter: Counter[str]) -> str:
    """Return counts with their names, the largest first."""
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())


def verdict(lines: list[str], wrong: list[str]) -> str:
    """Return the lines of a run, with what went wrong in it."""
    end = f"{len(wrong)} things went wrong" if wrong else "everything held"
    return "\n".join([*lines, *(f"WRONG: {item}" for item in wrong[:20]), end])
