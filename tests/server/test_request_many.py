"""request_many (ADR-47): what ends the replies, and that nothing is left behind."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from fixtures.internals import core_of, open_subscriptions
from fixtures.threads import between, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, Msg, ReplyIterator, errors
from jetstream_sync.client.writer import NOW
from jetstream_sync.server import NatsServer


def respond(nc: Connection, subject: str, *replies: bytes) -> None:
    """Answer each request to a subject with these replies."""

    def respond(msg: Msg) -> None:
        for reply in replies:
            msg.respond(reply)

    nc.subscribe(subject, cb=respond)
    nc.flush()


def data(replies: ReplyIterator) -> list[bytes]:
    """Return the payloads of the replies."""
    return [reply.data for reply in replies]


def inboxes(nc: Connection) -> int:
    """Return the number of reply inboxes that the client has."""
    return sum(subscription.receiver.is_reply_inbox for subscription in open_subscriptions(nc))


# --- what ends the replies ----------------------------------------------------------------------


def test_the_timeout_ends_the_replies(nc, other, subject):
    """Without another limit all replies are returned that arrive within the timeout."""
    respond(other, subject, b"1", b"2")
    respond(other, subject, b"3")
    with between(0.3, 1.0):
        replies = nc.request_many(subject, b"?", timeout=timedelta(seconds=0.3))
        assert sorted(data(replies)) == [b"1", b"2", b"3"]
    assert replies.ended_by == "timeout"
    assert list(replies) == []


def test_a_stall_ends_the_replies_early(nc, other, subject):
    """Two of three responders answer at once; the third is not waited for."""
    go = threading.Event()
    respond(other, subject, b"1")
    respond(other, subject, b"2")
    slow = other.subscribe(subject, cb=lambda msg: (go.wait(20), msg.respond(b"3")))
    other.flush()
    with within(5.0):
        replies = nc.request_many(subject, timeout=30.0, stall=0.3)
        assert sorted(data(replies)) == [b"1", b"2"]
    assert replies.ended_by == "stall"
    go.set()
    slow.unsubscribe()


def test_the_first_reply_may_take_longer_than_a_stall(nc, other, subject):
    """The stall time applies from the first reply on."""

    def respond(msg: Msg) -> None:
        time.sleep(0.5)
        msg.respond(b"late")

    sub = other.subscribe(subject, cb=respond)
    other.flush()
    replies = nc.request_many(subject, timeout=30.0, stall=0.05)
    assert data(replies) == [b"late"]
    assert replies.ended_by == "stall"
    sub.unsubscribe()


@pytest.mark.parametrize("sentinel", ["empty", lambda msg: msg.data == b""])
def test_a_sentinel_ends_the_replies(nc, other, subject, sentinel):
    """The reply that the sentinel is true for is not returned, nor is any after it."""
    respond(other, subject, b"1", b"2", b"", b"3")
    with within(5.0):
        replies = nc.request_many(subject, timeout=30.0, sentinel=sentinel)
        assert data(replies) == [b"1", b"2"]
    assert replies.ended_by == "sentinel"


def test_a_sentinel_that_raises_ends_the_replies(nc, other, subject):
    """The exception reaches the caller, and the inbox is removed."""
    respond(other, subject, b"1")
    before = inboxes(nc)

    def fail(_: Msg) -> bool:
        raise ZeroDivisionError

    replies = nc.request_many(subject, timeout=30.0, sentinel=fail)
    with pytest.raises(ZeroDivisionError):
        next(replies)
    assert replies.ended_by == "closed"
    assert inboxes(nc) == before


def test_a_sentinel_that_returns_a_future(nc, other, subject):
    """Its truth is not that of its result: the replies do not end without an error."""
    with other.subscribe(subject, cb=lambda msg: msg.respond(b"reply")):
        other.flush()
        replies = nc.request_many(subject, timeout=30.0, sentinel=lambda _: Future())
        with pytest.raises(errors.UnfinishedError):
            list(replies)
    assert replies.ended_by == "closed"


def test_without_responders_the_iteration_fails_at_once(nc, subject):
    """The error names the subject, and does not take the timeout."""
    with within(2.0):
        for limit in (None, 1, 3):
            replies = nc.request_many(subject, timeout=30.0, max_messages=limit)
            with pytest.raises(errors.NoRespondersError, match=subject):
                list(replies)
            assert replies.ended_by == "status"


def test_a_later_status_ends_the_replies(nc, other, subject):
    """A status that comes instead of another reply is the end and no error."""
    requests = other.subscribe(subject)
    other.flush()
    replies = nc.request_many(subject, timeout=30.0)
    inbox = requests.next_msg(5.0).reply
    other.publish(inbox, b"a")
    command = b"HPUB %s 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % inbox.encode()
    core_of(other).writer.append(command, 16, NOW)
    other.publish(inbox, b"b")
    with within(5.0):
        assert data(replies) == [b"a"]
    assert replies.ended_by == "status"


def test_close_ends_the_replies(nc, other, subject):
    """Replies that are queued are dropped; another thread may close while one waits."""
    respond(other, subject, b"1", b"2")
    with nc.request_many(subject, timeout=30.0) as replies:
        assert next(replies).data == b"1"
    assert replies.ended_by == "closed"
    assert list(replies) == []

    replies = nc.request_many(subject, timeout=30.0)
    assert [next(replies).data, next(replies).data] == [b"1", b"2"]
    threading.Timer(0.1, replies.close).start()
    with within(5.0):
        assert list(replies) == []
    assert replies.ended_by == "closed"


# --- time ---------------------------------------------------------------------------------------


def test_time_in_the_loop_body_loses_no_reply(nc, other, subject):
    """Replies that arrive by the deadline are returned after it; those that arrive later are not."""
    asked: list[Msg] = []
    sub = other.subscribe(subject, cb=asked.append)
    other.flush()
    replies = nc.request_many(subject, timeout=1.0, stall=0.5)
    (request,) = wait_until(lambda: asked)
    for number in range(3):
        request.respond(b"%d" % number)
    assert next(replies).data == b"0"
    time.sleep(1.2)
    request.respond(b"too late")
    other.flush()
    nc.flush()
    assert data(replies) == [b"1", b"2"]
    assert replies.ended_by == "timeout"
    sub.unsubscribe()


def test_time_in_the_loop_body_is_not_a_stall(nc, other, subject):
    """The stall time starts when the caller waits."""
    asked: list[Msg] = []
    sub = other.subscribe(subject, cb=asked.append)
    other.flush()
    replies = nc.request_many(subject, timeout=60.0, stall=0.8, max_messages=2)
    (request,) = wait_until(lambda: asked)
    request.respond(b"1")
    assert next(replies).data == b"1"
    time.sleep(1.0)
    threading.Timer(0.2, request.respond, [b"2"]).start()
    assert data(replies) == [b"2"]
    assert replies.ended_by == "count"
    sub.unsubscribe()


# --- what is left behind ------------------------------------------------------------------------


def test_a_number_of_replies_leaves_no_subscription(monitored):
    """The server ends the subscription after that many replies, also without a responder."""
    server, subscriptions = monitored
    with jetstream_sync.connect(server.url) as nc:
        for _ in range(3):
            respond(nc, "s", b"x")
        replies = nc.request_many("s", timeout=30.0, max_messages=2)
        wait_until(lambda: len(replies._queue.mailbox) == 2)
        assert subscriptions() == ["s"] * 3
        assert data(replies) == [b"x", b"x"]
        with pytest.raises(errors.NoRespondersError):
            next(nc.request_many("nothing", timeout=30.0, max_messages=2))
        nc.flush()
        assert (subscriptions(), inboxes(nc)) == (["s"] * 3, 0)


def test_every_exit_unsubscribes(monitored):
    """Leaving the loop, and dropping the iterator, leave no subscription and no thread."""
    server, subscriptions = monitored
    with jetstream_sync.connect(server.url) as nc:
        respond(nc, "s", b"1", b"2", b"3")
        threads = threading.active_count()
        for turn in range(1000):
            if turn % 2:
                with nc.request_many("s", timeout=30.0) as replies:
                    for _ in replies:
                        break
            else:
                for _ in nc.request_many("s", timeout=30.0):
                    break
        for _ in range(10):
            nc.request_many("s", timeout=30.0)
        replies = nc.request_many("s", timeout=0.01)
        list(replies)
        del replies
        gc.collect()
        wait_until(lambda: not inboxes(nc))
        nc.flush()
        wait_until(lambda: subscriptions() == ["s"])
        wait_until(lambda: threading.active_count() <= threads)


def test_a_request_that_cannot_be_sent_leaves_no_subscription(nc):
    """Invalid arguments are refused before subscribing; other errors remove the subscription."""
    before = inboxes(nc)
    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"subject": "a.*"}, errors.BadSubjectError),
        ({"max_messages": 0}, errors.InvalidOptionError),
        ({"stall": 0}, errors.InvalidOptionError),
        ({"timeout": "1"}, errors.InvalidOptionError),
        ({"sentinel": "end"}, errors.InvalidOptionError),
        ({"headers": {"a:": "b"}}, errors.InvalidHeaderError),
        ({"payload": bytes(nc.max_payload + 1)}, errors.MaxPayloadError),
    ]
    for given, error in cases:
        with pytest.raises(error):
            nc.request_many(**{"subject": "a", **given})
    assert inboxes(nc) == before


# --- connections that break and close -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "timeout", "fails"),
    [
        ({"fail_requests_on_disconnect": True}, 30.0, True),
        ({}, None, True),
        ({}, 1.5, False),
    ],
)
def test_a_lost_connection(options, timeout, fails):
    """
    A lost connection fails the iteration, if the option says so or it would not end otherwise.

    Otherwise it continues until the timeout, and replies to the inbox arrive after the
    reconnect. Replies received before are returned in any case.
    """
    with (
        NatsServer() as server,
        jetstream_sync.connect(server.url, reconnect_time_wait=0.01, **options) as nc,
        jetstream_sync.connect(server.url, reconnect_time_wait=0.01) as other,
    ):
        sub = other.subscribe("s")
        other.flush()
        replies = nc.request_many("s", timeout=timeout)
        request = sub.next_msg(5.0)
        request.respond(b"before")
        wait_until(lambda: len(replies._queue.mailbox))
        before = nc.stats["reconnects"]
        nc.reconnect()
        wait_until(lambda: nc.is_connected and nc.stats["reconnects"] > before)
        nc.flush()
        request.respond(b"after")
        assert next(replies).data == b"before"
        if fails:
            with pytest.raises(errors.ConnectionLostError):
                next(replies)
            assert replies.ended_by == "closed"
        else:
            assert data(replies) == [b"after"]
            assert replies.ended_by == "timeout"
        assert not inboxes(nc)


@pytest.mark.parametrize("timeout", [30.0, None])
def test_a_closed_connection_ends_the_wait(nats_server, nc, subject, timeout):
    """A waiting thread gets the reason."""
    sub = nc.subscribe(subject)
    nc.flush()
    with jetstream_sync.connect(nats_server.url) as closing:
        replies = closing.request_many(subject, timeout=timeout)
        sub.next_msg(5.0)
        threading.Timer(0.1, closing.close).start()
        with within(5.0), pytest.raises(errors.ConnectionClosedError):
            next(replies)
        assert replies.ended_by == "closed"
        with pytest.raises(errors.ConnectionClosedError):
            closing.request_many(subject)


def test_a_permission_violation_ends_the_iteration():
    """The iteration raises the permission violation, without waiting."""
    user = '{ user: u, password: p, permissions: { publish: { deny: "no" } } }'
    with (
        NatsServer(config=f"authorization {{ users: [ {user} ] }}") as server,
        jetstream_sync.connect(server.url, user="u", password="p") as nc,
    ):
        replies = nc.request_many("no", timeout=30.0)
        with within(5.0), pytest.raises(errors.PermissionsError):
            next(replies)
        assert replies.ended_by == "closed"
        wait_until(lambda: not inboxes(nc))
