"""
Iterators, fetches and futures when two things happen at the same moment.

The peer is a small NATS server of this file, which sends exactly what a test requests, so that each
order of events is possible.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_jetstream import consumer_of
from fix_threads import wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    IteratorClosedError,
    PullConsumer,
    RequestLimitError,
)


class Peer:
    """A server that accepts one connection after the other and only answers pings by itself."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._socket: socket.socket | None = None
        self.links = 0
        #: Pull requests: the reply subject, the decoded request, the number of the link.
        self.pulls: list[tuple[str, dict[str, int], int]] = []
        #: Subjects subscribed to on the current link, by sid.
        self.subs: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="peer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.links += 1
            self.subs.clear()
            self._socket = connection
            connection.sendall(b'INFO {"server_id":"x","headers":true,"max_payload":1048576}\r\n')
            with connection, contextlib.suppress(OSError):
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            while line := lines.readline():
                verb, *fields = line.decode().split()
                if verb == "PING":
                    connection.sendall(b"PONG\r\n")
                elif verb == "SUB":
                    self.subs[fields[-1]] = fields[0]
                elif verb == "UNSUB":
                    self.subs.pop(fields[0], None)
                elif verb == "PUB":
                    payload = lines.read(int(fields[-1]) + 2)[:-2]
                    if ".MSG.NEXT." in fields[0]:
                        self.pulls.append((fields[1], json.loads(payload), self.links))

    def sid(self, reply: str) -> str:
        """Return the sid of the subscription that receives a reply subject."""
        wanted = (reply, reply.rpartition(".")[0] + ".*")
        (sid,) = [sid for sid, subject in self.subs.items() if subject in wanted]
        return sid

    def deliver(self, reply: str, numbers: range) -> None:
        """Send messages to an inbox, in one write."""
        sid = self.sid(reply)
        self.send(
            b"".join(
                b"MSG s %s $JS.ACK.S.C.1.%d.%d.1.0 %d\r\n%d\r\n"
                % (sid.encode(), n, n, len(str(n)), n)
                for n in numbers
            )
        )

    def status(self, reply: str, line: str) -> None:
        """Send a status to an inbox."""
        block = f"NATS/1.0 {line}\r\n\r\n"
        size = len(block)
        self.send(f"HMSG {reply} {self.sid(reply)} {size} {size}\r\n{block}\r\n".encode())

    def send(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(data)

    def hang_up(self) -> None:
        """Break the current link."""
        assert self._socket is not None
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self.hang_up()
        self._thread.join(5)


@pytest.fixture
def peer() -> Iterator[Peer]:
    """The server of this file."""
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def errors() -> list[Exception]:
    """The errors that the connection reports."""
    return []


@pytest.fixture
def nc(peer: Peer, errors: list[Exception]) -> Iterator[Connection]:
    """A connection to it, with a short reconnect delay."""
    nc = jetstream_sync.connect(
        f"nats://127.0.0.1:{peer.port}", reconnect_time_wait=0.01, error_cb=errors.append
    )
    yield nc
    nc.close()


@pytest.fixture
def consumer(nc: Connection) -> PullConsumer:
    """A consumer object without any request to the server."""
    return consumer_of(nc)


def pull(peer: Peer, number: int = 0) -> tuple[str, dict[str, int], int]:
    """Wait for a pull request and return it."""
    wait_until(lambda: len(peer.pulls) > number)
    return peer.pulls[number]


# --- requests -----------------------------------------------------------------------------------


def test_a_refused_request_is_reported_once(
    consumer: PullConsumer, peer: Peer, errors: list[Exception]
) -> None:
    """A consumer limit is reported, and the same request is not sent again at once."""
    with consumer.messages() as messages:
        peer.status(pull(peer)[0], "409 Exceeded MaxRequestBatch of 5")
        with pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.2)
    wait_until(lambda: errors)
    assert [type(error) for error in errors] == [RequestLimitError]
    assert len(peer.pulls) == 1


# --- links --------------------------------------------------------------------------------------


def test_each_link_has_an_inbox_of_its_own(consumer: PullConsumer, peer: Peer) -> None:
    """After each lost link one request is sent, with a new inbox, and the old inbox is dropped."""
    with consumer.messages(max_messages=10) as messages, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(messages.next, 20)
        replies = []
        for number in range(4):
            reply, request, link = pull(peer, number)
            assert (request["batch"], link) == (10, number + 1)
            replies.append(reply)
            if number < 3:
                peer.hang_up()
        assert len(set(replies)) == 4
        assert [subject for subject in peer.subs.values() if subject in replies] == [replies[-1]]
        peer.deliver(replies[-1], range(1, 2))
        assert waiting.result(5).data == b"1"
    assert len(peer.pulls) == 4


def test_nothing_is_asked_between_a_new_link_and_its_news(
    consumer: PullConsumer, peer: Peer, nc: Connection
) -> None:
    """While the event of a new link waits in the buffer, taken messages cause no request."""
    with consumer.messages(max_messages=10, threshold_messages=10) as messages:
        reply, _, _ = pull(peer)
        peer.deliver(reply, range(1, 11))
        wait_until(lambda: len(messages._source._inbox.mailbox) == 10)
        peer.hang_up()
        wait_until(lambda: nc._core.reconnects == 1)
        wait_until(lambda: len(messages._source._inbox.mailbox) == 12)
        for number in range(1, 11):
            assert messages.next(5).data == b"%d" % number
        assert len(peer.pulls) == 1
        with pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.1)
        assert [(request["batch"], link) for _, request, link in peer.pulls[1:]] == [(10, 2)]


def test_a_fetch_asks_for_the_rest_on_a_new_link(consumer: PullConsumer, peer: Peer) -> None:
    """Messages received before the link broke count; the rest is requested again."""
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(consumer.fetch, 5, 20)
        reply, _, _ = pull(peer)
        peer.deliver(reply, range(1, 3))
        peer.hang_up()
        again, request, link = pull(peer, 1)
        assert (request["batch"], link) == (3, 2)
        assert again != reply
        assert request["expires"] < 20_000_000_000
        peer.deliver(again, range(3, 6))
        assert [msg.data for msg in fetched.result(5)] == [b"1", b"2", b"3", b"4", b"5"]


# --- races --------------------------------------------------------------------------------------


def test_threads_and_deliveries_race(consumer: PullConsumer, peer: Peer) -> None:
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
            reply, request, _ = pull(peer, served)
            served += 1
            for _ in range(request["batch"]):
                sent += 1
                peer.deliver(reply, range(sent, sent + 1))
        wait_until(lambda: len(got) == sent)
        messages.stop()
        for worker in workers:
            worker.result(5)
    assert sorted(got) == list(range(1, sent + 1))


@pytest.mark.parametrize("end", ["stop", "drain", "close"])
def test_an_end_races_with_deliveries(
    consumer: PullConsumer, peer: Peer, nc: Connection, end: str
) -> None:
    """Whatever ends an iterator while messages arrive, every waiting thread is woken soon."""
    messages = consumer.messages(max_messages=1000)
    reply, _, _ = pull(peer)
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
            try:
                for number in range(1, 500):
                    peer.deliver(reply, range(number, number + 1))
            except (OSError, ValueError):  # the subscription or the link has ended
                return

        workers = [pool.submit(work, number) for number in range(4)]
        sender = pool.submit(deliver)
        wait_until(lambda: messages._source._ledger.delivered > 50)
        began = time.monotonic()
        {"stop": messages.stop, "drain": messages.drain, "close": nc.close}[end]()
        counts = [worker.result(5) for worker in workers]
        assert time.monotonic() - began < 2
        sender.result(5)
    delivered = messages._source._ledger.delivered
    if end == "stop":
        assert sum(counts) <= delivered  # accepted messages were dropped
    else:
        assert sum(counts) == delivered


def test_stopping_from_many_threads_is_fine(consumer: PullConsumer, peer: Peer) -> None:
    """Eight threads stop one iterator at the same time while another one waits."""
    for _ in range(20):
        messages = consumer.messages()
        barrier = threading.Barrier(8)

        def stop(barrier: threading.Barrier = barrier, messages: object = messages) -> None:
            barrier.wait(5)
            messages.stop()  # type: ignore[attr-defined]

        with ThreadPoolExecutor(9) as pool:
            waiting = pool.submit(list, messages)
            for future in [pool.submit(stop) for _ in range(8)]:
                future.result(5)
            assert waiting.result(5) == []
    wait_until(lambda: not peer.subs)
