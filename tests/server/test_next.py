"""`next`: one message at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import (
    JetStream,
    Stream,
)


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """An empty stream."""
    return js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")


def test_messages_come_one_by_one(js, stream, consumer):
    """Each call returns the next message, and requests one only."""
    for number in range(5):
        js.publish(stream.name, b"%d" % number)
    for number in range(5):
        assert consumer.next().data == b"%d" % number
        info = consumer.info()
        assert (info.delivered.consumer_seq, info.num_waiting) == (number + 1, 0)


def test_next_waits_for_a_message(js, stream, consumer):
    """A message that arrives in time is returned at once, with a timeout and without."""
    for timeout in (10, None):
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(consumer.next, timeout)
            wait_until(lambda: consumer.info().num_waiting == 1)
            js.publish(stream.name, b"here")
            with between(0, 0.5):
                assert waiting.result(5).data == b"here"


@pytest.mark.parametrize("timeout", [0.05, 0.5])
def test_no_message_is_a_timeout(consumer, timeout):
    """Without a message there is a `TimeoutError`, also the built-in one, after the timeout."""
    with between(timeout, timeout + 0.2), pytest.raises(jetstream_sync.TimeoutError):
        consumer.next(timeout)
    with pytest.raises(TimeoutError, match="C"):
        consumer.next(timeout)
