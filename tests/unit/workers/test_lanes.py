"""Lanes: the order of messages by key, against a simple model."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetstream_sync.workers.lanes import Lanes

Item = tuple[int, "str | None"]


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
        return key is not None and any(item[1] == key for item in self.ready + self.out)

    @rule(key=st.sampled_from(["a", "b", "c", None]))
    def receive(self, key: str | None) -> None:
        self.received += 1
        item = (self.received, key)
        ready = not self.busy(key)
        (self.ready if ready else self.waiting).append(item)
        assert self.lanes.add(item, key) is ready

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        item = self.ready.pop(0)
        self.out.append(item)
        assert self.lanes.ready.popleft() == (item, item[1])

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.out))
        self.out.remove(item)
        following = [other for other in self.waiting if other[1] == item[1]]
        if following:
            self.waiting.remove(following[0])
            self.ready.append(following[0])
        assert self.lanes.release(item[1]) is bool(following)

    @rule()
    def clear(self) -> None:
        assert sorted(self.lanes.clear()) == sorted(self.ready + self.waiting)
        self.ready, self.waiting = [], []

    @invariant()
    def one_of_a_key_is_ready_or_out(self) -> None:
        assert [item for item, _ in self.lanes.ready] == self.ready
        keys = [item[1] for item in self.ready + self.out if item[1] is not None]
        assert len(keys) == len(set(keys))


TestLanes = LanesModel.TestCase
