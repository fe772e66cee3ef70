"""Pull subscriptions with faults: lost links, restarts, forks, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.server import break_link, paused
from fixtures.threads import between, wait_until

import jetstream_sync
from jetstream_sync import Connection, PullSubscription, errors
from jetstream_sync.server import NatsServer


@pytest.fixture
def sub(alone: Connection) -> PullSubscription:
    """A subscription with a durable consumer of a stream that survives its server."""
    js = alone.jetstream()
    js.create_stream(name="S", subjects=["s"], storage="file")
    return js.pull_subscribe("s", "D")


@pytest.mark.parametrize("batch", [1, 3])
def test_a_fetch_repeats_its_request_on_the_next_link(alone, sub, batch):
    """It repeats its request on the next link, and gets new messages once."""
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(sub.fetch, batch, 20)
        wait_until(lambda: sub.consumer_info().num_waiting == 1)
        break_link(alone)
        wait_until(lambda: sub.consumer_info().num_waiting == 1)
        js = alone.jetstream()
        for number in range(batch):
            js.publish("s", b"%d" % number)
        messages = fetched.result(5)
    assert [msg.data for msg in messages] == [b"%d" % number for number in range(batch)]
    assert {msg.metadata.num_delivered for msg in messages} == {1}


def test_links_that_broke_between_fetches_are_forgotten(alone, sub):
    """The kept inbox works on the new link, with one or two requests."""
    js = alone.jetstream()
    for number in range(4):
        js.publish("s", b"%d" % number)
        assert sub.fetch(1, timeout=5)[0].data == b"%d" % number
        break_link(alone)
    assert sub.consumer_info().delivered.consumer_seq == 4
    assert sub.consumer_info().num_waiting == 0


@pytest.mark.parametrize("batch", [1, 3])
def test_a_fetch_without_a_link_ends_in_time(alone, sub, fresh_server, batch):
    """Without a link the timeout holds, with a heartbeat or without."""
    fresh_server.kill()
    wait_until(lambda: not alone.is_connected)
    for heartbeat in (None, 0.1):
        with between(0.39, 0.8), pytest.raises(errors.TimeoutError):
            sub.fetch(batch, timeout=0.4, heartbeat=heartbeat)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_fetch_from_a_silent_server_ends_in_time(sub, fresh_server, batch):
    """It ends with its timeout and cancels its requests: no message is sent to an unused inbox."""
    with paused(fresh_server), between(0.29, 0.8), pytest.raises(errors.TimeoutError):
        sub.fetch(batch, timeout=0.3)
    wait_until(lambda: sub.consumer_info().num_waiting == 0)
    with jetstream_sync.connect(fresh_server.url) as other:
        other.jetstream().publish("s", b"0")
    (msg,) = sub.fetch(batch)
    assert msg.metadata.num_delivered == 1


def test_a_user_without_consumer_info_may_pull():
    """Binding needs only the permission to pull; without it a fetch raises at once."""
    users = """
    authorization { users: [
        { user: boss, password: b },
        { user: clerk, password: c, permissions: { publish: { deny: "$JS.API.CONSUMER.INFO.>" } } },
        { user: guest, password: g, permissions: { publish: { deny: "$JS.API.CONSUMER.>" } } },
    ] }
    """
    with (
        NatsServer(config=users) as server,
        jetstream_sync.connect(server.url, user="boss", password="b") as boss,
        jetstream_sync.connect(server.url, user="clerk", password="c") as clerk,
        jetstream_sync.connect(server.url, user="guest", password="g") as guest,
    ):
        js = boss.jetstream()
        js.create_stream(name="S", subjects=["s"], storage="memory").create_consumer(name="C")
        js.publish("s", b"0")
        with between(0, 3):
            sub = clerk.jetstream().pull_subscribe_bind("C", "S")
            assert sub.fetch()[0].data == b"0"
            denied = guest.jetstream().pull_subscribe_bind("C", "S")
            for batch in (1, 5):
                with pytest.raises(errors.PermissionsError):
                    denied.fetch(batch, timeout=10)


# --- forks and Ctrl-C ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
def test_ctrl_c_cancels_the_request_of_a_fetch(alone, sub, batch):
    """The request is removed from the server, and the next fetch gets new messages."""

    def strike() -> None:
        wait_until(lambda: sub.consumer_info().num_waiting == 1)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    striker = threading.Thread(target=strike)
    try:
        striker.start()
        with pytest.raises(KeyboardInterrupt):
            sub.fetch(batch, timeout=20)
    finally:
        striker.join()
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: sub.consumer_info().num_waiting == 0)
    alone.jetstream().publish("s", b"0")
    (msg,) = sub.fetch(batch)
    assert msg.metadata.num_delivered == 1
