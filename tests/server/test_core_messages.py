"""Core messages: contents, subjects, readers, limits."""

from __future__ import annotations

import builtins
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.threads import SCALE, between, threads_in, wait_until

import jetstream_sync
from jetstream_sync import (
    BadSubscriptionError,
    Headers,
    InvalidArgumentError,
    InvalidOptionError,
    MaxPayloadError,
    Msg,
    SlowConsumerError,
    Subscription,
    SubscriptionError,
    TimeoutError,
)
from jetstream_sync.server import NatsServer

EVERY_BYTE = bytes(range(256))


def read(sub: Subscription, count: int) -> list[bytes]:
    return [sub.next_msg(5).data for _ in range(count)]


class Reports:
    """The errors that a connection reports, complete when it is closed."""

    def __init__(self, server: NatsServer) -> None:
        self.errors: list[Exception] = []
        self._closed = threading.Event()
        self.nc = jetstream_sync.connect(
            server.url, error_cb=self.errors.append, closed_cb=self._closed.set
        )

    def after_close(self) -> list[Exception]:
        self.nc.close()
        assert self._closed.wait(5)  # the last call, after all errors
        return self.errors


@pytest.fixture
def reports(nats_server: NatsServer):
    """A connection whose errors are kept."""
    reports = Reports(nats_server)
    yield reports
    reports.nc.close()


# --- contents -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"\r\n",
        b"a\r\nb\r\n",
        b"\x00",
        EVERY_BYTE,
        b"MSG foo 1 3\r\nabc\r\n",
        b"\r\nPING\r\n-ERR 'x'\r\n",
        "grüße 日本 🚀".encode(),
    ],
)
@pytest.mark.parametrize("headers", [None, {"A": "b"}])
def test_a_payload_arrives_as_it_was_sent(nc, subject, payload, headers):
    """A payload may be any bytes, including none and some that look like the protocol."""
    with nc.subscribe(subject) as sub:
        nc.publish(subject, payload, headers=headers)
        nc.publish(subject, b"next")
        msg = sub.next_msg(5)
        assert (msg.data, msg.subject, msg.reply) == (payload, subject, "")
        assert msg.headers == headers
        assert sub.next_msg(5).data == b"next"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_bytes_like_payload_can_be_sent(nc, subject, kind):
    """A payload is bytes, a bytearray or a memoryview, and arrives as bytes."""
    with nc.subscribe(subject) as sub:
        nc.publish(subject, kind(EVERY_BYTE))
        data = sub.next_msg(5).data
        assert data == EVERY_BYTE
        assert type(data) is bytes


def test_a_payload_is_taken_as_it_is_when_published(nc, subject):
    """A buffer that is changed after `publish` does not change the message."""
    buffer = bytearray(b"before")
    with nc.subscribe(subject) as sub:
        nc.publish(subject, buffer)
        buffer[:] = b"after!"
        assert sub.next_msg(5).data == b"before"


@pytest.mark.parametrize("payload", ["text", 5, None, ["a"]])
def test_other_payloads_are_refused(nc, subject, payload):
    """A payload that is not bytes-like is refused, and the connection stays usable."""
    with nc.subscribe(subject) as sub:
        with pytest.raises(InvalidArgumentError, match="bytes"):
            nc.publish(subject, payload)
        nc.publish(subject, b"good")
        assert sub.next_msg(5).data == b"good"


def test_headers_arrive_with_all_values(nc, subject):
    """Headers keep every value in order, in UTF-8, under a name in any case."""
    headers = Headers([("Many", "one"), ("Many", "two"), ("Text", "grüße 日本 🚀"), ("Empty", "")])
    with nc.subscribe(subject) as sub:
        nc.publish(subject, b"data", headers=headers)
        nc.publish(subject, b"", headers={"Many": ["1", "2", "3"]})
        msg = sub.next_msg(5)
        assert msg.headers is not None
        assert msg.data == b"data"
        assert msg.headers.get_all("many") == ["one", "two"]
        assert msg.headers["TEXT"] == "grüße 日本 🚀"
        assert msg.headers["Empty"] == ""
        assert list(msg.headers) == ["Many", "Text", "Empty"]
        again = sub.next_msg(5).headers
        assert again is not None
        assert again.get_all("Many") == ["1", "2", "3"]


@pytest.mark.parametrize("headers", [None, {"A": "b"}])
def test_the_reply_subject_arrives(nc, subject, headers):
    """A message carries the reply subject, and `respond()` publishes to it."""
    with nc.subscribe(subject) as sub, nc.subscribe(f"{subject}.answer") as responses:
        nc.publish(subject, b"question", f"{subject}.answer", headers)
        msg = sub.next_msg(5)
        assert msg.reply == f"{subject}.answer"
        msg.respond(b"reply", headers)
        response = responses.next_msg(5)
        assert (response.data, response.headers) == (b"reply", headers)


def test_too_large_messages_are_refused_here(nc, subject):
    """A message above ``max_payload``, headers included, is refused, and nothing is sent."""
    block = len(b"NATS/1.0\r\nA: b\r\n\r\n")
    with nc.subscribe(subject) as sub:
        for size, headers in ((nc.max_payload + 1, None), (nc.max_payload + 1 - block, {"A": "b"})):
            with pytest.raises(MaxPayloadError) as caught:
                nc.publish(subject, bytes(size), headers=headers)
            assert caught.value.size == nc.max_payload + 1
            assert caught.value.max_payload == nc.max_payload
        nc.publish(subject, b"small")
        assert sub.next_msg(5).data == b"small"
    assert nc.stats["errors_received"] == 0


def test_the_largest_messages_arrive(nc, subject):
    """Messages of exactly ``max_payload`` bytes arrive whole, with headers and without."""
    block = len(b"NATS/1.0\r\nA: b\r\n\r\n")
    pattern = EVERY_BYTE * (nc.max_payload // 256 + 1)
    with nc.subscribe(subject) as sub:
        for _ in range(5):
            nc.publish(subject, pattern[: nc.max_payload])
            nc.publish(subject, pattern[: nc.max_payload - block], headers={"A": "b"})
        for _ in range(5):
            assert sub.next_msg(10).data == pattern[: nc.max_payload]
            assert sub.next_msg(10).data == pattern[: nc.max_payload - block]


# --- delivery -----------------------------------------------------------------------------------


def test_no_echo(nc, nats_server, subject):
    """With ``no_echo`` a connection does not receive its own messages."""
    with jetstream_sync.connect(nats_server.url, no_echo=True) as deaf:
        sub = deaf.subscribe(subject)
        deaf.publish(subject, b"own")
        deaf.flush(5)
        nc.publish(subject, b"other")
        assert sub.next_msg(5).data == b"other"


def test_stats_count_messages_and_bytes(nats_server, subject):
    """The statistics count messages, and the bytes of headers and payloads, in and out."""
    block = len(b"NATS/1.0\r\nA: b\r\n\r\n")
    with jetstream_sync.connect(nats_server.url) as nc:
        first, second = nc.subscribe(subject), nc.subscribe(subject)
        nc.publish(subject, b"12345")
        nc.publish(subject, b"123", headers={"A": "b"})
        nc.publish(f"{subject}.unread", bytes(100))
        nc.flush(5)
        stats = nc.stats
        assert (stats["out_msgs"], stats["out_bytes"]) == (3, 5 + 3 + block + 100)
        assert (stats["in_msgs"], stats["in_bytes"]) == (4, 2 * (5 + 3 + block))
        assert (stats["reconnects"], stats["errors_received"]) == (0, 0)
        assert (first.delivered, second.pending_msgs) == (2, 2)
        assert first.pending_bytes == 5 + 3 + block


def test_pending_bytes_fall_as_a_callback_works(nc, subject):
    """A callback takes its messages from the pending ones, too."""
    gate, entered = threading.Semaphore(0), threading.Semaphore(0)

    def callback(_: Msg) -> None:
        entered.release()
        gate.acquire(timeout=5 * SCALE)

    sub = nc.subscribe(subject, cb=callback)
    for size in (1, 20, 300):
        nc.publish(subject, bytes(size))
    nc.flush(5)
    for left in (320, 300, 0):
        assert entered.acquire(timeout=5 * SCALE)
        assert sub.pending_bytes == left
        gate.release()


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_next_msg_gives_up_in_time(nc, subject, timeout):
    """Without a message `next_msg` raises `TimeoutError`, also the built-in one, in time."""
    with nc.subscribe(subject) as sub:
        with between(timeout, timeout + 0.5), pytest.raises(TimeoutError) as caught:
            sub.next_msg(timeout)
        assert isinstance(caught.value, builtins.TimeoutError)
        assert isinstance(caught.value, jetstream_sync.Error)


@pytest.mark.parametrize("timeout", [None, 20])
def test_a_message_wakes_a_waiting_thread(nc, subject, timeout):
    """A waiting thread gets a message at once."""
    with nc.subscribe(subject) as sub, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sub.next_msg, timeout)
        wait_until(lambda: threads_in("next_msg"))
        assert not waiting.done()
        nc.publish(subject, b"news")
        assert waiting.result(5).data == b"news"


def test_unsubscribing_ends_reading(nc, subject):
    """`unsubscribe` ends iterations, wakes waiting threads, and drops what was not read."""
    sub = nc.subscribe(subject)
    with ThreadPoolExecutor(2) as pool:
        iterating = pool.submit(lambda: [msg.data for msg in sub])
        wait_until(lambda: threads_in("__iter__"))
        waiting = pool.submit(sub.next_msg, None)
        wait_until(lambda: threads_in("next_msg"))
        sub.unsubscribe()
        assert iterating.result(5) == []
        with pytest.raises(BadSubscriptionError):
            waiting.result(5)
    assert not sub.is_valid
    with pytest.raises(BadSubscriptionError):
        sub.next_msg(0)
    with pytest.raises(BadSubscriptionError):
        sub.unsubscribe()
    dropped = nc.subscribe(subject)
    nc.publish(subject, b"unread")
    nc.flush(5)
    dropped.unsubscribe()
    assert list(dropped) == []


@pytest.mark.parametrize("how", ["drain", "close", "sub.drain"])
def test_an_iteration_ends_with_its_messages(nats_server, subject, how):
    """Closing and draining end an iteration without an error, after the received messages."""
    nc = jetstream_sync.connect(nats_server.url)
    sub = nc.subscribe(subject)
    for number in range(10):
        nc.publish(subject, b"%d" % number)
    nc.flush(5)
    with ThreadPoolExecutor(1) as pool:
        iterating = pool.submit(lambda: [msg.data for msg in sub])
        wait_until(lambda: sub.pending_msgs == 0)
        {"drain": nc.drain, "close": nc.close, "sub.drain": sub.drain}[how]()
        assert iterating.result(5) == [b"%d" % number for number in range(10)]
    nc.close()


def test_unsubscribing_after_a_number_of_messages(nc, subject):
    """With a limit, exactly this number of messages is read, counted from the start."""
    sub = nc.subscribe(subject)
    nc.publish(subject, b"0")
    assert sub.next_msg(5).data == b"0"
    sub.unsubscribe(5)
    assert sub.is_valid
    for number in range(1, 20):
        nc.publish(subject, b"%d" % number)
    nc.flush(5)
    assert [msg.data for msg in sub] == [b"1", b"2", b"3", b"4"]
    assert not sub.is_valid
    with pytest.raises(BadSubscriptionError):
        sub.next_msg(0)


@pytest.mark.parametrize("taken", [0, 2, 5, 7])
def test_a_limit_drops_the_buffered_messages_above_it(nc, subject, taken):
    """A limit applies to buffered messages, too; those above it are dropped."""
    sub = nc.subscribe(subject)
    for number in range(10):
        nc.publish(subject, b"%d" % number)
    nc.flush(5)
    read(sub, taken)
    sub.unsubscribe(5)
    assert [msg.data for msg in sub] == [b"%d" % number for number in range(taken, 5)]


@pytest.mark.parametrize("late", [False, True])
def test_unsubscribe_after_the_limit_is_a_no_op(nc, subject, late):
    """After the limit was reached, `unsubscribe` drops unread messages and never raises."""
    sub = nc.subscribe(subject)
    if not late:
        sub.unsubscribe(3)
    for number in range(5):
        nc.publish(subject, b"%d" % number)
    nc.flush(5)
    if late:
        sub.unsubscribe(3)
    assert read(sub, 2) == [b"0", b"1"]
    sub.unsubscribe(7)
    assert sub.pending_msgs == 1
    sub.unsubscribe()
    assert (sub.pending_msgs, sub.pending_bytes) == (0, 0)
    sub.unsubscribe()
    with pytest.raises(BadSubscriptionError):
        sub.next_msg(0)


def test_unsubscribing_twice_without_a_limit_is_an_error(nc, subject):
    """A subscription that ended before its limit cannot be ended again."""
    sub = nc.subscribe(subject)
    sub.unsubscribe(3)
    sub.unsubscribe()
    with pytest.raises(BadSubscriptionError):
        sub.unsubscribe()


@pytest.mark.parametrize("limit", [10**9, 2**63, 10**5000], ids=["10 digits", "64 bits", "huge"])
def test_a_limit_that_the_server_cannot_read(nc, subject, limit):
    """The subscription goes on, as does a request for so many replies."""
    with nc.subscribe(subject) as sub:
        sub.unsubscribe(limit)
        nc.publish(subject, b"1")
        assert sub.next_msg(5).data == b"1"
    with nc.subscribe(subject, cb=lambda msg: msg.respond(b"reply")):
        replies = nc.request_many(subject, timeout=5, stall=0.2, max_messages=limit)
        assert [reply.data for reply in replies] == [b"reply"]


def test_a_limit_below_0_is_refused(nc, subject):
    """A negative limit is refused, and the subscription goes on."""
    with nc.subscribe(subject) as sub:
        with pytest.raises(InvalidOptionError):
            sub.unsubscribe(-1)
        nc.publish(subject, b"x")
        assert sub.next_msg(5).data == b"x"


# --- callbacks ----------------------------------------------------------------------------------


def test_callbacks_run_on_a_thread_of_their_own(nc, subject):
    """The callback of a subscription runs on one thread, which is named after the subject."""
    threads: list[threading.Thread] = []
    data: list[bytes] = []

    def took(msg: Msg) -> None:
        threads.append(threading.current_thread())
        data.append(msg.data)

    sub = nc.subscribe(subject, cb=took)
    for number in range(100):
        nc.publish(subject, b"%d" % number)
    wait_until(lambda: len(data) == 100)
    assert data == [b"%d" % number for number in range(100)]
    assert {thread.name for thread in threads} == {f"nats-subscription-{subject}"}
    assert len(set(threads)) == 1
    sub.unsubscribe()
    wait_until(lambda: not threads[0].is_alive())


def test_a_callback_that_raises_is_reported(reports, subject):
    """An error of a callback goes to ``error_cb``, and the next message to the callback."""
    got: list[bytes] = []

    def raises(msg: Msg) -> None:
        got.append(msg.data)
        raise ZeroDivisionError(msg.data)

    reports.nc.subscribe(subject, cb=raises)
    reports.nc.publish(subject, b"1")
    reports.nc.publish(subject, b"2")
    reports.nc.drain()
    assert got == [b"1", b"2"]
    errors = reports.after_close()
    assert [type(error) for error in errors] == [ZeroDivisionError] * 2
    assert [error.args for error in errors] == [(b"1",), (b"2",)]


def test_with_a_callback_other_ways_to_read_are_refused(nc, subject):
    """`next_msg` and iterating are refused for a subscription with a callback."""
    sub = nc.subscribe(subject, cb=lambda _: None)
    with pytest.raises(SubscriptionError, match="callback"):
        sub.next_msg(0)
    with pytest.raises(SubscriptionError, match="callback"):
        next(iter(sub))


# --- slow consumers -----------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [(10, 0), (0, 1_000), (10, 1_000), (10, -1)])
def test_a_slow_consumer_loses_messages(reports, subject, limits):
    """Above a limit messages are dropped and counted; each overflow is reported once."""
    nc = reports.nc
    sub = nc.subscribe(subject, pending_msgs_limit=limits[0], pending_bytes_limit=limits[1])
    other = nc.subscribe(subject)
    for episode in (1, 2):
        for number in range(50):
            nc.publish(subject, b"%0100d" % number)
            nc.flush(5)  # so that the messages come one by one
        assert (sub.pending_msgs, sub.dropped) == (10, 40 * episode)
        assert [int(data) for data in read(sub, 10)] == list(range(10))
        # The subscription has caught up.
        nc.publish(subject, b"caught up")
        assert sub.next_msg(5).data == b"caught up"
    assert sub.delivered == 2 * 51
    assert len(read(other, 2 * 51)) == 2 * 51
    errors = reports.after_close()
    assert [type(error) for error in errors] == [SlowConsumerError] * 2
    assert all(isinstance(e, SlowConsumerError) and e.subject == subject for e in errors)
    assert all(isinstance(e, SlowConsumerError) and e.sid == sub.sid for e in errors)


def test_headers_count_as_pending_bytes(nc, subject):
    """The limit of bytes is for headers and payloads together."""
    block = len(b"NATS/1.0\r\nA: b\r\n\r\n")
    sub = nc.subscribe(subject, pending_msgs_limit=0, pending_bytes_limit=2 * (block + 10))
    for _ in range(3):
        nc.publish(subject, bytes(10), headers={"A": "b"})
    nc.flush(5)
    assert (sub.pending_msgs, sub.dropped) == (2, 1)
    assert sub.pending_bytes == 2 * (block + 10)


def test_a_slow_callback_loses_messages(reports, subject):
    """The limits apply to messages that wait for a callback, too."""
    nc = reports.nc
    go_on, began = threading.Event(), threading.Event()
    got: list[bytes] = []

    def slow(msg: Msg) -> None:
        began.set()
        go_on.wait(10)
        got.append(msg.data)

    sub = nc.subscribe(subject, cb=slow, pending_msgs_limit=3)
    try:
        nc.publish(subject, b"0")
        assert began.wait(5)
        for number in range(1, 10):
            nc.publish(subject, b"%d" % number)
        nc.flush(5)
        assert (sub.pending_msgs, sub.dropped) == (3, 6)
    finally:
        go_on.set()
    nc.drain()
    assert got == [b"0", b"1", b"2", b"3"]
    assert [type(error) for error in reports.after_close()] == [SlowConsumerError]
