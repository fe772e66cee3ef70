"""The protocol lines of a pull subscription: the examples of ADR-13."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from fix_proxy import Listener, ScriptedPeer
from fix_threads import STALL, wait_until

import jetstream_sync
from jetstream_sync import (
    BadRequestStatusError,
    ConsumerIsPushBasedError,
    JetStreamMsg,
    NoHeartbeatError,
    PullError,
    PullSubscription,
    RequestLimitError,
    TimeoutError,
)

NEXT = b"$JS.API.CONSUMER.MSG.NEXT.bar.dur"
NOT_FOUND = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}


class Server:
    """A scripted server with the state of one pull subscription."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self._peer = peer
        #: Sids of the client's subscriptions, by subject.
        self.subscriptions: dict[bytes, bytes] = {}
        #: The received lines, without pings.
        self.lines: list[bytes] = []

    def line(self) -> bytes:
        """Read the client's next line."""
        while True:
            line = self._peer.line().rstrip()
            if line == b"PING":
                self._peer.send(b"PONG\r\n")
            elif line != b"PONG":
                self.lines.append(line)
                return line

    def request(self, subject: bytes = NEXT) -> tuple[bytes, Any]:
        """Read the next request to a subject; return its reply subject and its body."""
        while True:
            fields = self.line().split()
            if fields[0] == b"SUB":
                self.subscriptions[fields[1]] = fields[-1]
            elif fields[0] == b"PUB":
                body = self._peer.read(int(fields[-1]) + 2)[:-2]
                assert fields[1] == subject
                assert len(fields) == 4
                return fields[2], json.loads(body) if body else None
            else:
                assert fields[0] == b"UNSUB", fields

    def refuse_to_tell(self) -> None:
        """Answer the lookup of the consumer with an error, and forget it."""
        reply, body = self.request(b"$JS.API.CONSUMER.INFO.bar.dur")
        assert body is None
        answer = json.dumps(NOT_FOUND).encode()
        self._peer.send(b"MSG %b %b %d\r\n%b\r\n" % (reply, self.sid(reply), len(answer), answer))
        self.subscriptions.clear()
        self.lines.clear()

    def sid(self, reply: bytes) -> bytes:
        """Return the sid of the subscription that receives a reply subject."""
        return (
            self.subscriptions.get(reply) or self.subscriptions[reply.rpartition(b".")[0] + b".*"]
        )

    def status(self, reply: bytes, said: bytes, sid: bytes | None = None) -> None:
        """Send a status to a reply subject."""
        block = b"NATS/1.0 " + said + b"\r\n\r\n"
        sizes = (len(block), len(block))
        self._peer.send(
            b"HMSG %b %b %d %d\r\n%b\r\n" % (reply, sid or self.sid(reply), *sizes, block)
        )

    def message(self, reply: bytes, number: int) -> None:
        """Send a message of the stream to a reply subject, with its own subject."""
        ack = b"$JS.ACK.bar.dur.1.%d.%d.1626845015078897000.0" % (number, number)
        self._peer.send(b"MSG hello %b %b 4\r\nhelo\r\n" % (self.sid(reply), ack))


class Stage:
    """A subscription, and its server."""

    def __init__(self, server: Server, sub: PullSubscription, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self.sub = sub
        self._pool = pool

    def fetch(self, batch: int, **options: Any) -> Future[list[JetStreamMsg]]:
        """Start a fetch on another thread."""
        return self._pool.submit(self.sub.fetch, batch, **options)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A subscription to consumer ``dur`` of stream ``bar``, whose lookup fails."""
    with ThreadPoolExecutor(2) as pool, Listener() as listener:
        nc = jetstream_sync.connect(listener.url, allow_reconnect=False)
        try:
            server = Server(listener.take())
            bound = pool.submit(nc.jetstream().pull_subscribe_bind, "dur", "bar")
            server.refuse_to_tell()
            yield Stage(server, bound.result(5), pool)
        finally:
            nc.close()


def test_a_batch_is_asked_for_without_waiting_and_then_with(stage: Stage) -> None:
    """The example for ``Pull(n)``: no wait, 404, with an expiry, one of five, unsubscribe."""
    server = stage.server
    began = time.monotonic()
    fetched = stage.fetch(5, timeout=1)
    reply, body = server.request()
    assert body == {"batch": 5, "no_wait": True}
    (subject,) = server.subscriptions
    assert subject == reply
    assert re.fullmatch(rb"_INBOX\.\w+", reply)
    server.status(reply, b"404 No Messages")
    again, body = server.request()
    assert again == reply
    expires = body.pop("expires")
    assert body == {"batch": 5}
    assert 800_000_000 < expires <= 900_000_000
    server.message(reply, 1)
    # The server sends no end of the request; the client times out.
    assert server.line() == b"UNSUB " + server.sid(reply)
    assert [msg.data for msg in fetched.result(1)] == [b"helo"]
    assert 0.99 < time.monotonic() - began < 1.5 + STALL


def test_a_full_batch_is_one_request(stage: Stage) -> None:
    """If the first request returns the whole batch, it is the only one."""
    fetched = stage.fetch(2, timeout=5)
    reply, body = stage.server.request()
    assert body == {"batch": 2, "no_wait": True}
    for number in (1, 2):
        stage.server.message(reply, number)
    assert len(fetched.result(1)) == 2
    again = stage.fetch(3, timeout=5)
    other, body = stage.server.request()
    assert (other != reply, body) == (True, {"batch": 3, "no_wait": True})
    assert b"UNSUB " + stage.server.sid(reply) in stage.server.lines
    stage.server.message(other, 3)
    stage.server.status(other, b"404 No Messages")
    assert len(again.result(1)) == 1, "what is there is returned at once"


def test_single_messages_share_a_subscription(stage: Stage) -> None:
    """The example for ``Pull(1)``: a subscription with a wildcard, one subject per request."""
    replies = []
    for number in (1, 2, 3):
        fetched = stage.fetch(1)
        reply, body = stage.server.request()
        assert body == {"batch": 1, "no_wait": True}
        stage.server.message(reply, number)
        assert fetched.result(1)[0].metadata.stream_seq == number
        replies.append(reply)
    (subject,) = stage.server.subscriptions
    assert re.fullmatch(rb"_INBOX\.\w+\.\*", subject)
    assert {reply.rpartition(b".")[0] for reply in replies} == {subject[:-2]}
    assert len(set(replies)) == 3
    commands = [line.split()[0] for line in stage.server.lines]
    assert commands == [b"SUB", b"PUB", b"PUB", b"PUB"]


def test_a_single_message_is_waited_for_with_another_request(stage: Stage) -> None:
    """Without a message a second request waits, with its own reply subject."""
    fetched = stage.fetch(1, timeout=2)
    reply, _ = stage.server.request()
    stage.server.status(reply, b"404 No Messages")
    other, body = stage.server.request()
    assert other != reply
    assert body.pop("expires") <= 1_900_000_000
    assert body == {"batch": 1}
    stage.server.message(other, 7)
    assert fetched.result(1)[0].metadata.stream_seq == 7


def test_a_timed_out_fetch_unsubscribes(stage: Stage) -> None:
    """A fetch without an answer ends its subscription, and the next one has another."""
    fetched = stage.fetch(1, timeout=0.2)
    reply, _ = stage.server.request()
    assert stage.server.line() == b"UNSUB " + stage.server.sid(reply)
    with pytest.raises(TimeoutError):
        fetched.result(1)
    again = stage.fetch(1)
    other, _ = stage.server.request()
    assert stage.server.sid(other) != stage.server.sid(reply)
    stage.server.message(other, 1)
    assert len(again.result(1)) == 1


@pytest.mark.parametrize("late", [b"404 No Messages", b"408 Request Timeout", b"409 Anything"])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_late_status_ends_no_later_fetch(stage: Stage, late: bytes, batch: int) -> None:
    """A late status of an earlier request is not taken for the current one."""
    first = stage.fetch(1, timeout=1)
    old, _ = stage.server.request()
    stage.server.message(old, 1)
    first.result(1)
    stage.server.status(old, late)
    second = stage.fetch(batch, timeout=2)
    new, body = stage.server.request()
    assert body == {"batch": batch, "no_wait": True}
    stage.server.status(old, late)
    stage.server.message(new, 2)
    if batch > 1:
        stage.server.status(new, b"404 No Messages")
    assert [msg.metadata.stream_seq for msg in second.result(1)] == [2]
    assert [line for line in stage.server.lines if line.startswith(b"PUB")][2:] == []


def test_without_messages_it_raises_at_the_timeout(stage: Stage) -> None:
    """404 and 408 are not errors: `TimeoutError` is raised at the timeout."""
    began = time.monotonic()
    fetched = stage.fetch(3, timeout=0.5)
    reply, _ = stage.server.request()
    stage.server.status(reply, b"404 No Messages")
    stage.server.request()
    stage.server.status(reply, b"408 Request Timeout")
    with pytest.raises(TimeoutError, match="'dur'"):
        fetched.result(2)
    assert 0.49 < time.monotonic() - began < 1 + STALL


def test_some_of_a_batch_are_returned_when_the_server_says_that_time_is_up(stage: Stage) -> None:
    """With messages to return, the fetch does not wait for the rest of its timeout."""
    began = time.monotonic()
    fetched = stage.fetch(3, timeout=5)
    reply, _ = stage.server.request()
    stage.server.status(reply, b"404 No Messages")
    stage.server.request()
    stage.server.message(reply, 1)
    stage.server.status(reply, b"408 Request Timeout\r\nNats-Pending-Messages: 2")
    assert len(fetched.result(1)) == 1
    assert time.monotonic() - began < 2


def test_requests_that_are_pending_are_no_error(stage: Stage) -> None:
    """408 for a request with no_wait means the same as 404."""
    fetched = stage.fetch(2, timeout=2)
    reply, _ = stage.server.request()
    stage.server.status(reply, b"408 Requests Pending")
    _, body = stage.server.request()
    assert "expires" in body
    for number in (1, 2):
        stage.server.message(reply, number)
    assert len(fetched.result(1)) == 2


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"409 Consumer is push based", ConsumerIsPushBasedError),
        (b"409 Exceeded MaxRequestBatch of 3", RequestLimitError),
        (b"409 Exceeded MaxWaiting", RequestLimitError),
        (b"400 Bad Request", BadRequestStatusError),
        (b"409 An unknown description", PullError),
        (b"499 An unknown description", PullError),
    ],
)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("waiting", [False, True])
def test_other_statuses_are_errors(
    stage: Stage, said: bytes, error: type[PullError], batch: int, waiting: bool
) -> None:
    """A conflict or an unknown status is raised at once, with the server's description."""
    fetched = stage.fetch(batch, timeout=10)
    reply, _ = stage.server.request()
    if waiting:
        stage.server.status(reply, b"404 No Messages")
        reply, _ = stage.server.request()
    stage.server.status(reply, said)
    with pytest.raises(error) as caught:
        fetched.result(1)
    assert (str(caught.value.code).encode(), caught.value.description.encode()) == tuple(
        said.split(b" ", 1)
    )


def test_messages_before_an_error_are_returned(stage: Stage) -> None:
    """Messages received before an error are returned."""
    fetched = stage.fetch(5, timeout=10)
    reply, _ = stage.server.request()
    stage.server.message(reply, 1)
    stage.server.status(reply, b"409 Exceeded MaxWaiting")
    assert len(fetched.result(1)) == 1


def test_the_waiting_request_has_a_heartbeat(stage: Stage) -> None:
    """The second request has a heartbeat; silence of twice its length is an error."""
    fetched = stage.fetch(5, timeout=10, heartbeat=0.2)
    reply, body = stage.server.request()
    assert body == {"batch": 5, "no_wait": True}
    stage.server.status(reply, b"404 No Messages")
    _, body = stage.server.request()
    assert body["idle_heartbeat"] == 200_000_000
    stage.server.status(reply, b"100 Idle Heartbeat")
    with pytest.raises(NoHeartbeatError):
        fetched.result(1)


def test_without_a_timeout_it_asks_again_and_again(stage: Stage) -> None:
    """``None`` waits without limit, in requests of a minute."""
    fetched = stage.fetch(2, timeout=None)
    reply, _ = stage.server.request()
    stage.server.status(reply, b"404 No Messages")
    for _ in range(2):
        _, body = stage.server.request()
        assert body == {"batch": 2, "expires": 60_000_000_000}
        stage.server.status(reply, b"408 Request Timeout")
    stage.server.request()
    stage.server.message(reply, 1)
    stage.server.message(reply, 2)
    assert len(fetched.result(1)) == 2


def test_pending_counts_what_a_fetch_has_not_taken(stage: Stage) -> None:
    """Between fetches nothing is pending: a subscription requests only what it returns."""
    fetched = stage.fetch(1)
    reply, _ = stage.server.request()
    assert (stage.sub.pending_msgs, stage.sub.pending_bytes, stage.sub.delivered) == (0, 0, 0)
    stage.server.message(reply, 1)
    fetched.result(1)
    wait_until(lambda: stage.sub.delivered == 1)
    assert (stage.sub.pending_msgs, stage.sub.pending_bytes) == (0, 0)
