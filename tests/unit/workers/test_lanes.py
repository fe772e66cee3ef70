"""Lanes: the order of messages by key, against a simple model."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetstream_sync.workers.lanes import Lanes


class Item(NamedTuple):
    """A message with its key."""

    number: int
    key: str | None


class LanesModel(RuleBasedStateMachine):
    """
    The model is one list of everything that was received and did not end.

    The next message to leave is the earliest ready one; a message is ready as soon as no earlier one of
    its key is in the list.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[Item] = Lanes()
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
        ready = not self.busy(key)
        (self.ready if ready else self.waiting).append(item)
        assert self.lanes.add([item]) == ready

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        item = self.ready.pop(0)
        self.out.append(item)
        assert self.lanes.ready.popleft() == item

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.out))
        self.out.remove(item)
        following = [other for other in self.waiting if other.key == item.key]
        if following:
            self.waiting.remove(following[0])
            self.ready.append(following[0])
        assert self.lanes.release(item.key) is bool(following)

    @rule()
    def clear(self) -> None:
        assert sorted(self.lanes.clear()) == sorted(self.ready + self.waiting)
        self.ready, self.waiting = [], []

    @invariant()
    def one_of_a_key_is_ready_or_out(self) -> None:
        assert list(self.lanes.ready) == self.ready
        keys = [item.key for item in self.ready + self.out if item.key is not None]
        assert len(keys) == len(set(keys))


TestLanes = LanesModel.TestCase
