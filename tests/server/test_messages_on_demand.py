"""`messages(on_demand=True)`: exactly the requested messages, also after faults."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.threads import SCALE, run_all, wait_until

from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    InvalidOptionError,
    IteratorClosedError,
    JetStream,
    MessageIterator,
    PullConsumer,
    TimeoutError,
)


@pytest.fixture
def js(alone: Connection) -> JetStream:
    return alone.jetstream(timeout=5 * SCALE)


@pytest.fixture
def consumer(js: JetStream) -> PullConsumer:
    """A durable consumer of a stream that survives a restart."""
    js.create_stream(name="S", subjects=["s"])
    return js.create_consumer("S", durable_name="C", ack_wait=60, max_ack_pending=-1)


def fill(js: JetStream, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        js.publish_async("s", b"%d" % number)
    js.publish_async_completed(10 * SCALE)


def take(messages: MessageIterator, count: int) -> list[int]:
    return [int(messages.next(10 * SCALE).data) for _ in range(count)]


def delivered(consumer: PullConsumer) -> int:
    return consumer.info().delivered.consumer_seq


def test_only_requested_messages_are_delivered(js, consumer):
    """Nothing is requested at the start, and later exactly what was asked for."""
    fill(js, 10)
    with consumer.messages(on_demand=True) as messages:
        with pytest.raises(TimeoutError):
            messages.next(0.2)
        assert delivered(consumer) == 0
        messages.request(2)
        assert take(messages, 2) == [0, 1]
        with pytest.raises(TimeoutError):
            messages.next(0.2)
        assert delivered(consumer) == 2
        messages.request(1)
        messages.request(3)
        assert take(messages, 4) == [2, 3, 4, 5]
        assert delivered(consumer) == 6
    assert consumer.info().num_waiting == 0


def test_a_request_that_expires_is_repeated(js, consumer, errors):
    """A request for messages that come later than it expires is repeated for what is missing."""
    with consumer.messages(on_demand=True, expires=1) as messages, ThreadPoolExecutor(1) as pool:
        messages.request(3)
        fill(js, 1)
        assert take(messages, 1) == [0]
        got = pool.submit(take, messages, 2)
        time.sleep(1.5)
        fill(js, 10, first=1)
        assert got.result(10 * SCALE) == [1, 2]
        assert delivered(consumer) == 3
    assert errors == []


def test_without_a_request_there_are_no_heartbeats(js, consumer, errors):
    """A thread that waits while nothing is requested reports no missed heartbeat."""
    with consumer.messages(on_demand=True, expires=1, heartbeat=0.5) as messages:
        messages.request(1)
        fill(js, 2)
        assert take(messages, 1) == [0]
        with pytest.raises(TimeoutError):
            messages.next(2)
        assert errors == []
        messages.request(1)
        assert take(messages, 1) == [1]


@pytest.mark.parametrize("fault", ["reconnect", "restart"])
def test_missing_messages_are_requested_again_after_a_reconnect(
    alone, js, consumer, fresh_server, fault
):
    """A lost request is repeated once, for the messages that are missing."""
    fill(js, 2)
    with consumer.messages(on_demand=True) as messages, ThreadPoolExecutor(1) as pool:
        messages.request(5)
        assert take(messages, 2) == [0, 1]
        got = pool.submit(take, messages, 4)
        reconnects = alone.stats["reconnects"]
        if fault == "reconnect":
            alone.reconnect()
        else:
            fresh_server.stop()
            messages.request(1)  # while disconnected
            fresh_server.start()
        wait_until(lambda: alone.stats["reconnects"] > reconnects, 20)
        if fault == "reconnect":
            messages.request(1)
        fill(js, 10, first=2)
        assert got.result(20 * SCALE) == [2, 3, 4, 5]
        assert delivered(consumer) == 6


def test_a_request_after_the_end_raises_the_reason(alone, consumer):
    """`request` raises what `next` raises: it was stopped, or the connection is closed."""
    stopped = consumer.messages(on_demand=True)
    stopped.stop()
    with pytest.raises(IteratorClosedError):
        stopped.request(1)
    other = consumer.messages(on_demand=True)
    alone.close()
    with pytest.raises(ConnectionClosedError):
        other.request(1)


def test_many_threads_request_and_take(js, consumer):
    """Requests of many threads add up; each message goes to one of them."""
    fill(js, 400)
    got: list[int] = []

    def work() -> None:
        for _ in range(100):
            messages.request(1)
            got.append(int(messages.next(20 * SCALE).data))

    with consumer.messages(on_demand=True) as messages:
        run_all(*[work] * 4)
    assert sorted(got) == list(range(400))
    assert delivered(consumer) == 400


def test_invalid_requests_are_refused(js, consumer):
    """A count below 1, a request to an iterator that pulls by itself, and limits are refused."""
    with consumer.messages(on_demand=True) as messages:
        for count in (0, -1, True, 1.0, None):
            with pytest.raises(InvalidOptionError, match="count"):
                messages.request(count)
    with consumer.messages() as messages, pytest.raises(InvalidOptionError, match="on_demand"):
        messages.request(1)
    with (
        js.ordered_consumer("S").messages() as ordered,
        pytest.raises(InvalidOptionError, match="on_demand"),
    ):
        ordered.request(1)
    for option in (
        "max_messages",
        "max_bytes",
        "threshold_messages",
        "threshold_bytes",
        "stop_after",
    ):
        with pytest.raises(InvalidOptionError, match=f"{option}.*on_demand"):
            consumer.messages(on_demand=True, **{option: 5})
