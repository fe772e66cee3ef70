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
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """The messages that wait for a thread; not thread-safe."""

    __slots__ = ("_lanes", "ready")

    def __init__(self) -> None:
        #: The messages that can be handled now, with their keys.
        self.ready: deque[tuple[T, Hashable]] = deque()
        # The busy keys, each with the messages that wait for it.
        self._lanes: dict[Hashable, deque[T]] = {}

    def add(self, item: T, key: Hashable = None) -> bool:
        """Add a received message; return whether it is ready. ``None`` is no key."""
        if key is not None:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.append(item)
                return False
            self._lanes[key] = deque()
        self.ready.append((item, key))
        return True

    def add_run(self, run: Iterable[tuple[T, Hashable]]) -> int:
        """Add received messages with their keys; return how many of them are ready."""
        before = len(self.ready)
        for item, key in run:
            if key is None:
                self.ready.append((item, key))
            else:
                self.add(item, key)
        return len(self.ready) - before

    def release(self, key: Hashable) -> bool:
        """End the message of a key; return whether the next one of its lane is ready now."""
        if key is None:
            return False
        lane = self._lanes[key]
        if not lane:
            del self._lanes[key]
            return False
        self.ready.append((lane.popleft(), key))
        return True

    def clear(self) -> list[T]:
        """Remove and return all waiting messages. The keys of messages that are out stay busy."""
        waiting = [item for item, _ in self.ready]
        ready_keys = {key for _, key in self.ready}
        self.ready.clear()
        for lane in self._lanes.values():
            waiting += lane
            lane.clear()
        for key in ready_keys - {None}:
            del self._lanes[key]
        return waiting
