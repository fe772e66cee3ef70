"""Bounded pulls with faults: missing consumers, lost links, silent servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from fixtures.internals import open_subscriptions
from fixtures.rawnats import RawClient
from fixtures.server import paused
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import Connection, JetStream, JetStreamMsg, PullConsumer, Stream, errors
from jetstream_sync.api.pull import PullRequest
from jetstream_sync.jetstream.pull import Fetch


def subscriptions(nc: Connection) -> int:
    """Return the number of subscriptions of running pulls."""
    idle = list(nc._caches.idle_inboxes.values())
    receivers = [subscription.receiver for subscription in open_subscriptions(nc)]
    return len(
        [receiver for receiver in receivers if not receiver.is_reply_inbox and receiver not in idle]
    )


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """An empty stream."""
    return js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")


@pytest.fixture
def durable(alone: Connection) -> PullConsumer:
    """A durable consumer on that server, of a stream that survives a restart."""
    js = alone.jetstream()
    js.create_stream(name="S", subjects=["s"])
    return js.create_consumer("S", durable_name="C", ack_wait=60)


@pytest.fixture
def waiting(durable: PullConsumer) -> Iterator[Future[list[JetStreamMsg]]]:
    """A fetch of two messages, which waits on the server."""
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(durable.fetch, 2, 20)
        wait_until(lambda: durable.info().num_waiting == 1)
        yield fetched


# --- missing consumers ----------------------------------------------------------------------------


def test_a_missing_consumer_is_an_error_at_once(stream, consumer):
    """A consumer that does not exist is a typed error within a second, not after the timeout."""
    stream.delete_consumer("C")
    with between(0, 1), pytest.raises(errors.ConsumerNotFoundError):
        consumer.fetch(1, timeout=30)
    with between(0, 1), pytest.raises(errors.ConsumerNotFoundError):
        consumer.fetch(10, timeout=None)
    with between(0, 1), pytest.raises((errors.ConsumerDeletedError, errors.NotFoundError)):
        consumer.fetch_no_wait(1)


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_a_deletion_ends_a_waiting_call_at_once(js, stream, consumer, nc, what):
    """A waiting call gets `ConsumerDeletedError` within a second of the deletion."""
    with ThreadPoolExecutor(2) as pool:
        fetches = [pool.submit(consumer.fetch, 5, timeout) for timeout in (30, None)]
        wait_until(lambda: consumer.info().num_waiting == 2)
        if what == "consumer":
            stream.delete_consumer("C")
        else:
            js.delete_stream(stream.name)
        with between(0, 1):
            for fetched in fetches:
                with pytest.raises(errors.ConsumerDeletedError) as caught:
                    fetched.result(5)
                assert caught.value.code == 409
    assert subscriptions(nc) == 0


@pytest.mark.parametrize("what", ["fetch", "pull subscription", "messages", "info"])
def test_another_consumer_with_the_name_has_its_own_ack_policy(js, nc, stream, stream_name, what):
    """Its messages are acknowledged, although those of the deleted one needed no acknowledgements."""
    other = nc.jetstream()
    stream.create_consumer(durable_name="C", ack_policy="none")
    consumer = js.get_consumer(stream_name, "C")
    fetch = consumer.fetch
    if what == "pull subscription":
        fetch = js.pull_subscribe_bind("C", stream_name).fetch
    other.delete_consumer(stream_name, "C")
    if what != "info":
        with pytest.raises(errors.ConsumerNotFoundError):
            fetch(1, 5)
    other.create_consumer(stream_name, durable_name="C", ack_wait=60)
    js.publish(stream_name, b"x")
    if what == "info":
        consumer.info()
    if what == "messages":
        with consumer.messages() as messages:
            messages.next(5).ack_sync(5)
    else:
        fetch(1, 5)[0].ack_sync(5)
    info = other.consumer_info(stream_name, "C")
    assert (info.ack_floor.stream_seq, info.num_ack_pending) == (1, 0)


def test_messages_that_came_before_the_failure_are_returned(js, stream, consumer):
    """Received messages are returned instead of an error; the next call raises it."""
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(consumer.fetch, 5, 30)
        wait_until(lambda: consumer.info().num_waiting == 1)
        js.publish(stream.name, b"0")
        js.publish(stream.name, b"1")
        wait_until(lambda: consumer.info().delivered.consumer_seq == 2)
        stream.delete_consumer("C")
        with between(0, 1):
            assert [msg.data for msg in fetched.result(5)] == [b"0", b"1"]
    with between(0, 1), pytest.raises(errors.ConsumerNotFoundError):
        consumer.fetch(1)


def test_a_push_consumer_cannot_be_pulled_from(nats_server, stream, consumer):
    """If the consumer is a push consumer by now, the error says so."""
    stream.delete_consumer("C")
    with RawClient(nats_server.port) as raw:
        made = raw.api(
            f"CONSUMER.CREATE.{stream.name}.C",
            stream_name=stream.name,
            config={"name": "C", "durable_name": "C", "deliver_subject": "there"},
        )
    assert "error" not in made
    with between(0, 1), pytest.raises(errors.ConsumerIsPushBasedError):
        consumer.fetch(1, timeout=30)


def test_a_request_that_the_server_refuses_is_an_error(consumer):
    """A 400 of the server is a typed error with its text."""

    class Mad(PullRequest):
        def encode(self) -> bytes:
            return b"{"

    with between(0, 1), pytest.raises(errors.PullError, match="Bad Request") as caught:
        Fetch(consumer._requester, Mad(batch=1, expires_ns=5_000_000_000), 5).run()
    assert caught.value.code == 400


# --- links that break ---------------------------------------------------------------------------


def test_a_fetch_that_begins_without_a_link_asks_once(alone, durable, fresh_server):
    """A fetch made while disconnected sends one request on the next link."""
    js = alone.jetstream()
    for number in range(10):
        js.publish("s", b"%d" % number)
    fresh_server.kill()
    wait_until(lambda: not alone.is_connected)
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(durable.fetch, 4, 20)
        wait_until(lambda: subscriptions(alone) == 1)
        fresh_server.start()
        assert [msg.data for msg in fetched.result(10)] == [b"0", b"1", b"2", b"3"]
    assert durable.info().delivered.consumer_seq == 4
    assert durable.info().num_waiting == 0


@pytest.mark.parametrize("heartbeat", [None, 0.1])
def test_a_fetch_without_a_link_returns_after_its_timeout(alone, durable, fresh_server, heartbeat):
    """While disconnected, a fetch returns after its timeout, without a heartbeat error."""
    fresh_server.kill()
    wait_until(lambda: not alone.is_connected)
    with between(0.5, 0.75):
        assert durable.fetch(1, timeout=0.5, heartbeat=heartbeat) == []


@pytest.mark.parametrize("end", ["close", "drain"])
def test_the_end_of_the_connection_ends_a_fetch(alone, waiting, end):
    """A waiting call raises at once when the connection is closed or drained."""
    ends: dict[str, Callable[[], None]] = {"close": alone.close, "drain": alone.drain}
    ends[end]()
    with between(0, 0.5), pytest.raises(errors.ConnectionClosedError):
        waiting.result(5)


def test_messages_that_came_are_returned_when_the_connection_ends(alone, durable, waiting):
    """Received messages are returned when the connection ends."""
    alone.jetstream().publish("s", b"0")
    wait_until(lambda: durable.info().delivered.consumer_seq == 1)
    alone.flush()
    alone.close()
    assert [msg.data for msg in waiting.result(1)] == [b"0"]


# --- silence ------------------------------------------------------------------------------------


def test_a_silent_server_is_noticed_by_its_heartbeats(durable, fresh_server):
    """With a heartbeat, silence of twice its length is a `NoHeartbeatError`."""
    # For servers before 2.11 the existence of the consumer is checked, too.
    with paused(fresh_server), between(0.2, 1.9), pytest.raises(errors.NoHeartbeatError) as caught:
        durable.fetch(1, timeout=10, heartbeat=0.1)
    assert (caught.value.consumer, caught.value.seconds) == ("C", 0.2)


def test_heartbeats_keep_a_fetch_alive(durable):
    """A fetch that waits for many heartbeats ends at its timeout."""
    with between(1.4, 1.7):
        assert durable.fetch(1, timeout=1.4, heartbeat=0.2) == []


def test_a_given_up_request_gets_no_messages(durable, fresh_server):
    """A fetch cancels its requests at its end: no message is sent to an unused inbox."""
    fresh_server.pause()
    with pytest.raises(errors.NoHeartbeatError):
        durable.fetch(5, timeout=30, heartbeat=0.1)
    fresh_server.resume()
    # The connection sends nothing else meanwhile; another one checks and publishes.
    with jetstream_sync.connect(fresh_server.url) as other:
        js = other.jetstream()
        same = js.get_consumer("S", "C")
        wait_until(lambda: same.info().num_waiting == 0)
        js.publish("s", b"0")
        assert [msg.data for msg in same.fetch(1, timeout=2)] == [b"0"]


@pytest.mark.parametrize("kind", ["consumer", "ordered"])
def test_a_fetch_without_waiting_raises_for_a_silent_server(fresh_server, kind):
    """Silence is not an empty stream: the server answers such a pull at once, or the call raises."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream(timeout=0.5)
        stream = js.create_stream(name="SILENT", subjects=["silent"], storage="memory")
        consumer = stream.ordered_consumer() if kind == "ordered" else stream.create_consumer()
        assert consumer.fetch_no_wait(1) == []
        fresh_server.pause()
        try:
            with between(0.4, 1.0), pytest.raises(TimeoutError, match="did not reply"):
                consumer.fetch_no_wait(1)
        finally:
            fresh_server.resume()
