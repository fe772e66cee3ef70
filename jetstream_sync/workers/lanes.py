"""
The order of received messages, without threads or clocks: of one key, one message is out at a time.

Rules:

1. A message of a free key, or without a key, is ready at once. Ready messages leave in the order of
   their arrival.
2. A key is busy from the moment when a message of it is ready until `Lanes.release`. The other messages
   of a busy key wait in its lane, in the order of their arrival.
3. A lane exists only while its key is busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar


class _Keyed(Protocol):
    """A message with its key; ``None`` is no key."""

    @property
    def key(self) -> Hashable:
        """The key."""


T = TypeVar("T", bound=_Keyed)


class Lanes(Generic[T]):
    """The messages that wait for a thread; not thread-safe."""

    __slots__ = ("_lanes", "ready")

    def __init__(self) -> None:
        #: The messages that can be handled now.
        self.ready: deque[T] = deque()
        # The busy keys, each with the messages that wait for it.
        self._lanes: dict[Hashable, deque[T]] = {}

    def add(self, run: Iterable[T]) -> int:
        """Add received messages; return how many of them are ready."""
        ready, lanes = self.ready, self._lanes
        before = len(ready)
        for item in run:
            if item.key is None:
                ready.append(item)
            elif item.key in lanes:
                lanes[item.key].append(item)
            else:
                lanes[item.key] = deque()
                ready.append(item)
        return len(ready) - before

    def release(self, key: Hashable) -> bool:
        """End the message of a key; return whether the next one of its lane is ready now."""
        if key is None:
            return False
        lane = self._lanes[key]
        if not lane:
            del self._lanes[key]
            return False
        self.ready.append(lane.popleft())
        return True

    def clear(self) -> list[T]:
        """Remove and return all waiting messages. The keys of messages that are out stay busy."""
        waiting = list(self.ready)
        ready_keys = {item.key for item in waiting}
        self.ready.clear()
        for lane in self._lanes.values():
            waiting += lane
            lane.clear()
        for key in ready_keys - {None}:
            del self._lanes[key]
        return waiting
