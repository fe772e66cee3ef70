"""Held messages: their order by key, against a simple model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetstream_sync.workers.runtime.pulling import HeldMessages


@dataclass(frozen=True)
class Item:
    """A message with its key."""

    number: int
    key: str | None = None
    size: int = 10
    is_suspicious: bool = False


class OrderModel(RuleBasedStateMachine):
    """
    The model is one list of everything that was received and did not end.

    The next message to leave is the earliest ready one; a message is ready as soon as no earlier one of
    its key is in the list.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: Any = HeldMessages(isolates=False)
        self.received = 0
        self.waiting: list[Item] = []  # in the order in which they became ready, then the others
        self.ready: list[Item] = []
        self.out: list[Item] = []

    def busy(self, key: str | None) -> bool:
        return key is not None and any(item.key == key for item in self.ready + self.out)

    @rule(key=st.sampled_from(["a", "b", "c", None]))
    def receive(self, key: str | None) -> None:
        self.received += 1
        item = Item(self.received, key)
        (self.waiting if self.busy(key) else self.ready).append(item)
        with self.held.lock:
            assert self.held.add([item])

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        item = self.ready.pop(0)
        self.out.append(item)
        assert self.held.take() == item

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.out))
        self.out.remove(item)
        following = [other for other in self.waiting if other.key == item.key]
        if following:
            self.waiting.remove(following[0])
            self.ready.append(following[0])
        with self.held.lock:
            self.held.finish(item)

    @rule()
    def clear(self) -> None:
        assert set(self.held.clear()) == {*self.ready, *self.waiting}
        self.ready, self.waiting = [], []

    @invariant()
    def one_of_a_key_is_ready_or_out(self) -> None:
        assert list(self.held.ready) == self.ready
        held = len(self.ready + self.waiting + self.out)
        assert (self.held.count, self.held.size) == (held, 10 * held)
        keys = [item.key for item in self.ready + self.out if item.key is not None]
        assert len(keys) == len(set(keys))


TestOrder = OrderModel.TestCase


def test_a_plain_message_is_exchanged_for_the_next_one():
    """Without the lock, in the order of receipt; with nothing to take, the thread uses the lock."""
    held: Any = HeldMessages(isolates=True, plain=True)
    first, second = Item(1), Item(2)
    with held.lock:
        held.add([first, second])
        assert held.take() is first
    assert held.exchange(first) is second
    assert held.running == {second}
    assert held.exchange(second) is None
    assert held.running == {second}


def test_a_message_that_may_end_its_process_is_not_exchanged():
    """It stays the next one, and none starts beside it."""
    held: Any = HeldMessages(isolates=True, plain=True)
    first, suspicious, last = Item(1), Item(2, is_suspicious=True), Item(3)
    with held.lock:
        held.add([first, suspicious, last])
        assert held.take() is first
        assert held.exchange(first) is None
        assert list(held.ready) == [suspicious, last]
        assert held.take() is suspicious
    assert held.exchange(first) is None
    assert held.running == {first, suspicious}


def test_no_message_is_exchanged_while_another_thread_begins_with_one_that_runs_alone():
    """The test comes when the message is among the running ones: nothing starts after it."""

    class Running(set[Any]):
        """The running messages; another thread begins with one that runs alone as one is added."""

        def add(self, item: Any) -> None:
            super().add(item)
            held.alone = alone

    held: Any = HeldMessages(isolates=True, plain=True)
    first, second, alone = Item(1), Item(2), Item(3, is_suspicious=True)
    with held.lock:
        held.add([first, second])
        held.take()
    held.running = Running(held.running)
    assert held.exchange(first) is None
    assert held.running == {first}
    assert list(held.ready) == [second]


def test_messages_with_keys_are_not_exchanged():
    """The lane of a key is changed under the lock."""
    held: Any = HeldMessages(isolates=True)
    with held.lock:
        held.add([Item(1), Item(2)])
        first = held.take()
    assert held.exchange(first) is None
    assert held.running == {first}


class _Shrinking(deque[Any]):
    """A queue from which another thread takes a message whenever one is added."""

    def append(self, item: Any) -> None:
        """Add a message, and lose the first one."""
        super().append(item)
        self.popleft()


def test_each_added_message_wakes_a_thread_although_others_are_taken_meanwhile():
    """A thread that waits must not miss a message because another thread exchanges one at that time."""
    held: Any = HeldMessages(isolates=True, plain=True)
    held.ready = _Shrinking([Item(1)])
    woken = []
    held.work.notify = woken.append
    with held.lock:
        held.add([Item(2)])
    assert woken == [1]
