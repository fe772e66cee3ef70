"""Ordered fetches that end early: messages sent after their end are read again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from fixtures.faults import Toward
from fixtures.server import fill
from fixtures.threads import between, wait_until

from jetstream_sync import JetStreamMsg, OrderedConsumer, errors

pytestmark = pytest.mark.usefixtures("short_reply_margin")

#: A number of opcodes that is not reached: the first pass only warms up the tracer.
NEVER = 10**9


def numbers(messages: list[JetStreamMsg]) -> list[int]:
    return [int(msg.data) for msg in messages]


def read_to(ordered: OrderedConsumer, last: int, got: list[int]) -> list[int]:
    """Fetch until the last message has arrived, or none arrives any more."""
    in_vain = 0
    while (not got or got[-1] != last) and in_vain < 3:
        more = numbers(ordered.fetch(max(1, last + 1 - len(got)), timeout=0.3))
        in_vain = 0 if more else in_vain + 1
        got += more
    return got


def test_messages_held_back_by_a_stall_are_read_again(js, stream, far, proxy):
    """A reply that stops in the middle ends its fetch; the next ones read to the end."""
    fill(js, stream.name, 200, size=10_000)
    ordered = far.jetstream().ordered_consumer(stream.name)
    got = numbers(ordered.fetch(10))
    proxy.hold_after(500_000, Toward.CLIENT)
    got += numbers(ordered.fetch(500, timeout=0.2))
    assert 10 < len(got) < 100
    proxy.heal()
    assert read_to(ordered, 199, got) == list(range(200))
    assert far.stats["reconnects"] == 0


def test_a_fetch_does_not_keep_its_consumer_over_a_new_link(js, stream, far, proxy):
    """Messages in flight when a link broke are read again on the next one, in the same fetch."""
    fill(js, stream.name, 100, size=10_000)
    ordered = far.jetstream().ordered_consumer(stream.name)
    got = numbers(ordered.fetch(5))
    assert ordered.cached_info is not None
    before = ordered.cached_info.name
    proxy.cut_after(200_000, Toward.CLIENT)
    got += numbers(ordered.fetch(95, timeout=5))
    # It ended with the link, or continued behind its messages with another consumer.
    assert got == list(range(len(got)))
    assert read_to(ordered, 99, got) == list(range(100))
    assert ordered.cached_info.name != before
    with between(0, 1):
        assert numbers(ordered.fetch(1, timeout=0.1)) == []


def test_a_heartbeat_of_half_the_timeout_is_taken(js, stream):
    """The time for creating a consumer does not make a heartbeat too long."""
    fill(js, stream.name, 1)
    ordered = stream.ordered_consumer()
    assert numbers(ordered.fetch(1, timeout=2, heartbeat=1)) == [0]


def test_options_of_other_pulls_are_refused(stream):
    """An ordered consumer has no priority groups, and knows the options of each pull only."""
    ordered = stream.ordered_consumer()
    for call in (ordered.fetch, ordered.fetch_no_wait, ordered.next):
        with pytest.raises(errors.InvalidOptionError, match="unknown option"):
            call(group="g")


# --- fetch_no_wait, and the end -------------------------------------------------------------------


def test_fetch_no_wait_returns_the_available_messages(js, stream):
    """``fetch_no_wait`` returns the available messages at once, in order, or none."""
    ordered = stream.ordered_consumer()
    with between(0, 1):
        assert ordered.fetch_no_wait(5) == []
        fill(js, stream.name, 8)
        assert numbers(ordered.fetch_no_wait(5)) == [0, 1, 2, 3, 4]
        assert numbers(ordered.fetch_no_wait(max_bytes=100_000)) == [5, 6, 7]
        assert ordered.fetch_no_wait(5) == []


def test_its_consumer_can_be_looked_at(js, stream):
    """``name``, ``info`` and ``cached_info`` describe the server's consumer that was used last."""
    fill(js, stream.name, 10)
    ordered = stream.ordered_consumer(name_prefix="mine")
    assert ordered.name is None
    assert ordered.cached_info is None
    assert ordered.info().num_pending == 10  # creates the consumer of fetch()
    assert numbers(ordered.fetch(4)) == [0, 1, 2, 3]
    assert ordered.info().num_pending == 6
    (name,) = stream.consumer_names()
    assert ordered.name == ordered.info().name == name
    with ordered.messages(max_messages=2) as messages:
        messages.next(5)
        assert ordered.name in set(stream.consumer_names()) - {name}
        assert ordered.cached_info is not None
        assert ordered.cached_info.name == ordered.info().name == ordered.name
    wait_until(lambda: ordered.name == name)
    stream.delete_consumer(name)
    with pytest.raises(errors.ConsumerNotFoundError):
        ordered.info()
    assert numbers(ordered.fetch(6)) == [4, 5, 6, 7, 8, 9]
    assert ordered.info().num_pending == 0


def test_close_deletes_its_consumers_on_the_server(js, stream):
    """After ``close``, or the ``with`` block, it is closed and the server has no consumer of it."""
    fill(js, stream.name, 10)
    with stream.ordered_consumer() as ordered:
        assert numbers(ordered.fetch(4)) == [0, 1, 2, 3]
        messages = ordered.messages()
        assert int(messages.next(5).data) == 0
        assert len(stream.consumer_names()) == 2
    wait_until(lambda: not stream.consumer_names(), 1)
    assert messages.closed
    assert list(messages) == []
    ordered.close()
    for call in (
        lambda: ordered.fetch(1),
        lambda: ordered.fetch_no_wait(1),
        ordered.next,
        ordered.messages,
        ordered.info,
    ):
        with pytest.raises(errors.IteratorClosedError):
            call()
    assert ordered.name is None
    assert stream.consumer_names() == []


def test_close_ends_a_fetch_that_waits(js, stream):
    """A fetch on another thread ends at once, with its messages or with `IteratorClosedError`."""
    for count in (0, 3):
        fill(js, stream.name, count)
        ordered = stream.ordered_consumer()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ordered.fetch, 20, 30)
            wait_until(lambda it=ordered: it.name is not None)
            info = ordered.info
            wait_until(lambda ask=info, n=count: ask().delivered.consumer_seq == n)
            wait_until(lambda ask=info: ask().num_waiting == 1)
            with between(0, 1):
                ordered.close()
                if count:
                    assert numbers(waiting.result(5)) == [0, 1, 2]
                else:
                    with pytest.raises(errors.IteratorClosedError):
                        waiting.result(5)
        wait_until(lambda: not stream.consumer_names(), 1)


def test_close_ends_a_fetch_that_has_no_consumer(js, stream, far, proxy):
    """A fetch that waits for a link ends with ``close``, too, and leaves no consumer behind."""
    fill(js, stream.name, 1)
    ordered = far.jetstream().ordered_consumer(stream.name)
    assert numbers(ordered.fetch(1)) == [0]
    proxy.refuse()
    proxy.cut()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ordered.fetch, 1, 30)
        wait_until(lambda: not far.is_connected)
        ordered.close()
        proxy.accept()
        with pytest.raises(errors.IteratorClosedError):
            waiting.result(10)
    wait_until(lambda: not stream.consumer_names(), 2)


def test_a_fetch_whose_limit_no_message_fits_raises_at_once(js, stream):
    """With a max_bytes below the next message, an ordered fetch raises, and creates one consumer only."""
    fill(js, stream.name, 1, size=5000)
    created = stream.info().state.consumer_count
    ordered = stream.ordered_consumer()
    with pytest.raises(errors.RequestLimitError, match="max_bytes=100"):
        ordered.fetch(max_bytes=100, timeout=5)
    assert stream.info().state.consumer_count <= created + 1


@pytest.mark.parametrize("method", ["fetch", "next"])
def test_a_fetch_of_another_thread_does_not_extend_the_timeout(js, stream, method):
    """A call waits for the fetch of another thread until its own timeout, and then says so."""
    ordered = stream.ordered_consumer()
    call = ordered.next if method == "next" else partial(ordered.fetch, 1)
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(ordered.fetch, 1, timeout=60)
        wait_until(lambda: ordered.name is not None)
        wait_until(lambda: ordered.info().num_waiting == 1)
        with between(0.2, 2), pytest.raises(errors.TimeoutError, match="another thread"):
            call(timeout=0.2)
        js.publish(f"{stream.name}.x", b"7")
        assert numbers(fetching.result(10)) == [7]
