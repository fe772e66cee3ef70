"""The record of a run: acknowledged messages, received messages, and calls that took too long."""

from __future__ import annotations

import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fix_threads import SCALE

__all__ = ["SLACK", "Recorder", "payload_of", "read_payload"]

#: Allowed excess of a call over its timeout, in seconds.
SLACK = 2.0 * SCALE
#: Maximum lag of the slowest reader, in messages; one that reads single messages is much slower
#: than the publishers.
AHEAD = 3000


def payload_of(message: str, size: int) -> bytes:
    """Return a payload that names its message, and has a check sum."""
    filling = message.encode() * (size // len(message))
    return b"%s %08x %s" % (message.encode(), zlib.crc32(filling), filling)


def read_payload(payload: bytes) -> str:
    """Return the message that a payload names; raises ValueError if it is damaged."""
    message, check, filling = payload.split(b" ", 2)
    if int(check, 16) != zlib.crc32(filling):
        raise ValueError(f"{message!r} is not what was published")
    return message.decode()


class Recorder:
    """The record of all workers; any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.wrong: list[str] = []
        #: By reader: the messages, and how often each was received.
        self.seen: dict[str, Counter[str]] = {}
        #: By ordered reader: the messages in the order of their receipt.
        self.order: dict[str, list[str]] = {}
        self.acknowledged: dict[str, int] = {}
        self.published = 0
        self.duplicates = 0
        self.calls = 0
        #: Errors that calls raised, and reported ones, by class.
        self.errors: Counter[str] = Counter()
        self.reports: Counter[str] = Counter()
        self._under_way: dict[int, tuple[str, float, float]] = {}

    def complain(self, what: str) -> None:
        with self._lock:
            if len(self.wrong) < 100:
                self.wrong.append(what)

    def stored(self, message: str, seq: int, *, duplicate: bool) -> None:
        with self._lock:
            self.duplicates += duplicate
            known = self.acknowledged.setdefault(message, seq)
        if known != seq:
            self.complain(f"{message} was acknowledged as {known} and as {seq}")

    def too_far_ahead(self) -> bool:
        """Return whether the slowest reader lags so much that publishing has to wait for it."""
        return len(self.acknowledged) - min(map(len, self.seen.values())) > AHEAD

    @contextmanager
    def within(self, what: str, seconds: float) -> Iterator[None]:
        """Record a call that has to return, or raise, within this time."""
        began = time.monotonic()
        me = threading.get_ident()
        self._under_way[me] = (what, began, seconds)
        try:
            yield
        except Exception as error:
            self.errors[f"{what.split(' ', 1)[0]}: {type(error).__name__}"] += 1
            raise
        finally:
            self._under_way.pop(me, None)
            took = time.monotonic() - began
            self.calls += 1
            if took > seconds + SLACK:
                self.complain(f"{what} took {took:.2f} s instead of {seconds:g} s")

    def look_for_hanging(self) -> None:
        """Report calls that should have returned long ago, with their stacks."""
        now = time.monotonic()
        for ident, (what, began, seconds) in list(self._under_way.items()):
            if now - began > seconds + 5 * SLACK:
                frame = sys._current_frames().get(ident)
                where = "".join(traceback.format_stack(frame)) if frame else ""
                self.complain(f"{what} hangs since {now - began:.1f} s\n{where}")
                self._under_way.pop(ident, None)
