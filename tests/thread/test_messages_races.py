"""
Iterators, fetches and futures when two things happen at the same moment.

The peer sends exactly what a test requests, so that each order of events is possible.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.fake_jetstream import FakeJetStream, consumer_of
from fixtures.internals import core_of
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    IteratorClosedError,
    PullConsumer,
    RequestLimitError,
)


class Peer(FakeJetStream):
    """A server that accepts one connection after the other and only answers pings by itself."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)

    def deliver_numbers(self, reply: str, numbers: range) -> None:
        """Send messages to an inbox, in one write."""
        acks = {number: f"$JS.ACK.S.C.1.{number}.{number}.1.0" for number in numbers}
        self.send(b"".join(self.message(reply, b"%d" % n, ack) for n, ack in acks.items()))

    def pulls(self) -> list[tuple[str, dict[str, int]]]:
        """Return the reply subjects and the contents of the pull requests so far."""
        found = [command for command in self.received if ".MSG.NEXT." in command.subject]
        return [(command.rest, json.loads(command.body)) for command in found]

    def pull(self, number: int = 0) -> tuple[str, dict[str, int]]:
        """Wait for a pull request and return it."""
        self.wait_for(lambda command: ".MSG.NEXT." in command.subject, number + 1)
        return self.pulls()[number]


@pytest.fixture
def peer() -> Iterator[Peer]:
    """The server of this file."""
    with Peer() as peer:
        yield peer


@pytest.fixture
def errors() -> list[Exception]:
    """The errors that the connection reports."""
    return []


@pytest.fixture
def nc(peer: Peer, errors: list[Exception]) -> Iterator[Connection]:
    """A connection to it, with a short reconnect delay."""
    nc = jetstream_sync.connect(peer.url, reconnect_time_wait=0.01, error_cb=errors.append)
    yield nc
    nc.close()


@pytest.fixture
def consumer(nc: Connection) -> PullConsumer:
    """A consumer object without any request to the server."""
    return consumer_of(nc)


# --- requests -----------------------------------------------------------------------------------


def test_a_refused_request_is_reported_once(consumer, peer, errors):
    """A consumer limit is reported, and the same request is not sent again at once."""
    with consumer.messages() as messages:
        peer.deliver(peer.pull()[0], header=b"NATS/1.0 409 Exceeded MaxRequestBatch of 5\r\n\r\n")
        with pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.2)
    wait_until(lambda: errors)
    assert [type(error) for error in errors] == [RequestLimitError]
    assert len(peer.pulls()) == 1


# --- links --------------------------------------------------------------------------------------


def test_each_link_has_an_inbox_of_its_own(consumer, peer):
    """After each lost link one request is sent, with a new inbox, and the old inbox is dropped."""
    with consumer.messages(max_messages=10) as messages, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(messages.next, 20)
        replies = []
        for number in range(4):
            reply, request = peer.pull(number)
            assert (request["batch"], peer.links) == (10, number + 1)
            replies.append(reply)
            if number < 3:
                peer.hang_up()
        assert len(set(replies)) == 4
        assert peer.subscribed & set(replies) == {replies[-1]}
        peer.deliver_numbers(replies[-1], range(1, 2))
        assert waiting.result(5).data == b"1"
    assert len(peer.pulls()) == 4


def test_nothing_is_asked_between_a_new_link_and_its_news(consumer, peer, nc):
    """While the event of a new link waits in the buffer, taken messages cause no request."""
    with consumer.messages(max_messages=10, threshold_messages=10) as messages:
        reply, _ = peer.pull()
        peer.deliver_numbers(reply, range(1, 11))
        wait_until(lambda: len(messages._source._inbox.mailbox) == 10)
        peer.hang_up()
        wait_until(lambda: core_of(nc).reconnects == 1)
        wait_until(lambda: len(messages._source._inbox.mailbox) == 12)
        for number in range(1, 11):
            assert messages.next(5).data == b"%d" % number
        assert len(peer.pulls()) == 1
        with pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.1)
        assert [request["batch"] for _, request in peer.pulls()[1:]] == [10]


def test_a_fetch_asks_for_the_rest_on_a_new_link(consumer, peer):
    """Messages received before the link broke count; the rest is requested again."""
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(consumer.fetch, 5, 20)
        reply, _ = peer.pull()
        peer.deliver_numbers(reply, range(1, 3))
        peer.hang_up()
        again, request = peer.pull(1)
        assert (request["batch"], peer.links) == (3, 2)
        assert again != reply
        assert request["expires"] < 20_000_000_000
        peer.deliver_numbers(again, range(3, 6))
        assert [msg.data for msg in fetched.result(5)] == [b"1", b"2", b"3", b"4", b"5"]


# --- races --------------------------------------------------------------------------------------


def test_threads_and_deliveries_race(consumer, peer):
    """Four threads take single messages as they arrive: each goes to one of them, none is lost."""
    got: list[int] = []
    lock = threading.Lock()
    with consumer.messages(max_messages=50) as messages, ThreadPoolExecutor(4) as pool:

        def work(_: int) -> None:
            while True:
                try:
                    number = int(messages.next(0.001).data)
                except jetstream_sync.TimeoutError:
                    continue
                except IteratorClosedError:
                    return
                with lock:
                    got.append(number)

        workers = [pool.submit(work, number) for number in range(4)]
        sent = served = 0
        while sent < 2000:
            reply, request = peer.pull(served)
            served += 1
            for _ in range(request["batch"]):
                sent += 1
                peer.deliver_numbers(reply, range(sent, sent + 1))
        wait_until(lambda: len(got) == sent)
        messages.stop()
        for worker in workers:
            worker.result(5)
    assert sorted(got) == list(range(1, sent + 1))


@pytest.mark.parametrize("end", ["stop", "drain", "close"])
def test_an_end_races_with_deliveries(consumer, peer, nc, end):
    """Whatever ends an iterator while messages arrive, every waiting thread is woken soon."""
    messages = consumer.messages(max_messages=1000)
    reply, _ = peer.pull()
    with ThreadPoolExecutor(5) as pool:

        def work(_: int) -> int:
            count = 0
            try:
                while True:
                    messages.next(10)
                    count += 1
            except (IteratorClosedError, ConnectionClosedError):
                return count

        def deliver() -> None:
            with contextlib.suppress(OSError):  # the link has ended
                for number in range(1, 500):
                    peer.deliver_numbers(reply, range(number, number + 1))

        workers = [pool.submit(work, number) for number in range(4)]
        sender = pool.submit(deliver)
        wait_until(lambda: messages._source._ledger.delivered > 50)
        with between(0, 2):
            {"stop": messages.stop, "drain": messages.drain, "close": nc.close}[end]()
            counts = [worker.result(5) for worker in workers]
        sender.result(5)
    delivered = messages._source._ledger.delivered
    if end == "stop":
        assert sum(counts) <= delivered  # accepted messages were dropped
    else:
        assert sum(counts) == delivered


def test_stopping_from_many_threads_is_fine(consumer, peer):
    """Eight threads stop one iterator at the same time while another one waits."""
    for _ in range(20):
        messages = consumer.messages()
        barrier = threading.Barrier(8)

        def stop(barrier: threading.Barrier = barrier, messages: object = messages) -> None:
            barrier.wait(5)
            messages.stop()

        with ThreadPoolExecutor(9) as pool:
            waiting = pool.submit(list, messages)
            for future in [pool.submit(stop) for _ in range(8)]:
                future.result(5)
            assert waiting.result(5) == []
    wait_until(lambda: not peer.subscribed)
