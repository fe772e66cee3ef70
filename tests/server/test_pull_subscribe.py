"""Pull subscriptions: their consumers, the results of fetch, and their end (ADR-13, ADR-15)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.internals import engine_of, open_subscriptions
from fixtures.server import paused
from fixtures.threads import between, run_all, wait_until

import jetstream_sync
from jetstream_sync import (
    AckPolicy,
    BadSubscriptionError,
    Connection,
    ConnectionClosedError,
    ConsumerNotFoundError,
    InvalidOptionError,
    JetStream,
    JetStreamMsg,
    PullSubscription,
    RequestLimitError,
    Stream,
    StreamNotFoundError,
    TimeoutError,
)


@pytest.fixture
def subject(stream: Stream) -> str:
    """A subject of the stream."""
    return f"{stream.name}.a"


@pytest.fixture
def sub(js: JetStream, subject: str) -> PullSubscription:
    """A subscription to it, with a durable consumer."""
    return js.pull_subscribe(subject, "D")


def put(js: JetStream, subject: str, *numbers: int) -> None:
    """Store messages with these numbers."""
    for number in numbers:
        js.publish(subject, b"%d" % number)


def numbers_of(messages: list[JetStreamMsg]) -> list[int]:
    """Return the numbers in messages."""
    return [int(msg.data) for msg in messages]


def subscriptions(nc: Connection) -> list[str]:
    """Return the connection's subscriptions, without the one for all requests."""
    responses = engine_of(nc).requests._subscription
    return [
        subscription.subject
        for subscription in open_subscriptions(nc)
        if subscription is not responses
    ]


# --- the consumer --------------------------------------------------------------------------------


def test_without_a_durable_the_consumer_is_ephemeral(js, stream, subject):
    """The stream is found by the subject, which is the consumer's filter; acks are explicit."""
    sub = js.pull_subscribe(subject)
    assert stream.consumer_names() == [sub.consumer_name]
    assert sub.stream_name == stream.name
    config = sub.consumer_info().config
    assert (config.durable_name, config.filter_subject) == (None, subject)
    assert config.ack_policy == AckPolicy.EXPLICIT
    assert config.deliver_subject is None


def test_a_missing_durable_is_created_and_then_reused(js, stream, subject):
    """The second subscription uses the consumer that the first one created, with its position."""
    put(js, subject, 1, 2)
    first = js.pull_subscribe(subject, "D")
    assert first.consumer_name == "D"
    first.fetch()[0].ack_sync()
    second = js.pull_subscribe(subject, durable="D", stream=stream.name)
    assert numbers_of(second.fetch()) == [2]
    assert stream.consumer_names() == ["D"]


def test_binding_accepts_any_filter_and_limits(js, stream, subject):
    """Binding accepts any filter and limits of the consumer."""
    put(js, subject, 1)
    stream.create_consumer(durable_name="D", max_batch=1)
    bound = js.pull_subscribe_bind("D", stream.name)
    assert numbers_of(bound.fetch()) == [1]
    with pytest.raises(RequestLimitError):
        bound.fetch(2)


def test_binding_succeeds_although_the_lookup_fails(js, stream, subject):
    """A lookup that fails is not an error (ADR-15); the consumer may be created later."""
    early = js.pull_subscribe_bind("D", stream.name)
    with between(0, 3), pytest.raises(ConsumerNotFoundError):
        early.fetch(5, timeout=10)
    with between(0, 3), pytest.raises(ConsumerNotFoundError):
        early.fetch(1, timeout=10)
    stream.create_consumer(durable_name="D")
    put(js, subject, 1)
    assert numbers_of(early.fetch()) == [1]
    with pytest.raises(StreamNotFoundError):
        js.pull_subscribe_bind("D", "no_such_stream").fetch()


def test_a_consumer_with_priority_groups_is_refused(js, stream):
    """Its requests would have to name a group, which this API cannot."""
    if not js.account_info().api.level:
        pytest.skip("groups came with server 2.11")
    stream.create_consumer(durable_name="G", priority_policy="overflow", priority_groups=["A"])
    with pytest.raises(InvalidOptionError, match="group"):
        js.pull_subscribe_bind("G", stream.name)


# --- what a fetch returns ------------------------------------------------------------------------


def test_available_messages_are_returned_at_once(js, subject, sub):
    """Fewer than requested are returned in order, without waiting for more."""
    put(js, subject, 1, 2, 3)
    with between(0, 1):
        assert numbers_of(sub.fetch(10, timeout=10)) == [1, 2, 3]
    assert sub.delivered == 3


def test_a_deleted_consumer_ends_a_fetch(stream, sub):
    """A waiting call raises at once, and so does a later one."""
    with ThreadPoolExecutor(1) as pool, between(0, 5):
        fetched = pool.submit(sub.fetch, 5, 30)
        wait_until(lambda: sub.consumer_info().num_waiting == 1)
        stream.delete_consumer("D")
        with pytest.raises((jetstream_sync.ConsumerDeletedError, ConsumerNotFoundError)):
            fetched.result(5)
        with pytest.raises(ConsumerNotFoundError):
            sub.fetch(5, 30)


# --- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7])
def test_threads_fetch_from_one_subscription(js, subject, sub, batch):
    """Each message goes to exactly one of them, and none is lost."""
    for number in range(600):
        js.publish_async(subject, b"%d" % number)
    js.publish_async_completed(10)
    got: list[int] = []

    def work() -> None:
        while len(got) < 600:
            try:
                messages = sub.fetch(batch, timeout=0.3)
            except TimeoutError:
                continue
            for msg in messages:
                msg.ack()
            got.extend(numbers_of(messages))

    run_all(*[work] * 6)
    assert sorted(got) == list(range(600))
    assert sub.delivered == 600
    wait_until(lambda: sub.consumer_info().num_ack_pending == 0)
    assert sub.consumer_info().delivered.consumer_seq == 600, "none was delivered twice"


# --- ending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["unsubscribe", "drain", "with"])
def test_only_a_consumer_that_it_created_is_deleted(js, stream, subject, how):
    """The end deletes a consumer that the subscription created, also a durable one, unless disabled."""
    for durable in (None, "D"):
        sub = js.pull_subscribe(subject, durable)
        assert len(stream.consumer_names()) == 1
        end(sub, how)
        assert stream.consumer_names() == []
    end(js.pull_subscribe(subject, "D", delete_consumer=False), how)
    end(js.pull_subscribe(subject, "D"), how)
    end(js.pull_subscribe_bind("D", stream.name), how)
    assert stream.consumer_names() == ["D"]


def end(sub: PullSubscription, how: str) -> None:
    """End a subscription in one of three ways."""
    if how == "with":
        with sub:
            assert sub.is_valid
    else:
        getattr(sub, how)()
    assert not sub.is_valid
    for call in (sub.fetch, sub.unsubscribe, sub.drain):
        with pytest.raises(BadSubscriptionError):
            call()


@pytest.mark.parametrize("how", ["unsubscribe", "drain"])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_fetch_under_way_ends_with_the_subscription(js, stream, subject, nc, how, batch):
    """A call that waits for its first message ends at once."""
    sub = js.pull_subscribe(subject)
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(sub.fetch, batch, 30)
        wait_until(lambda: sub.consumer_info().num_waiting == 1)
        with between(0, 2):
            getattr(sub, how)()
            with pytest.raises(BadSubscriptionError):
                fetched.result(5)
    assert subscriptions(nc) == []
    assert stream.consumer_names() == []


def test_a_drain_ends_a_fetch_with_its_messages(js, subject, sub):
    """A fetch that has some of its messages returns them."""
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(sub.fetch, 5, 30)
        wait_until(lambda: sub.consumer_info().num_waiting == 1)
        put(js, subject, 1, 2)
        # After the status that there was no message.
        wait_until(lambda: [inbox.subscription.delivered for inbox in tuple(sub._busy)] == [3])
        sub.drain()
        assert numbers_of(fetched.result(5)) == [1, 2]


@pytest.mark.parametrize("how", ["unsubscribe", "drain"])
def test_unsubscribing_from_a_deleted_consumer_is_no_error(js, stream, subject, how):
    """A consumer or stream that does not exist any more is not an error."""
    one, two = js.pull_subscribe(subject), js.pull_subscribe(subject)
    stream.delete_consumer(one.consumer_name)
    getattr(one, how)()
    js.delete_stream(stream.name)
    getattr(two, how)()


def test_an_error_of_the_deletion_is_raised_or_reported(fresh_server):
    """The error is raised by unsubscribe, and reported to ``error_cb`` after a drain."""
    errors: list[Exception] = []
    with jetstream_sync.connect(fresh_server.url, error_cb=errors.append) as nc:
        js = nc.jetstream(timeout=0.3)
        stream = js.create_stream(name="S", subjects=["s"], storage="memory")
        one, two = js.pull_subscribe("s"), js.pull_subscribe("s")
        with paused(fresh_server):
            with pytest.raises(TimeoutError):
                one.unsubscribe()
            two.drain()
            wait_until(lambda: errors)
        assert isinstance(errors[0], TimeoutError)
        wait_until(lambda: stream.consumer_names() == [])


def test_calls_on_a_closed_connection_raise(nats_server, stream, subject):
    """Every call raises that the connection is closed; the consumer is kept."""
    with jetstream_sync.connect(nats_server.url) as nc, ThreadPoolExecutor(2) as pool:
        sub = nc.jetstream().pull_subscribe(subject, "D")
        waiting = [pool.submit(sub.fetch, batch, 30) for batch in (1, 5)]
        wait_until(lambda: sub.consumer_info().num_waiting == 2)
        nc.close()
        for fetched in waiting:
            with between(0, 1), pytest.raises(ConnectionClosedError):
                fetched.result(5)
    assert not sub.is_valid
    for call in (sub.fetch, sub.unsubscribe, sub.drain, sub.consumer_info):
        with pytest.raises(ConnectionClosedError):
            call()
    assert stream.consumer_names() == ["D"]


def test_nothing_is_left_on_the_server(monitored):
    """Between fetches there is one subscription for single messages, and none after the end."""
    server, subscriptions = monitored
    with jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s"], storage="memory")
        before = len(subscriptions())
        sub = js.pull_subscribe("s", "D")
        put(js, "s", *range(60))
        for batch in (1, 5) * 10:
            sub.fetch(batch)
        nc.flush()
        assert len(subscriptions()) == before + 1
        for batch in (1, 5):
            with pytest.raises(TimeoutError):
                sub.fetch(batch, timeout=0.05)
        nc.flush()
        # None if the server's status did not arrive in time: messages could arrive late.
        assert len(subscriptions()) <= before + 1
        sub.unsubscribe()
        nc.flush()
        assert len(subscriptions()) == before
