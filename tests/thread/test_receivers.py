"""The reader thread and the receivers of messages: incomplete ones, and ones that raise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from fixtures.internals import core_of
from fixtures.proxy import Listener
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, ConnectionClosedError
from jetstream_sync.client.mailbox import MessageReceiver
from jetstream_sync.client.replies import QueueInbox, ReplyCollector
from jetstream_sync.jetstream.pull import PullInbox, ReusableInbox


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listener:
        yield listener


@pytest.fixture
def told() -> list[Exception]:
    return []


@pytest.fixture
def nc(listener: Listener, told: list[Exception]) -> Iterator[Connection]:
    connection = jetstream_sync.connect(
        listener.url, error_cb=told.append, reconnect_time_wait=0.01
    )
    yield connection
    connection.close()


CONSTRUCTORS: dict[str, Callable[[Connection], object]] = {
    "fetch": lambda nc: PullInbox(core_of(nc)),
    "small fetch": lambda nc: ReusableInbox(core_of(nc)),
    "snapshot": lambda nc: QueueInbox(core_of(nc)),
    "collected replies": lambda nc: ReplyCollector(core_of(nc), lambda _: True),
    "iterated replies": lambda nc: nc.request_many("a", timeout=None),
    "subscription": lambda nc: nc.subscribe("a"),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_the_link_breaks_while_a_receiver_is_created(nc, name):
    """At every line of its constructor, a receiver accepts that the connection is lost and back."""
    core = core_of(nc)
    modules = ("pull.py", "replies.py", "subscription.py")
    raised: list[BaseException] = []
    lines = 0

    def trace(frame: FrameType, _: str, __: Any) -> Any:
        return line if frame.f_code.co_filename.endswith(modules) else None

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line" and frame.f_code.co_name == "__init__":
            lines += 1
            for connected in (False, True):
                for subscription in core.table.all():
                    try:
                        subscription.receiver.on_connection_change(connected=connected)
                    except BaseException as error:
                        raised.append(error)
        return line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        CONSTRUCTORS[name](nc)
    finally:
        sys.settrace(before)
    assert lines > 3
    assert raised == []


class FaultyReceiver(MessageReceiver):
    """Raises an unexpected exception in each call of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.reasons: list[BaseException] = []

    def _fault(self, kind: str) -> None:
        if kind == self.kind:
            raise ZeroDivisionError(kind)

    def deliver(self, deliveries: object) -> None:
        self._fault("message")

    def on_connection_change(self, *, connected: bool) -> None:
        self._fault("disconnect")

    def on_permission_error(self, subject: bytes, error: object) -> bool:
        self._fault("permission")
        return False

    def on_closed(self, reason: BaseException) -> None:
        self.reasons.append(reason)
        raise ZeroDivisionError("at the end")


@pytest.mark.parametrize("kind", ["message", "disconnect", "permission"])
def test_a_receiver_that_raises_ends_alone(listener, nc, told, kind):
    """An exception of one receiver is reported and ends its subscription; the connection goes on."""
    receiver = FaultyReceiver(kind)
    state = core_of(nc).table.add("faulty", "", receiver)
    sub = nc.subscribe("a")
    peer = listener.take()
    if kind == "message":
        peer.send(b"MSG faulty %d 1\r\nx\r\n" % state.sid)
    elif kind == "permission":
        peer.send(b"-ERR 'Permissions Violation for Publish to \"faulty\"'\r\n")
    else:
        peer.close()
        peer = listener.take(1)
        wait_until(lambda: nc.is_connected)
    wait_until(lambda: receiver.reasons)
    (reason,) = receiver.reasons
    assert isinstance(reason, ConnectionClosedError)
    assert isinstance(reason.__cause__, ZeroDivisionError)
    wait_until(lambda: reason in told)
    assert state.sid not in core_of(nc).table.by_sid
    peer.send(b"MSG a %d 1\r\nx\r\n" % sub.sid)
    assert sub.next_msg(timeout=5 * SCALE).data == b"x"
