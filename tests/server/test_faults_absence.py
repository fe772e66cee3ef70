"""
A consumer that exists without a server that answers for it, as during a leader election.

The API is reached under a prefix of the test. It answers only consumer info requests, so a pull
request has no responders, as without a leader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.threads import SCALE, between, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, JetStream, Msg, PullConsumer, Stream, Subscription, errors
from jetstream_sync.server import NatsServer


class Absent:
    """The API under a prefix, with or without a responder for the consumer."""

    def __init__(self, nc: Connection, stream: str, prefix: str) -> None:
        self._nc = nc
        self._real = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.C"
        self._next = f"{prefix}.CONSUMER.MSG.NEXT.{stream}.C"
        self._info = f"{prefix}.CONSUMER.INFO.{stream}.C"
        self._serving: Subscription | None = None
        #: The times of consumer info requests: one after each failed request.
        self.asked: list[float] = []
        self._answering = nc.subscribe(self._info, cb=self._respond)
        nc.flush(5 * SCALE)

    def _respond(self, msg: Msg) -> None:
        self.asked.append(time.monotonic())
        msg.respond(self._nc.request(f"$JS.API.{self._info.partition('.')[2]}", timeout=5).data)

    def is_back(self) -> None:
        def forward(msg: Msg) -> None:
            self._nc.publish(self._real, msg.data, reply=msg.reply)

        self._serving = self._nc.subscribe(self._next, cb=forward)
        self._nc.flush(5 * SCALE)

    def is_away(self) -> None:
        assert self._serving is not None
        self._serving.unsubscribe()
        self._nc.flush(5 * SCALE)


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    stream = js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")
    stream.create_consumer(durable_name="C", ack_wait=60)
    return stream


@pytest.fixture
def events() -> list[Exception]:
    return []


@pytest.fixture
def user(nats_server: NatsServer, events: list[Exception]) -> Iterator[Connection]:
    with jetstream_sync.connect(nats_server.url, error_cb=events.append) as nc:
        yield nc


@pytest.fixture
def absent(nc: Connection, stream: Stream) -> Absent:
    return Absent(nc, stream.name, "ABSENT")


@pytest.fixture
def consumer(user: Connection, absent: Absent, stream: Stream) -> PullConsumer:
    """The consumer, as seen by a client that uses the API under the prefix."""
    consumer = user.jetstream(prefix="ABSENT").get_consumer(stream.name, "C")
    absent.asked.clear()
    return consumer


pytestmark = pytest.mark.server(">=2.11")  # older servers send no 503 for such a request


def test_an_iterator_repeats_requests_in_growing_intervals(js, stream, consumer, absent, events):
    """Requests are repeated after 1/4, 1/2, 1 s and so on, with one event for the absence."""
    with consumer.messages(heartbeat=2, expires=4) as messages:
        with pytest.raises(errors.TimeoutError):
            messages.next(2.5)
        waits = [b - a for a, b in zip(absent.asked, absent.asked[1:], strict=False)]
        assert len(waits) == 3
        for wait, least in zip(waits, (0.25, 0.5, 1.0), strict=True):
            assert least <= wait < least + 0.5 * SCALE
        assert [type(event) for event in events] == [errors.PullError]
        assert "has no leader now" in str(events[0])
        js.publish(stream.name, b"0")
        absent.is_back()
        assert messages.next(2 * 2 * SCALE).data == b"0"
        assert len(events) == 1


def test_a_fetch_returns_messages_when_the_consumer_is_served_again(js, stream, consumer, absent):
    """A fetch and a next with time left return messages when the consumer is served again."""
    for number in range(3):
        js.publish(stream.name, b"%d" % number)
    with ThreadPoolExecutor(2) as pool:
        fetched = pool.submit(consumer.fetch, 2, 10 * SCALE)
        wait_until(lambda: len(absent.asked) >= 2)
        absent.is_back()
        assert [msg.data for msg in fetched.result(5 * SCALE)] == [b"0", b"1"]
        absent.is_away()
        absent.asked.clear()
        single = pool.submit(consumer.next, 10 * SCALE)
        wait_until(lambda: len(absent.asked) >= 1)
        absent.is_back()
        assert single.result(5 * SCALE).data == b"2"


def test_a_fetch_reports_missing_responders_in_time(consumer):
    """A fetch reports the last refusal when it times out; one that cannot wait does so at once."""
    with between(0.8, 0.9 + 0.5), pytest.raises(errors.PullError, match="No Responders") as caught:
        consumer.fetch(1, timeout=0.9)
    assert caught.value.code == 503
    assert not isinstance(caught.value, errors.ConsumerDeletedError)
    with within(0.5), pytest.raises(errors.PullError, match="No Responders"):
        consumer.fetch_no_wait(1)


def test_a_deleted_consumer_ends_all_readers(stream, consumer, events):
    """If the consumer was deleted meanwhile, reading ends with the error that says so."""
    caught: list[BaseException] = []
    handle = consumer.consume(lambda _: None, heartbeat=1, expires=2)
    wait_until(lambda: len(events) == 1)

    def fetch() -> None:
        try:
            consumer.fetch(1, timeout=20)
        except errors.ConsumerNotFoundError as error:
            caught.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    stream.delete_consumer("C")
    handle.wait_closed(5 * SCALE)
    assert isinstance(handle.error, errors.ConsumerNotFoundError)
    thread.join(5 * SCALE)
    assert len(caught) == 1


def test_an_ordered_fetch_replaces_a_silent_consumer(js, nc, user, stream):
    """If no reply arrives until the end, the next fetch continues with another consumer."""
    silent: set[str] = set()

    def forward(msg: Msg) -> None:
        *_, name = msg.subject.split(".")
        if ".MSG.NEXT." in msg.subject and (not silent or name in silent):
            silent.add(name)
            return
        nc.publish(f"$JS.API.{msg.subject.partition('.')[2]}", msg.data, reply=msg.reply)

    nc.subscribe("SILENT.>", cb=forward)
    nc.flush(5 * SCALE)
    for number in range(3):
        js.publish(stream.name, b"%d" % number)
    consumer = user.jetstream(prefix="SILENT").ordered_consumer(stream.name)
    while not silent:  # a slow server may need this time to create the consumer
        assert consumer.fetch(3, timeout=0.2) == []
    assert [msg.data for msg in consumer.fetch(3, timeout=5 * SCALE)] == [b"0", b"1", b"2"]
    assert len(silent) == 1
