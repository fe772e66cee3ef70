"""
The record of a run: messages, calls, and the faults that explain errors and redeliveries.

An error of a call and a redelivery need an explanation: a fault of the servers, or of one of the lines
involved, that was in effect during the call or shortly before it.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fixtures.threads import SCALE

from jetstream_sync import Error, NoHeartbeatError, TimeoutError

__all__ = ["SLACK", "Recorder", "payload_of", "read_payload"]

#: To notice the end of a fault, to connect again, and to recover the streams or elect a leader.
_RECOVERY_S = 3.0 * SCALE
_CLUSTER_RECOVERY_S = 10.0 * SCALE

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

    def __init__(self, *, cluster: bool = False) -> None:
        self._lock = threading.Lock()
        #: Time after the end of a fault in which errors are still expected, in seconds.
        self.recovery = _CLUSTER_RECOVERY_S if cluster else _RECOVERY_S
        # When the last fault of each line ended, and the number of those in effect; "": of everything.
        self._fault_ends: dict[str, float] = {}
        self._in_effect: Counter[str] = Counter()
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

    @contextmanager
    def fault(self, *lines: str) -> Iterator[None]:
        """Note a fault of these lines, or of everything if there are none, while it is in effect."""
        affected = lines or ("",)
        with self._lock:
            self._in_effect.update(affected)
        try:
            yield
        finally:
            with self._lock:
                self._in_effect.subtract(affected)
                self._fault_ends.update(dict.fromkeys(affected, time.monotonic()))

    def explained(self, since: float, *lines: str) -> bool:
        """Return whether one of these lines had a fault at ``since``, shortly before it, or later."""
        with self._lock:
            return any(
                self._in_effect[line] > 0
                or self._fault_ends.get(line, float("-inf")) + self.recovery > since
                for line in ("", *lines)
            )

    def lag(self, reader: str) -> int:
        """Return the number of acknowledged messages that a reader has certainly not received."""
        return len(self.acknowledged) - len(self.seen[reader])

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
    def within(
        self, what: str, seconds: float, *lines: str, awaited: bool = True
    ) -> Iterator[None]:
        """
        Record a call that has to return, or raise, within this time.

        Args:
            what: the name of the call, and its subject after a space.
            seconds: its timeout.
            *lines: the lines that it uses; without a fault of theirs, an error of the package is wrong.
            awaited: whether a timeout is such an error, too.

        """
        began = time.monotonic()
        me = threading.get_ident()
        self._under_way[me] = (what, began, seconds)
        try:
            yield
        except Exception as error:
            self.errors[f"{what.split(' ', 1)[0]}: {type(error).__name__}"] += 1
            # Some heartbeats are as short as the pauses of a busy machine.
            judged = isinstance(error, Error) and not isinstance(error, NoHeartbeatError)
            judged = judged and (awaited or not isinstance(error, TimeoutError))
            if lines and judged and not self.explained(began, *lines):
                self.complain(f"{what} raised {error!r} without a fault of {', '.join(lines)}")
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
