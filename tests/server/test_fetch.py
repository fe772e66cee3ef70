"""fetch: one bounded pull; number of messages, duration, and refused options."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from fixtures.internals import core_of, open_subscriptions
from fixtures.server import fill
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import Connection, JetStreamMsg, errors
from jetstream_sync.api import pull


def numbers(messages: list[JetStreamMsg]) -> list[int]:
    """Return the numbers of messages that `fill` stored."""
    return [int(msg.data) for msg in messages]


def size_of(msg: JetStreamMsg) -> int:
    """Return a message's size as ADR-37 counts it."""
    return len(msg.subject) + len(msg.reply) + len(msg._header or b"") + len(msg.data)


def subscriptions(nc: Connection) -> int:
    """Return the number of subscriptions without the one for all requests."""
    return len([i for i in open_subscriptions(nc) if not i.subject.endswith(".*")])


# --- how many -----------------------------------------------------------------------------------


def test_a_full_batch_returns_at_once(js, stream, consumer):
    """A full batch is returned in order as soon as it is complete; the rest stays."""
    fill(js, stream.name, 25)
    with between(0, 1):
        assert numbers(consumer.fetch(10, timeout=5)) == list(range(10))
        assert numbers(consumer.fetch(15, timeout=None)) == list(range(10, 25))
    assert consumer.info().num_waiting == 0


def test_a_message_is_whole(js, stream, consumer):
    """Subject, headers and payload are unchanged; an empty payload with headers is a message."""
    js.publish(f"{stream.name}.a", b"x", headers={"Trace": "1"})
    js.publish(f"{stream.name}.b", b"", headers={"Trace": "2"})
    js.publish(f"{stream.name}.c", b"")
    got = consumer.fetch(3, timeout=2)
    assert [msg.subject for msg in got] == [f"{stream.name}.{end}" for end in "abc"]
    assert [msg.data for msg in got] == [b"x", b"", b""]
    assert [msg.headers["Trace"] for msg in got[:2] if msg.headers] == ["1", "2"]
    assert got[2].headers is None


def test_a_timeout_returns_the_received_messages(js, stream, consumer):
    """After the timeout the received messages are returned."""
    fill(js, stream.name, 3)
    with between(0.3, 0.6):
        assert numbers(consumer.fetch(10, timeout=0.3)) == [0, 1, 2]


@pytest.mark.parametrize("timeout", [0.05, 0.4, timedelta(milliseconds=200)])
def test_none_is_an_empty_list_when_time_is_up(consumer, timeout):
    """Without messages the list is empty, and returned neither early nor late."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    with between(seconds, seconds + 0.2):
        assert consumer.fetch(10, timeout=timeout) == []


def test_a_fetch_without_a_timeout_repeats_its_request(js, stream, consumer, monkeypatch):
    """With ``timeout=None`` requests are repeated until the batch is complete."""
    monkeypatch.setattr("jetstream_sync.jetstream.pull.MAX_EXPIRES_NS", 100_000_000)
    monkeypatch.setattr("jetstream_sync.api.pull.MAX_EXPIRES_NS", 100_000_000)
    pull._cached_request.cache_clear()
    sent = core_of(js).writer.out_msgs
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(consumer.fetch, 2, None)
        wait_until(lambda: core_of(js).writer.out_msgs >= sent + 3)
        fill(js, stream.name, 2)
        assert numbers(fetched.result(5)) == [0, 1]
    pull._cached_request.cache_clear()


def test_fetch_no_wait_returns_the_available_messages(js, stream, consumer):
    """``fetch_no_wait`` returns the available messages, fewer than requested or none, at once."""
    with between(0, 0.3):
        assert consumer.fetch_no_wait(10) == []
    fill(js, stream.name, 7)
    # nats-server 2.10 acknowledges messages before its consumers know them.
    wait_until(lambda: consumer.info().num_pending == 7)
    with between(0, 0.3):
        assert numbers(consumer.fetch_no_wait(5)) == [0, 1, 2, 3, 4]
        assert numbers(consumer.fetch_no_wait(5)) == [5, 6]
        assert consumer.fetch_no_wait(5) == []
    assert consumer.info().num_waiting == 0


# --- bytes --------------------------------------------------------------------------------------


def test_a_limit_in_bytes_ends_before_the_message_that_does_not_fit(js, stream, consumer):
    """With ``max_bytes`` all messages that fit are returned at once."""
    fill(js, stream.name, 20, size=100)
    size = size_of(consumer.fetch(1)[0])
    with between(0, 1):
        assert numbers(consumer.fetch(max_bytes=3 * size + size // 2, timeout=5)) == [1, 2, 3]
        assert numbers(consumer.fetch(2, max_bytes=10 * size, timeout=5)) == [4, 5]
        assert numbers(consumer.fetch_no_wait(max_bytes=2 * size + 10)) == [6, 7]


def test_bytes_that_are_used_up_exactly_end_it(js, stream, consumer):
    """If the messages have exactly ``max_bytes``, the fetch ends without waiting for more."""
    fill(js, stream.name, 9, size=100)
    size = size_of(consumer.fetch(1)[0])
    with between(0, 1):
        assert numbers(consumer.fetch(max_bytes=3 * size, timeout=5)) == [1, 2, 3]
        assert numbers(consumer.fetch(max_bytes=3 * size, timeout=None)) == [4, 5, 6]
    assert consumer.info().num_waiting == 0


@pytest.mark.parametrize("timeout", [5, None])
def test_a_message_above_max_bytes_is_an_error_at_once(js, stream, consumer, timeout):
    """A first message above ``max_bytes`` is an error at once: no such request can be answered."""
    fill(js, stream.name, 1, size=500)
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(consumer.fetch, None, timeout, max_bytes=200)
        try:
            with between(0, 1), pytest.raises(errors.RequestLimitError, match="max_bytes=200"):
                fetched.result(3)
        finally:
            stream.delete_consumer("C")  # would end it as a last resort
    assert len(stream.create_consumer(durable_name="D").fetch(max_bytes=1000, timeout=0.2)) == 1


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "batch"),
        ({"batch": 0}, "batch"),
        ({"batch": 1, "timeout": 0}, "timeout"),
        ({"batch": 1, "timeout": "1"}, "timeout"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"batch": 1, "timeout": 1, "heartbeat": 0.6}, "heartbeat"),
        ({"batch": 1, "group": "G"}, "group"),
    ],
)
def test_invalid_options_are_refused_by_the_client(consumer, nc, options, named):
    """The error names the option, nothing is sent, and no subscription is left."""
    sent = nc.stats["out_msgs"]
    with pytest.raises(errors.InvalidOptionError) as caught:
        consumer.fetch(**options)
    assert caught.value.option == named
    assert nc.stats["out_msgs"] == sent
    assert subscriptions(nc) == 0


def test_limits_of_the_consumer_are_typed_errors(stream):
    """A request above ``max_batch``, ``max_expires`` or ``max_bytes`` is a `RequestLimitError`."""
    consumer = stream.create_consumer(
        durable_name="L", max_batch=10, max_expires=timedelta(seconds=2), max_bytes=1000
    )
    for options in (
        {"batch": 11, "timeout": 1},
        {"batch": 1, "timeout": 3},
        {"batch": 1, "max_bytes": 1001, "timeout": 1},
    ):
        with between(0, 1), pytest.raises(errors.RequestLimitError) as caught:
            consumer.fetch(**options)
        assert caught.value.code == 409
        assert "Exceeded Max" in caught.value.description
    with pytest.raises(errors.RequestLimitError):
        consumer.fetch_no_wait(11)
    assert consumer.fetch(10, timeout=0.1, max_bytes=1000) == []


def test_too_many_requests_at_a_time_are_a_typed_error(stream):
    """A request above ``max_waiting`` is a `RequestLimitError`; the others continue."""
    consumer = stream.create_consumer(durable_name="W", max_waiting=2)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(consumer.fetch, 1, 1) for _ in range(2)]
        wait_until(lambda: consumer.info().num_waiting == 2)
        with between(0, 1), pytest.raises(errors.RequestLimitError):
            consumer.fetch(1, timeout=0.5)
        assert [fetched.result(5) for fetched in waiting] == [[], []]


# --- concurrent fetches ---------------------------------------------------------------------------


def test_threads_fetch_from_one_consumer(js, stream, consumer, nc):
    """Eight threads fetch and acknowledge: each message goes to one, and nothing is left behind."""
    count = 4000
    fill(js, stream.name, count)
    got: list[int] = []
    lock = threading.Lock()

    def work(_: int) -> None:
        while True:
            messages = consumer.fetch(50, timeout=0.5)
            if not messages:
                return
            for msg in messages:
                msg.ack()
            with lock:
                got.extend(numbers(messages))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(got) == list(range(count))
    wait_until(lambda: consumer.info().num_ack_pending == 0)
    assert consumer.info().num_waiting == 0
    assert subscriptions(nc) == 0


def test_a_fetch_leaves_no_subscription_on_the_server(monitored):
    """After many fetches, complete or not, the server has no subscription of them."""
    server, subscriptions = monitored
    with jetstream_sync.connect(server.url) as nc:
        stream = nc.jetstream().create_stream(name="S", subjects=["S.>"], storage="memory")
        consumer = stream.create_consumer(durable_name="C")
        fill(nc.jetstream(), "S", 110)
        _kept = nc.subscribe("mine")
        for _ in range(10):
            consumer.fetch(9)
            consumer.fetch_no_wait(1)
            consumer.fetch(1, timeout=0.01)
        nc.flush()
        assert [
            subscription for subscription in subscriptions() if not subscription.endswith(".*")
        ] == ["mine"]
        assert consumer.info().num_waiting == 0
