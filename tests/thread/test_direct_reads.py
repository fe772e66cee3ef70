"""Direct reads: a caller that makes request after request reads its replies from the socket itself."""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.fake_jetstream import consumer_of
from fixtures.fork import in_child
from fixtures.internals import direct_of, open_subscriptions
from fixtures.proxy import Listener, ScriptedPeer
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, JetStreamMsg, Msg, PubAckFuture, PullConsumer, errors
from jetstream_sync.client import direct_reads
from jetstream_sync.jetstream.pull import ReusableInbox
from jetstream_sync.net.clock import Deadline
from jetstream_sync.server import NatsServer


class Service:
    """A server's end that answers each request on ``echo``, and leaves the others to the test."""

    def __init__(self) -> None:
        self.listener = Listener(self._serve)
        self.peer: ScriptedPeer | None = None
        self.others: list[tuple[bytes, bytes]] = []
        self.pongs = 0
        self.sids: dict[bytes, bytes] = {}
        #: Whether each pull request gets the next message; otherwise the test answers.
        self.answers_pulls = True
        self.inboxes: list[bytes] = []
        self.delivered = self.stored = self.subs = 0

    def _serve(self, peer: ScriptedPeer) -> None:
        peer.handshake()
        self.peer = peer
        while line := peer.line():
            words = line.split()
            if words[0] == b"SUB":
                self.sids[words[1]] = words[-1]
                self.subs += 1
            elif words[0] == b"PING":
                peer.send(b"PONG\r\n")
            elif words[0] == b"PONG":
                self.pongs += 1
            elif words[0] == b"PUB":
                payload = peer.read(int(words[-1]) + 2)[:-2]
                if words[1] == b"echo":
                    peer.send(self.reply(words[2], payload))
                elif words[1] == b"stored":
                    self.stored += 1
                    peer.send(self.reply(words[2], b'{"stream":"S","seq":%d}' % self.stored))
                elif b".MSG.NEXT." in words[1] and self.answers_pulls:
                    self.inboxes.append(words[2])
                    self.delivered += 1
                    peer.send(self.message(words[2], self.delivered))
                elif words[1].startswith(b"$JS.ACK."):
                    pass
                else:
                    self.others.append((words[2] if len(words) == 4 else b"", payload))
        peer._input.close()
        peer._socket.close()

    def reply(self, reply: bytes, payload: bytes) -> bytes:
        """Return the bytes of a reply."""
        inbox = reply.rpartition(b".")[0] + b".*"
        return b"MSG %b %b %d\r\n%b\r\n" % (reply, self.sids[inbox], len(payload), payload)

    def message(self, reply: bytes, number: int) -> bytes:
        """Return the bytes of a message for a pull request."""
        sid = self.sids[reply.rpartition(b".")[0] + b".*"]
        ack = b"$JS.ACK.S.C.1.%d.%d.1.0" % (number, number)
        return b"MSG s %b %b %d\r\n%d\r\n" % (sid, ack, len(str(number)), number)

    def status(self, reply: bytes, line: bytes) -> bytes:
        """Return the bytes of a status for a pull request."""
        block = b"NATS/1.0 %b\r\n\r\n" % line
        sid = self.sids[reply.rpartition(b".")[0] + b".*"]
        return b"HMSG %b %b %d %d\r\n%b\r\n" % (reply, sid, len(block), len(block), block)

    def send(self, data: bytes) -> None:
        assert self.peer is not None
        self.peer.send(data)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    with service.listener:
        yield service


@pytest.fixture(params=["alone", "with a subscription"])
def nc(service: Service, request: pytest.FixtureRequest) -> Iterator[Connection]:
    with jetstream_sync.connect(
        f"nats://127.0.0.1:{service.listener.port}", reconnect_time_wait=0
    ) as nc:
        if request.param != "alone":
            nc.subscribe("quiet", cb=lambda _: None)
        yield nc


@pytest.fixture
def slow_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a pause outlast the steps of a test."""
    monkeypatch.setattr(direct_reads, "_TICK_S", 0.3 * SCALE)
    monkeypatch.setattr(direct_reads, "_SHARED_TICK_S", 0.3 * SCALE)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def start_reading_directly(nc: Connection, subject: str = "echo") -> None:
    """Make requests until the caller reads its replies itself."""
    direct_of(nc)._skip = direct_of(nc)._penalty = 0

    def read_directly() -> bool:
        for _ in range(
            12
        ):  # without a break: with a subscription, a pause ends after half a millisecond
            before = direct_of(nc).count
            nc.request(subject, b"again", timeout=5 * SCALE)
        return direct_of(nc).count > before

    wait_until(read_directly)
    wait_until(read_directly)


def waiting_request(
    nc: Connection, service: Service, pool: ThreadPoolExecutor, timeout: float = 20
) -> tuple[Future[Msg], bytes]:
    """Start a request that the test answers, and return it when its caller waits for the socket."""
    start_reading_directly(nc)
    service.others.clear()
    request = pool.submit(nc.request, "ask", b"question", timeout)
    wait_until(lambda: service.others)
    return request, service.others[0][0]


# --- what a caller finds in the socket ------------------------------------------------------------


def test_a_thread_with_many_requests_reads_them_itself(nc):
    """Nearly all replies are read by the caller, and counted like others."""
    start_reading_directly(nc)
    before, received = direct_of(nc).count, nc.stats["in_msgs"]
    size = nc.stats["in_bytes"]
    for number in range(500):
        assert nc.request("echo", b"%3d" % number, timeout=5 * SCALE).data == b"%3d" % number
    assert direct_of(nc).count - before > 250
    assert nc.stats["in_msgs"] - received == 500
    assert nc.stats["in_bytes"] - size == 1500


def test_many_subscriptions_do_not_end_direct_reads(nats_server: NatsServer) -> None:
    """A connection with 1,000 subscriptions reads its replies as one with few."""
    with jetstream_sync.connect(nats_server.url) as nc:
        for number in range(1000):
            nc.subscribe(f"quiet.{number}")
        with jetstream_sync.connect(nats_server.url) as other:
            other.subscribe("far", cb=lambda msg: msg.respond(msg.data))
            other.flush()
            start_reading_directly(nc, "far")
            before = direct_of(nc).count
            for number in range(300):
                assert nc.request("far", b"%d" % number, timeout=5 * SCALE).data == b"%d" % number
            assert direct_of(nc).count - before > 100


def test_the_threads_wait_for_each_other_at_most_a_tick(nc):
    """After a caller has left, the reader answers a ping by itself."""
    for _ in range(20):
        start_reading_directly(nc)
        wait_until(lambda: not direct_of(nc).paused)


OTHER_DATA: dict[str, Callable[[Service, bytes], tuple[bytes, ...]]] = {
    "with a ping before it": lambda _, reply: (b"PING\r\n" + reply,),
    "with a ping behind it": lambda _, reply: (reply + b"PING\r\n",),
    "in two parts": lambda _, reply: (b"PING\r\n" + reply[:9], reply[9:]),
    "cut before its last byte": lambda _, reply: (b"PING\r\n", reply[:-1], reply[-1:]),
    "after INFO": lambda _, reply: (b'INFO {"server_id": "x"}\r\n', b"PING\r\n" + reply),
    "after a message of no subscription": lambda _, reply: (b"MSG a 99 1\r\nx\r\nPING\r\n", reply),
    "after a reply to another request": lambda _, reply: (
        reply.replace(reply.split()[1], reply.split()[1] + b"9"),
        b"PING\r\n" + reply,
    ),
}


@pytest.mark.usefixtures("slow_ticks")
@pytest.mark.parametrize("name", OTHER_DATA)
def test_a_reply_among_other_data(nc, service, pool, name):
    """The caller gets its reply, and the reader processes the rest, in any order and any pieces."""
    request, inbox = waiting_request(nc, service, pool)
    pongs = service.pongs
    for piece in OTHER_DATA[name](service, service.reply(inbox, b"reply")):
        service.send(piece)
        time.sleep(0.002)
    assert request.result(10 * SCALE).data == b"reply"
    wait_until(lambda: service.pongs > pongs)
    assert nc.request("echo", b"more", timeout=5 * SCALE).data == b"more"


def test_a_late_reply(nc, service, pool):
    """A caller that waits longer than its turn lasts gets the reply from the reader."""
    request, inbox = waiting_request(nc, service, pool)
    wait_until(lambda: not direct_of(nc).paused)
    service.send(service.reply(inbox, b"late"))
    assert request.result(10 * SCALE).data == b"late"


@pytest.mark.usefixtures("slow_ticks")
def test_a_reply_to_an_earlier_request(nc, service, pool):
    """The reply to a request that has timed out is not taken for the reply to the next one."""
    start_reading_directly(nc)
    with pytest.raises(errors.TimeoutError):
        nc.request("ask", b"first", timeout=0.001)
    wait_until(lambda: service.others)
    stale = service.others[0][0]
    request, inbox = waiting_request(nc, service, pool)
    service.send(service.reply(stale, b"old"))
    time.sleep(0.002)
    service.send(service.reply(inbox, b"new"))
    assert request.result(10 * SCALE).data == b"new"


@pytest.mark.usefixtures("slow_ticks")
def test_replies_with_headers(nc, service, pool):
    """A status without responders raises; headers of a reply are returned."""
    request, inbox = waiting_request(nc, service, pool)
    sid = service.sids[inbox.rpartition(b".")[0] + b".*"]
    service.send(b"HMSG %b %b 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % (inbox, sid))
    with pytest.raises(errors.NoRespondersError):
        request.result(10 * SCALE)
    before = direct_of(nc).count
    request, inbox = waiting_request(nc, service, pool)
    service.send(b"HMSG %b %b 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nxy\r\n" % (inbox, sid))
    msg = request.result(10 * SCALE)
    assert (msg.data, msg.headers) == (b"xy", {"A": "b"})
    assert direct_of(nc).count > before


@pytest.mark.usefixtures("slow_ticks")
def test_an_error_of_the_server(nc, service, pool):
    """A refusal that the caller finds in the socket ends its request."""
    request, _ = waiting_request(nc, service, pool)
    service.send(b"-ERR 'Permissions Violation for Publish to \"ask\"'\r\n")
    with pytest.raises(errors.PermissionsError):
        request.result(10 * SCALE)


# --- other threads ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow_ticks")
def test_a_second_request(nc, service, pool):
    """A second caller gets its reply while the first one waits for the socket."""
    request, inbox = waiting_request(nc, service, pool)
    assert nc.request("echo", b"second", timeout=5 * SCALE).data == b"second"
    assert not request.done()
    service.send(service.reply(inbox, b"first"))
    assert request.result(10 * SCALE).data == b"first"


@pytest.mark.usefixtures("slow_ticks")
def test_a_subscription_that_begins_meanwhile(nc, service, pool):
    """Its messages arrive at once, while a caller waits for the socket and after that."""
    request, inbox = waiting_request(nc, service, pool)
    sub = nc.subscribe("news")
    wait_until(lambda: b"news" in service.sids)
    for number in range(3):
        service.send(b"MSG news %b 1\r\n%d\r\n" % (service.sids[b"news"], number))
        assert sub.next_msg(timeout=0.25 * SCALE).data == b"%d" % number
    service.send(service.reply(inbox, b"reply"))
    assert request.result(10 * SCALE).data == b"reply"


@pytest.mark.usefixtures("slow_ticks")
def test_a_flush_meanwhile(nc, service, pool):
    """A flush of another thread does not wait for the caller that has the socket."""
    request, inbox = waiting_request(nc, service, pool)
    with within(0.2):
        nc.flush(timeout=5 * SCALE)
    service.send(service.reply(inbox, b"reply"))
    assert request.result(10 * SCALE).data == b"reply"


def test_many_threads_by_turns(nc, monkeypatch):
    """Each request gets its own reply soon, however many threads make requests at a time, and counts."""
    # A caller that waits for bytes which the reader has read would wait as long as this.
    monkeypatch.setattr(direct_reads, "_WAIT_S", 10 * SCALE)
    monkeypatch.setattr(direct_reads, "_TURN_S", 20 * SCALE)
    slowest: list[float] = []

    def ask(seed: int) -> None:
        dice = random.Random(seed)
        for number in range(300):
            text = b"%d %d" % (seed, number)
            began = time.monotonic()
            assert nc.request("echo", text, timeout=20 * SCALE).data == text
            slowest.append(time.monotonic() - began)
            if dice.random() < 0.2:
                time.sleep(dice.choice([0, 0.0003, 0.001, 0.0015, 0.004]))
            if dice.random() < 0.02:
                nc.flush(20 * SCALE)

    received = nc.stats["in_msgs"]
    for threads in (1, 2, 1, 3):
        with ThreadPoolExecutor() as pool:
            list(pool.map(ask, range(threads)))
    assert nc.stats["in_msgs"] - received == len(slowest) == 7 * 300
    slowest.sort()
    assert slowest[len(slowest) // 2] < 0.05 * SCALE
    assert slowest[-1] < 5 * SCALE


@pytest.mark.usefixtures("slow_ticks")
def test_closing_meanwhile(nc, service, pool):
    """A close by another thread ends the request at once."""
    request, _ = waiting_request(nc, service, pool)
    nc.close()
    with pytest.raises(errors.ConnectionClosedError):
        request.result(0.2 * SCALE)


# --- faults -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow_ticks")
@pytest.mark.parametrize("end", ["closed", "reset"])
def test_the_connection_is_lost_meanwhile(nc, service, pool, end):
    """The reader sees the end that a caller was the first to see, and reconnects."""
    start_reading_directly(nc)
    service.others.clear()
    request = pool.submit(nc.request, "ask", b"question", None)
    wait_until(lambda: service.others)
    peer = service.peer
    assert peer is not None
    if end == "reset":
        linger = struct.pack("ii", 1, 0)
        peer._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        # The peer's thread closes the socket when it sees the end of its input.
        peer._socket.shutdown(socket.SHUT_RD)
    else:
        peer._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(errors.ConnectionLostError):
        request.result(10 * SCALE)
    wait_until(lambda: nc.is_connected and nc.stats["reconnects"] == 1)
    start_reading_directly(nc)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.usefixtures("slow_ticks")
def test_a_fork_meanwhile(nc, service, pool):
    """The child's calls fail at once; the parent is not affected."""
    request, inbox = waiting_request(nc, service, pool)

    def check() -> None:
        with pytest.raises(errors.ForkedConnectionError):
            nc.request("echo", timeout=5)
        with pytest.raises(errors.ForkedConnectionError):
            nc.flush(5)

    in_child(check)
    service.send(service.reply(inbox, b"reply"))
    assert request.result(10 * SCALE).data == b"reply"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.usefixtures("slow_ticks")
def test_a_signal_handler(nc):
    """A handler that runs while its thread waits for the socket may make requests, and fork."""
    start_reading_directly(nc)
    seen: list[bytes] = []

    def forked() -> None:
        with pytest.raises(errors.ForkedConnectionError):
            nc.request("echo")

    def handle(*_: object) -> None:
        seen.append(nc.request("echo", b"handler", timeout=5 * SCALE).data)
        in_child(forked)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(errors.TimeoutError):
            nc.request("silent", timeout=0.3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [b"handler"]
    start_reading_directly(nc)


@sends_ctrl_c
@pytest.mark.usefixtures("slow_ticks")
def test_ctrl_c_anywhere_in_a_direct_read(nc, monkeypatch):
    """Wherever a Ctrl-C strikes, both locks are free afterwards, and the next replies are right."""
    # The peer may take its time.
    monkeypatch.setattr(direct_reads, "_WAIT_S", 10 * SCALE)
    read: list[int] = []

    def ask() -> None:
        assert nc.request("echo", b"interrupted", timeout=5 * SCALE).data == b"interrupted"
        read.append(direct_of(nc).count)

    moment = 0
    went_off = True
    while went_off:
        moment += 1
        start_reading_directly(nc)
        before = direct_of(nc).count
        went_off = interrupted(ask, moment)
        assert not direct_of(nc)._turn.locked()
        with within(2):
            assert nc.request("echo", b"next", timeout=5 * SCALE).data == b"next"
            nc.flush(5 * SCALE)
    assert moment > 30
    assert read[-1] == before + 1, "the caller should have read its reply itself"


# --- with subscriptions -------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow_ticks")
def test_a_message_of_a_subscription_while_a_caller_waits(nc, service, pool):
    """The caller receives it, and the reader delivers it at once; the reply comes later."""
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    nc.subscribe("news", cb=lambda msg: messages.put(msg.data))
    nc.flush(timeout=5 * SCALE)
    request, inbox = waiting_request(nc, service, pool)
    for number in range(3):
        service.send(b"MSG news %b 1\r\n%d\r\n" % (service.sids[b"news"], number))
        assert messages.get(timeout=0.25 * SCALE) == b"%d" % number
    assert not request.done()
    service.send(service.reply(inbox, b"reply"))
    assert request.result(10 * SCALE).data == b"reply"


def test_a_message_of_a_subscription_after_the_last_request(nc, service):
    """The reader continues shortly after a caller's last read, and delivers what has arrived."""
    sub = nc.subscribe("news")
    for number in range(20):
        start_reading_directly(nc)
        service.send(b"MSG news %b 2\r\n%2d\r\n" % (service.sids[b"news"], number))
        with within(0.25):
            assert sub.next_msg(timeout=5 * SCALE).data == b"%2d" % number


def test_a_service_that_replies_is_not_delayed(nc, service):
    """Reads that are no replies to callers are not followed by a pause."""
    sub = nc.subscribe("news")
    nc.flush(timeout=5 * SCALE)
    for number in range(100):
        if number % 2:
            nc.request("echo", b"x", timeout=5 * SCALE)
        service.send(b"MSG news %b 2\r\n%2d\r\n" % (service.sids[b"news"], number))
        assert sub.next_msg(timeout=5 * SCALE).data == b"%2d" % number
    assert direct_of(nc).count == 0


# --- where the reader reads always ------------------------------------------------------------------


def test_with_tls_the_reader_reads(certificates):
    """Decoded bytes cannot be left behind, so callers leave the socket to the reader."""
    with NatsServer(config=certificates.server()) as server:
        trusted = certificates.trusted()
        with jetstream_sync.connect(server.url, tls=trusted) as nc:
            sub = nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
            nc.flush()
            with jetstream_sync.connect(server.url, tls=trusted) as asking:
                for _ in range(100):
                    assert asking.request("echo", b"x", timeout=5 * SCALE).data == b"x"
                assert direct_of(asking).count == 0
            sub.unsubscribe()


def test_a_thread_with_few_requests_wakes_the_reader_rarely(nc):
    """After pauses in which no caller has read, the reader pauses less often."""
    start_reading_directly(nc)
    wait_until(lambda: not direct_of(nc).paused)
    paused = 0
    for _ in range(40):
        nc.request("echo", b"x", timeout=5 * SCALE)
        time.sleep(0.0005)
        paused += direct_of(nc).paused
        wait_until(lambda: not direct_of(nc).paused)
    assert paused < 12


# --- fetches ----------------------------------------------------------------------------------------


def start_fetching_directly(nc: Connection, consumer: PullConsumer) -> None:
    """Fetch until the caller reads its messages itself."""
    direct_of(nc)._skip = direct_of(nc)._penalty = 0

    def read_directly() -> bool:
        for _ in range(12):
            before = direct_of(nc).count
            consumer.fetch(1, timeout=5 * SCALE)
        return direct_of(nc).count > before

    wait_until(read_directly)
    wait_until(read_directly)


def waiting_fetch(
    nc: Connection,
    service: Service,
    pool: ThreadPoolExecutor,
    consumer: PullConsumer,
    timeout: float = 20,
) -> tuple[Future[list[JetStreamMsg]], bytes]:
    """Start a fetch that the test answers, and return it when its caller waits for the socket."""
    start_fetching_directly(nc, consumer)
    service.answers_pulls = False
    service.others.clear()
    fetched = pool.submit(consumer.fetch, 1, timeout)
    wait_until(lambda: service.others)
    return fetched, service.others[0][0]


def numbers(messages: list[JetStreamMsg]) -> list[int]:
    return [int(msg.data) for msg in messages]


def test_a_thread_with_many_fetches_reads_them_itself(nc, service):
    """Nearly all messages are read by the caller, in order, and one subscription serves all fetches."""
    consumer = consumer_of(nc)
    start_fetching_directly(nc, consumer)
    before, received, first = direct_of(nc).count, nc.stats["in_msgs"], service.delivered + 1
    subs = service.subs
    got: list[int] = []
    for _ in range(300):
        for msg in consumer.fetch(1, timeout=5 * SCALE):
            got.append(int(msg.data))
            msg.ack()
    assert got == list(range(first, first + 300))
    assert direct_of(nc).count - before > 150
    assert nc.stats["in_msgs"] - received == 300
    assert service.subs == subs
    assert consumer.next(timeout=5 * SCALE).data == b"%d" % (first + 300)


@pytest.mark.usefixtures("slow_ticks")
@pytest.mark.parametrize("name", ["with a ping before it", "with a ping behind it", "in two parts"])
def test_a_message_among_other_data(nc, service, pool, name):
    """The fetch gets its message, and the reader processes the rest."""
    fetched, inbox = waiting_fetch(nc, service, pool, consumer_of(nc))
    pongs = service.pongs
    for piece in OTHER_DATA[name](service, service.message(inbox, 7)):
        service.send(piece)
        time.sleep(0.002)
    assert numbers(fetched.result(10 * SCALE)) == [7]
    wait_until(lambda: service.pongs > pongs)


@pytest.mark.usefixtures("slow_ticks")
def test_a_heartbeat_and_a_status(nc, service, pool):
    """A heartbeat is skipped; a status ends the fetch, and its inbox is used again."""
    consumer = consumer_of(nc)
    fetched, inbox = waiting_fetch(nc, service, pool, consumer)
    before = direct_of(nc).count
    service.send(service.status(inbox, b"100 Idle Heartbeat"))
    wait_until(lambda: direct_of(nc).count == before + 1)
    service.send(service.status(inbox, b"408 Request Timeout"))
    assert fetched.result(10 * SCALE) == []
    service.answers_pulls = True
    subs = service.subs
    assert len(consumer.fetch(1, timeout=5 * SCALE)) == 1
    assert service.subs == subs


@pytest.mark.usefixtures("slow_ticks")
def test_a_late_status_ends_no_later_fetch(nc, service, pool):
    """A status of a fetch that has ended is ignored by the next one on the same inbox."""
    consumer = consumer_of(nc)
    fetched, earlier = waiting_fetch(nc, service, pool, consumer)
    service.send(service.message(earlier, 1))
    assert numbers(fetched.result(10 * SCALE)) == [1]
    service.answers_pulls = True
    fetched, inbox = waiting_fetch(nc, service, pool, consumer)
    assert inbox.rpartition(b".")[0] == earlier.rpartition(b".")[0]
    service.send(service.status(earlier, b"409 Consumer Deleted"))
    time.sleep(0.002)
    service.send(service.message(inbox, 2))
    assert numbers(fetched.result(10 * SCALE)) == [2]


def test_a_late_message_is_not_for_the_next_fetch(nc, service):
    """A message that comes without a request is dropped, and a fetch without its message ends its inbox."""
    consumer, other = consumer_of(nc), consumer_of(nc, "OTHER")
    assert numbers(consumer.fetch(1, timeout=5 * SCALE)) == [1]
    inbox = service.inboxes[-1]
    received = nc.stats["in_msgs"]
    service.send(service.message(inbox, 1000))
    wait_until(lambda: nc.stats["in_msgs"] > received)
    assert numbers(other.fetch(1, timeout=5 * SCALE)) == [2]
    assert numbers(consumer.fetch(1, timeout=5 * SCALE)) == [3]
    service.answers_pulls = False
    assert consumer.fetch(1, timeout=0.01) == []
    service.answers_pulls = True
    assert numbers(consumer.fetch(1, timeout=5 * SCALE)) == [4]
    inboxes = [inbox.rpartition(b".")[0] for inbox in service.inboxes[-2:]]
    assert inboxes[0] != inboxes[1]


def test_the_number_of_kept_inboxes(nc):
    """Fetches from many consumers leave few subscriptions."""
    for number in range(20):
        assert len(consumer_of(nc, f"C{number}").fetch(1, timeout=5 * SCALE)) == 1
    inboxes = [sub for sub in open_subscriptions(nc) if sub.subject != "quiet"]
    assert len(inboxes) <= 4
    assert len(nc._caches.idle_inboxes) <= 4


@pytest.mark.usefixtures("slow_ticks")
def test_a_fetch_that_times_out(nc, service, pool):
    """The fetch ends in time, and a message that comes later is dropped."""
    consumer = consumer_of(nc)
    fetched, inbox = waiting_fetch(nc, service, pool, consumer, 0.1)
    assert fetched.result(10 * SCALE) == []
    service.send(service.message(inbox, 1000))
    service.answers_pulls = True
    later = consumer.fetch(1, timeout=5 * SCALE)
    assert numbers(later) == [service.delivered]


@pytest.mark.usefixtures("slow_ticks")
def test_the_connection_is_lost_during_a_fetch(nc, service, pool):
    """The fetch asks once again after the reconnect, on a new inbox."""
    consumer = consumer_of(nc)
    fetched, inbox = waiting_fetch(nc, service, pool, consumer)
    peer = service.peer
    assert peer is not None
    peer._socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: len(service.others) == 2)
    again = service.others[1][0]
    assert again.rpartition(b".")[0] != inbox.rpartition(b".")[0]
    service.send(service.message(again, 7))
    assert numbers(fetched.result(10 * SCALE)) == [7]
    service.answers_pulls = True
    start_fetching_directly(nc, consumer)


@sends_ctrl_c
@pytest.mark.usefixtures("slow_ticks")
def test_ctrl_c_anywhere_in_the_read_of_a_fetch(nc, service, monkeypatch):
    """Wherever a Ctrl-C strikes, the lock is free afterwards, and no message is received twice."""
    monkeypatch.setattr(direct_reads, "_WAIT_S", 10 * SCALE)
    consumer = consumer_of(nc)
    moment = 1
    was_read = False
    while not was_read:
        start_fetching_directly(nc, consumer)
        (inbox,) = nc._caches.idle_inboxes.values()
        assert isinstance(inbox, ReusableInbox)
        service.send(service.message(service.inboxes[-1], moment))
        before = direct_of(nc).count
        inbox.waiting = True
        went_off = interrupted(partial(inbox.read_directly, Deadline(10 * SCALE)), moment)
        inbox.waiting = False
        assert not direct_of(nc)._turn.locked()
        nc.flush(5 * SCALE)
        received = [item[3] for item in inbox.mailbox.items]
        assert received == [b"%d" % moment] or (went_off and not received)
        inbox.mailbox.items.clear()
        # The reader may have ended its pause meanwhile: then this moment is tried once more.
        was_read = not went_off and direct_of(nc).count > before
        moment += went_off
    assert moment > 12


# --- after publish_async() ----------------------------------------------------------------------------


@pytest.mark.usefixtures("slow_ticks")
def test_an_ack_while_the_reader_pauses(nc):
    """A thread that waits for an ack, and a callback, get it from the reader at once."""
    js = nc.jetstream()
    js.publish_async("stored", b"x").result(5 * SCALE)
    for wait in (
        lambda future: future.result(5 * SCALE),
        lambda future: futures.wait([future.future()], 5 * SCALE),
        lambda _: js.publish_async_completed(5 * SCALE),
        callback_ran,
    ):
        start_reading_directly(nc)
        assert direct_of(nc).paused
        with within(0.2):
            future = js.publish_async("stored", b"x")
            wait(future)
        assert future.done()


def callback_ran(future: PubAckFuture) -> None:
    """Wait until a callback has been called."""
    ran = threading.Event()
    future.add_done_callback(lambda _: ran.set())
    assert ran.wait(5 * SCALE)


def test_acks_and_replies_mixed(nc):
    """Each future gets its ack and each request its reply, in any order of both."""
    js = nc.jetstream()
    dice = random.Random(5)
    pending: list[PubAckFuture] = []
    published = 0
    for number in range(1500):
        if dice.random() < 0.4:
            pending += [js.publish_async("stored", b"x") for _ in range(dice.randrange(1, 4))]
        text = b"%d" % number
        assert nc.request("echo", text, timeout=5 * SCALE).data == text
        if dice.random() < 0.2:
            sequences = [future.result(5 * SCALE).seq for future in pending]
            assert sequences == list(range(published + 1, published + 1 + len(pending)))
            published += len(pending)
            pending.clear()
