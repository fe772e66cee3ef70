"""What happened in a run: what was said to be stored, what was seen, and which calls took too long."""

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

#: Seconds that a call may take longer than its timeout.
SLACK = 2.0 * SCALE
#: Messages that the slowest reader may have left; one with a single message at a time is much
#: slower than those who publish.
AHEAD = 3000


def payload_of(message: str, size: int) -> bytes:
    """Return a payload that says which message it is, and can tell whether it is whole."""
    filling = message.encode() * (size // len(message))
    return b"%s %08x %s" % (message.encode(), zlib.crc32(filling), filling)


def read_payload(payload: bytes) -> str:
    """Return which message it is; raises ValueError where it is not whole."""
    message, check, filling = payload.split(b" ", 2)
    if int(check, 16) != zlib.crc32(filling):
        raise ValueError(f"{message!r} is not what was published")
    return message.decode()


class Recorder:
    """What all the workers write down; any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.wrong: list[str] = []
        #: By reader: the messages, and how often each was seen.
        self.seen: dict[str, Counter[str]] = {}
        #: By ordered reader: the messages in the order in which they came.
        self.order: dict[str, list[str]] = {}
        self.acknowledged: dict[str, int] = {}
        self.published = 0
        self.duplicates = 0
        self.calls = 0
        #: What calls raised, and what was reported, by class.
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
        """Return whether the slowest reader is so far behind that publishing has to wait for it."""
        return len(self.acknowledged) - min(map(len, self.seen.values())) > AHEAD

    @contextmanager
    def within(self, what: str, seconds: float) -> Iterator[None]:
        """A call that has to return, or raise, in that time."""
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
        """Complain of calls that should have returned long ago, with where they are."""
        now = time.monotonic()
        for ident, (what, began, seconds) in list(self._under_way.items()):
            if now - began > seconds + 5 * SLACK:
                frame = sys._current_frames().get(ident)
                where = "".join(traceback.format_stack(frame)) if frame else ""
                self.complain(f"{what} hangs since {now - began:.1f} s\n{where}")
                self._under_way.pop(ident, None)
