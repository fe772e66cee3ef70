"""The requests of a pull subscription: the examples of ADR-13."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream
from fixtures.threads import between

import jetstream_sync
from jetstream_sync import Connection, JetStreamMsg, PullSubscription, errors

NEXT = "$JS.API.CONSUMER.MSG.NEXT.bar.dur"
NOT_FOUND = {"error": {"code": 404, "err_code": 10014, "description": "consumer not found"}}


class Stage:
    """A subscription, and its server."""

    def __init__(
        self,
        server: FakeJetStream,
        nc: Connection,
        sub: PullSubscription,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.server = server
        self.nc = nc
        self.sub = sub
        self._pool = pool
        self.requests = 0

    def fetch(self, batch: int, **options: Any) -> Future[list[JetStreamMsg]]:
        """Start a fetch on another thread."""
        return self._pool.submit(self.sub.fetch, batch, **options)

    def request(self) -> tuple[str, Any]:
        """Wait for the next pull request; return its reply subject and its body."""
        self.requests += 1
        command = self.server.wait_for(lambda said: said.subject == NEXT, self.requests)
        return command.rest, json.loads(command.body)

    def status(self, reply: str, said: str) -> None:
        """Send a status to a reply subject."""
        self.server.deliver(reply, header=f"NATS/1.0 {said}\r\n\r\n".encode())

    def message(self, reply: str, number: int) -> None:
        """Send a message of the stream to a reply subject."""
        ack = f"$JS.ACK.bar.dur.1.{number}.{number}.1626845015078897000.0"
        self.server.deliver(reply, b"helo", ack)

    def wait_for_unsubscribe(self, inbox: str) -> None:
        """Wait until the client has unsubscribed from an inbox."""
        self.nc.flush()  # it is sent with the next command
        self.server.wait_for(lambda said: (said.verb, said.subject) == ("UNSUB", inbox))


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A subscription to consumer ``dur`` of stream ``bar``, whose lookup fails."""
    with (
        ThreadPoolExecutor(2) as pool,
        FakeJetStream(lambda route, _: NOT_FOUND if "INFO" in route else None) as server,
    ):
        nc = jetstream_sync.connect(server.url, allow_reconnect=False)
        try:
            sub = nc.jetstream().pull_subscribe_bind("dur", "bar")
            server.received.clear()
            yield Stage(server, nc, sub, pool)
        finally:
            nc.close()


def test_a_batch_is_asked_for_without_waiting_and_then_with(stage):
    """The example for ``Pull(n)``: no wait, 404, with an expiry, one of five, unsubscribe."""
    with between(0.99, 1.5):
        fetched = stage.fetch(5, timeout=1)
        reply, body = stage.request()
        assert body == {"batch": 5, "no_wait": True}
        assert stage.server.received[0][:2] == ("SUB", reply)
        assert re.fullmatch(r"_INBOX\.\w+", reply)
        stage.status(reply, "404 No Messages")
        again, body = stage.request()
        assert again == reply
        assert 800_000_000 < body.pop("expires") <= 900_000_000
        assert body == {"batch": 5}
        stage.message(reply, 1)
        # The server sends no end of the request; the client times out.
        assert [msg.data for msg in fetched.result(5)] == [b"helo"]
    stage.wait_for_unsubscribe(reply)


def test_a_full_batch_is_one_request(stage):
    """If the first request returns the whole batch, it is the only one."""
    fetched = stage.fetch(2, timeout=5)
    reply, body = stage.request()
    assert body == {"batch": 2, "no_wait": True}
    for number in (1, 2):
        stage.message(reply, number)
    assert len(fetched.result(1)) == 2
    stage.wait_for_unsubscribe(reply)
    again = stage.fetch(3, timeout=5)
    other, body = stage.request()
    assert (other != reply, body) == (True, {"batch": 3, "no_wait": True})
    stage.message(other, 3)
    stage.status(other, "404 No Messages")
    assert len(again.result(1)) == 1, "what is there is returned at once"


def test_single_messages_share_a_subscription(stage):
    """The example for ``Pull(1)``: a subscription with a wildcard, one subject per request."""
    replies = []
    for number in (1, 2, 3):
        fetched = stage.fetch(1)
        reply, body = stage.request()
        assert body == {"batch": 1, "no_wait": True}
        stage.message(reply, number)
        assert fetched.result(1)[0].metadata.stream_seq == number
        replies.append(reply)
    assert [said.verb for said in stage.server.received] == ["SUB", "PUB", "PUB", "PUB"]
    subject = stage.server.received[0].subject
    assert re.fullmatch(r"_INBOX\.\w+\.\*", subject)
    assert {reply.rpartition(".")[0] for reply in replies} == {subject[:-2]}
    assert len(set(replies)) == 3


def test_a_single_message_is_waited_for_with_another_request(stage):
    """Without a message a second request waits, with its own reply subject."""
    fetched = stage.fetch(1, timeout=2)
    reply, _ = stage.request()
    stage.status(reply, "404 No Messages")
    other, body = stage.request()
    assert other != reply
    assert body.pop("expires") <= 1_900_000_000
    assert body == {"batch": 1}
    stage.message(other, 7)
    assert fetched.result(1)[0].metadata.stream_seq == 7


def test_a_timed_out_fetch_unsubscribes(stage):
    """A fetch without a reply ends its subscription, and the next one has another."""
    fetched = stage.fetch(1, timeout=0.2)
    reply, _ = stage.request()
    stage.wait_for_unsubscribe(reply.rpartition(".")[0] + ".*")
    with pytest.raises(errors.TimeoutError):
        fetched.result(1)
    again = stage.fetch(1)
    other, _ = stage.request()
    assert other.rpartition(".")[0] != reply.rpartition(".")[0]
    stage.message(other, 1)
    assert len(again.result(1)) == 1


@pytest.mark.parametrize("late", ["404 No Messages", "408 Request Timeout", "409 Anything"])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_late_status_ends_no_later_fetch(stage, late, batch):
    """A late status of an earlier request is not taken for the current one."""
    first = stage.fetch(1, timeout=1)
    old, _ = stage.request()
    stage.message(old, 1)
    first.result(1)
    stage.status(old, late)
    second = stage.fetch(batch, timeout=2)
    new, body = stage.request()
    assert body == {"batch": batch, "no_wait": True}
    stage.status(old, late)
    stage.message(new, 2)
    if batch > 1:
        stage.status(new, "404 No Messages")
    assert [msg.metadata.stream_seq for msg in second.result(1)] == [2]
    assert len(stage.server.published(NEXT)) == 2


def test_without_messages_it_raises_at_the_timeout(stage):
    """404 and 408 are not errors: `TimeoutError` is raised at the timeout."""
    with between(0.49, 1):
        fetched = stage.fetch(3, timeout=0.5)
        reply, _ = stage.request()
        stage.status(reply, "404 No Messages")
        stage.request()
        stage.status(reply, "408 Request Timeout")
        with pytest.raises(errors.TimeoutError, match="'dur'"):
            fetched.result(2)


def test_a_timeout_status_ends_a_fetch_with_its_messages(stage):
    """With messages to return, the fetch does not wait for the rest of its timeout."""
    with between(0, 2):
        fetched = stage.fetch(3, timeout=5)
        reply, _ = stage.request()
        stage.status(reply, "404 No Messages")
        stage.request()
        stage.message(reply, 1)
        stage.status(reply, "408 Request Timeout\r\nNats-Pending-Messages: 2")
        assert len(fetched.result(1)) == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("409 Consumer is push based", errors.ConsumerIsPushBasedError),
        ("409 Exceeded MaxRequestBatch of 3", errors.RequestLimitError),
        ("409 Exceeded MaxWaiting", errors.RequestLimitError),
        ("400 Bad Request", errors.BadRequestStatusError),
        ("409 An unknown description", errors.PullError),
        ("499 An unknown description", errors.PullError),
    ],
)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("waiting", [None, "404 No Messages", "408 Requests Pending"])
def test_other_statuses_are_errors(stage, said, error, batch, waiting):
    """A conflict or an unknown status is raised at once, with the server's description."""
    fetched = stage.fetch(batch, timeout=10)
    reply, _ = stage.request()
    if waiting is not None:
        stage.status(reply, waiting)
        reply, _ = stage.request()
    stage.status(reply, said)
    with pytest.raises(error) as caught:
        fetched.result(1)
    assert f"{caught.value.code} {caught.value.description}" == said


def test_messages_before_an_error_are_returned(stage):
    """Messages received before an error are returned."""
    fetched = stage.fetch(5, timeout=10)
    reply, _ = stage.request()
    stage.message(reply, 1)
    stage.status(reply, "409 Exceeded MaxWaiting")
    assert len(fetched.result(1)) == 1


def test_the_waiting_request_has_a_heartbeat(stage):
    """The second request has a heartbeat; silence of twice its length is an error."""
    fetched = stage.fetch(5, timeout=10, heartbeat=0.2)
    reply, body = stage.request()
    assert body == {"batch": 5, "no_wait": True}
    stage.status(reply, "404 No Messages")
    _, body = stage.request()
    assert body["idle_heartbeat"] == 200_000_000
    stage.status(reply, "100 Idle Heartbeat")
    with pytest.raises(errors.NoHeartbeatError):
        fetched.result(1)


def test_without_a_timeout_the_rest_of_a_batch_is_waited_for(stage):
    """The request for the rest waits: the server does not reply to it at once."""
    fetched = stage.fetch(2, timeout=None)
    reply, _ = stage.request()
    stage.message(reply, 1)
    stage.status(reply, "404 No Messages")
    _, body = stage.request()
    assert body == {"batch": 1, "expires": 60_000_000_000}
    stage.message(reply, 2)
    assert len(fetched.result(1)) == 2


def test_without_a_timeout_it_asks_again_and_again(stage):
    """``None`` waits without limit, in requests of a minute; nothing is pending between fetches."""
    fetched = stage.fetch(2, timeout=None)
    reply, _ = stage.request()
    assert (stage.sub.pending_msgs, stage.sub.pending_bytes, stage.sub.delivered) == (0, 0, 0)
    stage.status(reply, "404 No Messages")
    for _ in range(2):
        _, body = stage.request()
        assert body == {"batch": 2, "expires": 60_000_000_000}
        stage.status(reply, "408 Request Timeout")
    stage.request()
    stage.message(reply, 1)
    stage.message(reply, 2)
    assert len(fetched.result(1)) == 2
    assert (stage.sub.pending_msgs, stage.sub.pending_bytes, stage.sub.delivered) == (0, 0, 2)
