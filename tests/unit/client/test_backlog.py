"""The limits of a mailbox: messages are counted exactly, bytes to one batch."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jetstream_sync.client.subscription import PendingLimits

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def batch(*sizes):
    """Messages of these sizes, of which a third is headers; subject and reply do not count."""
    return [(b"subject", b"reply", b"h" * (n // 3), b"p" * (n - n // 3)) for n in sizes]


def test_more_may_wait_than_the_limit_allows():
    """Above the limit nothing is admitted, and the counts stay correct."""
    backlog = PendingLimits(5, 0)
    assert backlog.admit(batch(1), 9) == 0


@given(st.lists(st.tuples(SIZES, st.integers(0, 8)), max_size=8))
def test_the_bytes_of_a_mailbox_are_exact(steps):
    """However batches arrive and are read, the bytes of pending messages are exact."""
    backlog, items = PendingLimits(0, 0), deque()
    for sizes, reads in steps:
        backlog.admit(batch(*sizes), len(items))
        items.extend(batch(*sizes))
        for _ in range(min(reads, len(items))):
            items.popleft()
        assert backlog.bytes_of(items) == sum(len(item[2]) + len(item[3]) for item in items)


class Mailbox(RuleBasedStateMachine):
    """A mailbox that is filled and read in any order, and the exact counts."""

    def __init__(self):
        super().__init__()
        self.backlog = PendingLimits(8, 40)
        self.batches = deque()  # the rest of each admitted batch, and its size

    def waiting(self):
        return sum(len(left) for left, _ in self.batches)

    @rule(sizes=SIZES)
    def put(self, sizes):
        waiting = self.waiting()
        counted = sum(full for left, full in self.batches if left)
        fits = 0
        while fits < len(sizes) and waiting + fits < 8 and counted + sum(sizes[: fits + 1]) <= 40:
            fits += 1
        assert self.backlog.admit(batch(*sizes), waiting) == fits
        if fits:
            self.batches.append((sizes[:fits], sum(sizes[:fits])))

    @precondition(lambda self: self.waiting())
    @rule(count=st.integers(1, 8))
    def take(self, count):
        for _ in range(min(count, self.waiting())):
            self.batches[0][0].pop()
            if not self.batches[0][0]:
                self.batches.popleft()

    @rule()
    def settle(self):
        self.backlog.settle(self.waiting())
        assert self.backlog.pending_bytes == sum(full for _, full in self.batches)

    @invariant()
    def never_below_the_truth(self):
        """Until it is settled, the counts may be too high, never too low."""
        there = sum(sum(left) for left, _ in self.batches)
        assert there <= self.backlog.pending_bytes <= 40


TestMailbox = Mailbox.TestCase
