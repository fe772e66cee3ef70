"""Ordered readers go on soon after a stream has a leader again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
from fixtures.threads import SCALE

from jetstream_sync import Connection, JetStream, Msg, connect
from jetstream_sync.server import NatsServer

#: How long requests that create consumers get no reply, as without a leader: between the old second and third attempt.
LEADERLESS_S = 4.5


@contextmanager
def leaderless(server: NatsServer) -> Iterator[tuple[Connection, threading.Event]]:
    """Forward the API below ``$JS.FAKE.API``, but requests that create consumers only after the event."""
    with connect(server.url) as proxy, connect(server.url) as user:
        has_leader = threading.Event()

        def forward(msg: Msg) -> None:
            if ".CONSUMER.CREATE." in msg.subject and not has_leader.is_set():
                return
            proxy.publish(msg.subject.replace("$JS.FAKE.API", "$JS.API"), msg.data, msg.reply)

        sub = proxy.subscribe("$JS.FAKE.API.>", cb=forward)
        proxy.flush()
        yield user, has_leader
        sub.unsubscribe()


@pytest.mark.parametrize("reader", ["ordered", "watch"])
def test_a_reader_starts_within_a_second_of_a_leader(nats_server, js: JetStream, reader: str):
    """However long there was no leader, the next attempt follows within a second."""
    kv = js.create_key_value(bucket="LEADERLESS", storage="memory")
    kv.put("a", b"1")
    with leaderless(nats_server) as (nc, has_leader):
        far = nc.jetstream(timeout=30, domain="FAKE")
        elected: list[float] = []

        def elect() -> None:
            elected.append(monotonic())
            has_leader.set()

        timer = threading.Timer(LEADERLESS_S, elect)
        timer.start()
        if reader == "ordered":
            with far.ordered_consumer("KV_LEADERLESS") as consumer:
                consumer.next(timeout=30)
        else:
            with far.key_value("LEADERLESS").watch("a") as watch:
                assert watch.next(30).value == b"1"
        assert monotonic() - elected[0] < 1.0 + 0.3 * SCALE
        timer.join()
    js.delete_key_value("LEADERLESS")
