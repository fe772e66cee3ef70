"""The subscriptions of a connection, and the commands by which a server learns of them."""

from __future__ import annotations

import pytest

from jetstream_sync.client.direct_reads import DirectReads
from jetstream_sync.client.encoder import MessageEncoder
from jetstream_sync.client.events import Events
from jetstream_sync.client.mailbox import MessageReceiver, SubscriptionState
from jetstream_sync.client.state import ConnectionState
from jetstream_sync.client.subscription_table import SubscriptionTable
from jetstream_sync.client.writer import Writer
from jetstream_sync.options import ConnectionOptions


class Table(SubscriptionTable):
    """The subscriptions of a connection without a server, and the commands for it."""

    def __init__(self) -> None:
        self.writer = Writer(1024, lambda *_: None)
        subscriptions: dict[int, SubscriptionState] = {}
        super().__init__(
            subscriptions,
            ConnectionState(self.writer, MessageEncoder()),
            self.writer,
            DirectReads(subscriptions, lambda: False),
            Events("test", ConnectionOptions(servers=())),
            "_INBOX",
        )

    def sent(self) -> bytes:
        """Return the commands since the last call."""
        commands, self.writer._buffer = bytes(self.writer._buffer), bytearray()
        return commands


@pytest.fixture
def table() -> Table:
    return Table()


def test_subscriptions_have_numbers_of_their_own(table):
    """A sid is never reused."""
    first = table.add("a", "", MessageReceiver())
    assert table.sent() == b"SUB a 1\r\n"
    table.remove(first)
    assert table.sent() == b"UNSUB 1\r\n"
    receiver = MessageReceiver()
    second = table.add("b.*", "q", receiver)
    assert table.sent() == b"SUB b.* q 2\r\n"
    assert table.by_sid == {2: second}
    assert (second.sid, second.subject, second.queue) == (2, "b.*", "q")
    assert second.receiver is receiver
    assert receiver.subscription is second


def test_unsubscribing_after_some_messages(table):
    """The limit counts from the start of the subscription; the subscription is kept until it is reached."""
    subscription = table.add("a", "", MessageReceiver())
    subscription.delivered = 2
    table.sent()
    table.remove(subscription, 5)
    assert subscription.limit == 5
    assert table.by_sid == {1: subscription}
    table.remove(subscription, 4)
    assert subscription.limit == 4
    assert table.sent() == b"UNSUB 1 5\r\nUNSUB 1 4\r\n"


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_unsubscribing_when_the_limit_is_reached(table, limit):
    """A subscription that has already received as many messages ends at once."""
    subscription = table.add("a", "", MessageReceiver())
    subscription.delivered = 2
    table.sent()
    table.remove(subscription, limit)
    assert table.sent() == b"UNSUB 1\r\n"
    assert table.by_sid == {}


def test_messages_in_flight_are_delivered_after_unsub(table):
    """UNSUB is sent at once; messages in flight are delivered until the subscription is removed."""
    subscription = table.add("a", "", MessageReceiver())
    table.sent()
    table.stop([subscription])
    assert table.sent() == b"UNSUB 1\r\n"
    assert subscription.ending
    assert table.by_sid == {1: subscription}
    table.forget([subscription])
    assert table.by_sid == {}


def test_every_subscription_is_sent_to_a_new_server(table):
    """Subscriptions are restored with their remaining limits; ended ones are not."""
    assert table.restore() == b""
    table.add("a", "", MessageReceiver())
    limited = table.add("b", "q", MessageReceiver())
    commands = table.sent()
    ending = table.add("c", "", MessageReceiver())
    ended = table.add("d", "", MessageReceiver())
    limited.delivered = 3
    table.remove(limited, 10)
    table.stop([ending])
    table.remove(ended)
    assert table.restore() == commands + b"UNSUB 2 7\r\n"
    limited.delivered = 9
    assert table.restore() == commands + b"UNSUB 2 1\r\n"
