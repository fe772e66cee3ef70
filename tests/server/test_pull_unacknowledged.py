"""Bounded pulls with ack policy ``none``: a fetch that ends early loses no message."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.faults import Toward
from fixtures.internals import open_subscriptions
from fixtures.threads import wait_until

from jetstream_sync import AckPolicy, Connection, JetStream, JetStreamMsg, Stream, TimeoutError
from jetstream_sync.jetstream.pull import PullInbox

pytestmark = pytest.mark.usefixtures("short_reply_margin")

#: Fetches a number of messages within a time; returns an empty list if there were none.
Fetching = Callable[[int, float], list[JetStreamMsg]]


@pytest.fixture(params=["consumer", "pull_subscribe"])
def fetch(request: pytest.FixtureRequest, stream: Stream, far: Connection) -> Fetching:
    """All ways to fetch from a durable consumer without acknowledgements."""
    consumer = stream.create_consumer(durable_name="NONE", ack_policy=AckPolicy.NONE)
    if request.param == "consumer":
        return far.jetstream().get_consumer(stream.name, consumer.name).fetch
    sub = far.jetstream().pull_subscribe_bind("NONE", stream.name)

    def fetching(batch: int, timeout: float) -> list[JetStreamMsg]:
        try:
            return sub.fetch(batch, timeout)
        except TimeoutError:
            return []

    return fetching


def fill(js: JetStream, stream: Stream, count: int, size: int = 0) -> None:
    for _ in range(count):
        js.publish_async(f"{stream.name}.x", b"x" * size)
    js.publish_async_completed(20)


def read_to(fetch: Fetching, last: int, got: list[int]) -> list[int]:
    """Fetch until this number of messages has arrived, or none arrives any more."""
    in_vain = 0
    while len(got) < last and in_vain < 3:
        more = [msg.metadata.stream_seq for msg in fetch(min(100, last - len(got)), 0.5)]
        in_vain = 0 if more else in_vain + 1
        got += more
    return got


def inboxes(nc: Connection) -> int:
    """Return the number of inboxes without those that any later fetch may use."""
    idle = list(nc._caches.idle_inboxes.values())
    return sum(
        isinstance(subscription.receiver, PullInbox) and subscription.receiver not in idle
        for subscription in open_subscriptions(nc)
    )


def test_late_messages_go_to_the_next_fetch(js, stream, proxy, fetch):
    """Messages of a reply that arrive after the end of the fetch go to the next ones."""
    fill(js, stream, 200, size=10_000)
    got = [msg.metadata.stream_seq for msg in fetch(10, 5)]
    proxy.hold_after(500_000, Toward.CLIENT)
    got += [msg.metadata.stream_seq for msg in fetch(500, 0.2)]
    assert 10 < len(got) < 100
    proxy.heal()
    assert read_to(fetch, 200, got) == list(range(1, 201))
    # The first request for 500 is over: it ends no later fetch.
    fill(js, stream, 2)
    assert read_to(fetch, 202, got) == list(range(1, 203))


def test_a_kept_inbox_is_closed_with_its_consumer(js, stream, proxy, far):
    """An inbox kept for late messages is closed when the consumer object is garbage-collected."""
    fill(js, stream, 100, size=10_000)
    stream.create_consumer(durable_name="NONE", ack_policy=AckPolicy.NONE)
    consumer = far.jetstream().get_consumer(stream.name, "NONE")
    assert len(consumer.fetch(1)) == 1
    assert inboxes(far) == 0
    proxy.hold_after(200_000, Toward.CLIENT)
    assert consumer.fetch(200, timeout=0.1)
    assert inboxes(far) == 1
    del consumer
    proxy.heal()
    wait_until(lambda: inboxes(far) == 0)


def test_late_messages_keep_the_limit_of_bytes(js, stream, proxy, far):
    """A fetch with ``max_bytes`` takes no more late messages than that, and loses none of the others."""
    fill(js, stream, 200, size=10_000)
    stream.create_consumer(durable_name="NONE", ack_policy=AckPolicy.NONE)
    consumer = far.jetstream().get_consumer(stream.name, "NONE")
    proxy.hold_after(200_000, Toward.CLIENT)
    got = [msg.metadata.stream_seq for msg in consumer.fetch(200, timeout=0.2)]
    proxy.heal()
    wait_until(lambda: far.stats["in_msgs"] >= 200)
    while len(got) < 200:
        more = consumer.fetch(timeout=2, max_bytes=35_000)
        assert 0 < sum(len(msg.data) for msg in more) <= 35_000
        got += [msg.metadata.stream_seq for msg in more]
    assert got == list(range(1, 201))


def test_a_late_status_of_an_earlier_request_ends_no_fetch(js, stream, proxy, far, fetch):
    """A status that arrives after its fetch has ended is ignored by the next one."""
    consumer = stream.get_consumer("NONE")
    proxy.hold(Toward.CLIENT)
    assert fetch(5, 0.1) == []
    wait_until(lambda: consumer.info().num_waiting == 0)
    received = far.stats["in_msgs"]
    with ThreadPoolExecutor(1) as pool:
        sent = far.stats["out_msgs"]
        later = pool.submit(fetch, 5, 1)
        wait_until(lambda: far.stats["out_msgs"] > sent)
        proxy.heal()
        wait_until(lambda: far.stats["in_msgs"] > received)
        wait_until(lambda: consumer.info().num_waiting == 1)
        fill(js, stream, 5)
        assert len(later.result(5)) == 5
