"""Held messages: their order by key, against a simple model."""

from __future__ import annotations

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
