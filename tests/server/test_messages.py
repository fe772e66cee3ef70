"""`messages`: order, pulling ahead, limits, ends and faults."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fixtures.internals import open_subscriptions
from fixtures.server import fill, paused
from fixtures.threads import SCALE, between, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    InvalidOptionError,
    IteratorClosedError,
    JetStreamMsg,
    MessageIterator,
    NoHeartbeatError,
    PullConsumer,
    PullError,
    RequestLimitError,
    Stream,
    StreamNotFoundError,
)
from jetstream_sync.net.clock import Deadline


def number(msg: JetStreamMsg) -> int:
    """Return the number of a message that `fill` stored."""
    return int(msg.data)


def take(messages: MessageIterator, count: int, *, ack: bool = True) -> list[int]:
    """Return the next messages."""
    got = []
    for _ in range(count):
        msg = messages.next(5)
        if ack:
            msg.ack()
        got.append(number(msg))
    return got


def subscriptions(nc: Connection) -> int:
    """Return the number of subscriptions without the one for all requests."""
    return len([i for i in open_subscriptions(nc) if not i.subject.endswith(".*")])


def buffered(messages: MessageIterator) -> int:
    """Return the number of buffered messages, with the statuses between them."""
    return len(messages._source._buffer_state()[0])


@pytest.fixture
def consumer(stream: Stream) -> PullConsumer:
    """A durable consumer of the whole stream."""
    return stream.create_consumer(durable_name="C", max_ack_pending=-1)


@pytest.fixture
def durable(alone: Connection) -> PullConsumer:
    """A durable consumer on that server, of a stream that survives a restart."""
    js = alone.jetstream()
    js.create_stream(name="S", subjects=["S.>"])
    return js.create_consumer("S", durable_name="C", ack_wait=60, max_ack_pending=-1)


# --- order and completeness ---------------------------------------------------------------------


def test_all_messages_are_returned_once_and_in_order(js, stream, consumer):
    """Far more messages than the buffer holds are returned once and in order."""
    fill(js, stream.name, 10_000)
    with consumer.messages(max_messages=100) as messages:
        got = []
        for msg in messages:
            msg.ack()
            got.append(number(msg))
            if len(got) == 10_000:
                break
    assert got == list(range(10_000))
    wait_until(lambda: consumer.info().num_ack_pending == 0)


def test_no_message_in_time_is_a_timeout(js, stream, consumer):
    """``next`` raises on a timeout, and the iterator stays usable; 0 does not wait."""
    with consumer.messages() as messages:
        for timeout, least in ((0, 0), (0.2, 0.2), (timedelta(milliseconds=100), 0.1)):
            with between(least, 0.4), pytest.raises(jetstream_sync.TimeoutError):
                messages.next(timeout)
        fill(js, stream.name, 1)
        wait_until(lambda: buffered(messages) > 0)
        assert number(messages.next(0)) == 0


def test_a_run_belongs_to_all_threads(js, stream, consumer):
    """While one thread handles a message, others take those that have arrived with it."""
    fill(js, stream.name, 100)
    with consumer.messages() as messages, ThreadPoolExecutor(1) as pool:
        wait_until(lambda: buffered(messages) == 100)
        assert number(pool.submit(messages.next, 5).result(5)) == 0
        assert [number(messages.next(0)) for _ in range(99)] == list(range(1, 100))


def test_a_run_leaves_no_thread_waiting(js, stream, consumer, monkeypatch):
    """A thread that is about to wait gets its message, although another one takes those before it."""
    with consumer.messages() as messages, ThreadPoolExecutor(1) as pool:
        about_to_wait, go_on = threading.Event(), threading.Event()
        wait = messages._source._wait

        def delayed_wait(deadline: Deadline) -> None:
            about_to_wait.set()
            assert go_on.wait(10)
            wait(deadline)

        monkeypatch.setattr(messages._source, "_wait", delayed_wait)
        other = pool.submit(messages.next, 5)
        assert about_to_wait.wait(10)
        fill(js, stream.name, 2)
        wait_until(lambda: buffered(messages) == 2)
        assert number(messages.next(5)) == 0
        go_on.set()
        assert number(other.result(10)) == 1


def test_a_stop_ends_a_run(js, stream, consumer):
    """After ``stop`` an iteration ends, though more messages have arrived with the last one."""
    fill(js, stream.name, 100)
    with consumer.messages() as messages:
        wait_until(lambda: buffered(messages) == 100)
        got = []
        for msg in messages:
            got.append(number(msg))
            if len(got) == 10:
                messages.stop()
        assert got == list(range(10))


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "threshold"), [(1, 1), (2, 1), (10, 5), (10, 10), (7, 1)])
def test_max_messages_limits_the_buffer(js, stream, consumer, limit, threshold):
    """The buffer never has more than ``max_messages``, whatever the threshold."""
    fill(js, stream.name, 200)
    with consumer.messages(max_messages=limit, threshold_messages=threshold) as messages:
        for taken in range(1, 101):
            assert number(messages.next(5)) == taken - 1
            assert buffered(messages) <= limit
            if taken % 10 == 0:
                assert consumer.info().delivered.consumer_seq <= taken + limit
    assert consumer.info().delivered.consumer_seq <= 100 + limit


def test_the_threshold_controls_pull_requests(js, stream, consumer):
    """No pull request is sent until the buffer is below the threshold; then it fills the buffer."""
    fill(js, stream.name, 100)
    with consumer.messages(max_messages=10, threshold_messages=4) as messages:
        wait_until(lambda: consumer.info().delivered.consumer_seq == 10)
        take(messages, 6, ack=False)
        assert consumer.info().delivered.consumer_seq == 10
        assert consumer.info().num_waiting == 0
        take(messages, 1, ack=False)  # three are left
        wait_until(lambda: consumer.info().delivered.consumer_seq == 17)
        assert buffered(messages) == 10


def test_max_bytes_limits_the_buffer(js, stream, consumer):
    """The buffer never has more than ``max_bytes``, and no message is lost."""
    for index in range(300):
        js.publish_async(f"{stream.name}.a", b"x" * (10 + index * 7 % 400))
    js.publish_async_completed(5)
    limit = 2000
    got = []
    with consumer.messages(max_bytes=limit) as messages:
        for _ in range(300):
            msg = messages.next(5)
            got.append(len(msg.data))
            waiting = [d for d in list(messages._source._inbox.mailbox.items) if d[1]]
            assert sum(sum(map(len, item)) for item in waiting) <= limit
    assert got == [10 + index * 7 % 400 for index in range(300)]


def test_bytes_limit_each_request_for_messages(js, stream, consumer):
    """With ``max_messages``, ``max_bytes`` limits each request; the messages that are left follow."""
    fill(js, stream.name, 100, size=1000)
    with between(0, 5), consumer.messages(max_messages=10, max_bytes=3500) as messages:
        wait_until(lambda: consumer.info().num_ack_pending)
        assert consumer.info().num_ack_pending <= 3 + 3
        assert take(messages, 100) == list(range(100))


@pytest.mark.parametrize("size", [100, 500, 1000])
def test_sizes_that_fill_the_limit_in_bytes_do_not_stall(js, stream, consumer, size):
    """Messages that use ``max_bytes`` exactly, or nearly, follow each other without a pause."""
    fill(js, stream.name, 1, size=size)
    (one,) = consumer.fetch(1)
    one_size = len(one.subject) + len(one.reply) + len(one.data)
    fill(js, stream.name, 200, size=size, first=1)
    for limit in (one_size + 30, 2 * one_size + 12, 3 * one_size + 3):
        with between(0, 5), consumer.messages(max_bytes=limit) as messages:
            got = take(messages, 40)
            assert got == list(range(got[0], got[0] + 40))
        # The dropped messages are redelivered much later; a new consumer continues.
        stream.delete_consumer("C")
        stream.create_consumer(durable_name="C")


def test_a_message_that_does_not_fit_yet_does_not_cause_a_storm(js, stream, consumer, nc):
    """While there is no room for the next message, it is not requested repeatedly."""
    fill(js, stream.name, 10, size=500)
    with consumer.messages(max_bytes=1300) as messages:
        wait_until(lambda: consumer.info().delivered.consumer_seq == 2)
        messages.next(5)
        began = nc.stats["out_msgs"]
        for _ in range(50):
            nc.flush()
        assert nc.stats["out_msgs"] - began < 5
        got = [number(messages.next(5)) for _ in range(9)]
    assert got == list(range(1, 10))


def test_a_message_that_never_fits_is_reported(alone, durable, errors):
    """A message larger than ``max_bytes`` is reported, not requested continuously, and not lost."""
    fill(alone.jetstream(), "S", 1, size=500)
    with durable.messages(max_bytes=300, expires=1, heartbeat=0.5) as messages:
        began = alone.stats["out_msgs"]
        with pytest.raises(jetstream_sync.TimeoutError):
            messages.next(0.5)
        assert alone.stats["out_msgs"] - began < 5
    reported = errors.of(PullError)
    assert len(reported) == 1
    assert "MaxBytes" in str(reported[0])
    assert len(durable.fetch(1)) == 1


def test_a_refused_request_is_named_and_repeated(alone, errors):
    """A limit of the consumer ends no iteration (ADR-37): it is reported, and messages follow when it is raised."""
    stream = alone.jetstream().create_stream(name="S", subjects=["S.>"])
    consumer = stream.create_consumer(durable_name="L", max_batch=7)
    fill(alone.jetstream(), "S", 1)
    with consumer.messages(max_messages=10, expires=1, heartbeat=0.5) as messages:
        with pytest.raises(jetstream_sync.TimeoutError, match="Exceeded MaxRequestBatch") as caught:
            messages.next(0.3 * SCALE)
        assert isinstance(caught.value.__cause__, RequestLimitError)
        assert errors.of(RequestLimitError)
        stream.update_consumer(replace(consumer.info().config, max_batch=0))
        assert number(messages.next(10 * SCALE)) == 0
        with pytest.raises(jetstream_sync.TimeoutError) as caught:
            messages.next(0)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("options", [{}, {"max_bytes": 10_000}])
def test_the_consumer_s_limits_bound_the_defaults(js, stream, options):
    """Default options and ``max_bytes`` respect ``max_batch`` and ``max_expires`` of the consumer."""
    consumer = stream.create_consumer(
        durable_name="L", max_batch=7, max_expires=timedelta(seconds=2)
    )
    fill(js, stream.name, 200)
    with between(0, 5), consumer.messages(**options) as messages:
        assert take(messages, 200) == list(range(200))


def test_invalid_options_are_refused(consumer, nc):
    """The error names the option, and no subscription is left."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": 10, "threshold_messages": 11}, "threshold_messages"),
        ({"expires": 0.9}, "expires"),
        ({"stop_after": 0}, "stop_after"),
        ({"batch": 5}, "batch"),
        ({"group": "G"}, "group"),
    ]
    for options, named in cases:
        with pytest.raises(InvalidOptionError) as caught:
            consumer.messages(**options)
        assert caught.value.option == named, options
    assert subscriptions(nc) == 0


# --- ends ---------------------------------------------------------------------------------------


def test_stop_after_is_exact(js, stream, consumer):
    """Exactly ``stop_after`` messages are returned, and exactly that many were delivered."""
    fill(js, stream.name, 100)
    for stop_after, options in (
        (1, {}),
        (25, {"max_messages": 10}),
        (10, {"max_messages": 10}),
        (30, {"max_bytes": 500}),
    ):
        before = consumer.info().delivered.consumer_seq
        with consumer.messages(stop_after=stop_after, **options) as messages:
            got = [number(msg) for msg in messages]
            assert got == list(range(got[0], got[0] + stop_after))
            with pytest.raises(IteratorClosedError):
                messages.next(1)
        info = consumer.info()
        assert info.delivered.consumer_seq - before == stop_after
        assert info.num_waiting == 0


def test_stop_drops_the_buffered_messages(js, stream, consumer, nc):
    """After ``stop`` no message is returned, and the server has no pull request."""
    fill(js, stream.name, 50)
    messages = consumer.messages(max_messages=10)
    wait_until(lambda: buffered(messages) == 10)
    messages.next(1)
    messages.stop()
    messages.stop()
    with pytest.raises(IteratorClosedError):
        messages.next(1)
    assert list(messages) == []
    assert messages.closed
    assert consumer.info().num_waiting == 0
    assert subscriptions(nc) == 0


def test_stop_tells_the_server_at_once(alone, durable, fresh_server):
    """A stopped iterator takes no messages from others, though the connection is idle."""
    messages = durable.messages()
    with pytest.raises(jetstream_sync.TimeoutError):
        messages.next(0.2)  # the connection is idle
    with jetstream_sync.connect(fresh_server.url) as other:
        same = other.jetstream().get_consumer("S", "C")
        assert same.info().num_waiting == 1
        messages.stop()
        wait_until(lambda: same.info().num_waiting == 0, 1)
        other.jetstream().publish("S.a", b"0")
        assert number(same.fetch(1, timeout=1)[0]) == 0
    del alone


def test_drain_returns_the_buffered_messages(js, stream, consumer, nc):
    """After ``drain`` buffered messages can be read, then the iteration ends; none is lost."""
    fill(js, stream.name, 50)
    messages = consumer.messages(max_messages=10)
    assert take(messages, 3) == [0, 1, 2]
    messages.drain()
    delivered = consumer.info().delivered.consumer_seq
    got = [number(msg) for msg in messages]
    assert got == list(range(3, delivered))
    assert len(got) >= 5
    with pytest.raises(IteratorClosedError):
        messages.next(1)
    assert consumer.info().num_waiting == 0
    assert subscriptions(nc) == 0
    messages.stop()


def test_drain_that_the_server_does_not_confirm_times_out(alone, durable, fresh_server):
    """A drain that the server does not confirm times out, and the iterator ends."""
    messages = durable.messages()
    with paused(fresh_server), between(0.2, 0.5), pytest.raises(jetstream_sync.DrainTimeoutError):
        messages.drain(0.2)
    assert messages.closed
    assert list(messages) == []
    assert subscriptions(alone) == 0


@pytest.mark.parametrize("end", ["close", "drain"])
def test_an_iteration_ends_with_the_connection(alone, durable, end):
    """When the connection is closed, iterations end and ``next`` raises the reason."""
    messages = durable.messages()
    with ThreadPoolExecutor(2) as pool:
        listed = pool.submit(list, messages)
        waiting = pool.submit(messages.next)
        wait_until(lambda: len(messages._source._inbox.mailbox._gates) == 2)
        with between(0, 1):
            if end == "close":
                alone.close()
            else:
                alone.drain()
            assert listed.result(5) == []
            with pytest.raises(ConnectionClosedError):
                waiting.result(5)


def test_buffered_messages_survive_the_end_of_the_connection(alone, durable):
    """Messages received before the connection was closed can still be read."""
    fill(alone.jetstream(), "S", 20)
    messages = durable.messages(max_messages=20)
    wait_until(lambda: buffered(messages) == 20)
    alone.close()
    assert [number(messages.next(1)) for _ in range(20)] == list(range(20))
    with pytest.raises(ConnectionClosedError):
        messages.next(1)


# --- deleted consumers ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["consumer", "stream"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_missing_consumer_ends_the_iteration_with_its_error(js, stream, consumer, nc, what, when):
    """A missing or deleted consumer or stream is a typed error within a second, each time."""

    def delete() -> None:
        if what == "stream":
            js.delete_stream(stream.name)
        else:
            stream.delete_consumer("C")

    if when == "before":
        delete()
    with consumer.messages() as messages, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(messages.next, 20)
        if when == "meanwhile":
            wait_until(lambda: consumer.info().num_waiting == 1)
            delete()
        gone = (
            ConsumerDeletedError
            if when == "meanwhile"
            else (StreamNotFoundError if what == "stream" else ConsumerNotFoundError)
        )
        with between(0, 1):
            with pytest.raises(gone):
                waiting.result(5)
            with pytest.raises(gone):
                messages.next(5)
            with pytest.raises(gone):
                list(messages)
        assert messages.closed
    assert subscriptions(nc) == 0


def test_messages_before_the_deletion_are_given(js, stream, consumer):
    """Messages delivered before the deletion can be read; then the error is raised."""
    fill(js, stream.name, 5)
    with consumer.messages() as messages:
        wait_until(lambda: buffered(messages) == 5)
        stream.delete_consumer("C")
        assert [number(messages.next(1)) for _ in range(5)] == [0, 1, 2, 3, 4]
        with between(0, 1), pytest.raises(ConsumerDeletedError):
            messages.next(5)


# --- faults -------------------------------------------------------------------------------------


def test_silence_is_reported_and_ends_nothing(alone, durable, fresh_server, errors):
    """Missed heartbeats are reported to ``error_cb``; messages continue when the server is back."""
    with durable.messages(expires=1, heartbeat=0.5) as messages:
        with paused(fresh_server):
            with pytest.raises(jetstream_sync.TimeoutError):
                messages.next(1.5)
            assert errors.of(NoHeartbeatError)
        fill(alone.jetstream(), "S", 100)
        assert take(messages, 100) == list(range(100))


def test_requests_follow_each_other_without_messages(alone, durable, errors):
    """An iterator without messages for longer than ``expires`` has exactly one request waiting."""
    with durable.messages(expires=1) as messages, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(messages.next, 20)
        began = time.monotonic()

        def looked_long_enough() -> bool:
            assert durable.info().num_waiting <= 1
            return time.monotonic() - began > 1.6

        wait_until(looked_long_enough)
        wait_until(lambda: durable.info().num_waiting == 1)
        fill(alone.jetstream(), "S", 1)
        assert number(waiting.result(1)) == 0
    assert errors == []


def test_slow_reading_causes_no_error(alone, durable, errors):
    """Reading slower than requests expire causes no error."""
    fill(alone.jetstream(), "S", 20)
    with durable.messages(max_messages=4, expires=1, heartbeat=0.5) as messages:
        take(messages, 2)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1.6)
        with between(0, 0.5):
            assert take(messages, 18) == list(range(2, 20))
    assert errors == []


def test_an_iterator_made_without_a_link_asks_once(alone, durable, fresh_server):
    """Created while disconnected, an iterator sends one request on the next link."""
    fill(alone.jetstream(), "S", 100)
    fresh_server.kill()
    wait_until(lambda: not alone.is_connected)
    with durable.messages(max_messages=10) as messages:
        fresh_server.start()
        assert number(messages.next(10)) == 0
        assert buffered(messages) <= 10
        assert durable.info().delivered.consumer_seq <= 11


def test_nothing_is_pulled_twice_when_heartbeats_are_missed(alone, durable, fresh_server):
    """``stop_after`` is exact, also when requests that seemed lost are answered late."""
    with durable.messages(stop_after=5, expires=1, heartbeat=0.5) as messages:
        with paused(fresh_server), pytest.raises(jetstream_sync.TimeoutError):
            messages.next(1.4)
        fill(alone.jetstream(), "S", 50)
        assert [number(msg) for msg in messages] == [0, 1, 2, 3, 4]
