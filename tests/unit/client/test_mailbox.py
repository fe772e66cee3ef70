"""The queue between the reader thread and reading threads, used from one thread."""

from __future__ import annotations

import threading

import pytest
from fixtures.fork import in_child

from jetstream_sync.client.mailbox import Mailbox, ResultSlot
from jetstream_sync.errors import ConnectionClosedError, ForkedConnectionError, TimeoutError
from jetstream_sync.net.clock import FOREVER, Deadline

NOW = Deadline(0)


@pytest.fixture
def mailbox():
    return Mailbox()


def sleeping(mailbox):
    """A waiting thread: its gate is locked until it is woken."""
    gate = threading.Lock()
    gate.acquire()
    mailbox._gates.append(gate)
    return gate


def woken(gate):
    return not gate.locked()


def test_first_in_first_out(mailbox):
    """Items are returned in order, however many are added at a time."""
    mailbox.put([1, 2], 2)
    mailbox.put([3], 1)
    assert len(mailbox) == 3
    mailbox.wait(FOREVER)
    assert [mailbox.get(FOREVER) for _ in range(3)] == [1, 2, 3]
    assert len(mailbox) == 0


@pytest.mark.parametrize("timeout", [0, -1, 0.001])
def test_an_empty_mailbox(mailbox, timeout):
    """After a timeout the result is None, and no waiter is registered any more."""
    for wait in (mailbox.get, mailbox.wait):
        with pytest.raises(TimeoutError):
            wait(Deadline(timeout))
    assert not mailbox._gates
    mailbox.put(["later"], 1)
    assert mailbox.get(NOW) == "later"


def test_a_closed_mailbox_can_be_read_to_its_end(mailbox):
    """After the items the reason is raised, as a new error for each reader."""
    cause = OSError("cut")
    reason = ConnectionClosedError("why")
    reason.__cause__ = cause
    mailbox.put([1], 1)
    assert (mailbox.closed, mailbox.reason) == (False, None)
    mailbox.raise_reason()
    mailbox.close(reason)
    mailbox.close(ConnectionClosedError("again"))
    assert (mailbox.closed, mailbox.reason) == (True, reason)
    assert mailbox.get(FOREVER) == 1
    raised = []
    for read in (lambda: mailbox.get(FOREVER), lambda: mailbox.wait(NOW), mailbox.raise_reason):
        with pytest.raises(ConnectionClosedError, match="why") as caught:
            read()
        raised.append(caught.value)
        assert caught.value.__cause__ is cause
    assert len({id(error) for error in raised} | {id(reason)}) == 4
    assert not mailbox._gates


def test_as_many_are_woken_as_there_are_items(mailbox):
    """Waiting threads are woken in the order of their waits."""
    first, second, third = (sleeping(mailbox) for _ in range(3))
    mailbox.put([1, 2], 2)
    assert [woken(gate) for gate in (first, second, third)] == [True, True, False]
    mailbox.put([3, 4, 5], 3)
    assert woken(third)


def test_all_waiters_are_woken(mailbox):
    """A close wakes all waiting threads."""
    gates = [sleeping(mailbox) for _ in range(3)]
    mailbox.close(ConnectionClosedError("why"))
    assert all(map(woken, gates))
    assert not mailbox._gates


class InterruptedDeadline:
    """A deadline that runs a function and raises KeyboardInterrupt before the wait."""

    def __init__(self, happens):
        self._happens = happens

    def lock_timeout(self):
        self._happens()
        raise KeyboardInterrupt


def test_a_late_wake_up_is_passed_on(mailbox):
    """A thread that was woken while it gave up wakes another one for the item."""
    other = []

    def happens():
        other.append(sleeping(mailbox))
        mailbox.put([1], 1)
        assert not woken(other[0])

    with pytest.raises(KeyboardInterrupt):
        mailbox.wait(InterruptedDeadline(happens))
    assert woken(other[0])


def test_no_needless_wake_up_is_passed_on(mailbox):
    """If another thread has taken the item, no thread is woken."""
    other = []

    def happens():
        other.append(sleeping(mailbox))
        mailbox.put([1], 1)
        mailbox.items.popleft()

    with pytest.raises(KeyboardInterrupt):
        mailbox.wait(InterruptedDeadline(happens))
    assert not woken(other[0])
    assert list(mailbox._gates) == other


def test_a_forked_child_has_an_empty_mailbox(mailbox):
    """The child does not have the items, nor those of a mailbox that was closed before."""
    closed: Mailbox[int] = Mailbox()
    for item in (mailbox, closed):
        item.put([1], 1)
    sleeping(mailbox)
    closed.close(TimeoutError("closed"))

    def check() -> None:
        for item in (mailbox, closed):
            with pytest.raises(ForkedConnectionError):
                item.get(FOREVER)

    in_child(check)
    assert (mailbox.get(FOREVER), closed.get(FOREVER)) == (1, 1)


@pytest.mark.parametrize(
    "settle", [lambda slot: slot.set(None), lambda slot: slot.fail(TimeoutError("late"))]
)
def test_result_slot_stays_set_after_the_wait(settle):
    """The thread that has waited still sees that there is a result."""
    slot = ResultSlot()
    assert not slot.is_set()
    settle(slot)
    assert slot.is_set()
    assert slot.arrived(NOW)
    assert slot.is_set()
